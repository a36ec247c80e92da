"""EM of the mixture and what it says of rows, against normal mixtures written out in full matrices."""

import jax
import numpy as np
import pytest
from scipy import stats
from scipy.special import logsumexp

from factors import mixed_of
from missbgm.bgm.factor import Prior
from missbgm.fit.analysis import FEWEST_CELLS, Rows, Start, analysed, centres, told

SIZES = pytest.mark.parametrize("n_components", [1, 2, 3])


def started(mixed):
    """The components of a model as EM's own numbers."""
    parts = mixed.parts
    variance = np.stack([part.scale**2 for part in parts])
    weight, bias = (np.stack([getattr(part, name) for part in parts]) for name in ("weight", "bias"))
    arrays = np.log(mixed.share) - 3, weight, bias, variance, np.zeros((0, mixed.size, weight.shape[2]))
    return Start(*(np.float32(a) for a in arrays))


def in_full(start, x, observed):
    """log p(component, x_obs) of every component and row, and the mean of all cells under each: by hand."""
    log_share = np.asarray(start.share, float)
    log_share = log_share - logsumexp(log_share)
    log_prob, means = np.zeros((len(log_share), len(x))), np.zeros((len(log_share), *x.shape))
    for k, share in enumerate(log_share):
        weight, bias, variance = (np.asarray(a[k], float) for a in (start.weight, start.bias, start.variance))
        covariance = weight @ weight.T + np.diag(variance)
        for row, seen in enumerate(observed):
            log_prob[k, row], means[k, row] = share, bias
            if seen.any():
                law = stats.multivariate_normal(bias[seen], covariance[np.ix_(seen, seen)])
                log_prob[k, row] += law.logpdf(x[row, seen])
                gain = weight @ np.linalg.solve(covariance[np.ix_(seen, seen)], weight[seen]).T
                means[k, row] += gain @ (x[row, seen] - bias[seen])
    return log_prob, means


def own_variances(start, k, observed):
    """Variance of every missing cell of every row under one component, by hand."""
    weight, variance = np.asarray(start.weight[k], float), np.asarray(start.variance[k], float)
    covariance = weight @ weight.T + np.diag(variance)
    found = np.tile(np.diag(covariance), (len(observed), 1))
    for row, seen in enumerate(observed):
        if seen.any():
            across = covariance[:, seen]
            gain = np.linalg.solve(covariance[np.ix_(seen, seen)], across.T).T
            found[row] -= (gain * across).sum(axis=1)
    return found


@SIZES
def test_what_is_told_of_rows_is_that_of_a_mixture_of_normals(n_components):
    mixed = mixed_of("mcar", n_components, p=5)
    start, (x, observed) = started(mixed), mixed.coded(40)
    observed[0], x[0] = False, 0
    log_prob, mean, variance = told(start, x, observed)
    expected, means = in_full(start, x.astype(float), observed)
    weight = np.exp(expected - logsumexp(expected, axis=0))
    np.testing.assert_allclose(log_prob, logsumexp(expected, axis=0), atol=2e-4)
    found = np.asarray(mean)
    np.testing.assert_allclose(
        found[~observed], (weight[:, :, None] * means).sum(axis=0)[~observed], atol=2e-4
    )
    second = np.stack([own_variances(start, k, observed) for k in range(n_components)]) + means**2
    spread = (weight[:, :, None] * second).sum(axis=0) - (weight[:, :, None] * means).sum(axis=0) ** 2
    np.testing.assert_allclose(np.asarray(variance)[~observed], spread[~observed], atol=1e-3)


def target(start, rows, prior):
    """What EM climbs: the log density of weighted rows and the log prior, up to constants, by hand."""
    log_prob, _ = in_full(start, np.asarray(rows.x, float), rows.observed)
    share, weight, bias, variance = (np.asarray(a, float) for a in start[:4])
    log_share = share - logsumexp(share)
    slopes = (weight**2).sum(axis=2) + prior.bias * bias**2
    cells = prior.cells + FEWEST_CELLS
    spread = prior.cells * prior.variance + FEWEST_CELLS + slopes
    noise = -0.5 * (cells * np.log(variance) + spread / variance).sum()
    return (rows.weight * logsumexp(log_prob, axis=0)).sum() + noise + prior.rows * log_share.sum()


