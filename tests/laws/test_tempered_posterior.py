"""Cells whose mask depends on their own value, one latent dimension: quadrature of the tempered density.

Given z the missing cells are independent, so every marginal is an integral over z of integrals over one cell.
"""

from functools import cache
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import integrate, optimize, stats
from scipy.special import log_expit

from by_hand import Factor, log_joint
from laws.ensembles import KERNELS, copies, judge, mean_p, quantiles_p, settled, short_and_long, uniform_p
from missbgm.config import Config
from missbgm.fit.alternate import Rates, refine
from missbgm.fit.alternate import Rows as Local

Array = NDArray[Any]

SELF_MASKED = Factor(
    loadings=np.array([[1.0], [-0.8], [0.6]]),
    offset=np.array([0.5, -0.5, 1.0]),
    variance=np.array([0.6, 0.8, 0.5]),
    slope=np.array([2.0, -3.0, 1.5]),
    intercept=np.array([0.5, 0.0, -1.0]),
)
OBSERVED = np.array([[1, 0, 0], [0, 1, 1], [0, 0, 0]], bool).T
X = np.array([[0.2, -1.5, 1.8], [1.0, -1.0, 0.5], [-0.3, 0.4, 1.2]]).T  # one row, three cells
Z = np.linspace(-7, 7, 701)
E = np.linspace(-9, 9, 1201)
BETAS = (0.3, 1.0, 2.0)


def cell(j: int, beta: float) -> tuple[Array, Array]:
    """A grid for x_j, and p(x_j | z) p(r_j = 0 | x_j)^beta on it: latent values by cell values."""
    m = SELF_MASKED
    x = m.offset[j] + np.sqrt(m.loadings[j, 0] ** 2 + m.variance[j]) * E
    centre = m.offset[j] + m.loadings[j, 0] * Z[:, None]
    density = stats.norm.pdf(x, centre, np.sqrt(m.variance[j]))
    return x, density * np.exp(beta * log_expit(-m.intercept[j] - m.slope[j] * x))


class Marginals:
    """Every marginal law of one row's z and missing cells, tabulated."""

    def __init__(self, row: int, beta: float) -> None:
        m, seen = SELF_MASKED, OBSERVED[:, row]
        centre = m.offset[seen, None] + m.loadings[seen] * Z
        data = stats.norm.logpdf(X[seen, row, None], centre, np.sqrt(m.variance[seen, None])).sum(axis=0)
        missing = np.flatnonzero(~seen)
        cells = [cell(j, beta) for j in missing]
        totals = [integrate.trapezoid(density, x, axis=1) for x, density in cells]
        latent = np.exp(data + stats.norm.logpdf(Z)) * np.prod(totals, axis=0)
        self.grids, self.densities = [Z], [latent]
        for (x, density), total in zip(cells, totals, strict=True):
            self.grids.append(x)
            self.densities.append((latent / total) @ density)
        # E[z x_j | ...]: the product that ties a cell to its latent row.
        norm = integrate.trapezoid(latent, Z)
        self.products = [
            float(integrate.trapezoid(latent / t * Z * integrate.trapezoid(x * f, x, axis=1), Z) / norm)
            for (x, f), t in zip(cells, totals, strict=True)
        ]

    def cumulative(self, i: int, values: Array) -> Array:
        """The distribution function of unknown `i` (0 is z) at these values."""
        total = integrate.cumulative_simpson(self.densities[i], x=self.grids[i], initial=0)
        return np.interp(values, self.grids[i], total / total[-1])

    def moment(self, i: int, power: int) -> float:
        x, density = self.grids[i], self.densities[i]
        return float(integrate.trapezoid(x**power * density, x) / integrate.trapezoid(density, x))


@cache
def marginals(row: int, beta: float) -> Marginals:
    return Marginals(row, beta)


