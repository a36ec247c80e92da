"""Draws with missing cells integrated out: cells against their law, latent rows against a grid."""

import jax
import numpy as np
import pytest
from scipy import stats

from factors import FAMILIES, case_of, log_joint_fast
from missbgm.fit.laplace import propose
from missbgm.randomness import Seeds, row_keys
from missbgm.sample.collapsed import chain, fill, moments, resample

COPIES = 4_000
RATE = 1e-4


def keys_of(n, seed=0):
    return row_keys(Seeds(jax.random.key(seed), np.arange(n, dtype=np.uint32), np.uint32(0)))


def cdf(case, j, z):
    """The law of a missing cell given its latent row, by quadrature on a fine grid."""
    x = case.mean(z)[j, 0] + case.scale[j] * np.linspace(-9, 9, 100_001)
    density = case.missing_density(np.tile(x, (case.p, 1)), np.repeat(z, len(x), axis=1))[j]
    total = np.concatenate([[0], np.cumsum((density[1:] + density[:-1]) / 2)])
    return lambda value: np.interp(value, x, total / total[-1])


@pytest.mark.parametrize("family", FAMILIES)
def test_missing_cells_follow_their_exact_law(family):
    """False alarms: 1e-4 over columns and two latent rows; draws of many keys are independent."""
    case = case_of(family)
    z = np.random.default_rng(4).standard_normal((2, 2))
    latent = np.repeat(z[:, :, None], COPIES, axis=2).astype(np.float32)
    for j in range(case.p):
        cells = np.arange(COPIES), np.full(COPIES, j)
        drawn = np.asarray(fill(keys_of(COPIES), case.model, case.assumed, latent, *cells), float)
        for k in range(2):
            assert stats.kstest(drawn[k], cdf(case, j, z[k][:, None])).pvalue > RATE / (2 * case.p)


def test_a_cells_draws_do_not_depend_on_the_cells_beside_it():
    case = case_of("selection")
    z = np.random.default_rng(0).standard_normal((4, 2, 8)).astype(np.float32)
    row, column = (a.ravel() for a in np.meshgrid(np.arange(8), np.arange(case.p)))
    given = keys_of(8), case.model, case.assumed, z
    together = np.asarray(fill(*given, row, column))
    np.testing.assert_allclose(fill(*given, row[5:9], column[5:9]), together[:, 5:9], atol=1e-5)
    assert len(np.unique(together)) == together.size


def test_cells_and_draws_are_independent():
    """False alarms: 1e-4 over pairs of cells of a row, of draws, and of both; correlations of ranks."""
    case = case_of("selection")
    z = np.zeros((3, 2, COPIES), np.float32)
    row, column = np.arange(COPIES), np.zeros(COPIES, int)
    drawn = [
        np.asarray(fill(keys_of(COPIES), case.model, case.assumed, z, row, column + j)) for j in range(2)
    ]
    series = [d for cells in drawn for d in cells]
    p = [stats.spearmanr(a, b).pvalue for i, a in enumerate(series) for b in series[:i]]
    assert min(p) > RATE / len(p)


@pytest.mark.parametrize("family", FAMILIES)
def test_moments_of_a_missing_cell_are_those_of_quadrature(family):
    case = case_of(family)
    z = np.random.default_rng(4).standard_normal((3, 2, 5))
    log_weight = np.random.default_rng(5).standard_normal((3, 5))
    weight = np.exp(log_weight) / np.exp(log_weight).sum(axis=0)
    found = moments(case.model, case.assumed, z.astype(np.float32), log_weight.astype(np.float32))
    for power, moment in zip((1, 2), found, strict=True):
        by_row = [case.integrated(z[k], power) / case.integrated(z[k]) for k in range(3)]
        np.testing.assert_allclose(moment, (weight[:, None] * np.array(by_row)).sum(axis=0), atol=1e-4)


def test_resampling_keeps_the_weights():
    """Systematic resampling: counts are within two of their expectation, whatever the shift."""
    rng = np.random.default_rng(0)
    z = np.arange(20.0)[:, None, None] * np.ones((1, 1, 6))
    log_weight = rng.standard_normal((20, 6)).astype(np.float32)
    drawn = np.asarray(resample(keys_of(6), z.astype(np.float32), log_weight, n_draws=400))[:, 0]
    weight = np.exp(log_weight) / np.exp(log_weight).sum(axis=0)
    for row in range(6):
        counts = np.bincount(drawn[:, row].astype(int), minlength=20)
        assert np.abs(counts - 400 * weight[:, row]).max() <= 3


@pytest.mark.parametrize("family", ["selfmask", "selection", "below"])
def test_chains_and_weighted_proposals_agree_with_a_grid(family):
    """False alarms: 1e-4 over both ways; copies of one row are independent."""
    case = case_of(family, d=1)
    _, x, observed = case.simulate(np.random.default_rng(8), 1)
    observed[0], observed[1] = False, True
    x = np.where(observed, np.maximum(x, 0.5) if family == "below" else x, 0)
    grid = np.linspace(-7, 7, 4_001)
    many = [np.repeat(a, len(grid), axis=1) for a in (x, observed)]
    density = np.exp(log_joint_fast(case, grid[None], *many))
    total = np.cumsum(density) / density.sum()
    copies = [np.repeat(a, 2_048, axis=1) for a in (x.astype(np.float32), observed)]
    keys = keys_of(2_048)
    proposed = propose(keys, case.model, case.assumed, *copies, n_proposals=80)
    last = chain(keys, case.model, case.assumed, proposed.mode, *copies, n_burn=60, n_draws=1)[0, 0]
    first = resample(keys, proposed.z, proposed.log_weight, n_draws=1)[0, 0]
    for drawn in (last, first):
        p = stats.kstest(np.asarray(drawn, float), lambda value: np.interp(value, grid, total)).pvalue
        assert p > RATE / 2
