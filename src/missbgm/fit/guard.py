"""When a selection on residuals may be believed: the fit of what was observed, in absolute terms.

Such a selection is told from other mechanisms by the shape of residuals alone. Under it, with latent rows
drawn from their posterior, ``u = Phi2(e, m; -rho) / Phi(m)`` is uniform for observed cells; columns where it
is not, or where many cells share one value, cannot carry one, and a soft slope cannot be told from skewed
residuals.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

MOST_TIED = 0.02  # the largest share of a column's observed cells that may share a value
FEWEST_TIED = 2  # cells that share a value are forgiven up to this number
WORST_FIT = 0.015  # root of the mean squared distance of the observed cells from uniform
WORST_COLUMN = 2.2  # root of n times the Kolmogorov-Smirnov distance of one column
SOFTEST = 14.0  # the median slope of an acceptable cut; the model's steepest is 16.5
NEEDED_GAIN = 2.0  # standard errors of held-out gain over the best other family


def untied(x: NDArray[np.floating], observed: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Columns in which no value is common enough to betray a discrete or piled-up scale."""

    def column(j: int) -> bool:
        values = x[observed[:, j], j]
        if not len(values):
            return False
        most = int(np.unique(values, return_counts=True)[1].max())
        return most <= FEWEST_TIED or most <= MOST_TIED * len(values)

    return np.array([column(j) for j in range(x.shape[1])])


def binormal_cdf(h: Floats, k: Floats, rho: Floats) -> Floats:
    """P(X <= h, Y <= k) for standard normals of correlation rho, by Owen's T (Owen, 1956)."""
    from scipy.special import ndtr, owens_t

    h, k = (np.where(np.abs(a) < 1e-9, 1e-9, a) for a in (h, k))
    rest = np.sqrt(1 - rho * rho)
    opposite = np.where(h * k > 0, 0.0, 0.5)
    tails = owens_t(h, (k / h - rho) / rest) + owens_t(k, (h / k - rho) / rest)
    return np.clip(0.5 * (ndtr(h) + ndtr(k)) - tails - opposite, 0, 1)


def uniforms(residual: Floats, threshold: Floats, correlation: Floats) -> Floats:
    """P(a cell's residual <= what it is, given that it is observed): uniform if the model is true."""
    from scipy.special import ndtr

    reached = binormal_cdf(residual, threshold, -correlation)
    return np.clip(reached / np.maximum(ndtr(threshold), 1e-12), 0, 1)


class Agreement(NamedTuple):
    """How far observed cells are from what a selection on residuals says of them."""

    distance: float  # over all its columns; negative if they are nearer than chance
    noise: float  # standard deviation of the squared distance if the model is true
    worst: Floats  # root of n times the Kolmogorov-Smirnov distance, by column


def agreement(u: Floats, observed: NDArray[np.bool_], columns: NDArray[np.intp]) -> Agreement:
    """Compare uniforms, ``(draws, rows, columns)``, with the uniform law, column by column."""
    squared, worst, noise = [], [], 0.0
    for j in columns:
        seen = observed[:, j]
        n = int(seen.sum())
        by_draw = [_distances(np.sort(draw[seen, j])) for draw in u]
        squared.append(np.mean([(cramer - 1 / 6) / n for cramer, _ in by_draw]))
        worst.append(np.sqrt(n) * np.mean([kolmogorov for _, kolmogorov in by_draw]))
        noise += 1 / 45 / n**2
    mean = float(np.mean(squared))
    distance = float(np.sign(mean) * np.sqrt(abs(mean)))
    return Agreement(distance, float(np.sqrt(noise)) / len(columns), np.array(worst))


def _distances(u: Floats) -> tuple[float, float]:
    """Cramer-von Mises statistic and Kolmogorov-Smirnov distance of sorted numbers from uniform."""
    n = len(u)
    places = np.arange(n)
    cramer = 1 / (12 * n) + float(((u - (places + 0.5) / n) ** 2).sum())
    kolmogorov = float(max((u - places / n).max(), ((places + 1) / n - u).max()))
    return cramer, kolmogorov
