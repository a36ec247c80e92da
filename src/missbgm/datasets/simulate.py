"""The paper's synthetic benchmark: a Gaussian table whose missing cells have a known posterior."""

from math import sqrt
from numbers import Integral, Real
from statistics import NormalDist
from typing import NamedTuple, TypedDict

import numpy as np
from numpy.typing import NDArray

from missbgm.errors import ConfigError

FloatArray = NDArray[np.float64]


class OracleData(TypedDict):
    """What `simulate_mnar_oracle_data` returns.

    The last five entries hold one value for each missing cell, in the order of ``np.argwhere(mask == 0)``.
    """

    x_obs: FloatArray
    mask: NDArray[np.int64]
    x_full: FloatArray
    actual_missing_rate: float
    oracle_mean: FloatArray
    oracle_sd: FloatArray
    oracle_lower: FloatArray
    oracle_upper: FloatArray
    ignorable_mean: FloatArray


class _CutNormal(NamedTuple):
    """A standard normal cut at `kappa`: moments and quantiles above the cut, and the mean below it."""

    kappa: float
    mean: float
    sd: float
    lower: float
    upper: float
    mean_below: float


def simulate_mnar_oracle_data(
    n_samples: int,
    x_dim: int,
    n_anchor: int = 5,
    missing_rate: float = 0.2,
    alpha: float = 0.05,
    seed: int = 123,
) -> OracleData:
    """Simulate the paper's synthetic benchmark.

    The first `n_anchor` columns are standard normal and always observed. Every other column is Gaussian
    given them, and a cell of it is missing exactly when it exceeds its own conditional quantile of level
    ``1 - missing_rate``.

    Parameters
    ----------
    n_samples, x_dim : int
        Rows and columns.
    n_anchor : int
        Columns that are always observed, fewer than `x_dim`.
    missing_rate : float
        Probability that a cell outside the anchors is missing, between 0 and 1.
    alpha : float
        The oracle's intervals have probability ``1 - alpha``.
    seed : int
        Same seed, same data.

    Returns
    -------
    OracleData
        A dict with `x_obs` (NaN where missing), `mask` (1 = observed), `x_full`, `actual_missing_rate`
        (outside the anchors) and, for each missing cell in row-major order, `oracle_mean`, `oracle_sd`,
        `oracle_lower`, `oracle_upper` (the truncated normal from which it came) and `ignorable_mean`: its
        mean had it been observed, the best guess of any method that ignores why cells are missing.

    Examples
    --------
    >>> data = simulate_mnar_oracle_data(n_samples=500, x_dim=50)
    >>> data["x_obs"].shape, data["oracle_mean"].size == (data["mask"] == 0).sum()
    ((500, 50), np.True_)
    """
    _check_sizes(n_samples, x_dim, n_anchor)
    cut = _cut_normal(check_fraction("missing_rate", missing_rate), check_fraction("alpha", alpha))
    anchors, mean, sd, target = _complete_table(n_samples, x_dim, n_anchor, np.random.default_rng(seed))
    cells = target > mean + sd * cut.kappa
    x_full = np.hstack([anchors, target])
    missing = np.hstack([np.zeros(anchors.shape, bool), cells])
    mu, sigma = mean[cells], np.broadcast_to(sd, cells.shape)[cells]
    return {
        "x_obs": np.where(missing, np.nan, x_full),
        "mask": (~missing).astype(np.int64),
        "x_full": x_full,
        "actual_missing_rate": float(cells.mean()),
        "oracle_mean": mu + sigma * cut.mean,
        "oracle_sd": sigma * cut.sd,
        "oracle_lower": mu + sigma * cut.lower,
        "oracle_upper": mu + sigma * cut.upper,
        "ignorable_mean": mu + sigma * cut.mean_below,
    }


def check_fraction(name: str, value: float) -> float:
    """Return `value` as a float, or raise `ConfigError` unless it lies strictly between 0 and 1."""
    if not isinstance(value, Real) or not 0 < value < 1:
        raise ConfigError(f"{name} must lie strictly between 0 and 1; got {value!r}.")
    return float(value)


def _check_sizes(n_samples: int, x_dim: int, n_anchor: int) -> None:
    for name, value in (("n_samples", n_samples), ("x_dim", x_dim), ("n_anchor", n_anchor)):
        if not isinstance(value, Integral) or value < 1:
            raise ConfigError(f"{name} must be a whole number of at least 1; got {value!r}.")
    if n_anchor >= x_dim:
        raise ConfigError(
            f"n_anchor must be smaller than x_dim, so that some column can have missing cells; "
            f"got n_anchor={n_anchor} and x_dim={x_dim}."
        )


def _complete_table(
    n: int, p: int, n_anchor: int, rng: np.random.Generator
) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
    """Anchors, and the conditional means, standard deviations and values of the other columns."""
    slopes = rng.normal(0, 0.4, (n_anchor, p - n_anchor))
    intercepts = rng.normal(0, 0.3, p - n_anchor)
    sd = rng.uniform(0.6, 1.2, p - n_anchor)
    anchors = rng.normal(size=(n, n_anchor))
    mean = anchors @ slopes + intercepts
    return anchors, mean, sd, mean + sd * rng.normal(size=mean.shape)


def _cut_normal(above: float, alpha: float) -> _CutNormal:
    """Cut a standard normal so that `above` is the probability beyond the cut."""
    normal = NormalDist()
    # Every quantile is taken from the upper tail: 1 - above would round away a small missing rate.
    kappa = -normal.inv_cdf(above)
    hazard = normal.pdf(kappa) / above
    return _CutNormal(
        kappa=kappa,
        mean=hazard,
        sd=sqrt(1 - hazard * (hazard - kappa)),
        lower=-normal.inv_cdf(above * (1 - alpha / 2)),
        upper=-normal.inv_cdf(above * alpha / 2),
        mean_below=-normal.pdf(kappa) / (1 - above),
    )
