"""Algorithm 1: single steps, and whole epochs against a plain loop over batches and rows."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from numpy.typing import NDArray

from by_hand import FACTOR, log_joint
from missbgm.bgm.joint import Model
from missbgm.bgm.likelihood import VARIANCE_FLOOR, Columns
from missbgm.bgm.missingness import Network
from missbgm.bgm.networks import EPSILON, Moments, is_uncertain, layers_of
from missbgm.config import Config
from missbgm.fit import alternate
from missbgm.fit.alternate import Losses, Rates, Rows, State, Visits, epoch, local_step, refine

Array = NDArray[Any]
Tree = Any
N_CLASSES = [0, 0, 2, 2, 3]
CONTINUOUS, DISCRETE = slice(0, 2), slice(2, 5)
CONFIG = Config(lr_z=0.05, lr_x=0.07, lr_theta=0.02, lr_phi=0.03, beta=0.6, weight_decay=0.01)
RATES = Rates.of(CONFIG, 1)
N, BATCH, INNER = 11, 4, 2
step = jax.jit(local_step)


class Mixed(NamedTuple):
    """Rows of every kind of column, features first, under small random networks."""

    model: Model
    z: Array
    x: Array
    observed: Array


@pytest.fixture(scope="module")
def mixed() -> Mixed:
    rng = np.random.default_rng(0)
    columns = Columns.of_classes(N_CLASSES)
    model = Model.create(rng, columns, z_dim=2, g_units=(4,), missingness_units=(5,), uncertain=False)
    # Mechanisms drawn at random hardly tell the classes apart.
    strong = jax.tree.map(lambda w: 3 * w, model.mechanism)
    x = np.array([rng.standard_normal(9) if k == 0 else rng.integers(k, size=9) for k in N_CLASSES])
    z = rng.standard_normal((2, 9)).astype(np.float32)
    observed = rng.random(x.shape) < 0.5
    observed[:, 0], observed[:, 1] = True, False
    return Mixed(Model(columns, model.generator, strong, model.moments), z, x.astype(np.float32), observed)


def stepped(mixed: Mixed, rates: Rates = RATES) -> Rows:
    return step(mixed.model, Rows.start(mixed.z, mixed.x), mixed.observed, rates)


# One step of rows


def test_every_latent_row_moves_and_of_cells_only_the_missing(mixed: Mixed) -> None:
    rows = stepped(mixed)
    assert (np.asarray(rows.z) != mixed.z).all()
    np.testing.assert_array_equal(np.asarray(rows.x)[mixed.observed], mixed.x[mixed.observed])
    moved = np.asarray(rows.x) != mixed.x
    assert moved[CONTINUOUS][~mixed.observed[CONTINUOUS]].all()


def test_the_first_step_of_adam_is_the_learning_rate_downhill(mixed: Mixed) -> None:
    rows = stepped(mixed)

    def objective(z: Array, x: Array) -> Array:
        terms = log_joint(mixed.model, N_CLASSES, z, x, mixed.observed)
        return terms.prior + terms.data

    gradient = np.stack(
        [(objective(mixed.z + h, mixed.x) - objective(mixed.z - h, mixed.x)) / 2e-6 for h in nudges(2)]
    )
    assert np.abs(gradient).min() > 1e-3
    np.testing.assert_allclose(rows.z - mixed.z, CONFIG.lr_z * np.sign(gradient), rtol=1e-2)
    cells = (np.asarray(rows.x) - mixed.x)[CONTINUOUS][~mixed.observed[CONTINUOUS]]
    np.testing.assert_allclose(np.abs(cells), CONFIG.lr_x, rtol=1e-2)


def nudges(d: int) -> Array:
    """A small step along each latent dimension in turn."""
    return 1e-6 * np.eye(d)[:, :, None]


def test_missing_classes_become_the_mode_of_their_conditional_in_turn(mixed: Mixed) -> None:
    rows = stepped(mixed)
    z, expected = np.asarray(rows.z, float), np.asarray(rows.x, float)
    expected[DISCRETE] = mixed.x[DISCRETE]
    for column in range(2, 5):
        weights = []
        for k in range(N_CLASSES[column]):
            candidate = expected.copy()
            candidate[column] = k
            terms = log_joint(mixed.model, N_CLASSES, z, candidate, mixed.observed)
            weights.append(terms.data + CONFIG.beta * terms.missingness)
        best = np.argmax(weights, axis=0)
        expected[column] = np.where(mixed.observed[column], expected[column], best)
    np.testing.assert_array_equal(np.asarray(rows.x)[DISCRETE], expected[DISCRETE])
    assert (expected != mixed.x)[DISCRETE].any()
    # The mechanism has a say: without it some classes differ.
    ignorable = stepped(mixed, RATES._replace(beta=np.float32(0)))
    assert (np.asarray(ignorable.x)[DISCRETE] != expected[DISCRETE]).any()


def test_rows_do_not_know_each_other(mixed: Mixed) -> None:
    rows = stepped(mixed)
    x = mixed.x.copy()
    x[0, 4] += 100
    others = np.arange(9) != 4
    disturbed = stepped(mixed._replace(x=x))
    for a, b in zip(jax.tree.leaves(rows), jax.tree.leaves(disturbed), strict=True):
        np.testing.assert_array_equal(a[..., others], b[..., others])
    assert (np.asarray(rows.z)[:, 4] != np.asarray(disturbed.z)[:, 4]).all()


def first_moments(moments: Tree) -> Array:
    """Adam's running mean of gradients, one column a row."""
    return np.asarray(optax.tree_utils.tree_get(moments, "mu"))


