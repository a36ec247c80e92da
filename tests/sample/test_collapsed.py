"""Draws with missing cells integrated out: cells against their law, latent rows against a grid."""

import jax
import numpy as np
import pytest
from scipy import stats

from factors import COMPONENTS, FAMILIES, MIXTURES, mixed_of
from missbgm.fit.laplace import Mode, propose
from missbgm.randomness import Seeds, row_keys
from missbgm.sample.collapsed import Drawn, Weighted, chain, fill, moments, resample

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


@pytest.mark.parametrize(("family", "n_components"), MIXTURES)
def test_missing_cells_follow_their_exact_law(family, n_components):
    """False alarms: 1e-4 over columns and two latent rows; draws of many keys are independent.

    With two components, one latent row is under one of them and the other under the other.
    """
    mixed = mixed_of(family, n_components)
    z = np.random.default_rng(4).standard_normal((2, 2))
    under = np.arange(2) % n_components
    latent = np.repeat(z[:, :, None], COPIES, axis=2).astype(np.float32)
    given = Drawn(latent, np.repeat(under[:, None], COPIES, axis=1))
    for j in range(mixed.p):
        cells = np.arange(COPIES), np.full(COPIES, j)
        drawn = np.asarray(fill(keys_of(COPIES), mixed.model, mixed.assumed, given, *cells), float)
        for k in range(2):
            law = cdf(mixed.parts[under[k]], j, z[k][:, None])
            assert stats.kstest(drawn[k], law).pvalue > RATE / (2 * mixed.p)


def test_a_cells_draws_do_not_depend_on_the_cells_beside_it():
    for n_components in COMPONENTS:
        mixed = mixed_of("selection", n_components)
        rng = np.random.default_rng(0)
        z = rng.standard_normal((4, 2, 8)).astype(np.float32)
        row, column = (a.ravel() for a in np.meshgrid(np.arange(8), np.arange(mixed.p)))
        given = keys_of(8), mixed.model, mixed.assumed, Drawn(z, rng.integers(n_components, size=(4, 8)))
        together = np.asarray(fill(*given, row, column))
        np.testing.assert_allclose(fill(*given, row[5:9], column[5:9]), together[:, 5:9], atol=1e-5)
        assert len(np.unique(together)) == together.size


def test_cells_and_draws_are_independent():
    """False alarms: 1e-4 over pairs of cells of a row, of draws, and of both; correlations of ranks."""
    mixed = mixed_of("selection")
    given = Drawn(np.zeros((3, 2, COPIES), np.float32), np.zeros((3, COPIES), int))
    row, column = np.arange(COPIES), np.zeros(COPIES, int)
    drawn = [
        np.asarray(fill(keys_of(COPIES), mixed.model, mixed.assumed, given, row, column + j))
        for j in range(2)
    ]
    series = [d for cells in drawn for d in cells]
    p = [stats.spearmanr(a, b).pvalue for i, a in enumerate(series) for b in series[:i]]
    assert min(p) > RATE / len(p)


@pytest.mark.parametrize(("family", "n_components"), MIXTURES)
def test_moments_of_a_missing_cell_are_those_of_quadrature(family, n_components):
    mixed, rng = mixed_of(family, n_components), np.random.default_rng(4)
    z, log_weight = rng.standard_normal((n_components, 3, 2, 5)), rng.standard_normal((n_components, 3, 5))
    weight = np.exp(log_weight) / np.exp(log_weight).sum(axis=(0, 1))
    weighted = Weighted(z.astype(np.float32), log_weight.astype(np.float32))
    found = moments(mixed.model, mixed.assumed, weighted)
    for power, moment in zip((1, 2), found, strict=True):
        expected = sum(
            weight[k, number] * case.integrated(z[k, number], power) / case.integrated(z[k, number])
            for k, case in enumerate(mixed.parts)
            for number in range(3)
        )
        np.testing.assert_allclose(moment, expected, atol=1e-4)


