"""A linear generator with constant noise: (z, x_mis) given x_obs is Gaussian in closed form (beta = 0).

For a Gaussian the joint mode of (z, x_mis) is its mean, so one closed form serves the point estimate too.
"""

from functools import cache
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from by_hand import FACTOR
from laws.ensembles import (
    KERNELS,
    LEVELS,
    copies,
    judge,
    mean_p,
    quantiles_p,
    settled,
    short_and_long,
    uniform_p,
)
from missbgm.config import Config, Posterior
from missbgm.fit.alternate import Rates, refine
from missbgm.fit.alternate import Rows as Local
from missbgm.fit.start import Inverse
from missbgm.sample.posterior import Rows, draw_posterior, moved_to_mode

Array = NDArray[Any]
D, P = FACTOR.loadings.shape[1], len(FACTOR.offset)
OBSERVED = np.array([[1, 1, 1, 0], [0, 1, 0, 1], [1, 0, 0, 0], [0, 0, 0, 0], [1, 0, 1, 1]], bool).T


class Law(NamedTuple):
    """Mean and covariance of (z, x_mis) of one row."""

    mean: Array
    covariance: Array


@cache
def table() -> tuple[Array, Array]:
    """Latent rows and completed rows that the patterns of `OBSERVED` are laid over, features first."""
    z, x, _ = FACTOR.simulate(np.random.default_rng(1), OBSERVED.shape[1])
    return z.T.astype(float), x.T.astype(float)


def law(x: Array, observed: Array) -> Law:
    """By conditioning the joint Gaussian of (z, x) on the observed cells."""
    w = FACTOR.loadings
    joint = np.block([[np.eye(D), w.T], [w, w @ w.T + np.diag(FACTOR.variance)]])
    centre = np.concatenate([np.zeros(D), FACTOR.offset])
    seen = np.concatenate([np.zeros(D, bool), observed])
    gain = joint[np.ix_(~seen, seen)] @ np.linalg.inv(joint[np.ix_(seen, seen)])
    mean = centre[~seen] + gain @ (x[observed] - FACTOR.offset[observed])
    return Law(mean, joint[np.ix_(~seen, ~seen)] - gain @ joint[np.ix_(seen, ~seen)])


def laws() -> list[Law]:
    return [law(x, observed) for x, observed in zip(table()[1].T, OBSERVED.T, strict=True)]


def unknown(z: Array, x: Array, row: int) -> Array:
    """Latent coordinates and missing cells of copies of one row."""
    return np.concatenate([z, x[~OBSERVED[:, row]]])


def started() -> tuple[Array, Array]:
    """Latent rows and rows whose missing cells are far from where they belong."""
    return np.full_like(table()[0], 1.5), np.where(OBSERVED, table()[1], -2.0)


def test_closed_form_agrees_with_the_other_way_of_conditioning() -> None:
    for row, given in enumerate(laws()):
        seen, x = OBSERVED[:, row], table()[1][:, row]
        for part, (mean, covariance) in zip(
            (slice(D), slice(D, None)), (FACTOR.latent(x, seen), FACTOR.missing(x, seen)), strict=True
        ):
            np.testing.assert_allclose(given.mean[part], mean, atol=1e-10)
            np.testing.assert_allclose(given.covariance[part, part], covariance, atol=1e-10)


# Adam at a constant rate ends by circling the mode, some ten steps of its rate away at the most.
CIRCLE = 20


def test_refining_ends_at_the_posterior_mean() -> None:
    # No chance in it: rates fall in turn, and the tolerance follows from the last.
    z, x = (a.astype(np.float32) for a in started())
    for rate in (1e-2, 1e-3, 1e-4):
        rates = Rates.of(Config(lr_z=rate, lr_x=rate, beta=0), 1)
        end = refine(FACTOR.model, Local.start(z, x), OBSERVED, rates, np.int32(2000))
        z, x = end.z, end.x
    for row, given in enumerate(laws()):
        found = unknown(np.asarray(z)[:, row], np.asarray(x)[:, row], row)
        np.testing.assert_allclose(found, given.mean, atol=CIRCLE * rate)
    np.testing.assert_array_equal(np.asarray(x)[OBSERVED], started()[1].astype(np.float32)[OBSERVED])