def test_gradients_are_clipped_row_by_row() -> None:
    rng = np.random.default_rng(0)
    z, x, observed = (np.ascontiguousarray(a.T) for a in FACTOR.simulate(rng, 6))
    observed[:] = False
    x[:, 2] += 1e4
    rows = step(FACTOR.model, Rows.start(z, x), observed, RATES)
    for moments in (rows.z_moments, rows.x_moments):
        norms = np.linalg.norm(first_moments(moments), axis=0) / 0.1
        np.testing.assert_allclose(norms[2], alternate.GRADIENT_LIMIT, rtol=1e-4)
        assert (np.delete(norms, 2) < alternate.GRADIENT_LIMIT / 2).all()
    assert np.isfinite(rows.z).all()


def test_many_steps_end_at_the_joint_mode() -> None:
    # With the mechanism ignored it is known: z at its mean given the observed cells, cells at W z + b.
    _, x, observed = FACTOR.simulate(np.random.default_rng(1), 6)
    # Adam ends within about a learning rate of it, so the last steps are small.
    z, start = np.zeros((2, 6), np.float32), np.where(observed, x, 0).T.astype(np.float32)
    for rate in (np.float32(0.02), np.float32(2e-4)):
        rates = RATES._replace(beta=np.float32(0), z=rate, x=rate)
        rows = refine(FACTOR.model, Rows.start(z, start), observed.T, rates, np.int32(3_000))
        z, start = rows.z, rows.x
    for i in range(6):
        mean, _ = FACTOR.latent(x[i], observed[i])
        cells = (FACTOR.loadings @ mean + FACTOR.offset)[~observed[i]]
        np.testing.assert_allclose(rows.z[:, i], mean, atol=1e-3)
        np.testing.assert_allclose(rows.x[~observed[i], i], cells, atol=1e-3)


