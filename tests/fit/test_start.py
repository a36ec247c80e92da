"""First completions: neighbours against a plain loop and scikit-learn, the linear inverse against ridge."""

import tracemalloc
from collections.abc import Iterable
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.impute import KNNImputer
from sklearn.linear_model import Ridge

from by_hand import FACTOR, model_of
from missbgm.bgm.likelihood import Columns
from missbgm.fit import start
from missbgm.fit.start import Inverse, complete, neighbours_fill

Array = NDArray[Any]


class Holes(NamedTuple):
    table: Array
    observed: Array

    def fill(self, k: int = 5, seed: int = 0) -> Array:
        return neighbours_fill(self.table, self.observed, k, np.random.default_rng(seed))


def holes(n: int, p: int, missing: float, seed: int = 0) -> Holes:
    rng = np.random.default_rng(seed)
    common = rng.standard_normal((n, 1))
    table = (common + 0.7 * rng.standard_normal((n, p))).astype(np.float32)
    return Holes(table, rng.random((n, p)) >= missing)


def distance_by_hand(a: Array, b: Array, shared: Array) -> float:
    return float(np.mean((a[shared].astype(float) - b[shared]) ** 2))


def neighbours_by_hand(given: Holes, i: int, j: int, k: int, donors: Iterable[int]) -> list[float]:
    """Values of column j in the rows nearest to row i, by looking at one row after the other."""
    found = []
    for other in donors:
        shared = given.observed[i] & given.observed[other]
        if other != i and given.observed[other, j] and shared.any():
            apart = distance_by_hand(given.table[i], given.table[other], shared)
            found.append((apart, float(given.table[other, j])))
    return [value for _, value in sorted(found)[:k]]


def fill_by_hand(given: Holes, k: int, donors: Iterable[int] | None = None) -> Array:
    filled = given.table.astype(float)
    donors = range(len(filled)) if donors is None else donors
    for i, j in np.argwhere(~given.observed):
        column = given.table[given.observed[:, j], j]
        near = neighbours_by_hand(given, i, j, k, donors)
        filled[i, j] = np.mean(near) if near else np.mean(column) if len(column) else 0
    return filled


# Neighbours. Their order is decided in single precision: seeds are such that no two distances nearly tie.


@pytest.mark.parametrize("k", [1, 5, 100])
@pytest.mark.parametrize(("n", "p", "missing"), [(60, 4, 0.2), (60, 4, 0.7), (25, 12, 0.4), (70, 2, 0.5)])
def test_neighbours_are_those_of_a_plain_loop(n: int, p: int, missing: float, k: int) -> None:
    given = holes(n, p, missing)
    np.testing.assert_allclose(given.fill(k), fill_by_hand(given, k), rtol=1e-4, atol=1e-5)


def test_neighbours_are_scikit_learns_where_every_two_rows_share_a_column() -> None:
    given = holes(80, 6, 0.3)
    given.observed[:, 0] = True
    table = np.where(given.observed, given.table, np.nan).astype(float)
    expected = KNNImputer(n_neighbors=4).fit_transform(table)
    np.testing.assert_allclose(given.fill(4), expected, rtol=1e-4, atol=1e-5)


def test_distant_donors_are_found_when_the_nearest_miss_the_column() -> None:
    # Of 50 donors only the five farthest observe column 1; eight are looked at first.
    table = np.arange(51, dtype=np.float32)[:, None].repeat(2, axis=1)
    observed = np.ones((51, 2), bool)
    observed[:46, 1] = False
    filled = Holes(table, observed).fill(1)
    np.testing.assert_array_equal(filled[:46, 1], 46)
    np.testing.assert_array_equal(filled[observed], table[observed])


def test_observed_cells_stay_and_what_missing_cells_hold_does_not_matter() -> None:
    given = holes(40, 5, 0.4)
    filled = given.fill()
    np.testing.assert_array_equal(filled[given.observed], given.table[given.observed])
    junk = Holes(np.where(given.observed, given.table, np.float32(np.nan)), given.observed)
    np.testing.assert_array_equal(junk.fill(), filled)
    assert np.isfinite(filled).all()
    assert filled.dtype == np.float32