def test_new_rows_are_moved_to_the_posterior_mean() -> None:
    # No chance in it: the tolerance follows from the rate.
    z, x, _ = FACTOR.simulate(np.random.default_rng(2), 50)
    n, rate = OBSERVED.shape[1], 5e-4
    rows = Rows(
        np.zeros((n, D), np.float32),
        np.where(OBSERVED, table()[1], 0).T.astype(np.float32),
        OBSERVED.T,
        np.arange(n, dtype=np.uint32),
    )
    config = Config(lr_z=rate, lr_x=rate, beta=0, test_epochs=3000, n_inner_steps=2)
    moved = moved_to_mode(FACTOR.model, Inverse.learn(z, x), rows, config)
    for row, given in enumerate(laws()):
        found = unknown(moved.z[row], moved.x[row], row)
        np.testing.assert_allclose(found, given.mean, atol=CIRCLE * rate)


@pytest.mark.parametrize("kernel", KERNELS)
@short_and_long(2048, 32768)
def test_chains_settle_in_the_gaussian_posterior(kernel: str, size: int) -> None:
    """False alarms: 1e-4, over mean, variance, quantiles, law and cross products of z and missing cells."""
    z, x, observed = copies(size, *started(), OBSERVED)
    z, x = settled(FACTOR.model, z, x, observed, beta=0, kernel=kernel, n_sweeps=200)
    p_values: dict[str, float] = {}
    for row, given in enumerate(laws()):
        mine = slice(row * size, (row + 1) * size)
        found = unknown(z[:, mine], x[:, mine], row)
        e = np.linalg.solve(np.linalg.cholesky(given.covariance), found - given.mean[:, None])
        sd = np.sqrt(np.diag(given.covariance))
        for i, value in enumerate(found):
            score = (value - given.mean[i]) / sd[i]
            p_values |= gaussian_p(f"row {row}, unknown {i}", score)
            # Whitened coordinates are independent: their products have mean zero.
            p_values |= {f"row {row}, {i} with {j}": mean_p(e[i] * e[j], 0) for j in range(i)}
    judge(p_values)


def gaussian_p(name: str, score: Array) -> dict[str, float]:
    """P-values of independent standard normals."""
    n = len(score)
    tail = stats.chi2.cdf((score**2).sum(), n)
    u = stats.norm.cdf(score)
    return {
        f"{name}, mean": float(2 * stats.norm.sf(abs(score.sum()) / np.sqrt(n))),
        f"{name}, variance": float(2 * min(tail, 1 - tail)),
        f"{name}, quantiles": quantiles_p(u),
        f"{name}, law": uniform_p(u),
    }


@pytest.mark.parametrize("kernel", KERNELS)
@short_and_long(128, 1024)
def test_draws_have_the_means_sds_and_quantiles_of_the_gaussian_posterior(kernel: str, size: int) -> None:
    """False alarms: 1e-4, over every missing cell; copies of a row are independent, its draws are not."""
    z, x, observed = copies(size, *started(), OBSERVED)
    numbers = np.arange(z.shape[1], dtype=np.uint32)
    rows = Rows(z.T.astype(np.float32), x.T.astype(np.float32), observed.T, numbers)
    settings = Posterior(burn_in=100, n_mcmc=40, thin=5, x_kernel=kernel)
    sampled = draw_posterior(jax.random.key(0), FACTOR.model, rows, settings, beta=0)
    p_values, at = {}, 0
    for row, given in enumerate(laws()):
        n_missing = int((~OBSERVED[:, row]).sum())
        cells = slice(at, at + size * n_missing)
        shape = (size, n_missing)
        draws = sampled.values[0][:, cells].reshape(-1, *shape).astype(float)
        means, sds = sampled.mean[cells].reshape(shape), sampled.sd[cells].reshape(shape)
        for i in range(n_missing):
            centre, sd = given.mean[D + i], np.sqrt(given.covariance[D + i, D + i])
            u = stats.norm.cdf(draws[..., i], centre, sd)
            name = f"row {row}, cell {i}"
            p_values[f"{name}, mean"] = mean_p(draws[..., i].mean(axis=0), centre)
            p_values[f"{name}, streamed mean"] = mean_p(means[:, i], centre)
            p_values[f"{name}, variance"] = mean_p(((draws[..., i] - centre) ** 2).mean(axis=0), sd**2)
            squares = sds[:, i] ** 2 * (1 - 1 / 200) + (means[:, i] - centre) ** 2
            p_values[f"{name}, streamed variance"] = mean_p(squares, sd**2)
            for level in LEVELS:
                p_values[f"{name}, {level:.0%}"] = mean_p((u < level).mean(axis=0), level)
        at = cells.stop
    judge(p_values)
