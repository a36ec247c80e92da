"""The sweep: both moves of missing cells against formulas and known laws, classes, seeds and adaptation."""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import special, stats

from by_hand import FACTOR, log_joint, model_of, raw_variance
from missbgm.bgm.joint import Model, Terms
from missbgm.bgm.likelihood import Columns
from missbgm.randomness import Seeds
from missbgm.sample import gibbs
from missbgm.sample.gibbs import Adaptation, Chains, Kernels, Trace, autoregressive, hamiltonian, sweeps

Array = NDArray[Any]
KINDS = ["autoregressive", "hmc"]
KEY = jax.random.key(0)


def normals(shape: tuple[int, ...], seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


# Moves of missing cells, on factor analysis

move_autoregressive = jax.jit(autoregressive)
move_hamiltonian = jax.jit(partial(hamiltonian, n_leapfrog=4))


class Cells(NamedTuple):
    """Rows of factor analysis, features first."""

    z: Array
    x: Array
    observed: Array

    @property
    def mean(self) -> Array:
        return (self.z.T @ FACTOR.loadings.T + FACTOR.offset).T

    def missingness(self, x: Array) -> Array:
        return log_joint(FACTOR.model, [0] * 4, self.z, x, self.observed).missingness


def cells(n: int = 8) -> Cells:
    z, x, observed = FACTOR.simulate(np.random.default_rng(0), n)
    observed[0], observed[1] = True, False
    return Cells(z.T, x.T, observed.T)


def moved(move: Any, given: Cells, uniform: Array, beta: float, step: Any) -> tuple[Array, Array]:
    n = given.x.shape[1]
    parameters = FACTOR.model.parameters(jnp.asarray(given.z))
    x, acceptance = move(
        normals(given.x.shape, 1),
        uniform,
        FACTOR.model,
        parameters,
        given.x,
        given.observed,
        np.float32(beta),
        np.broadcast_to(np.float32(step), n),
    )
    return np.asarray(x), np.asarray(acceptance)


@pytest.mark.parametrize(("step", "size"), [(0.3, 0.3), (1.0, 1.0), (7.0, 1.0)])
def test_autoregressive_proposals_keep_the_conditional_and_are_judged_by_the_mechanism(
    step: float, size: float
) -> None:
    given, noise = cells(), normals((4, 8), 1)
    moves = np.sqrt(1 - size**2) * (given.x - given.mean) + size * np.sqrt(FACTOR.variance)[:, None] * noise
    expected = np.where(given.observed, given.x, given.mean + moves)
    x, acceptance = moved(move_autoregressive, given, np.zeros(8, np.float32), 0.7, step)
    ratio = np.exp(0.7 * (given.missingness(expected) - given.missingness(given.x)))
    np.testing.assert_allclose(x, expected, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(acceptance, np.minimum(1, ratio), rtol=1e-3)
    assert (acceptance < 1).any()


def test_without_a_mechanism_every_proposal_is_accepted() -> None:
    x, acceptance = moved(move_autoregressive, cells(), np.full(8, 0.999, np.float32), 0.0, 1.0)
    np.testing.assert_array_equal(acceptance, 1)
    assert (x[~cells().observed] != cells().x[~cells().observed]).all()


@pytest.mark.parametrize("move", [move_autoregressive, move_hamiltonian])
def test_refused_rows_stay_and_observed_cells_never_move(move: Any) -> None:
    given = cells()
    _, acceptance = moved(move, given, np.zeros(8, np.float32), 1.0, 0.8)
    beyond, _ = moved(move, given, np.minimum(acceptance + 1e-4, 1), 1.0, 0.8)
    np.testing.assert_array_equal(beyond, given.x)
    accepted, _ = moved(move, given, np.maximum(acceptance - 1e-4, 0), 1.0, 0.8)
    np.testing.assert_array_equal(accepted != given.x, ~given.observed)


def test_hamiltonian_moves_are_the_leapfrog_by_hand() -> None:
    given, noise, step, beta = cells(), normals((4, 8), 1), 0.3, 0.7
    free = ~given.observed
    slope, intercept, variance = (part[:, None] for part in (FACTOR.slope, FACTOR.intercept, FACTOR.variance))

    def force(x: Array) -> Array:
        logits = intercept + slope * x
        return free * (-(x - given.mean) / variance - beta * slope * special.expit(logits))

    def density(x: Array) -> Array:
        return -((x - given.mean) ** 2 / variance).sum(axis=0) / 2 + beta * given.missingness(x)

    x, v = given.x.astype(float), noise * free
    for _ in range(4):
        v = v + step / 2 * force(x)
        x = x + step * v
        v = v + step / 2 * force(x)
    energy = density(x) - density(given.x) - 0.5 * (v**2 - (noise * free) ** 2).sum(axis=0)
    got, acceptance = moved(move_hamiltonian, given, np.zeros(8, np.float32), beta, step)
    np.testing.assert_allclose(got, x, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(acceptance, np.minimum(1, np.exp(energy)), rtol=1e-3)


@pytest.mark.parametrize("move", [move_autoregressive, move_hamiltonian])
def test_moves_leave_the_tempered_conditional_as_it_is(move: Any) -> None:
    """Missing cells of one latent row start at exact draws, found on a grid; so they end.

    Four Kolmogorov tests at 1e-5 each: false alarm below 4e-5, were the seed not fixed.
    """
    n, beta = 20_000, 1.0
    rng = np.random.default_rng(0)
    z = np.tile(np.array([[0.5], [-1.0]], np.float32), n)
    given = Cells(z, np.zeros((4, n), np.float32), np.zeros((4, n), bool))
    grid, cdfs = np.linspace(-12, 12, 20_001), []
    for j in range(4):
        logs = stats.norm.logpdf(grid, given.mean[j, 0], np.sqrt(FACTOR.variance[j]))
        logs += beta * special.log_expit(-(FACTOR.intercept[j] + FACTOR.slope[j] * grid))
        cdf = np.cumsum(np.exp(logs - logs.max()))
        given.x[j] = np.interp(rng.random(n), cdf / cdf[-1], grid)
        cdfs.append(cdf / cdf[-1])
    step = rng.uniform(0.1, 1.0, n).astype(np.float32)
    x, acceptance = moved(move, given, rng.random(n).astype(np.float32), beta, step)
    assert 0.3 < acceptance.mean() < 0.99
    assert (x != given.x).mean() > 0.3
    for j in range(4):
        assert stats.kstest(x[j], lambda v, j=j: np.interp(v, grid, cdfs[j])).pvalue > 1e-5


# Seeds


def test_keys_of_rows_depend_on_the_key_the_row_and_the_chain_alone() -> None:
    def material(key: Any, numbers: list[int], chain: int) -> Array:
        seeds = Seeds(key, np.array(numbers, np.uint32), np.uint32(chain))
        return np.asarray(jax.random.key_data(seeds.row_keys()))

    whole = material(KEY, [0, 1, 2, 7], 0)
    np.testing.assert_array_equal(material(KEY, [7, 1], 0), whole[[3, 1]])
    others = [material(KEY, [0, 1, 2, 7], 1), material(jax.random.key(1), [0, 1, 2, 7], 0)]
    assert len(np.unique(np.concatenate([whole, *others]), axis=0)) == 12


# Whole sweeps


class Setting(NamedTuple):
    model: Model
    n_classes: list[int]
    z: Array
    x: Array
    observed: Array


def mixed(n: int = 12) -> Setting:
    rng = np.random.default_rng(0)
    n_classes = [0, 0, 2, 3]
    weight = rng.standard_normal((8, 2))
    bias = np.concatenate([[0.3, -0.5], raw_variance([0.5, 1.0]), rng.standard_normal(4)])
    slopes, intercepts = rng.standard_normal((4, 6)), rng.standard_normal(4)
    model = model_of(Columns.of_classes(n_classes), weight, bias, slopes, intercepts)
    x = np.array([rng.standard_normal(n) if k == 0 else rng.integers(k, size=n) for k in n_classes])
    observed = rng.random(x.shape) < 0.5
    observed[:, 0], observed[:, 1] = True, False
    return Setting(model, n_classes, normals((2, n), 3), x.astype(np.float32), observed)


def swept(
    setting: Setting,
    kind: str = "autoregressive",
    length: int = 6,
    first: int = 0,
    chains: Chains | None = None,
    n_adapt: int = 3,
) -> tuple[Chains, Trace]:
    n = setting.x.shape[1]
    chains = Chains.start(jnp.asarray(setting.z), jnp.asarray(setting.x), 0.4) if chains is None else chains
    seeds = Seeds(KEY, np.arange(n, dtype=np.uint32), np.uint32(0))
    numbers = (np.int32(first), Adaptation(np.int32(0), np.int32(n_adapt)), np.float32(0.6))
    kernels = Kernels(3, kind, 0.75)
    return sweeps(setting.model, chains, setting.observed, seeds, *numbers, length=length, kernels=kernels)


@pytest.fixture(scope="module", params=KINDS)
def run(request: pytest.FixtureRequest) -> tuple[Setting, Chains, Trace]:
    setting = mixed()
    return setting, *swept(setting, request.param)


def test_a_sweep_moves_latent_rows_and_missing_cells_only(run: Any) -> None:
    setting, chains, trace = run
    assert (np.asarray(chains.z) != setting.z).any(axis=0).all()
    seen = np.broadcast_to(setting.observed, trace.x.shape)
    np.testing.assert_array_equal(np.asarray(trace.x)[seen], np.broadcast_to(setting.x, seen.shape)[seen])
    missing = ~setting.observed[:2]
    assert (np.asarray(chains.x)[:2][missing] != setting.x[:2][missing]).mean() > 0.8
    assert (np.asarray(trace.x)[:, 2:][~seen[:, 2:]] >= 0).all()
    assert len(np.unique(np.asarray(trace.x)[:, 3])) == 3
    np.testing.assert_array_equal(trace.x[-1], chains.x)


def test_the_trace_holds_the_terms_of_the_state_that_was_reached(run: Any) -> None:
    setting, chains, trace = run
    expected = log_joint(setting.model, setting.n_classes, chains.z, chains.x, setting.observed)
    for name in Terms._fields:
        got = getattr(trace.terms, name)
        assert got.shape == (6, 12)
        np.testing.assert_allclose(got[-1], getattr(expected, name), rtol=1e-4, atol=1e-4)
    for rate in (trace.z_acceptance, trace.x_acceptance):
        assert rate.shape == (6, 12)
        assert ((np.asarray(rate) >= 0) & (np.asarray(rate) <= 1)).all()


def test_steps_adapt_up_to_a_sweep_and_are_frozen_from_it_on() -> None:
    setting = mixed()
    adapted, trace = swept(setting, length=3)
    after, _ = swept(setting)  # three sweeps further
    for start, now, later, rates in (
        (0.4, adapted.z_step, after.z_step, trace.z_acceptance),
        (0.4, adapted.x_step, after.x_step, trace.x_acceptance),
    ):
        for a, b in zip(now, later, strict=True):
            np.testing.assert_array_equal(a, b)
        state = gibbs.StepSize.start(start, 12)
        for number, accepted in enumerate(rates):
            state = state.adapted(accepted, np.int32(number), 0.75)
        np.testing.assert_allclose(now.log_average, state.log_average, rtol=1e-4, atol=1e-5)


def test_sweeps_in_pieces_are_the_same_sweeps() -> None:
    setting = mixed()
    whole, trace = swept(setting)
    chains, first = swept(setting, length=3)
    chains, second = swept(setting, length=3, first=3, chains=chains)
    for a, b in zip(jax.tree.leaves(whole), jax.tree.leaves(chains), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    joined = np.concatenate([first.x, second.x])
    np.testing.assert_allclose(joined, trace.x, rtol=1e-5, atol=1e-6)


def test_classes_are_drawn_from_their_conditional_and_nothing_refuses_them() -> None:
    """The latent row says nothing here, so every sweep draws each cell anew, in turn.

    Two columns interact through the mechanism. One chi-square test of the six joint classes, whose draws are
    those of the last of ten sweeps of independent rows, at 1e-5: the seed's false-alarm rate.
    """
    n, beta = 6_000, 0.6
    columns = Columns.of_classes([2, 3])
    bias = np.array([0.4, 0.0, 0.7, -0.5])
    slopes = np.array([[1.5, 1.0, -1.0, 0.0], [-2.0, 0.5, 0.5, -1.0]])
    intercepts = np.array([0.2, -0.3])
    model = model_of(columns, np.zeros((4, 1)), bias, slopes, intercepts)
    setting = Setting(model, [2, 3], normals((1, n)), np.zeros((2, n), np.float32), np.zeros((2, n), bool))
    chains, trace = swept(setting, length=10)
    np.testing.assert_array_equal(trace.x_acceptance, 1)
    weights = np.zeros((2, 3))
    for a in range(2):
        for b in range(3):
            cell = log_joint(model, [2, 3], np.zeros((1, 1)), np.array([[a], [b]]), np.zeros((2, 1), bool))
            weights[a, b] = (cell.data + beta * cell.missingness)[0]
    expected = n * special.softmax(weights)
    x = np.asarray(chains.x).astype(int)
    counts = np.zeros((2, 3))
    np.add.at(counts, (x[0], x[1]), 1)
    assert stats.chisquare(counts.ravel(), expected.ravel()).pvalue > 1e-5
    # The test can tell: without the mechanism's share of the conditional these counts would be impossible.
    plain = special.expit([-0.4, 0.4])[:, None] * special.softmax(bias[1:])
    assert stats.chisquare(counts.ravel(), n * plain.ravel()).pvalue < 1e-10