def test_rows_alone_get_the_columns_means() -> None:
    given = holes(20, 4, 0.0)
    given.observed[3] = False  # nothing observed at all
    given.observed[7] = [True, False, False, False]
    given.observed[:7, 0] = given.observed[8:, 0] = False  # row 7 shares no column with any other
    filled = given.fill()
    means = [given.table[given.observed[:, j], j].mean() for j in range(4)]
    np.testing.assert_allclose(filled[3], means, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(filled[7, 1:], means[1:], rtol=1e-5, atol=1e-6)


def test_columns_with_no_observed_cell_get_zero() -> None:
    given = holes(20, 3, 0.2)
    given.observed[:, 1] = False
    filled = given.fill()
    np.testing.assert_array_equal(filled[:, 1], 0)
    others = Holes(given.table[:, [0, 2]], given.observed[:, [0, 2]])
    np.testing.assert_allclose(filled[:, [0, 2]], others.fill(), rtol=1e-6)


@pytest.mark.parametrize("n", [1, 2])
def test_tables_shorter_than_the_number_of_neighbours_are_filled(n: int) -> None:
    given = Holes(np.arange(3 * n, dtype=np.float32).reshape(n, 3), np.ones((n, 3), bool))
    given.observed[0, 1] = False
    np.testing.assert_array_equal(given.fill(), fill_by_hand(given, 5))


@pytest.mark.parametrize("cells", [1, 70, 500])
def test_chunks_do_not_change_the_answer(monkeypatch: pytest.MonkeyPatch, cells: int) -> None:
    given = holes(65, 4, 0.5)
    whole = given.fill(3)
    monkeypatch.setattr(start, "MEMORY_CELLS", cells)
    np.testing.assert_allclose(given.fill(3), whole, rtol=1e-5)


def peak_bytes(given: Holes, k: int) -> int:
    tracemalloc.start()
    given.fill(k)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


def test_memory_is_bounded_whatever_the_number_of_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    # All distances at once would take 64 MB in single precision, all donors' cells 16 times the table.
    given = holes(4_000, 4, 0.1)
    monkeypatch.setattr(start, "MEMORY_CELLS", 100_000)
    # A temporary array of the bounded size takes 0.8 MB in double precision; the table itself 0.06 MB.
    assert peak_bytes(given, 2) < 10 * 8 * 100_000


def test_more_rows_than_donors_are_filled_from_a_subsample(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(start, "MAX_DONORS", 20)
    given = holes(60, 4, 0.3)
    chosen = np.sort(np.random.default_rng(3).choice(60, 20, replace=False))
    expected = fill_by_hand(given, 4, chosen)
    np.testing.assert_allclose(given.fill(4, seed=3), expected, rtol=1e-4, atol=1e-5)
    assert not np.allclose(given.fill(4, seed=4), expected)


# The linear inverse


@pytest.mark.parametrize(("n", "q"), [(50, 3), (12, 12), (6, 20)])
def test_inverse_is_ridge_regression(n: int, q: int) -> None:
    rng = np.random.default_rng(0)
    features = (rng.standard_normal((n, q)) + 2).astype(np.float32)
    z = (features[:, :2] @ np.array([[1, 0.5], [-1, 0]]) + rng.standard_normal((n, 2))).astype(np.float32)
    oracle = Ridge(alpha=start.RIDGE).fit(features.astype(float), z.astype(float))
    inverse = Inverse.learn(z, features)
    new = rng.standard_normal((q, 5)).astype(np.float32)
    np.testing.assert_allclose(inverse.weight, oracle.coef_, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(inverse(jnp.asarray(new)).T, oracle.predict(new.T), rtol=1e-3, atol=1e-3)


# New rows


@pytest.fixture(scope="module")
def inverse() -> Inverse:
    rng = np.random.default_rng(1)
    z, x, _ = FACTOR.simulate(rng, 200)
    return Inverse.learn(z, x)


def completed_by_hand(inverse: Inverse, x: Array, observed: Array) -> tuple[Array, Array]:
    weight, middle, offset = (
        np.asarray(part, float) for part in (inverse.weight, inverse.features_mean, inverse.latent_mean)
    )
    z = np.zeros((len(x), 2))
    for _ in range(start.N_ROUNDS):
        x = np.where(observed, x, z @ FACTOR.loadings.T + FACTOR.offset)
        z = (x - middle) @ weight.T + offset
    return z, x


def test_complete_goes_back_and_forth_between_generator_and_inverse(inverse: Inverse) -> None:
    _, x, observed = FACTOR.simulate(np.random.default_rng(2), 8)
    observed[0] = False
    observed[1] = True
    z, filled = complete(FACTOR.model, inverse, x.T, observed.T)
    by_hand = completed_by_hand(inverse, x, observed)
    np.testing.assert_allclose(z.T, by_hand[0], rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(filled.T, by_hand[1], rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(filled.T[observed], x[observed])


def test_complete_gives_discrete_cells_whole_classes() -> None:
    columns = Columns.of_classes([2, 3])
    weight = np.array([[3.0], [1.0], [0.0], [-1.0]])
    model = model_of(columns, weight, np.zeros(4), np.zeros((2, 4)), np.zeros(2))
    rng = np.random.default_rng(0)
    x = np.stack([rng.integers(2, size=30), rng.integers(3, size=30)]).astype(np.float32)
    features = np.asarray(columns.features(jnp.asarray(x)))
    observed = rng.random(x.shape) < 0.5
    learnt = Inverse.learn((x[:1] - x[1:]).T, features.T)
    _, filled = complete(model, learnt, x, observed)
    np.testing.assert_array_equal(np.asarray(filled)[observed], x[observed])
    assert set(np.unique(filled[0])) <= {0, 1}
    assert set(np.unique(filled[1])) <= {0, 1, 2}