def test_refining_takes_the_steps_one_by_one(mixed: Mixed) -> None:
    rows = Rows.start(mixed.z, mixed.x)
    together = refine(mixed.model, rows, mixed.observed, RATES, np.int32(3))
    for _ in range(3):
        rows = step(mixed.model, rows, mixed.observed, RATES)
    for a, b in zip(jax.tree.leaves(rows), jax.tree.leaves(together), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


# The order of visits


@pytest.mark.parametrize(("n", "batch"), [(1, 4), (4, 4), (11, 4), (12, 4), (7, 1), (3, 100)])
def test_a_shuffle_visits_each_row_once_and_fills_up_the_last_batch(n: int, batch: int) -> None:
    visits = Visits.shuffled(np.random.default_rng(0), n, batch)
    n_batches = int(np.ceil(n / batch))
    assert visits.rows.shape == visits.weight.shape == (n_batches, batch)
    counted = visits.rows[visits.weight == 1]
    np.testing.assert_array_equal(np.sort(counted), np.arange(n))
    assert set(np.unique(visits.weight)) <= {0, 1}
    np.testing.assert_array_equal(visits.rows.ravel()[visits.inverse], np.arange(n))
    assert (visits.weight.ravel()[visits.inverse] == 1).all()


def test_shuffles_differ_and_are_seeded() -> None:
    rng = np.random.default_rng(0)
    first, second = (Visits.shuffled(rng, 50, 8) for _ in range(2))
    again = Visits.shuffled(np.random.default_rng(0), 50, 8)
    assert (first.rows != second.rows).any()
    np.testing.assert_array_equal(first.rows, again.rows)


# Whole epochs, on factor analysis


class Run(NamedTuple):
    """A table, and the state and losses after epochs over it."""

    start: State
    observed: Array
    visits: Visits
    state: State
    losses: Losses


def factor_start(n: int = N) -> tuple[State, Array]:
    z, x, observed = FACTOR.simulate(np.random.default_rng(2), n)
    moments = Moments(np.array([0.2, -0.1], np.float32), np.array([1.5, 0.7], np.float32))
    model = eqx.tree_at(lambda m: m.moments, FACTOR.model, moments)
    return alternate.start(model, z, x), observed


one_epoch = partial(epoch, jax.random.key(0), rates=RATES, n_inner=INNER)


@pytest.fixture(scope="module")
def run() -> Run:
    state, observed = factor_start()
    visits = Visits.shuffled(np.random.default_rng(3), N, BATCH)
    moved, losses = one_epoch(np.uint32(0), visits, state, observed)
    return Run(state, observed, visits, moved, losses)


def counts(moments: Tree) -> Array:
    return np.asarray(optax.tree_utils.tree_get(moments, "count"))


def test_an_epoch_takes_every_row_through_its_inner_steps_once(run: Run) -> None:
    rows = run.state.rows
    for moments in (rows.z_moments, rows.x_moments):
        np.testing.assert_array_equal(counts(moments), np.full(N, INNER))
    assert counts(run.state.theta_moments) == counts(run.state.phi_moments) == 3
    assert (np.asarray(rows.z) != run.start.rows.z).all()
    moved = np.asarray(rows.x) != run.start.rows.x
    np.testing.assert_array_equal(moved, ~run.observed)


def test_rows_of_the_first_batch_move_as_if_there_were_no_others(run: Run) -> None:
    first = run.visits.rows[0]
    rows = Rows.start(run.start.rows.z[first].T, run.start.rows.x[first].T)
    for _ in range(INNER):
        rows = step(run.start.model, rows, run.observed[first].T, RATES)
    for name in ("z", "x"):
        got = np.asarray(getattr(run.state.rows, name))[first]
        np.testing.assert_allclose(got.T, getattr(rows, name), rtol=1e-5, atol=1e-6)


def test_rows_that_only_fill_up_change_nothing(run: Run) -> None:
    rows = run.visits.rows.copy()
    assert run.visits.weight[-1, -1] == 0
    rows[-1, -1] = rows[1, 2]
    other = run.visits._replace(rows=rows)
    assert (rows != run.visits.rows).any()
    state, losses = one_epoch(np.uint32(0), other, run.start, run.observed)
    for a, b in zip(jax.tree.leaves((state, losses)), jax.tree.leaves((run.state, run.losses)), strict=True):
        np.testing.assert_array_equal(a, b)


# The same epoch once more, as a plain loop: rows one by one, optimisers straight from optax.


class Weights(NamedTuple):
    """What the networks of factor analysis hold."""

    weight: Any
    bias: Any
    scale: Any
    shift: Any


def normal_log_prob(x: Any, mean: Any, variance: Any) -> Any:
    return -0.5 * ((x - mean) ** 2 / variance + jnp.log(variance) + jnp.log(2 * jnp.pi))


def plain_data(theta: Weights, mean: Any, variance: Any, z: Any, x: Any) -> Any:
    """log p(x | z) of one row, with the moments that its latent row is normalised by."""
    h = (z - mean) / jnp.sqrt(variance + EPSILON) * theta.scale + theta.shift
    outputs = theta.weight @ h + theta.bias
    spread = jnp.logaddexp(0, outputs[4:]) + VARIANCE_FLOOR
    return normal_log_prob(x, outputs[:4], spread).sum()


def plain_missingness(phi: Weights, x: Any, observed: Any) -> Any:
    logits = phi.weight @ x + phi.bias
    return jnp.where(observed, jax.nn.log_sigmoid(logits), jax.nn.log_sigmoid(-logits)).sum()


def plain_latent_loss(z: Any, theta: Weights, mean: Any, variance: Any, x: Any) -> Any:
    return -(normal_log_prob(z, 0, 1).sum() + plain_data(theta, mean, variance, z, x)) / 4


def plain_missing_loss(
    x: Any, theta: Weights, phi: Weights, mean: Any, variance: Any, z: Any, seen: Any
) -> Any:
    data = plain_data(theta, mean, variance, z, x)
    return -(data + CONFIG.beta * plain_missingness(phi, x, seen)) / 4


def squares(weights: Weights) -> Any:
    return CONFIG.weight_decay * (jnp.sum(weights.weight**2) + jnp.sum(weights.bias**2))


def plain_theta_loss(theta: Weights, z: Any, x: Any) -> tuple[Any, tuple[Any, Any]]:
    mean, variance = z.mean(0), z.var(0)
    data = -jnp.mean(jax.vmap(partial(plain_data, theta, mean, variance))(z, x)) / 4
    return data + squares(theta), (data, squares(theta))


def plain_phi_loss(phi: Weights, x: Any, observed: Any) -> tuple[Any, tuple[Any, Any]]:
    pattern = -jnp.mean(jax.vmap(partial(plain_missingness, phi))(x, observed)) / 4
    return pattern + squares(phi), (pattern, squares(phi))


def adam(rate: float, clip: float = 1e30) -> optax.GradientTransformation:
    chain = optax.chain(optax.clip_by_global_norm(clip), optax.adam(rate, b1=0.9, b2=0.99, eps=1e-7))
    return optax.GradientTransformation(chain.init, jax.jit(chain.update))


class Optimised:
    """A value with its optimiser."""

    def __init__(self, value: Any, optimiser: optax.GradientTransformation) -> None:
        self.value, self.update, self.state = value, optimiser.update, optimiser.init(value)

    def descend(self, gradient: Any) -> None:
        step, self.state = self.update(gradient, self.state)
        self.value = optax.apply_updates(self.value, step)


class Plain:
    """Algorithm 1 on factor analysis, batch by batch and row by row."""

    def __init__(self, start: State, observed: Array) -> None:
        body, norm = start.model.generator.body.layers[0], start.model.generator.normalisation
        theta = Weights(body.weight, body.bias, norm.scale, norm.shift)
        mechanism = start.model.mechanism.body.layers[0]
        self.theta = Optimised(jax.tree.map(jnp.asarray, theta), adam(CONFIG.lr_theta))
        phi = Weights(mechanism.weight, mechanism.bias, 0.0, 0.0)
        self.phi = Optimised(jax.tree.map(jnp.asarray, phi), adam(CONFIG.lr_phi))
        self.mean, self.variance = start.model.moments.mean, start.model.moments.variance
        for_z, for_x = adam(CONFIG.lr_z, 25), adam(CONFIG.lr_x, 25)
        self.z = [Optimised(jnp.asarray(z), for_z) for z in start.rows.z]
        self.x = [Optimised(jnp.asarray(x), for_x) for x in start.rows.x]
        self.observed = observed
        self.latent, self.missing = (jax.jit(jax.grad(f)) for f in (plain_latent_loss, plain_missing_loss))
        self.fit, self.explain = (
            jax.jit(jax.grad(f, has_aux=True)) for f in (plain_theta_loss, plain_phi_loss)
        )

    def local(self, i: int) -> None:
        z, x, seen = self.z[i], self.x[i], self.observed[i]
        given = (self.theta.value, self.mean, self.variance)
        z.descend(self.latent(z.value, *given, x.value))
        gradient = self.missing(
            x.value, self.theta.value, self.phi.value, self.mean, self.variance, z.value, seen
        )
        x.descend(jnp.where(seen, 0, gradient))

    def batch(self, members: Array) -> Losses:
        for _ in range(INNER):
            for i in members:
                self.local(i)
        z, x = (jnp.stack([rows[i].value for i in members]) for rows in (self.z, self.x))
        gradient, (data, cost_g) = self.fit(self.theta.value, z, x)
        self.theta.descend(gradient)
        gradient, (pattern, cost_f) = self.explain(self.phi.value, x, self.observed[members])
        self.phi.descend(gradient)
        self.mean, self.variance = (
            0.99 * old + 0.01 * new for old, new in ((self.mean, z.mean(0)), (self.variance, z.var(0)))
        )
        prior = -np.mean(normal_log_prob(z, 0, 1).sum(1)) / 4
        return Losses(prior, data, pattern, cost_g, cost_f)


@pytest.fixture(scope="module")
def plain(run: Run) -> tuple[Plain, Losses]:
    algorithm = Plain(run.start, run.observed)
    parts, sizes = [], []
    for rows, weight in zip(run.visits.rows, run.visits.weight, strict=True):
        parts.append(algorithm.batch(rows[weight == 1]))
        sizes.append(weight.sum())
    losses = Losses(*(np.average(np.array(term, float), weights=sizes) for term in zip(*parts, strict=True)))
    return algorithm, losses


def test_an_epoch_is_the_plain_loop(run: Run, plain: tuple[Plain, Losses]) -> None:
    algorithm, losses = plain
    model, rows = run.state.model, run.state.rows
    body, norm = model.generator.body.layers[0], model.generator.normalisation
    mechanism = model.mechanism.body.layers[0]
    theta, phi = algorithm.theta.value, algorithm.phi.value
    pairs = {
        "z": (rows.z, [z.value for z in algorithm.z]),
        "x": (rows.x, [x.value for x in algorithm.x]),
        "weight": (body.weight, theta.weight),
        "bias": (body.bias, theta.bias),
        "scale": (norm.scale, theta.scale),
        "shift": (norm.shift, theta.shift),
        "slopes": (mechanism.weight, phi.weight),
        "intercepts": (mechanism.bias, phi.bias),
        "mean": (model.moments.mean, algorithm.mean),
        "variance": (model.moments.variance, algorithm.variance),
    }
    for name, (got, expected) in pairs.items():
        np.testing.assert_allclose(got, expected, rtol=2e-4, atol=2e-4, err_msg=name)
    np.testing.assert_allclose(np.array(run.losses), np.array(losses), rtol=1e-4)


def test_moments_of_rows_are_those_of_the_plain_loop(run: Run, plain: tuple[Plain, Losses]) -> None:
    algorithm, _ = plain
    rows = run.state.rows
    for moments, separate in ((rows.z_moments, algorithm.z), (rows.x_moments, algorithm.x)):
        for name in ("mu", "nu"):
            got = np.asarray(optax.tree_utils.tree_get(moments, name))
            expected = [optax.tree_utils.tree_get(one.state, name) for one in separate]
            np.testing.assert_allclose(got, expected, rtol=1e-3, atol=1e-5)


# What is left


def test_a_fresh_state_has_zero_moments_of_the_right_shapes() -> None:
    state, _ = factor_start()
    for moments in (state.theta_moments, state.phi_moments, state.rows.z_moments, state.rows.x_moments):
        assert all(not np.asarray(leaf).any() for leaf in jax.tree.leaves(moments))
    by_row = jax.tree.leaves((state.rows.z_moments, state.rows.x_moments))
    assert all(leaf.shape[0] == N for leaf in by_row)
    expected = alternate.ADAM.init(FACTOR.model.generator)
    assert jax.tree.map(jnp.shape, state.theta_moments) == jax.tree.map(jnp.shape, expected)


def test_rates_are_the_settings_in_single_precision() -> None:
    np.testing.assert_array_equal(RATES, np.float32([0.05, 0.07, 0.02, 0.03, 0.6, 0.01]))
    assert all(type(rate) is np.float32 for rate in RATES)
    assert Rates.of(Config(use_bnn=True, kl_weight=0.25), 8).penalty == 0.25 / 8


@pytest.fixture(scope="module")
def uncertain_epoch() -> tuple[State, Callable[[int], tuple[State, Losses]]]:
    rng = np.random.default_rng(0)
    columns = Columns.of_classes([0] * 4)
    model = Model.create(rng, columns, z_dim=2, g_units=(), missingness_units=(), uncertain=True)
    z, x, observed = FACTOR.simulate(rng, 8)
    state = alternate.start(model, z, x)
    visits = Visits.shuffled(rng, 8, 4)
    return state, lambda number: one_epoch(np.uint32(number), visits, state, observed)


def test_uncertain_weights_are_redrawn_from_epoch_to_epoch(uncertain_epoch: Any) -> None:
    start, run_epoch = uncertain_epoch
    first, again, other = (run_epoch(number)[0] for number in (0, 0, 1))
    for a, b in zip(jax.tree.leaves(first), jax.tree.leaves(again), strict=True):
        np.testing.assert_array_equal(a, b)
    assert (np.asarray(first.rows.z) != np.asarray(other.rows.z)).any()
    for network in ("generator", "mechanism"):
        before, after = (layers_of(getattr(s.model, network))[0] for s in (start, first))
        assert is_uncertain(after)
        assert (np.asarray(before.mean.weight) != np.asarray(after.mean.weight)).all()
        assert (np.asarray(before.spread.weight) != np.asarray(after.spread.weight)).all()


def test_the_mechanism_is_left_alone_by_its_own_zero_rate(run: Run) -> None:
    frozen = RATES._replace(phi=np.float32(0))
    state, _ = one_epoch(np.uint32(0), run.visits, run.start, run.observed, rates=frozen)
    assert isinstance(state.model.mechanism, Network)
    for a, b in zip(
        jax.tree.leaves(state.model.mechanism), jax.tree.leaves(run.start.model.mechanism), strict=True
    ):
        np.testing.assert_array_equal(a, b)
    assert not np.array_equal(
        state.model.generator.body.layers[0].weight, run.start.model.generator.body.layers[0].weight
    )
