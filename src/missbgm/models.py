"""The paper's face: `MissBGM(params).fit(data)`, `x_map_imputed_`, `predict(data)`."""

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from missbgm.cache import enable_cache
from missbgm.config import Config, as_config
from missbgm.engines import alternate
from missbgm.engines.base import Fitted, Task, rmse
from missbgm.errors import ConfigError, MissBGMWarning, NotFittedError
from missbgm.sample.check import Check
from missbgm.summary.draws import Point
from missbgm.table.array import Observations, as_matrix, check_width, observations
from missbgm.table.codec import Kinds


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
        task = Task(table, kinds, self.config, self.random_seed, _truth(x_true, table), verbose)
        self._fit = fitted = alternate.fit(task)
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
        table = fitted.task.table if data is None else observations(data, mask)
        check_width(table, fitted.codec.n_columns)
        truth = _truth(x_true, table)
        level = self.config.posterior.alpha if alpha is None else alpha
        self.draws_ = fitted.draw(table, verbose)
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
        return fitted.impute(table)

    def _fitted(self) -> Fitted:
        if not hasattr(self, "_fit"):
            raise NotFittedError("this MissBGM has not been fitted; call fit(data) first.")
        return self._fit


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
