"""Yeo-Johnson transformations against scikit-learn's, inverses, Jacobians, bounds."""

import numpy as np
import pytest
from sklearn.preprocessing import PowerTransformer

from missbgm.table.array import observations
from missbgm.table.codec import Codec
from missbgm.table.power import Power, restored, transformed


def table(n=400):
    rng = np.random.default_rng(0)
    x = rng.standard_normal((n, 4))
    x[:, 1], x[:, 2], x[:, 3] = np.exp(x[:, 1]), -np.exp(0.5 * x[:, 2]), x[:, 3] ** 3
    return x, rng.random(x.shape) < 0.8


def learnt():
    x, observed = table()
    return Power.learn(x, observed, np.random.default_rng(0))


def test_exponents_are_scikit_learns():
    x, observed = table()
    theirs = PowerTransformer().fit(np.where(observed, x, np.nan))
    np.testing.assert_allclose(learnt().exponent, theirs.lambdas_, atol=2e-4)
    coded = theirs.transform(np.where(observed, x, np.nan))
    np.testing.assert_allclose(learnt().encode(x)[observed], coded[observed], atol=2e-3)


@pytest.mark.parametrize("exponent", [-1.5, 0.0, 0.5, 1.0, 2.0, 3.0])
def test_the_inverse_restores(exponent):
    x = np.linspace(-4, 4, 81)[:, None]
    np.testing.assert_allclose(
        restored(transformed(x, np.array([exponent])), np.array([exponent])), x, atol=1e-9
    )


def test_draws_beyond_what_was_seen_are_bounded():
    x, observed = table()
    power = learnt()
    columns = np.arange(4)
    low = np.where(observed, x, np.inf).min(axis=0)
    high = np.where(observed, x, -np.inf).max(axis=0)
    for code in (-50.0, 50.0):
        decoded = power.decode(np.full((1, 4), code), columns)[0]
        assert (decoded >= low - 0.3 * (high - low) - 1e-9).all()
        assert (decoded <= high + 0.3 * (high - low) + 1e-9).all()
    assert power.reaching(1, 100.0).high[1] > 100.0
    assert power.reaching(1, -100.0).low[1] < -100.0
    np.testing.assert_array_equal(power.taken(2).exponent, power.exponent[2:3])


def test_the_jacobian_is_the_derivative_of_the_coding():
    values = 3 * table()[0] + 5
    observed = observations(np.where(table()[1], values, np.nan))
    codec = Codec.learn(observed)
    for power in (None, Power.learn(codec.encode(observed)[0], observed.observed, np.random.default_rng(0))):
        coded = Codec(codec.order, codec.location, codec.scale, codec.levels, power)
        step = 1e-4
        slopes = np.ones((400, 4))
        for j in range(4):
            up, down = (coded.encode_values(values[:, j] + s, j) for s in (step, -step))
            slopes[:, j] = (up - down) / (2 * step)
        expected = np.where(observed.observed, np.log(slopes), 0).sum(axis=1)
        np.testing.assert_allclose(coded.log_jacobian(observed), expected, atol=1e-5)


def test_long_tables_are_learnt_from_some_of_their_rows():
    rng = np.random.default_rng(0)
    x = np.exp(rng.standard_normal((6_000, 1)))
    found = Power.learn(x, np.ones(x.shape, bool), np.random.default_rng(0))
    everything = PowerTransformer().fit(x)
    np.testing.assert_allclose(found.exponent, everything.lambdas_, atol=0.05)
