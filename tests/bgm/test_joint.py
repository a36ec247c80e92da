"""The joint density: terms, gradients and class conditionals against a double-precision copy by hand."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import special, stats

from by_hand import log_joint, log_probs_of, outputs_of
from missbgm.bgm.joint import (
    Model,
    Terms,
    log_classes,
    log_latent,
    log_missing,
    log_prior,
    log_terms,
    update_classes,
)
from missbgm.bgm.likelihood import Columns
from missbgm.bgm.networks import Moments

Array = NDArray[Any]
N, D = 6, 2
# One line enrols a kind of row in every law below.
ROWS = {
    "continuous": [0, 0, 0],
    "classes": [2, 3],
    "mixed": [0, 0, 2, 2, 3, 4, 4],
}


class Setting:
    """A model with small random networks, rows for it, and its joint density by hand."""

    def __init__(self, n_classes: list[int]) -> None:
        rng = np.random.default_rng(0)
        self.n_classes, self.columns = n_classes, Columns.of_classes(n_classes)
        model = Model.create(
            rng, self.columns, z_dim=D, g_units=(4,), missingness_units=(5,), uncertain=False
        )
        moments = Moments(np.array([0.2, -0.1], np.float32), np.array([1.5, 0.7], np.float32))
        self.model = Model(self.columns, model.generator, model.mechanism, moments)
        self.z = rng.standard_normal((D, N)).astype(np.float32)
        cells = [rng.standard_normal(N) if k == 0 else rng.integers(k, size=N) for k in n_classes]
        self.x = np.array(cells, np.float32)
        self.observed = rng.random(self.x.shape) < 0.5
        self.parameters = jax.jit(lambda z: self.model.parameters(z))(self.z)
        self.weights = jax.jit(self._weights)
        self.updated = jax.jit(self._updated)

    def _weights(self, x: jax.Array, observed: jax.Array, parameters: Any, beta: float) -> list[jax.Array]:
        return [
            log_classes(self.model, parameters, x, observed, beta, block, column)
            for block, column, _ in discrete_columns(self)
        ]

    def _updated(self, x: jax.Array, observed: jax.Array, parameters: Any, beta: float) -> jax.Array:
        def best(weights: jax.Array, _: jax.Array) -> jax.Array:
            return jnp.argmax(weights, axis=0)

        return update_classes(self.model, parameters, x, observed, beta, best)

    def one(self, parameters: Any) -> Any:
        """Parameters of the first row."""
        return jax.tree.map(lambda a: a[..., 0], parameters)

    def by_hand(self, z: Array, x: Array) -> Any:
        return log_joint(self.model, self.n_classes, z, x, self.observed)


@pytest.fixture(params=ROWS.values(), ids=ROWS.keys(), scope="module")
def setting(request: pytest.FixtureRequest) -> Setting:
    return Setting(request.param)


@pytest.fixture(params=["classes", "mixed"], scope="module")
def with_classes(request: pytest.FixtureRequest) -> Setting:
    return Setting(ROWS[request.param])


def finite_differences(function: Callable[[Array], Array], at: Array, step: float = 1e-6) -> Array:
    """Gradient, row by row, of a function of one column of `at` for each row."""
    at = np.asarray(at, float)
    gradient = np.zeros_like(at)
    for i in range(len(at)):
        up, down = at.copy(), at.copy()
        up[i] += step
        down[i] -= step
        gradient[i] = (function(up) - function(down)) / (2 * step)
    return gradient


def test_prior_is_scipys(setting: Setting) -> None:
    expected = stats.multivariate_normal(np.zeros(D)).logpdf(setting.z.T)
    np.testing.assert_allclose(log_prior(setting.z), expected, rtol=1e-5)


def test_terms_are_those_written_by_hand(setting: Setting) -> None:
    terms = log_terms(setting.model, setting.z, setting.x, setting.observed)
    expected = setting.by_hand(setting.z, setting.x)
    for name in Terms._fields:
        assert getattr(terms, name).shape == (N,)
        np.testing.assert_allclose(getattr(terms, name), getattr(expected, name), rtol=2e-5, atol=2e-5)
    tempered = expected.prior + expected.data + 0.3 * expected.missingness
    np.testing.assert_allclose(terms.tempered(0.3), tempered, rtol=2e-5, atol=2e-5)


def test_one_row_is_a_block_of_one(setting: Setting) -> None:
    whole = log_terms(setting.model, setting.z, setting.x, setting.observed)
    for row in range(N):
        one = log_terms(setting.model, setting.z[:, row], setting.x[:, row], setting.observed[:, row])
        np.testing.assert_allclose(np.array(one), np.array(whole)[:, row], rtol=2e-5, atol=2e-5)


def test_gradient_in_the_latent_row(setting: Setting) -> None:
    def total(z: jax.Array) -> jax.Array:
        return log_latent(setting.model, z, setting.x)[0].sum()

    def by_hand(z: Array) -> Array:
        terms = setting.by_hand(z, setting.x)
        return terms.prior + terms.data

    expected = finite_differences(by_hand, setting.z)
    np.testing.assert_allclose(jax.grad(total)(setting.z), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("beta", [0.0, 0.3, 1.0])
def test_gradient_in_the_missing_cells(setting: Setting, beta: float) -> None:
    parameters = setting.model.parameters(setting.z)

    def total(x: jax.Array) -> jax.Array:
        return log_missing(setting.model, parameters, x, setting.observed, beta).sum()

    def by_hand(x: Array) -> Array:
        terms = setting.by_hand(setting.z, x)
        return terms.data + beta * terms.missingness

    continuous = np.array(setting.n_classes) == 0
    gradient = np.asarray(jax.grad(total)(jnp.asarray(setting.x)))
    expected = finite_differences(by_hand, setting.x)
    np.testing.assert_allclose(gradient[continuous], expected[continuous], rtol=1e-4, atol=1e-4)
    assert not gradient[~continuous].any()


@pytest.mark.parametrize("beta", [0.0, 0.3, 1.0])
def test_latent_and_missing_densities_are_parts_of_the_joint(setting: Setting, beta: float) -> None:
    terms = log_terms(setting.model, setting.z, setting.x, setting.observed)
    latent, parameters = log_latent(setting.model, setting.z, setting.x)
    np.testing.assert_allclose(latent, terms.prior + terms.data, rtol=1e-5, atol=1e-5)
    missing = log_missing(setting.model, parameters, setting.x, setting.observed, beta)
    np.testing.assert_allclose(missing + terms.prior, terms.tempered(beta), rtol=1e-5, atol=1e-5)


def discrete_columns(setting: Setting) -> list[tuple[int, int, int]]:
    """Block, place in it and place in the row of every discrete column."""
    return [
        (i, column, block.start + column)
        for i, block in setting.columns.discrete
        for column in range(block.size)
    ]


def conditional(setting: Setting, x: Array, position: int, beta: float) -> Array:
    """log p(x_j = k | everything else), enumerated: classes by rows."""
    outputs = outputs_of(setting.model, np.asarray(setting.z, float))
    weights = []
    for k in range(setting.n_classes[position]):
        row = x.copy()
        row[position] = k
        own = log_probs_of(outputs, row, setting.n_classes).sum(axis=0)
        weights.append(own + beta * setting.by_hand(setting.z, row).missingness)
    return special.log_softmax(np.array(weights), axis=0)


@pytest.mark.parametrize("beta", [0.0, 0.3, 1.0])
def test_classes_have_their_enumerated_conditional(with_classes: Setting, beta: float) -> None:
    columns = discrete_columns(with_classes)
    assert len(columns) == sum(k > 0 for k in with_classes.n_classes)
    whole = with_classes.weights(with_classes.x, with_classes.observed, with_classes.parameters, beta)
    one = with_classes.weights(
        with_classes.x[:, 0], with_classes.observed[:, 0], with_classes.one(with_classes.parameters), beta
    )
    for (_, _, position), weights, alone in zip(columns, whole, one, strict=True):
        expected = conditional(with_classes, with_classes.x, position, beta)
        np.testing.assert_allclose(special.log_softmax(weights, axis=0), expected, rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(special.log_softmax(alone), expected[:, 0], rtol=1e-4, atol=1e-4)


def test_updating_classes_visits_columns_in_turn(with_classes: Setting) -> None:
    expected = with_classes.x.copy()
    for _, _, position in discrete_columns(with_classes):
        best = conditional(with_classes, expected, position, 1.0).argmax(axis=0)
        missing = ~with_classes.observed[position]
        expected[position, missing] = best[missing]
    updated = with_classes.updated(with_classes.x, with_classes.observed, with_classes.parameters, 1.0)
    np.testing.assert_array_equal(updated, expected)
    one = with_classes.updated(
        with_classes.x[:, 0], with_classes.observed[:, 0], with_classes.one(with_classes.parameters), 1.0
    )
    np.testing.assert_array_equal(one, expected[:, 0])


def test_updating_classes_names_the_position_of_each_column(with_classes: Setting) -> None:
    def choose(weights: jax.Array, position: jax.Array) -> jax.Array:
        return jnp.broadcast_to(jnp.asarray(position), weights.shape[1:])

    nothing, x = jnp.zeros(with_classes.observed.shape, bool), jnp.asarray(with_classes.x)
    x = np.asarray(update_classes(with_classes.model, with_classes.parameters, x, nothing, 0.0, choose))
    for _, _, position in discrete_columns(with_classes):
        assert (x[position] == position).all()
    continuous = np.array(with_classes.n_classes) == 0
    np.testing.assert_array_equal(x[continuous], with_classes.x[continuous])


def test_uncertain_models_are_drawn_and_averaged() -> None:
    columns = Columns.of_classes([0, 2])
    model = Model.create(
        np.random.default_rng(0), columns, z_dim=1, g_units=(), missingness_units=(), uncertain=True
    )
    z, x, observed = np.ones((1, 2), np.float32), np.ones((2, 2), np.float32), np.eye(2, dtype=bool)
    centre = log_terms(model.at_mean(), z, x, observed)
    np.testing.assert_allclose(np.array(centre), np.array(log_terms(model, z, x, observed)), rtol=1e-6)
    drawn = log_terms(model.drawn(jax.random.key(0)), z, x, observed)
    np.testing.assert_array_equal(drawn.prior, centre.prior)
    assert (np.asarray(drawn.data) != centre.data).all()
    assert (np.asarray(drawn.missingness) != centre.missingness).all()
