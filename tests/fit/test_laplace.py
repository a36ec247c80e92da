"""Latent rows: gradient and curvature against autodiff, held-out likelihood against integration."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats
from scipy.special import logsumexp

from factors import COMPONENTS, MIXTURES, log_joint, mixed_of
from missbgm.bgm.factor import Mixture, probits
from missbgm.bgm.joint import log_marginal
from missbgm.fit.laplace import BLOCK, evaluated, in_blocks, newton, propose
from missbgm.randomness import Seeds, row_keys

N = 12


def rows_of(family, n_components=1, d=2, seed=3, n=N):
    """A mixture, latent rows to look at, and simulated rows, features first."""
    mixed, rng = mixed_of(family, n_components, d=d), np.random.default_rng(seed)
    _, x, observed = mixed.simulate(rng, n)
    z = rng.standard_normal((d, n)).astype(np.float32)
    return mixed, z, np.where(observed, x, 0).astype(np.float32), observed


@pytest.mark.parametrize(("family", "n_components"), MIXTURES)
def test_the_gradient_is_that_of_autodiff(family, n_components):
    mixed, z, x, observed = rows_of(family, n_components)
    for k in range(n_components):
        part = mixed.model.part(k)
        given, masked = probits(part, mixed.assumed), mixed.assumed.masked

        def total(z, part=part, given=given, masked=masked):
            return jnp.sum(log_marginal(part, given, masked, z, x, observed).log_prob)

        found = evaluated(part, given, masked, z, x, observed)
        np.testing.assert_allclose(found.gradient, jax.grad(total)(z), rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize(("family", "n_components"), MIXTURES)
def test_the_newton_curvature_is_minus_the_hessian(family, n_components):
    """Central differences of the gradient by hand, in double precision, against L L'."""
    mixed, z, x, observed = rows_of(family, n_components)
    step = 1e-3
    units = step * np.eye(2)
    for k, case in enumerate(mixed.parts):
        part, masked = mixed.model.part(k), mixed.assumed.masked
        found = evaluated(part, probits(part, mixed.assumed), masked, z, x, observed)
        inverse = np.moveaxis(np.asarray(found.inverse, float), -1, 0)
        for row in range(0, N, 4):
            at = (z[:, [row]].astype(float), x[:, [row]].astype(float), observed[:, [row]])

            def density(move, at=at, case=case):
                return log_joint(case, at[0] + move[:, None], at[1], at[2])[0]

            hessian = np.array(
                [
                    [density(a + b) - density(a - b) - density(b - a) + density(-a - b) for b in units]
                    for a in units
                ]
            ) / (4 * step**2)
            expected = np.linalg.inv(-hessian)
            np.testing.assert_allclose(inverse[row].T @ inverse[row], expected, rtol=2e-3, atol=2e-4)


def test_newton_steps_are_damped():
    mixed, z, x, observed = rows_of("selfmask")
    part = mixed.model.part(0)
    mode = evaluated(part, probits(part, mixed.assumed), mixed.assumed.masked, z + 50, x, observed)
    assert (np.linalg.norm(np.asarray(newton(mode)) - (z + 50), axis=0) <= 2.0 + 1e-4).all()


@pytest.mark.parametrize("d", [1, 2])
@pytest.mark.parametrize(("family", "n_components"), MIXTURES)
def test_the_likelihood_of_rows_is_that_of_brute_force(family, n_components, d):
    """The grid is exact to 1e-6; proposals are 4,000, so that their error is a hundredth or so."""
    mixed, _, x, observed = rows_of(family, n_components, d, n=6)
    found = propose(keys_of(6), mixed.model, mixed.assumed, x, observed, n_proposals=4_000)
    exact = np.stack([mixed.log_evidence(x[:, row].astype(float), observed[:, row]) for row in range(6)], 1)
    np.testing.assert_allclose(found.log_evidence, exact, atol=0.02)
    np.testing.assert_allclose(found.log_prob, logsumexp(exact, axis=0), atol=0.02)
    assert (np.asarray(found.effective_share) > 0.5).all()


def test_a_component_split_into_two_alike_changes_nothing():
    """The second half has proposals of the same numbers, so that even their noise is the same."""
    mixed, _, x, observed = rows_of("selfmask")
    halves = split(mixed.model)
    given = mixed.assumed, x, observed
    one, two = (propose(keys_of(N), m, *given, n_proposals=50) for m in (mixed.model, halves))
    np.testing.assert_allclose(two.log_prob, one.log_prob, atol=1e-5)
    np.testing.assert_allclose(two.effective_share, one.effective_share, atol=1e-5)


def split(model):
    """One component as two of half the share."""

    def doubled(a):
        return np.concatenate([a, a])

    of_data = (doubled(getattr(model, name)) for name in ("share", "weight", "bias", "log_scale", "coupling"))
    return Mixture(*of_data, model.intercept, model.deviation, model.shared)


def test_the_estimate_of_the_likelihood_is_unbiased_with_few_proposals():
    """False alarms: 1e-4 over both. Many small estimates of one row's likelihood average to a large one."""
    copies = 2_000
    for n_components in COMPONENTS:
        mixed, _, x, observed = rows_of("selection", n_components, n=1)
        keys = keys_of(copies, seed=1)
        many = [np.repeat(a, copies, axis=1) for a in (x, observed)]
        given = mixed.model, mixed.assumed
        few = np.asarray(propose(keys, *given, *many, n_proposals=10).log_prob, float)
        large = float(propose(keys[:1], *given, x, observed, n_proposals=20_000).log_prob[0])
        assert stats.ttest_1samp(np.exp(few - large), 1.0).pvalue > 1e-4 / 2


def test_blocks_cover_the_chosen_rows_and_do_not_mix_them():
    mixed, _, x, observed = rows_of("ignorable", 2, n=BLOCK + 10)
    chosen = np.arange(3, BLOCK + 9)
    given = jax.random.key(0), x.T, observed.T
    together = dict(parts(in_blocks(*given, chosen, mixed.model, mixed.assumed, 16)))
    apart = dict(parts(in_blocks(*given, chosen[-5:], mixed.model, mixed.assumed, 16)))
    assert sorted(together) == chosen.tolist()
    for row, log_prob in apart.items():
        assert together[row] == pytest.approx(log_prob, abs=1e-5)


def parts(blocks):
    for place, proposed in blocks:
        yield from zip(place.tolist(), np.asarray(proposed.log_prob).tolist(), strict=False)


def keys_of(n, seed=0):
    return row_keys(Seeds(jax.random.key(seed), np.arange(n, dtype=np.uint32), np.uint32(0)))
