"""The paper's face: `MissBGM(params).fit(data)`, `x_map_imputed_`, `predict(data)`."""

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from missbgm.bgm.joint import Model
from missbgm.bgm.likelihood import Columns
from missbgm.cache import enable_cache
from missbgm.config import Config, as_config
from missbgm.errors import ConfigError, MissBGMWarning, NotFittedError
from missbgm.fit import alternate, loop, start
from missbgm.fit.warm import to_features, warm_start
from missbgm.progress import progress
from missbgm.sample import posterior
from missbgm.sample.check import Check
from missbgm.summary.draws import Draws, Point
from missbgm.table.array import Observations, as_matrix, check_width, observations
from missbgm.table.codec import Codec, Kinds
from missbgm.types import Rng, new_key

DRAWING = 1  # tells the seed of draws from that of fitting
DIVERGED = (
    "training diverged: a loss stopped being finite. The last finite state is kept; lower lr_theta, lr_phi, "
    "lr_z or lr_x, and look for columns with extreme values."
)
UNSETTLED = "the warm start diverged and was skipped; lower egm_init.lr or set egm_init.enabled to false."


class _Fit(NamedTuple):
    """What a fit leaves behind."""

    table: Observations
    codec: Codec
    model: Model | None  # None when every column is constant and there is nothing to model
    z: NDArray[np.float32]
    x: NDArray[np.float32]
    inverse: start.Inverse | None


