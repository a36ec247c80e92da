"""Draws of discrete cells against enumeration, and the likelihood of mixed rows against integration."""

import jax
import numpy as np
import pytest
from scipy import special, stats

from discrete import CASES, case_of
from missbgm.bgm.factor import Factor, Mixture
from missbgm.fit.laplace import propose
from missbgm.randomness import Seeds, row_keys
from missbgm.sample.collapsed import Drawn, Weighted, fill, fill_classes, moments

COPIES = 4_000
RATE = 1e-4
COMPONENTS = ("share", "weight", "bias", "log_scale", "coupling")
EVERY = pytest.mark.parametrize(("kind", "family"), CASES)


def keys_of(n, seed=0):
    return row_keys(Seeds(jax.random.key(seed), np.arange(n, dtype=np.uint32), np.uint32(0)))


def two_of(case):
    """The case's component twice, the second with all predictors a little higher."""
    block = case.model.discrete[0]
    of_data = {name: np.concatenate([a, a]) for name, a in vars(case.model).items() if name in COMPONENTS}
    blocks = type(block)(
        *(np.concatenate([a, a]) for a in (block.slope, block.constant, block.shape)), block.effect
    )
    blocks.constant[1] += np.float32(0.3)
    return Mixture(**{**vars(case.model), **of_data, "discrete": (blocks,)})


@EVERY
def test_missing_classes_follow_their_exact_law(kind, family):
    """Chi-square over classes; false alarms: 1e-4 over columns, components and two latent rows."""
    case = case_of(kind, family)
    other = case._replace(model=two_of(case))
    second = other._replace(model=component_of(other.model, 1))
    z = np.random.default_rng(4).standard_normal((2, 2)).astype(np.float32)
    latent = np.repeat(z[:, :, None], COPIES, axis=2)
    for under, law in enumerate((case, second)):
        drawn = Drawn(latent, np.full((2, COPIES), under))
        for j in range(2):
            cells = np.arange(COPIES), np.full(COPIES, 2 + j)
            found = np.asarray(
                fill_classes(keys_of(COPIES), other.model, case.assumed, drawn, *cells, number=0)
            )
            for k in range(2):
                expected = law.missing(j, z[k].astype(float)[:, None])[:, 0]
                counts = np.bincount(found[k].astype(int), minlength=len(expected))
                assert len(counts) == len(expected)
                expected = COPIES * expected / expected.sum()
                rare = expected < 5
                pooled = [np.append(a[~rare], a[rare].sum()) for a in (counts, expected)]
                kept = pooled[1] > 0
                p = stats.chisquare(*(a[kept] for a in pooled)).pvalue if kept.sum() > 1 else 1.0
                assert p > RATE / 8


def component_of(model, k):
    """One component as a mixture."""
    block = model.discrete[0]
    part = type(block)(*(a[[k]] for a in (block.slope, block.constant, block.shape)), block.effect)
    of_data = {name: getattr(model, name)[[k]] for name in COMPONENTS}
    return Mixture(**{**vars(model), **of_data, "discrete": (part,)})


def test_a_cells_class_does_not_depend_on_the_cells_beside_it():
    case = case_of("categorical", "selfmask")
    z = np.random.default_rng(0).standard_normal((4, 2, 8)).astype(np.float32)
    drawn = Drawn(z, np.zeros((4, 8), int))
    row, column = (a.ravel() for a in np.meshgrid(np.arange(8), [2, 3]))
    given = keys_of(8), case.model, case.assumed, drawn
    together = np.asarray(fill_classes(*given, row, column, number=0))
    np.testing.assert_array_equal(fill_classes(*given, row[5:9], column[5:9], number=0), together[:, 5:9])


def test_continuous_cells_are_drawn_beside_discrete_ones():
    """False alarms: 1e-4. Self-masked, so that the mean is that of a truncated normal."""
    case = case_of("bernoulli", "mcar")
    z = np.zeros((1, 2, COPIES), np.float32)
    cells = np.arange(COPIES), np.zeros(COPIES, int)
    drawn = np.asarray(
        fill(keys_of(COPIES), case.model, case.assumed, Drawn(z, np.zeros((1, COPIES), int)), *cells)
    )[0]
    part: Factor = case.part
    law = stats.norm(float(part.bias[0]), float(part.scale[0]))
    assert stats.kstest(drawn, law.cdf).pvalue > RATE


@EVERY
def test_moments_of_a_missing_class_are_those_of_enumeration(kind, family):
    case = case_of(kind, family)
    rng = np.random.default_rng(4)
    z = rng.standard_normal((1, 3, 2, 5)).astype(np.float32)
    log_weight = rng.standard_normal((1, 3, 5)).astype(np.float32)
    weight = special.softmax(log_weight[0], axis=0)
    found = moments(case.model, case.assumed, Weighted(z, log_weight))
    for power, moment in zip((1, 2), found, strict=True):
        assert moment.shape == (4, 5)
        for j in range(2):
            expected = 0.0
            for proposal in range(3):
                law = case.missing(j, z[0, proposal].astype(float))
                number = np.arange(len(law))[:, None] ** power
                expected = expected + weight[proposal] * (number * law).sum(axis=0) / law.sum(axis=0)
            np.testing.assert_allclose(moment[2 + j], expected, rtol=2e-3)


@EVERY
def test_the_likelihood_of_mixed_rows_is_that_of_brute_force(kind, family):
    """d = 1: the grid is exact to 1e-6; proposals are 4,000, so that their error is a hundredth or so."""
    case = case_of(kind, family, d=1)
    _, x, observed = case.simulate(np.random.default_rng(3), 12)
    observed[:, 0] = False
    grid = np.linspace(-7, 7, 1_401)
    exact = []
    for row in range(12):
        many = [np.repeat(a[:, [row]], len(grid), axis=1) for a in (x, observed)]
        exact.append(special.logsumexp(case.log_joint(grid[None], *many)) + np.log(grid[1] - grid[0]))
    coded = np.where(observed, x, 0).astype(np.float32)
    found = propose(keys_of(12), case.model, case.assumed, coded, observed, n_proposals=4_000)
    np.testing.assert_allclose(found.log_prob, exact, atol=0.02)
    assert (np.asarray(found.effective_share) > 0.5).all()