def test_quadrature_agrees_with_a_plain_grid_of_the_joint_density() -> None:
    row, beta = 0, 0.3
    axes = (np.linspace(-6, 6, 91), np.linspace(-8, 7, 91), np.linspace(-6, 8, 91))
    z, *missing = (a.ravel() for a in np.meshgrid(*axes, indexing="ij"))
    x = np.stack([np.full(z.shape, X[0, row]), *missing])
    terms = log_joint(SELF_MASKED.model, [0, 0, 0], z[None], x, OBSERVED[:, row, None])
    weight = np.exp(terms.prior + terms.data + beta * terms.missingness)
    weight /= weight.sum()
    given = marginals(row, beta)
    for i, value in enumerate((z, *missing)):
        for power in (1, 2):
            found = (weight * value**power).sum()
            np.testing.assert_allclose(found, given.moment(i, power), rtol=1e-4, atol=1e-4)
    for value, expected in zip(missing, given.products, strict=True):
        np.testing.assert_allclose((weight * z * value).sum(), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("beta", BETAS)
@pytest.mark.parametrize("kernel", KERNELS)
@short_and_long(1360, 32768)
def test_chains_settle_in_the_tempered_posterior(kernel: str, beta: float, size: int) -> None:
    """False alarms: 1e-4, over law, quantiles and moments of z and of every missing cell."""
    n, rng = X.shape[1], np.random.default_rng(0)
    x, observed = copies(size, X, OBSERVED)
    x = np.where(observed, x, 2 * rng.standard_normal(x.shape))
    z = 2 * rng.standard_normal((1, n * size))
    z, x = settled(SELF_MASKED.model, z, x, observed, beta=beta, kernel=kernel, n_sweeps=1000)
    p_values: dict[str, float] = {}
    for row in range(n):
        mine, given = slice(row * size, (row + 1) * size), marginals(row, beta)
        found = [z[0, mine], *x[~OBSERVED[:, row], mine]]
        for i, value in enumerate(found):
            name, u = f"row {row}, unknown {i}", given.cumulative(i, value)
            p_values[f"{name}, law"] = uniform_p(u)
            p_values[f"{name}, quantiles"] = quantiles_p(u)
            p_values[f"{name}, mean"] = mean_p(value, given.moment(i, 1))
            p_values[f"{name}, square"] = mean_p(value**2, given.moment(i, 2))
        for i, expected in enumerate(given.products):
            p_values[f"row {row}, z with cell {i}"] = mean_p(found[0] * found[1 + i], expected)
    judge(p_values)


@pytest.mark.parametrize("beta", BETAS)
def test_refining_ends_at_the_tempered_mode(beta: float) -> None:
    # No chance in it: the tolerance is twenty steps of the last rate (Adam ends by circling the mode).
    z, x = np.zeros((1, X.shape[1]), np.float32), np.where(OBSERVED, X, 0).astype(np.float32)
    for rate in (1e-2, 1e-3, 1e-4):
        rates = Rates.of(Config(lr_z=rate, lr_x=rate, beta=beta), 1)
        end = refine(SELF_MASKED.model, Local.start(z, x), OBSERVED, rates, np.int32(2000))
        z, x = end.z, end.x
    for row in range(X.shape[1]):
        missing = ~OBSERVED[:, row]
        best = mode(row, beta)
        np.testing.assert_allclose(np.asarray(z)[0, row], best[0], atol=20 * rate)
        np.testing.assert_allclose(np.asarray(x)[missing, row], best[1:], atol=20 * rate)


def mode(row: int, beta: float) -> Array:
    """The maximum of the tempered joint density over (z, x_mis), in double precision."""
    seen = OBSERVED[:, row]

    def loss(unknown: Array) -> float:
        x = X[:, row].copy()
        x[~seen] = unknown[1:]
        terms = log_joint(SELF_MASKED.model, [0, 0, 0], unknown[:1], x, seen)
        return -float(terms.prior + terms.data + beta * terms.missingness)

    return optimize.minimize(loss, np.zeros(1 + (~seen).sum()), method="BFGS", tol=1e-8).x
