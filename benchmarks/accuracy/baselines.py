"""What the paper's engine is compared with: from a table with holes and a seed to a completed table."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

Table = NDArray[np.float64]


def column_means(holes: Table, seed: int) -> Table:
    return np.where(np.isnan(holes), np.nanmean(holes, axis=0), holes)


def neighbours(holes: Table, seed: int) -> Table:
    """Means over the five nearest rows, as scikit-learn finds them."""
    from sklearn.impute import KNNImputer

    return _as_table(KNNImputer(n_neighbors=5).fit_transform(holes))


def chained_equations(holes: Table, seed: int) -> Table:
    """One round-robin of Bayesian ridge regressions, in scikit-learn's form, without noise."""
    from sklearn.experimental import enable_iterative_imputer  # noqa: F401
    from sklearn.impute import IterativeImputer

    return _as_table(IterativeImputer(max_iter=10, random_state=seed).fit_transform(holes))


def extra_trees(holes: Table, seed: int) -> Table:
    """A round-robin of extremely randomised trees, in scikit-learn's form."""
    from sklearn.ensemble import ExtraTreesRegressor
    from sklearn.experimental import enable_iterative_imputer  # noqa: F401
    from sklearn.impute import IterativeImputer

    trees = ExtraTreesRegressor(n_estimators=100, random_state=seed)
    imputer = IterativeImputer(estimator=trees, max_iter=5, random_state=seed)
    return _as_table(imputer.fit_transform(holes))


def _as_table(completed: Any) -> Table:
    return np.asarray(completed, dtype=np.float64)


BASELINES: dict[str, Callable[[Table, int], Table]] = {
    "mean": column_means,
    "neighbours": neighbours,
    "ice": chained_equations,
}
