"""Networks: Flipout against direct draws of weights and closed forms, penalties, moments, forward passes."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import integrate, stats

from missbgm.bgm.networks import (
    EPSILON,
    PRIOR_SD,
    Critic,
    Dense,
    Generator,
    Moments,
    Normalisation,
    Perceptron,
    UncertainDense,
    draw_weights,
    is_uncertain,
    layers_of,
    leaky_relu,
    mean_weights,
    penalty,
    softplus,
)

Array = NDArray[Any]
N_KEYS = 20_000


def rng() -> np.random.Generator:
    return np.random.default_rng(0)


@pytest.fixture(scope="module")
def layer() -> UncertainDense:
    """Three inputs, two outputs; standard deviations from 0.1 to 1.3."""
    r = rng()
    mean = Dense(r.standard_normal((2, 3), np.float32), r.standard_normal(2, np.float32))
    spread = Dense(r.uniform(-2, 1, (2, 3)).astype(np.float32), r.uniform(-2, 1, 2).astype(np.float32))
    return UncertainDense(mean, spread)


def scales(layer: UncertainDense) -> tuple[Array, Array]:
    return np.log1p(np.exp(layer.spread.weight)), np.log1p(np.exp(layer.spread.bias))


H = np.array([[1.0, 1.0], [-2.0, -2.0], [0.5, 0.5]], np.float32)  # two rows with the same features


@pytest.fixture(scope="module")
def perturbed(layer: UncertainDense) -> Array:
    """Outputs under many keys: keys, outputs, rows."""
    keys = jax.random.split(jax.random.key(1), N_KEYS)
    return np.asarray(jax.jit(jax.vmap(lambda key: layer(H, key)))(keys))


@pytest.fixture(scope="module")
def drawn(layer: UncertainDense) -> Array:
    """Outputs under direct draws of the weights."""
    keys = jax.random.split(jax.random.key(2), N_KEYS)
    return np.asarray(jax.jit(jax.vmap(lambda key: layer.draw(key)(H)))(keys))


def test_flipout_of_one_row_has_the_law_of_directly_drawn_weights(
    layer: UncertainDense, perturbed: Array, drawn: Array
) -> None:
    # For one row the signs cancel: outputs are Gaussian. Eight tests at 1e-5 each.
    weight, bias = scales(layer)
    variance = weight**2 @ H[:, 0] ** 2 + bias**2
    mean = layer.mean.weight @ H[:, 0] + layer.mean.bias
    for outputs in (perturbed, drawn):
        for row in range(2):
            for i in range(2):
                law = stats.norm(mean[i], np.sqrt(variance[i]))
                assert stats.kstest(outputs[:, i, row], law.cdf).pvalue > 1e-5
                # chi-square with N_KEYS degrees of freedom
                squares = ((outputs[:, i, row] - mean[i]) ** 2).sum() / variance[i]
                assert 5e-6 < stats.chi2.cdf(squares, N_KEYS) < 1 - 5e-6


def test_flipout_of_different_rows_is_uncorrelated(perturbed: Array, drawn: Array) -> None:
    # Four correlations (every output of one row with every output of the other) at 1e-5 each.
    limit = stats.norm.isf(5e-6) / np.sqrt(N_KEYS)
    cross = np.corrcoef(perturbed[:, :, 0].T, perturbed[:, :, 1].T)[:2, 2:]
    assert np.abs(cross).max() < limit
    # Rows with the same features under one direct draw are the same: the oracle can fail.
    np.testing.assert_allclose(drawn[:, :, 0], drawn[:, :, 1], rtol=1e-5, atol=1e-5)


def test_without_a_key_the_mean_weights_are_used(layer: UncertainDense) -> None:
    np.testing.assert_array_equal(layer(H), layer.mean(H))
    np.testing.assert_allclose(layer(H[:, 0]), layer(H)[:, 0], rtol=1e-6)
    assert layer(H[:, 0], jax.random.key(0)).shape == (2,)


def test_divergence_from_the_prior_is_its_integral(layer: UncertainDense) -> None:
    means = np.concatenate([layer.mean.weight.ravel(), layer.mean.bias])
    sds = np.concatenate([part.ravel() for part in scales(layer)])
    expected = 0.0
    for m, sd in zip(means.astype(float), sds.astype(float), strict=True):
        q = stats.norm(m, sd)

        def integrand(w: float, q: Any = q) -> float:
            return q.pdf(w) * (q.logpdf(w) - stats.norm(0, PRIOR_SD).logpdf(w))

        expected += integrate.quad(integrand, m - 12 * sd, m + 12 * sd)[0]
    np.testing.assert_allclose(layer.penalty(), expected, rtol=1e-5)


def test_penalty_of_fixed_weights_is_their_squared_norm() -> None:
    network = Perceptron.create(rng(), (3, 4, 2))
    expected = sum((layer.weight**2).sum() + (layer.bias**2).sum() for layer in network.layers)
    np.testing.assert_allclose(penalty(network), expected, rtol=1e-6)


def test_drawn_and_mean_weights_replace_every_uncertain_layer() -> None:
    network = Generator.create(rng(), 2, (4, 3), 5, uncertain=True)
    assert is_uncertain(network)
    assert len(layers_of(network)) == 3
    mean = mean_weights(network)
    one, again, other = (draw_weights(network, jax.random.key(seed)) for seed in (0, 0, 1))
    for fixed in (mean, one, other):
        assert not is_uncertain(fixed)
        assert jax.tree.map(jnp.shape, fixed) == jax.tree.map(jnp.shape, mean)
    for a, b, c, m in zip(*map(layers_of, (one, again, other, mean)), strict=True):
        for part in ("weight", "bias"):
            x, same, differs, centre = (np.asarray(getattr(layer, part)) for layer in (a, b, c, m))
            np.testing.assert_array_equal(x, same)
            assert (x != differs).all()
            assert (x != centre).all()
    # Layers are drawn from different keys: equal shapes would otherwise move alike.
    twins = Perceptron.create(rng(), (3, 3, 3), uncertain=True)
    moved = draw_weights(twins, jax.random.key(0))
    first, second = (
        np.asarray(new.weight - old.weight)
        for new, old in zip(moved.layers, mean_weights(twins).layers, strict=True)
    )
    assert not np.isclose(first, second).any()


def test_fixed_networks_are_their_own_draw() -> None:
    network = Perceptron.create(rng(), (2, 3, 1))
    drawn = draw_weights(network, jax.random.key(0))
    for a, b in zip(jax.tree.leaves(network), jax.tree.leaves(drawn), strict=True):
        np.testing.assert_array_equal(a, b)


def test_softplus_and_its_slope() -> None:
    h = np.array([-200.0, -30.0, -1.0, -1e-3, 1e-3, 1.0, 30.0, 200.0], np.float32)
    np.testing.assert_allclose(softplus(h), np.logaddexp(0, h.astype(float)), rtol=1e-6, atol=1e-12)
    slope = jax.vmap(jax.grad(softplus))(h)
    np.testing.assert_allclose(slope, 1 / (1 + np.exp(-h.astype(float))), rtol=1e-6, atol=1e-12)


def test_perceptron_forward() -> None:
    network = Perceptron.create(rng(), (3, 4, 2))
    first, last = network.layers
    h = rng().standard_normal((3, 5)).astype(np.float32)
    hidden = first.weight @ h + first.bias[:, None]
    expected = last.weight @ np.where(hidden > 0, hidden, 0.2 * hidden) + last.bias[:, None]
    np.testing.assert_allclose(network(h), expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(network(h[:, 0]), expected[:, 0], rtol=1e-5, atol=1e-6)


def test_generator_normalises_its_input_with_the_given_moments() -> None:
    network = Generator.create(rng(), 2, (), 3, uncertain=False)
    normalisation = Normalisation(np.array([2.0, 0.5], np.float32), np.array([1.0, -1.0], np.float32))
    network = Generator(normalisation, network.body)
    moments = Moments(np.array([0.3, -0.2], np.float32), np.array([4.0, 0.25], np.float32))
    z = rng().standard_normal((2, 5)).astype(np.float32)
    scaled = (z - moments.mean[:, None]) / np.sqrt(moments.variance + EPSILON)[:, None]
    (layer,) = network.body.layers
    expected = layer.weight @ (scaled * [[2.0], [0.5]] + [[1.0], [-1.0]]) + layer.bias[:, None]
    np.testing.assert_allclose(network(z, moments), expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(network(z[:, 0], moments), expected[:, 0], rtol=1e-5, atol=1e-6)


def test_critic_forward() -> None:
    critic = Critic.create(rng(), 3, (4, 5))
    h = rng().standard_normal((3, 6)).astype(np.float32)
    first, second, last = critic.body.layers
    hidden = np.tanh(first.weight @ h)
    hidden = second.weight @ hidden
    hidden = (hidden - hidden.mean(1, keepdims=True)) / np.sqrt(hidden.var(1, keepdims=True) + EPSILON)
    np.testing.assert_allclose(critic(h), (last.weight @ np.tanh(hidden))[0], rtol=1e-4, atol=1e-5)


def test_moments_of_a_batch_and_rows_of_weight_zero() -> None:
    h = rng().standard_normal((2, 7)).astype(np.float32)
    weight = np.array([1, 1, 1, 1, 0, 0, 0], np.float32)
    moments = Moments.of_batch(h, weight)
    np.testing.assert_allclose(moments.mean, h[:, :4].mean(axis=1), rtol=1e-5)
    np.testing.assert_allclose(moments.variance, h[:, :4].var(axis=1), rtol=1e-5)
    other = Moments.of_batch(np.where(weight, h, 1e3).astype(np.float32), weight)
    np.testing.assert_array_equal(moments.mean, other.mean)
    np.testing.assert_array_equal(moments.variance, other.variance)


def test_running_moments_move_by_their_rate() -> None:
    old, batch = Moments.standard(2), Moments(np.full(2, 3.0, np.float32), np.full(2, 5.0, np.float32))
    moved = old.moved_towards(batch, rate=0.25)
    np.testing.assert_allclose(moved.mean, 0.75)
    np.testing.assert_allclose(moved.variance, 0.75 + 1.25)


def test_leaky_relu() -> None:
    np.testing.assert_allclose(leaky_relu(np.array([-1.0, 0.0, 2.0])), [-0.2, 0.0, 2.0], rtol=1e-6)
