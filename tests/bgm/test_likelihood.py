"""Likelihood blocks: every kind of column against every law, with `scipy.stats` for an oracle."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import special, stats

from missbgm.bgm.likelihood import (
    VARIANCE_FLOOR,
    Bernoulli,
    Categorical,
    Columns,
    Discrete,
    Gaussian,
    Likelihood,
)

N = 40  # rows of a block
Array = NDArray[Any]


class Case(NamedTuple):
    """A block, what scipy says of one column given the outputs, and what values the column may hold.

    ``oracle(outputs, column)`` answers a frozen distribution of the column's value for one row of outputs.
    """

    block: Likelihood
    oracle: Callable[[Array, int], Any]
    values: Callable[[np.random.Generator, tuple[int, ...]], Array]


def normal_oracle(outputs: Array, column: int) -> Any:
    size = len(outputs) // 2
    return stats.norm(outputs[column], np.sqrt(np.log1p(np.exp(outputs[size + column])) + VARIANCE_FLOOR))


def bernoulli_oracle(outputs: Array, column: int) -> Any:
    return stats.bernoulli(special.expit(outputs[column]))


def classes_oracle(n_classes: int) -> Callable[[Array, int], Any]:
    def oracle(outputs: Array, column: int) -> Any:
        logits = outputs.reshape(n_classes, -1)[:, column]
        return stats.rv_discrete(values=(np.arange(n_classes), special.softmax(logits)))

    return oracle


# One line enrols a block in every law below.
CASES = {
    "gaussian": Case(Gaussian(0, 3), normal_oracle, lambda rng, shape: 2 * rng.standard_normal(shape)),
    "bernoulli": Case(Bernoulli(0, 3), bernoulli_oracle, lambda rng, shape: rng.integers(2, size=shape)),
    "categorical of 3": Case(Categorical(0, 2, 3), classes_oracle(3), lambda r, s: r.integers(3, size=s)),
    "categorical of 5": Case(Categorical(0, 1, 5), classes_oracle(5), lambda r, s: r.integers(5, size=s)),
}
DISCRETE = {name: case for name, case in CASES.items() if isinstance(case.block, Discrete)}


@pytest.fixture(params=CASES.values(), ids=CASES.keys())
def case(request: pytest.FixtureRequest) -> Case:
    return request.param


@pytest.fixture(params=DISCRETE.values(), ids=DISCRETE.keys())
def discrete(request: pytest.FixtureRequest) -> Case:
    return request.param


def material(case: Case, seed: int = 0) -> tuple[Array, Array]:
    """Outputs of a generator and values of the columns, features first."""
    rng = np.random.default_rng(seed)
    outputs = 2 * rng.standard_normal((case.block.n_outputs, N))
    values = case.values(rng, (case.block.size, N))
    return outputs.astype(np.float32), values.astype(np.float32)


def test_log_prob_is_scipys(case: Case) -> None:
    outputs, x = material(case)
    got = np.asarray(case.block.log_prob(case.block.read(outputs), x))
    for row in range(N):
        for column in range(case.block.size):
            law = case.oracle(outputs[:, row].astype(np.float64), column)
            expected = (law.logpmf if hasattr(law, "logpmf") else law.logpdf)(x[column, row])
            np.testing.assert_allclose(got[column, row], expected, rtol=2e-5, atol=2e-5)


def test_one_row_is_a_block_of_one(case: Case) -> None:
    block, (outputs, x) = case.block, material(case)
    key = jax.random.key(0)
    noise = np.random.default_rng(1).standard_normal((block.n_features, N)).astype(np.float32)
    whole = block.read(outputs)
    for row in (0, N - 1):
        given = block.read(outputs[:, row])
        assert block.draw(given, key).shape == (block.size,)
        pairs = [
            (block.log_prob(given, x[:, row]), block.log_prob(whole, x)),
            (block.mode(given), block.mode(whole)),
            (block.features(jnp.asarray(x[:, row])), block.features(jnp.asarray(x))),
            (block.soft(given, noise[:, row]), block.soft(whole, noise)),
        ]
        for one, many in pairs:
            np.testing.assert_allclose(one, many[:, row], rtol=1e-6, atol=1e-6)


def test_features_round_trip(case: Case) -> None:
    _, x = material(case)
    features = case.block.features(jnp.asarray(x))
    assert features.shape == (case.block.n_features, N)
    np.testing.assert_array_equal(case.block.from_features(features), x)


def test_mode_is_the_most_probable_value(case: Case) -> None:
    outputs, x = material(case)
    given = case.block.read(outputs)
    at_mode = case.block.log_prob(given, case.block.mode(given))
    assert np.all(at_mode >= case.block.log_prob(given, x))


def test_draws_follow_log_prob(case: Case) -> None:
    # One test for each column: false alarm below 1e-4 * 3 for a block, were the seed not fixed.
    outputs, _ = material(case)
    n_draws = 20_000
    repeated = np.repeat(outputs[:, :1], n_draws, axis=1)
    draws = np.asarray(case.block.draw(case.block.read(repeated), jax.random.key(1)))
    for column in range(case.block.size):
        law = case.oracle(outputs[:, 0].astype(np.float64), column)
        if isinstance(case.block, Discrete):
            classes = np.arange(case.block.n_classes)
            counts = (draws[column][:, None] == classes).sum(axis=0)
            assert counts.sum() == n_draws
            p_value = stats.chisquare(counts, n_draws * law.pmf(classes)).pvalue
        else:
            p_value = stats.kstest(draws[column], law.cdf).pvalue
        assert p_value > 1e-4


def test_probabilities_of_classes_sum_to_one(discrete: Case) -> None:
    outputs, _ = material(discrete)
    given = discrete.block.read(20 * outputs)
    np.testing.assert_allclose(np.exp(given.log_probs).sum(axis=0), 1, rtol=1e-5)


def test_extreme_outputs_stay_finite(case: Case) -> None:
    outputs = np.array([-1e4, 1e4], np.float32)[np.arange(case.block.n_outputs) % 2]
    x = np.ones(case.block.size, np.float32)
    given = case.block.read(outputs)

    def total(outputs: jax.Array) -> jax.Array:
        return case.block.log_prob(case.block.read(outputs), x).sum()

    assert np.isfinite(case.block.log_prob(given, x)).all()
    assert np.isfinite(jax.grad(total)(outputs)).all()


def test_soft_draw_of_classes_is_their_probabilities(discrete: Case) -> None:
    block, (outputs, _) = discrete.block, material(discrete)
    given = block.read(outputs)
    soft = block.soft(given, np.zeros((block.n_features, N), np.float32))
    for value in range(block.n_classes):
        features = np.asarray(block.features(jnp.full((block.size, N), value, jnp.float32)))
        probability = np.exp(block.log_prob(given, np.full((block.size, N), value, np.float32)))
        lit = np.tile(probability, (block.n_features // block.size, 1))
        np.testing.assert_allclose(soft[features == 1], lit[features == 1], rtol=1e-5)


def test_soft_draw_of_a_gaussian_is_a_draw() -> None:
    case = CASES["gaussian"]
    outputs, _ = material(case)
    given = case.block.read(outputs)
    noise = np.random.default_rng(2).standard_normal((3, N)).astype(np.float32)
    back = (case.block.soft(given, noise) - given.mean) / np.sqrt(given.variance)
    np.testing.assert_allclose(back, noise, rtol=1e-3, atol=1e-3)


def test_variance_has_a_floor() -> None:
    given = Gaussian(0, 1).read(np.array([0.0, -1e3], np.float32))
    assert given.variance[0] == np.float32(VARIANCE_FLOOR)
    assert (Gaussian(0, 1).read(np.array([0.0, 5.0], np.float32)).variance - np.log1p(np.exp(5.0))) < 1e-3


def test_classes_have_no_gradient_in_the_value(discrete: Case) -> None:
    outputs, x = material(discrete)

    def of_value(x: jax.Array) -> jax.Array:
        given = discrete.block.read(outputs)
        return discrete.block.log_prob(given, x).sum() + discrete.block.features(x).sum()

    assert not np.any(jax.grad(of_value)(jnp.asarray(x)))


# A whole row: two Gaussian columns, two binary ones, one of three classes and two of four.
MIXED = [0, 0, 2, 2, 3, 4, 4]


def mixed_material(seed: int = 3) -> tuple[Columns, Array, Array]:
    rng, columns = np.random.default_rng(seed), Columns.of_classes(MIXED)
    outputs = rng.standard_normal((columns.n_outputs, N))
    values = [rng.standard_normal(N) if k == 0 else rng.integers(k, size=N) for k in MIXED]
    return columns, outputs.astype(np.float32), np.array(values, np.float32)


def test_blocks_lie_side_by_side() -> None:
    columns = Columns.of_classes(MIXED)
    assert [(type(b).__name__, b.start, b.size) for b in columns.blocks] == [
        ("Gaussian", 0, 2),
        ("Bernoulli", 2, 2),
        ("Categorical", 4, 1),
        ("Categorical", 5, 2),
    ]
    assert (columns.n_columns, columns.n_outputs, columns.n_features) == (7, 4 + 2 + 3 + 8, 2 + 2 + 3 + 8)
    assert [i for i, _ in columns.discrete] == [1, 2, 3]
    assert [i for i, _ in columns.continuous] == [0]


def test_mixed_log_prob_is_the_sum_over_columns() -> None:
    columns, outputs, x = mixed_material()
    got = columns.log_prob(columns.read(outputs), x)
    assert got.shape == (N,)
    for row in range(N):
        o, v = outputs[:, row].astype(np.float64), x[:, row]
        sd = np.sqrt(np.log1p(np.exp(o[2:4])) + VARIANCE_FLOOR)
        expected = stats.norm.logpdf(v[:2], o[:2], sd).sum()
        expected += stats.bernoulli.logpmf(v[2:4], special.expit(o[4:6])).sum()
        for logits, value in ((o[6:9], v[4]), (o[9:17:2], v[5]), (o[10:17:2], v[6])):
            one_hot = np.arange(len(logits)) == value
            expected += stats.multinomial.logpmf(one_hot, 1, special.softmax(logits))
        np.testing.assert_allclose(got[row], expected, rtol=2e-5, atol=2e-5)


def test_mixed_rows_round_trip_and_agree_with_one_row() -> None:
    columns, outputs, x = mixed_material()
    features = columns.features(jnp.asarray(x))
    np.testing.assert_array_equal(columns.from_features(features), x)
    np.testing.assert_array_equal(columns.features(jnp.asarray(x[:, 0])), features[:, 0])
    given, one = columns.read(outputs), columns.read(outputs[:, 0])
    np.testing.assert_allclose(columns.log_prob(one, x[:, 0]), columns.log_prob(given, x)[0], rtol=1e-6)
    np.testing.assert_array_equal(columns.mode(one), columns.mode(given)[:, 0])
    assert columns.draw(given, jax.random.key(0)).shape == x.shape
    assert columns.soft(given, features).shape == features.shape


def test_observed_features_follow_their_column() -> None:
    columns = Columns.of_classes(MIXED)
    for column in range(len(MIXED)):
        values = np.arange(4) if MIXED[column] else np.linspace(-1, 1, 4)
        x = np.ones((len(MIXED), 4), np.float32)
        x[column] = np.minimum(values, max(MIXED[column] - 1, 1))
        features = np.asarray(columns.features(jnp.asarray(x)))
        moving = (features != features[:, :1]).any(axis=1)
        observed = np.arange(len(MIXED)) == column
        seen = np.asarray(columns.observed_features(observed))
        assert seen[moving].all()
        assert seen.sum() == max(1, MIXED[column] if MIXED[column] > 2 else 1)
