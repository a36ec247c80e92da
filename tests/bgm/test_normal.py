"""Tail functions of the normal against scipy, over the range that models reach."""

import jax
import jax.numpy as jnp
import numpy as np
from scipy import special, stats

from missbgm.bgm.normal import below, hazard, log_cdf, log_cdf_and_hazard

Q = np.linspace(-40, 40, 16_001).astype(np.float32)


def test_the_log_of_the_cdf_agrees_with_scipy_in_both_tails():
    expected = special.log_ndtr(Q.astype(float))
    np.testing.assert_allclose(log_cdf(Q), expected, rtol=1e-6, atol=2e-7)


def test_the_hazard_is_the_density_over_the_cdf():
    q = Q.astype(float)
    expected = np.exp(stats.norm.logpdf(q) - special.log_ndtr(q))
    # An exponent of this size, rounded to single precision, is wrong by so much.
    rounding = np.finfo(np.float32).eps * q**2
    error = np.abs(np.asarray(hazard(jnp.asarray(Q)), float) - expected)
    assert (error <= (1e-6 + rounding) * expected + np.finfo(np.float32).tiny).all()


def test_the_gradient_is_the_hazard():
    q = np.linspace(-12, 8, 4_001)
    slope = jax.vmap(jax.grad(log_cdf))(q.astype(np.float32))
    step = 1e-4
    differences = (special.log_ndtr(q + step) - special.log_ndtr(q - step)) / (2 * step)
    np.testing.assert_allclose(slope, differences, rtol=1e-5, atol=1e-6)


def test_nothing_overflows():
    for value in (-1e4, -1e2, 1e2, 1e4):
        found = log_cdf_and_hazard(jnp.float32(value))
        assert np.isfinite(found).all()


def test_draws_below_a_bound_follow_the_truncated_normal():
    """False alarms: 1e-4 over seven bounds."""
    uniform = np.random.default_rng(0).uniform(2**-24, 1 - 2**-24, 4_000).astype(np.float32)
    for bound in (-9.0, -6.5, -5.0, -2.0, 0.0, 2.0, 6.0):
        draws = np.asarray(below(jnp.full(len(uniform), bound), uniform), float)
        assert (draws <= bound).all()
        assert (
            stats.kstest(draws, lambda x, b=bound: np.exp(special.log_ndtr(x) - special.log_ndtr(b))).pvalue
            > 1e-4 / 7
        )
