"""The paper's face: `MissBGM(params).fit(data)`, `x_map_imputed_`, `predict(data)`."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from missbgm.cache import enable_cache
from missbgm.config import Config, as_config
from missbgm.engines import alternate, collapse
from missbgm.engines.base import Fitted, Task, rmse
from missbgm.engines.settings import check_agreement
from missbgm.errors import ConfigError, MissBGMWarning, NotFittedError
from missbgm.sample.check import Check, Weighing
from missbgm.summary.card import MechanismCard
from missbgm.summary.draws import Point
from missbgm.table.array import Observations, as_matrix, check_width, observations
from missbgm.table.codec import Kinds

ENGINES: dict[str, Callable[[Task], Fitted]] = {"alternate": alternate.fit, "collapse": collapse.fit}


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
        The table completed by the engine's point estimate of every missing cell: the posterior mode with
        ``engine: alternate``, the posterior mean, averaged over the refits, with ``engine: collapse``.
    history_
        Every named loss term by epoch or iteration, and ``rmse`` when `fit` was given the truth.
    warm_history_
        Losses of the warm start by minibatch.
    status_
        ``"finished"``, ``"stopped early"`` or ``"diverged"``.
    draws_, check_
        What the last `predict` drew, and whether the draws can be relied on.
    evaluation_
        When the last `predict` was given the truth: RMSE of its point estimate, and coverage and mean width
        of its intervals.
    """

    def __init__(self, params: Mapping[str, Any] | Config | str | Path | None = None, random_seed: int = 0):
        self.config = as_config(params)
        check_agreement(self.config)
        self.random_seed = _seed(random_seed)

    def fit(
        self,
        data: Any,
        mask: Any = None,
        x_true: Any = None,
        *,
        kinds: Kinds = None,
        names: Sequence[str] | None = None,
        verbose: int = 1,
    ) -> "MissBGM":
        """Find the model's parameters and a point estimate of every missing cell.

        Parameters
        ----------
        data
            Rows by columns, NaN in missing cells.
        mask
            1 where a cell is observed; taken from the NaNs when None.
        x_true
            The complete table, only to log the error of each epoch of ``engine: alternate``. It decides
            nothing.
        kinds
            ``"gaussian"``, ``"bernoulli"``, ``"categorical"``, ``"ordinal"`` or ``"count"`` for each
            column, or for some by their index; Gaussian when not named. The last two are kinds of
            ``engine: collapse`` only.
        names
            The columns' names, by which the setting ``missingness`` and the answers may call them.
        verbose
            0 for no progress bar.
        """
        enable_cache()
        table = observations(data, mask)
        truth, known = _truth(x_true, table), _names(names, table)
        task = Task(table, kinds, self.config, self.random_seed, truth, verbose, known)
        self._fit = fitted = ENGINES[self.config.engine](task)
        for text in fitted.warnings:
            warnings.warn(text, MissBGMWarning, stacklevel=2)
        self.history_, self.warm_history_ = fitted.history, fitted.warm_history
        self.status_, self.x_map_imputed_ = fitted.status, fitted.completed()
        return self

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
            The table; the fitted one when None. With ``engine: alternate`` its fitted state is reused when it
            is passed again, and the rows of any other table are first moved to their mode (``test_epochs``).
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
        table = fitted.task.table if data is None else observations(data, mask)
        check_width(table, fitted.codec.n_columns)
        truth = _truth(x_true, table)
        level = self.config.posterior.alpha if alpha is None else alpha
        self.draws_ = fitted.draw(table, verbose)
        self.check_: Check | Weighing = self.draws_.sampled.check
        completed = self.draws_.filled(self.draws_.point(point))
        intervals = self.draws_.interval(level)
        if truth is not None:
            self.evaluation_ = _evaluation(completed, intervals, truth, table)
        if self.check_.doubtful:
            warnings.warn(self.check_.verdict, MissBGMWarning, stacklevel=2)
        return completed, intervals

    def impute(self, data: Any, mask: Any = None) -> NDArray[np.float64]:
        """A table completed by the engine's point estimate (see `x_map_imputed_`), without draws kept."""
        fitted = self._fitted()
        table = observations(data, mask)
        check_width(table, fitted.codec.n_columns)
        return fitted.impute(table)

    def log_prob(self, data: Any = None, mask: Any = None) -> NDArray[np.float64]:
        """log p(x_obs, r) of every row, in the units of the table (``engine: collapse`` only).

        Parameters
        ----------
        data
            The table; the fitted one when None.
        mask
            1 where a cell is observed; taken from the NaNs when None.
        """
        fitted = self._fitted()
        table = fitted.task.table if data is None else observations(data, mask)
        check_width(table, fitted.codec.n_columns)
        return fitted.log_prob(table)

    def summary(self) -> str:
        """Which assumption on the missing cells the answer rests on, what it was compared with, in words."""
        return self._fitted().summary()

    def mechanism_card(self, column: int | str) -> MechanismCard:
        """The assumed curve P(missing | value) of a column, with a band (``engine: collapse`` only).

        Parameters
        ----------
        column
            Its index, or its name if `fit` was given names.
        """
        fitted = self._fitted()
        return fitted.mechanism_card(_column(column, fitted))

    def _fitted(self) -> Fitted:
        if not hasattr(self, "_fit"):
            raise NotFittedError("this MissBGM has not been fitted; call fit(data) first.")
        return self._fit


def _names(names: Sequence[str] | None, table: Observations) -> list[str] | None:
    if names is None:
        return None
    known, n_columns = [str(name) for name in names], table.values.shape[1]
    if len(known) != n_columns or len(set(known)) != n_columns:
        raise ConfigError(f"names must be {n_columns} different names, one a column; got {known}.")
    return known


def _column(column: int | str, fitted: Fitted) -> int:
    names, n_columns = fitted.task.names or [], fitted.codec.n_columns
    if isinstance(column, str) and column in names:
        return list(names).index(column)
    if isinstance(column, int | np.integer) and 0 <= column < n_columns:
        return int(column)
    known = f", or one of {', '.join(names)}" if names else ""
    raise ConfigError(f"column must be an index from 0 to {n_columns - 1}{known}; got {column!r}.")


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


def _evaluation(
    completed: NDArray[np.float64],
    intervals: NDArray[np.float64],
    truth: NDArray[np.float64],
    table: Observations,
) -> dict[str, float]:
    hidden = truth[~table.observed]
    inside = (intervals[:, 0] <= hidden) & (hidden <= intervals[:, 1])
    return {
        "rmse": rmse(completed, truth, table),
        "coverage": float(inside.mean()) if len(hidden) else np.nan,
        "width": float((intervals[:, 1] - intervals[:, 0]).mean()) if len(hidden) else np.nan,
    }