class MissBGM:
    """Imputation by a joint generative model of a table and its missing cells, as in the paper.

    Parameters
    ----------
    params
        Settings by name, nested as in the paper's table; a `Config`, or the path of a YAML file. What is
        not named keeps its default.
    random_seed
        Seeds everything: the same seed and table give the same answer.

    Attributes
    ----------
    x_map_imputed_
        The table completed by the posterior mode of every missing cell.
    history_
        Every named loss term by epoch, and ``rmse`` when `fit` was given the truth.
    warm_history_
        Losses of the warm start by minibatch.
    status_
        ``"finished"``, ``"stopped early"`` or ``"diverged"``.
    draws_, check_
        What the last `predict` drew, and whether its chains mixed.
    evaluation_
        When the last `predict` was given the truth: RMSE of its point estimate, and coverage and mean width
        of its intervals.
    """

    def __init__(self, params: Mapping[str, Any] | Config | str | Path | None = None, random_seed: int = 0):
        self.config = as_config(params)
        self.random_seed = _seed(random_seed)

    def fit(
        self, data: Any, mask: Any = None, x_true: Any = None, *, kinds: Kinds = None, verbose: int = 1
    ) -> "MissBGM":
        """Find the model's parameters and the mode of every missing cell.

        Parameters
        ----------
        data
            Rows by columns, NaN in missing cells.
        mask
            1 where a cell is observed; taken from the NaNs when None.
        x_true
            The complete table, only to log the error of each epoch. It decides nothing.
        kinds
            ``"gaussian"``, ``"bernoulli"`` or ``"categorical"`` for each column, or for some by their
            index; Gaussian when not named.
        verbose
            0 for no progress bar.
        """
        enable_cache()
        table = observations(data, mask)
        truth = _truth(x_true, table)
        codec = Codec.learn(table, kinds, standardize=self.config.standardize)
        codes, observed = codec.encode(table)
        rng = np.random.default_rng(self.random_seed)
        if not len(codec.order):
            return self._keep(_Fit(table, codec, None, codes, codes, None), {}, {}, "finished")
        warm = warm_start(rng, Columns.of_classes(codec.n_classes), codes, observed, self.config)
        if not warm.finite:
            warnings.warn(UNSETTLED, MissBGMWarning, stacklevel=2)
        state = alternate.start(warm.model, warm.z, warm.x)
        fitted = self._train(rng, state, observed, table, codec, truth, verbose)
        if fitted.status == "diverged":
            warnings.warn(DIVERGED, MissBGMWarning, stacklevel=2)
        z, x = np.asarray(fitted.state.rows.z), np.asarray(fitted.state.rows.x)
        model = fitted.state.model
        inverse = start.Inverse.learn(z, np.asarray(to_features(model.columns, x)))
        return self._keep(
            _Fit(table, codec, model, z, x, inverse), fitted.history, warm.history, fitted.status
        )

    def predict(
        self,
        data: Any = None,
        mask: Any = None,
        x_true: Any = None,
        alpha: float | None = None,
        *,
        point: Point = "mean",
        verbose: int = 1,
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Draw the missing cells of a table from their posterior at the fitted parameters.

        Parameters
        ----------
        data
            The table; the fitted one when None. Its fitted state is reused when it is passed again; the
            rows of any other table are first moved to their mode (``test_epochs``).
        mask
            1 where a cell is observed; taken from the NaNs when None.
        x_true
            The complete table, only for `evaluation_`.
        alpha
            The intervals have level 1 - alpha; ``posterior.alpha`` when None.
        point
            ``"mean"``, ``"median"`` or ``"mode"`` of the draws; classes always get their most probable one.
        verbose
            0 for no progress bar.

        Returns
        -------
        tuple
            The completed table of point estimates, and the lower and upper ends of every missing cell's
            interval, one row a cell, in the order of ``np.argwhere(mask == 0)``.
        """
        fitted = self._fitted()
        table = fitted.table if data is None else observations(data, mask)
        check_width(table, fitted.codec.n_columns)
        truth = _truth(x_true, table)
        level = self.config.posterior.alpha if alpha is None else alpha
        self.draws_ = self._draw(fitted, table, verbose)
        self.check_: Check = self.draws_.sampled.check
        completed = self.draws_.filled(self.draws_.point(point))
        intervals = self.draws_.interval(level)
        if truth is not None:
            self.evaluation_ = _evaluation(completed, intervals, truth, table)
        if self.check_.rhat and not self.check_.mixed:
            warnings.warn(self.check_.verdict, MissBGMWarning, stacklevel=2)
        return completed, intervals

    def impute(self, data: Any, mask: Any = None) -> NDArray[np.float64]:
        """The posterior mode of every missing cell of a table, without draws."""
        fitted = self._fitted()
        table = observations(data, mask)
        check_width(table, fitted.codec.n_columns)
        rows = self._rows(fitted, table)
        return fitted.codec.decode_table(rows.x, table)

    def _fitted(self) -> _Fit:
        if not hasattr(self, "_fit"):
            raise NotFittedError("this MissBGM has not been fitted; call fit(data) first.")
        return self._fit

    def _keep(
        self, fit: _Fit, history: dict[str, NDArray[Any]], warm_history: dict[str, NDArray[Any]], status: str
    ) -> "MissBGM":
        self._fit = fit
        self.history_, self.warm_history_, self.status_ = history, warm_history, status
        self.x_map_imputed_ = fit.codec.decode_table(fit.x, fit.table)
        return self

    def _train(
        self,
        rng: Rng,
        state: alternate.State,
        observed: NDArray[np.bool_],
        table: Observations,
        codec: Codec,
        truth: NDArray[np.float64] | None,
        verbose: int,
    ) -> loop.Fitted:
        with progress("fitting", verbose) as update:

            def on_epoch(number: int, state: alternate.State, terms: dict[str, float]) -> dict[str, float]:
                update(number + 1, self.config.epochs, f"objective {terms['objective']:.4f}")
                if truth is None:
                    return {}
                return {"rmse": _rmse(codec.decode_table(np.asarray(state.rows.x), table), truth, table)}

            return loop.train(rng, state, jnp.asarray(observed), self.config, on_epoch)

    def _rows(self, fitted: _Fit, table: Observations) -> posterior.Rows:
        """Modes of a table's rows: the fitted ones where it is the fitted table."""
        numbers = np.arange(len(table.values), dtype=np.uint32)
        codes, observed = fitted.codec.encode(table)
        if fitted.model is None or fitted.inverse is None or table.same_as(fitted.table):
            return posterior.Rows(fitted.z, fitted.x, observed, numbers)
        rows = posterior.Rows(np.zeros((len(codes), self.config.z_dim), np.float32), codes, observed, numbers)
        return posterior.moved_to_mode(fitted.model, fitted.inverse, rows, self.config)

    def _draw(self, fitted: _Fit, table: Observations, verbose: int) -> Draws:
        rows = self._rows(fitted, table)
        settings = self.config.posterior
        key = new_key(np.random.default_rng((self.random_seed, DRAWING)))
        with progress("drawing", verbose) as update:
            sampled = posterior.draw_posterior(key, fitted.model, rows, settings, self.config.beta, update)
        return Draws(table, fitted.codec, sampled)


def _seed(seed: Any) -> int:
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or not 0 <= seed < 2**63:
        raise ConfigError(f"random_seed must be an integer from 0 to 2**63 - 1, got {seed!r}")
    return int(seed)


def _truth(x_true: Any, table: Observations) -> NDArray[np.float64] | None:
    if x_true is None:
        return None
    truth = as_matrix(x_true, "x_true")
    if truth.shape != table.values.shape:
        raise ConfigError(f"x_true must have the shape of data, {table.values.shape}; got {truth.shape}.")
    return truth


def _rmse(completed: NDArray[np.float64], truth: NDArray[np.float64], table: Observations) -> float:
    errors = (completed - truth)[~table.observed]
    return float(np.sqrt(np.mean(errors**2))) if errors.size else 0.0


def _evaluation(
    completed: NDArray[np.float64],
    intervals: NDArray[np.float64],
    truth: NDArray[np.float64],
    table: Observations,
) -> dict[str, float]:
    hidden = truth[~table.observed]
    inside = (intervals[:, 0] <= hidden) & (hidden <= intervals[:, 1])
    return {
        "rmse": _rmse(completed, truth, table),
        "coverage": float(inside.mean()) if len(hidden) else np.nan,
        "width": float((intervals[:, 1] - intervals[:, 0]).mean()) if len(hidden) else np.nan,
    }