@SIZES
def test_em_never_falls(n_components):
    mixed, rng = mixed_of("mcar", 3, p=5), np.random.default_rng(1)
    x, observed = mixed.coded(60)
    rows = Rows(x, observed, rng.exponential(size=60).astype(np.float32))
    guess = rng.standard_normal((5, 2)).astype(np.float32)
    where, prior = centres(rng, rows, np.arange(60), n_components), Prior.of(n_components)
    path = [
        target(analysed(rows, guess, where, prior, np.int32(n)), rows, prior)
        for n in (1, 2, 3, 4, 5, 7, 10, 15, 25, 40, 60, 61)
    ]
    # Single precision is good for a millionth or so of the sum.
    assert (np.diff(path) > -2e-6 * np.abs(path[:-1])).all()
    assert path[-1] > path[0] + 2


def test_one_component_recovers_the_law_of_complete_rows():
    """At 4,000 rows an entry of the covariance is known to 0.05 or so."""
    mixed = mixed_of("mcar", p=6)
    case = mixed.parts[0]
    x = mixed.simulate(np.random.default_rng(0), 4_000)[1].T.astype(np.float32)
    start = fitted(Rows(x, np.ones(x.shape, bool), np.ones(4_000, np.float32)), 1)
    found = np.asarray(start.weight[0]) @ np.asarray(start.weight[0]).T + np.diag(start.variance[0])
    expected = case.weight @ case.weight.T + np.diag(case.scale**2)
    np.testing.assert_allclose(found, expected, atol=0.12)
    np.testing.assert_allclose(start.bias[0], case.bias, atol=0.1)


def test_several_components_recover_the_law_of_rows_with_holes():
    """New rows are told as well as by the truth, to a few standard errors' worth of 60 parameters."""
    mixed = mixed_of("mcar", 2, p=6, d=2)
    x, observed = mixed.coded(3_000)
    found = fitted(Rows(x, observed, np.ones(3_000, np.float32)), 2)
    new = mixed.coded(1_000, seed=9)
    loss = np.asarray(told(started(mixed), *new)[0] - told(found, *new)[0])
    assert loss.mean() < 0.03


def fitted(rows, n_components, n_iterations=200):
    rng = np.random.default_rng(1)
    guess = rng.normal(size=(rows.x.shape[1], 2)).astype(np.float32)
    where = centres(rng, rows, np.arange(len(rows.x)), n_components)
    return analysed(rows, guess, where, Prior.of(n_components), np.int32(n_iterations))


def test_latent_rows_are_those_of_the_components():
    mixed = mixed_of("mcar", 2, p=5)
    x, observed = mixed.coded(50)
    rows = Rows(x, observed, np.ones(50, np.float32))
    start, before = fitted(rows, 2, 30), fitted(rows, 2, 29)
    _, means = in_full(before, x.astype(float), observed)
    found = np.einsum("kpd,nkd->knp", before.weight, start.z) + np.asarray(before.bias)[:, None]
    np.testing.assert_allclose(found, means, atol=2e-4)


def test_components_begin_at_usable_rows_and_one_at_the_mean_of_observed_cells():
    x, observed = mixed_of("mcar", p=3).coded(30)
    rows, usable = Rows(x, observed, np.ones(30, np.float32)), np.arange(5, 20)
    mean = np.nanmean(np.where(observed, x, np.nan)[usable], axis=0)
    np.testing.assert_allclose(centres(np.random.default_rng(0), rows, usable, 1), mean[None], rtol=1e-5)
    several = centres(np.random.default_rng(0), rows, usable, 6)
    found = [next(i for i in usable if np.array_equal(x[i], row)) for row in several]
    assert len(set(found)) == 6
    assert centres(np.random.default_rng(0), rows, usable[:2], 6).shape == (6, 3)


def test_one_program_serves_any_number_of_iterations():
    mixed = mixed_of("mcar", 2, p=5)
    rows = Rows(*mixed.coded(50), np.ones(50, np.float32))
    one, two = fitted(rows, 2, 0), fitted(rows, 2, 1)
    assert jax.tree.map(np.shape, one) == jax.tree.map(np.shape, two)
    assert not np.array_equal(one.bias, two.bias)