def test_resampling_keeps_the_weights():
    """Systematic resampling: counts are within two of their expectation, whatever the shift."""
    rng = np.random.default_rng(0)
    for n_components in COMPONENTS:
        shape = n_components, 20 // n_components
        z = np.arange(20.0).reshape(*shape, 1, 1) * np.ones((1, 1, 1, 6))
        log_weight = rng.standard_normal((*shape, 6)).astype(np.float32)
        found = resample(keys_of(6), Weighted(z.astype(np.float32), log_weight), n_draws=400)
        drawn, component = np.asarray(found.z)[:, 0], np.asarray(found.component)
        np.testing.assert_array_equal(component, drawn.astype(int) // shape[1])
        weight = (np.exp(log_weight) / np.exp(log_weight).sum(axis=(0, 1))).reshape(20, 6)
        for row in range(6):
            counts = np.bincount(drawn[:, row].astype(int), minlength=20)
            assert np.abs(counts - 400 * weight[:, row]).max() <= 3


def row_of(mixed):
    """One simulated row with a cell that is missing and one that is not, features first."""
    _, x, observed = mixed.simulate(np.random.default_rng(8), 1)
    observed[0], observed[1] = False, True
    cut = mixed.parts[0].family == "below"
    return np.where(observed, np.maximum(x, 0.5) if cut else x, 0), observed


GRID = np.linspace(-7, 7, 4_001)


def densities(mixed, x, observed):
    """p(component, z | x_obs, r) of one row on the grid, d = 1: components by nodes, adding up to one."""
    many = [np.repeat(a, len(GRID), axis=1) for a in (x, observed)]
    density = np.exp(mixed.log_joint(GRID[None], *many))
    return density / density.sum()


@pytest.mark.parametrize("n_components", COMPONENTS)
@pytest.mark.parametrize("family", ["selfmask", "selection", "below"])
def test_chains_and_weighted_proposals_agree_with_a_grid(family, n_components):
    """False alarms: 1e-4 over both ways: chains of each component, and components; copies are independent."""
    mixed = mixed_of(family, n_components, d=1)
    x, observed = row_of(mixed)
    density = densities(mixed, x, observed)
    copies = [np.repeat(a, 2_048, axis=1) for a in (x.astype(np.float32), observed)]
    keys = keys_of(2_048)
    proposed = propose(keys, mixed.model, mixed.assumed, *copies, n_proposals=80)
    first = resample(keys, Weighted(proposed.z, proposed.log_weight), n_draws=1)
    p_values = [against(first.z[0, 0], density.sum(axis=0))]
    for k in range(n_components):
        mode = Mode(*(part[k] for part in proposed.mode))
        given = mixed.model.part(k), mixed.assumed, mode, *copies
        p_values.append(against(chain(keys, *given, n_burn=60, n_draws=1)[0, 0], density[k]))
    if n_components > 1:
        counts = np.bincount(first.component[0], minlength=n_components)
        p_values.append(stats.chisquare(counts, 2_048 * density.sum(axis=1)).pvalue)
    assert min(p_values) > RATE / len(p_values)


def against(drawn, density):
    """P-value of draws having this density on the grid."""
    total = np.cumsum(density) / density.sum()
    return stats.kstest(np.asarray(drawn, float), lambda value: np.interp(value, GRID, total)).pvalue


@pytest.mark.parametrize("family", FAMILIES)
def test_missing_cells_of_a_row_follow_the_law_of_two_components(family):
    """False alarms: 1e-4 over the row's missing cells; their law mixes components and latent rows."""
    mixed = mixed_of(family, 2, d=1)
    x, observed = row_of(mixed)
    copies = [np.repeat(a, COPIES, axis=1) for a in (x.astype(np.float32), observed)]
    keys = keys_of(COPIES, seed=2)
    proposed = propose(keys, mixed.model, mixed.assumed, *copies, n_proposals=80)
    drawn = resample(keys, Weighted(proposed.z, proposed.log_weight), n_draws=1)
    gone = np.flatnonzero(~observed[:, 0])
    for j in gone:
        cells = np.arange(COPIES), np.full(COPIES, j)
        found = np.asarray(fill(keys, mixed.model, mixed.assumed, drawn, *cells), float)[0]
        p = stats.kstest(found, mixture_cdf(mixed, j, densities(mixed, x, observed))).pvalue
        assert p > RATE / len(gone)


def mixture_cdf(mixed, j, density):
    """The law of a missing cell: over components and a coarser grid of latent rows, by the trapezoid rule."""
    value, total = np.linspace(-9, 9, 4_001), np.zeros(4_001)
    for case, weight in zip(mixed.parts, density, strict=True):
        for node in np.flatnonzero(weight > 1e-9)[::20]:
            z = np.full((1, len(value)), GRID[node])
            part = case.missing_density(np.tile(value, (case.p, 1)), z)[j]
            total += weight[node] * part / part.sum()
    reached = np.cumsum(total) - total / 2
    return lambda at: np.interp(at, value, reached / total.sum())
