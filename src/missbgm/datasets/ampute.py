"""Holes in a complete table, made by the paper's MNAR mechanism for real data."""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from missbgm.datasets.fetch import standardize
from missbgm.datasets.simulate import check_fraction
from missbgm.errors import ConfigError, TableError

FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]


def ampute_mnar(x: ArrayLike, missing_rate: float = 0.2, seed: int = 0, sign: int = 1) -> BoolArray:
    """Choose the cells of a complete table that stay observed, by the paper's rule for real data.

    With standardised rows ``x~`` and ``W ~ N(0, 0.3^2 / p)``, a cell is observed with probability
    ``sigmoid(sign * (0.6 x~ + 0.4 tanh(x~ W)) + b0)``, and `b0` makes the mean probability exactly
    ``1 - missing_rate``. Afterwards every row and every column keeps at least one observed cell.

    Parameters
    ----------
    x : array of numbers, shape (n, p)
        A complete table; it is standardised inside and not changed.
    missing_rate : float
        Expected share of missing cells, between 0 and 1.
    seed : int
        Same seed, same cells.
    sign : {1, -1}
        1 is the paper's printed formula (large values are more often observed), -1 its prose (large
        values are more often missing).

    Returns
    -------
    observed : bool array, shape (n, p)

    Examples
    --------
    >>> x = np.random.default_rng(0).normal(size=(100, 4))
    >>> observed = ampute_mnar(x, missing_rate=0.3)
    >>> bool(np.isnan(hide(x, observed)).any())
    True
    """
    table = _complete(x)
    if sign not in (1, -1):
        raise ConfigError(f"sign must be 1 (large values observed more often) or -1; got {sign!r}.")
    check_fraction("missing_rate", missing_rate)
    rng = np.random.default_rng(seed)
    score = _score(table, rng)
    score *= sign
    observed = rng.random(score.shape) < observation_probability(score, missing_rate)
    _observe_some(observed, rng)
    return observed


def hide(x: ArrayLike, observed: BoolArray) -> FloatArray:
    """Copy `x` as float64, with NaN wherever `observed` is False.

    Examples
    --------
    >>> hide([[1, 2]], np.array([[True, False]]))
    array([[ 1., nan]])
    """
    table = np.asarray(x, dtype=np.float64)
    if np.shape(observed) != table.shape or np.asarray(observed).dtype != np.bool_:
        raise TableError(
            f"observed must be a bool array of the table's shape {table.shape}; got "
            f"{np.asarray(observed).dtype} of shape {np.shape(observed)}. From a 0/1 mask, pass mask == 1."
        )
    return np.where(observed, table, np.nan)


def observation_probability(score: FloatArray, missing_rate: float) -> FloatArray:
    """``sigmoid(score + b0)``, with the one `b0` that makes its mean equal to ``1 - missing_rate``."""
    # SciPy's submodules take a third of a second to import, and most users of this package never ampute.
    from scipy.optimize import brentq
    from scipy.special import expit

    def probability(intercept: float) -> FloatArray:
        shifted = score + intercept
        return expit(shifted, out=shifted)

    centre = np.log1p(-missing_rate) - np.log(missing_rate)
    bracket = centre - score.max() - 1, centre - score.min() + 1
    # Brent's rule finds bisection's root in a tenth of the passes, which tells on a large table.
    return probability(brentq(lambda b: probability(b).mean() + missing_rate - 1, *bracket))


def _complete(x: ArrayLike) -> FloatArray:
    table = np.asarray(x)
    if table.ndim != 2 or table.size == 0:
        raise TableError(f"expected a table of rows and columns, neither empty; got shape {table.shape}.")
    if table.dtype.kind not in "biuf":
        raise TableError(f"expected a table of numbers; got dtype {table.dtype}. Code text columns first.")
    finite = np.isfinite(table)
    if not finite.all():
        row, column = np.argwhere(~finite)[0]
        raise TableError(
            f"expected a complete table; x[{row}, {column}] is {table[row, column]} and {(~finite).sum()} "
            f"cells in all are NaN or infinite. Drop or fill them first."
        )
    return table.astype(np.float64, copy=False)


def _score(table: FloatArray, rng: np.random.Generator) -> FloatArray:
    """``0.6 x~ + 0.4 tanh(x~ W)``, in place where it can be: a table may fill a good part of the memory."""
    p = table.shape[1]
    score = standardize(table)
    coupling = score @ rng.normal(0, 0.3 / np.sqrt(p), (p, p))
    np.tanh(coupling, out=coupling)
    coupling *= 0.4
    score *= 0.6
    score += coupling
    return score


def _observe_some(observed: BoolArray, rng: np.random.Generator) -> None:
    """Mark, in place, the fewest cells that leave no row and no column without an observed cell."""
    n, p = observed.shape
    rows = rng.permutation(np.flatnonzero(~observed.any(axis=1)))
    columns = rng.permutation(np.flatnonzero(~observed.any(axis=0)))
    # A cell where an empty row meets an empty column mends both, so pairs come first.
    count = max(len(rows), len(columns))
    rows = np.append(rows, rng.integers(n, size=count - len(rows)))
    columns = np.append(columns, rng.integers(p, size=count - len(columns)))
    observed[rows, columns] = True
