"""Latent rows: gradient and curvature against autodiff, held-out likelihood against integration."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from factors import FAMILIES, case_of, log_joint, log_joint_fast
from missbgm.bgm.factor import probits
from missbgm.bgm.joint import log_marginal
from missbgm.fit.laplace import BLOCK, evaluated, in_blocks, newton, propose
from missbgm.randomness import Seeds, row_keys

N = 12


def rows_of(family, d=2, seed=3, n=N):
    case = case_of(family, d=d)
    z, x, observed = case.simulate(np.random.default_rng(seed), n)
    return case, z.astype(np.float32), np.where(observed, x, 0).astype(np.float32), observed


@pytest.mark.parametrize("family", FAMILIES)
def test_the_gradient_is_that_of_autodiff(family):
    case, z, x, observed = rows_of(family)
    given = probits(case.model, case.assumed)

    def total(z):
        return jnp.sum(log_marginal(case.model, given, case.assumed.masked, z, x, observed).log_prob)

    found = evaluated(case.model, given, case.assumed.masked, z, x, observed)
    np.testing.assert_allclose(found.gradient, jax.grad(total)(z), rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_newton_curvature_is_minus_the_hessian(family):
    """Central differences of the gradient by hand, in double precision, against L L'."""
    case, z, x, observed = rows_of(family)
    found = evaluated(case.model, probits(case.model, case.assumed), case.assumed.masked, z, x, observed)
    inverse = np.moveaxis(np.asarray(found.inverse, float), -1, 0)
    step = 1e-3
    for row in range(0, N, 4):
        at = (z[:, [row]].astype(float), x[:, [row]].astype(float), observed[:, [row]])

        def density(move, at=at):
            return log_joint(case, at[0] + move[:, None], at[1], at[2])[0]

        units = step * np.eye(2)
        hessian = np.array(
            [
                [density(a + b) - density(a - b) - density(b - a) + density(-a - b) for b in units]
                for a in units
            ]
        ) / (4 * step**2)
        expected = np.linalg.inv(-hessian)
        np.testing.assert_allclose(inverse[row].T @ inverse[row], expected, rtol=2e-3, atol=2e-4)


def test_newton_steps_are_damped():
    case, z, x, observed = rows_of("selfmask")
    mode = evaluated(case.model, probits(case.model, case.assumed), case.assumed.masked, z + 50, x, observed)
    assert (np.linalg.norm(np.asarray(newton(mode)) - (z + 50), axis=0) <= 2.0 + 1e-4).all()


@pytest.mark.parametrize("d", [1, 2])
@pytest.mark.parametrize("family", FAMILIES)
def test_the_likelihood_of_rows_is_that_of_brute_force(family, d):
    """The grid is exact to 1e-6; proposals are 4,000, so that their error is a hundredth or so."""
    case, _, x, observed = rows_of(family, d, n=6)
    keys = row_keys(Seeds(jax.random.key(0), np.arange(6, dtype=np.uint32), np.uint32(0)))
    found = propose(keys, case.model, case.assumed, x, observed, n_proposals=4_000)
    axis = np.linspace(-6, 6, 121 if d == 2 else 481)
    grid = np.stack([a.ravel() for a in np.meshgrid(*[axis] * d)])
    step = (axis[1] - axis[0]) ** d
    for row in range(6):
        many = [np.repeat(a[:, [row]], grid.shape[1], axis=1) for a in (x.astype(float), observed)]
        with np.errstate(divide="ignore"):
            exact = np.log(np.exp(log_joint_fast(case, grid, *many)).sum() * step)
        assert abs(float(found.log_prob[row]) - exact) < 0.02
    assert (np.asarray(found.effective_share) > 0.5).all()


def test_the_estimate_of_the_likelihood_is_unbiased_with_few_proposals():
    """False alarms: 1e-4. Many small estimates of one row's likelihood average to a large one."""
    from scipy import stats

    case, _, x, observed = rows_of("selection", n=1)
    copies = 2_000
    keys = row_keys(Seeds(jax.random.key(1), np.arange(copies, dtype=np.uint32), np.uint32(0)))
    many = [np.repeat(a, copies, axis=1) for a in (x, observed)]
    few = np.asarray(propose(keys, case.model, case.assumed, *many, n_proposals=10).log_prob, float)
    large = float(propose(keys[:1], case.model, case.assumed, x, observed, n_proposals=20_000).log_prob[0])
    assert stats.ttest_1samp(np.exp(few - large), 1.0).pvalue > 1e-4


def test_blocks_cover_the_chosen_rows_and_do_not_mix_them():
    case, _, x, observed = rows_of("ignorable", n=BLOCK + 10)
    chosen = np.arange(3, BLOCK + 9)
    given = jax.random.key(0), x.T, observed.T
    together = dict(parts(in_blocks(*given, chosen, case.model, case.assumed, 16)))
    apart = dict(parts(in_blocks(*given, chosen[-5:], case.model, case.assumed, 16)))
    assert sorted(together) == chosen.tolist()
    for row, log_prob in apart.items():
        assert together[row] == pytest.approx(log_prob, abs=1e-5)


def parts(blocks):
    for place, proposed in blocks:
        yield from zip(place.tolist(), np.asarray(proposed.log_prob).tolist(), strict=False)
