"""Draws of missing cells: where each goes, in which units, and its summaries, against NumPy by hand."""

import numpy as np
import pytest

from missbgm.errors import ConfigError
from missbgm.sample.check import checked
from missbgm.sample.posterior import Sampled
from missbgm.summary.cells import half_sample_mode
from missbgm.summary.draws import POINTS, Draws
from missbgm.table.array import observations
from missbgm.table.codec import Codec

NAN = np.nan
N_CHAINS, N_KEPT = 2, 9

# A class column first and a constant one between: the model's order is columns 1, 3, 0.
TABLE = observations(
    [
        [NAN, 10.0, 5.0, NAN],
        [2.0, NAN, NAN, 1.0],
        [4.0, 30.0, 5.0, 3.0],
        [8.0, 20.0, NAN, NAN],
        [NAN, NAN, NAN, 8.0],
    ]
)
INDEX = [[0, 0], [0, 3], [1, 1], [1, 2], [3, 2], [3, 3], [4, 0], [4, 1], [4, 2]]
# What the sampler draws, row by row in the model's order: (0, 3), (0, 0), (1, 1), (3, 3), (4, 1), (4, 0).
DRAWN_COLUMNS = [3, 0, 1, 3, 1, 0]
PLACES = [1, 0, 2, 5, 7, 6]  # of drawn cells in INDEX; the others are constant
LOCATION = {1: 20.0, 3: 4.0}
SCALE = {1: np.sqrt(200 / 3), 3: np.sqrt(26 / 3)}
LEVELS = [2.0, 4.0, 8.0]
N_DRAWN = len(DRAWN_COLUMNS)


def coded_draws():
    rng = np.random.default_rng(0)
    coded = rng.standard_normal((N_CHAINS, N_KEPT, N_DRAWN))
    for i in (1, 5):
        coded[:, :, i] = rng.integers(3, size=(N_CHAINS, N_KEPT))
    return coded.astype(np.float32)


CODED = coded_draws()
FLAT = np.concatenate(CODED).astype(float)  # chains in turn
NOTHING = checked({}, np.zeros(0), np.zeros(0))


def in_table_units():
    """Every draw of every missing cell, by hand."""
    values = np.full((N_CHAINS * N_KEPT, len(INDEX)), 5.0)
    for i, (column, place) in enumerate(zip(DRAWN_COLUMNS, PLACES, strict=True)):
        code = FLAT[:, i]
        values[:, place] = (
            [LEVELS[int(k)] for k in code] if column == 0 else LOCATION[column] + SCALE[column] * code
        )
    return values


VALUES = in_table_units()


@pytest.fixture
def draws():
    codec = Codec.learn(TABLE, {0: "categorical"})
    # Moments that no kept draw could give, to tell them from those of the draws.
    sampled = Sampled(CODED, np.arange(N_DRAWN) / 7, np.arange(1.0, N_DRAWN + 1), NOTHING)
    return Draws(TABLE, codec, sampled)


def test_cells_are_listed_in_row_major_order(draws):
    assert draws.index.tolist() == INDEX


def test_draws_of_all_chains_are_counted(draws):
    assert draws.n_draws == N_CHAINS * N_KEPT


def test_values_are_decoded_and_in_the_order_of_the_index(draws):
    np.testing.assert_allclose(draws.values, VALUES, rtol=1e-14)


@pytest.mark.parametrize("draw", [0, N_KEPT - 1, N_KEPT, 2 * N_KEPT - 1, -1])
def test_a_completed_table_has_one_draw_in_its_missing_cells(draws, draw):
    expected = TABLE.values.copy()
    for place, (row, column) in enumerate(INDEX):
        expected[row, column] = VALUES[draw, place]
    completed = draws.complete(draw)
    np.testing.assert_allclose(completed, expected, rtol=1e-14)
    assert completed[TABLE.observed].tobytes() == TABLE.values[TABLE.observed].tobytes()


@pytest.mark.parametrize("draw", [2 * N_KEPT, -2 * N_KEPT - 1])
def test_a_draw_that_is_not_there_is_refused(draws, draw):
    with pytest.raises(ConfigError, match=f"^draw must be from 0 to 17, got {draw}$"):
        draws.complete(draw)


def test_filling_leaves_the_table_as_it_is(draws):
    before = TABLE.values.copy()
    filled = draws.filled(np.arange(9.0))
    np.testing.assert_array_equal(TABLE.values, before)
    np.testing.assert_array_equal(filled[~TABLE.observed], np.arange(9.0))


def test_deviations_are_the_streamed_ones_in_the_tables_units_and_zero_for_constants(draws):
    sd = draws.sd()
    for i, (column, place) in enumerate(zip(DRAWN_COLUMNS, PLACES, strict=True)):
        if column != 0:
            assert sd[place] == pytest.approx((i + 1) * SCALE[column], rel=1e-14)
    assert sd[[3, 4, 8]].tolist() == [0, 0, 0]


def points_by_hand(kind):
    of = {"median": lambda x: np.median(x), "mode": lambda x: half_sample_mode(x[:, None])[0]}
    expected = np.full(len(INDEX), 5.0)
    for i, (column, place) in enumerate(zip(DRAWN_COLUMNS, PLACES, strict=True)):
        if column == 0:
            expected[place] = LEVELS[np.bincount(FLAT[:, i].astype(int)).argmax()]
        else:
            code = i / 7 if kind == "mean" else of[kind](FLAT[:, i])
            expected[place] = LOCATION[column] + SCALE[column] * code
    return expected


@pytest.mark.parametrize("kind", POINTS)
def test_points_are_moments_or_summaries_of_draws_and_the_commonest_class(draws, kind):
    np.testing.assert_allclose(draws.point(kind), points_by_hand(kind), rtol=1e-14)


def test_points_leave_the_streamed_mean_as_it_is(draws):
    before = draws.sampled.mean.copy()
    draws.point()
    np.testing.assert_array_equal(draws.sampled.mean, before)


def test_an_unknown_point_is_refused(draws):
    with pytest.raises(ConfigError, match=r"^point must be one of mean, median, mode, got 'map'$"):
        draws.point("map")


@pytest.mark.parametrize("alpha", [0.05, 0.4])
def test_intervals_are_quantiles_of_the_draws_in_the_tables_units(draws, alpha):
    continuous = [1, 2, 5, 7]
    expected = np.quantile(VALUES[:, continuous], [alpha / 2, 1 - alpha / 2], axis=0).T
    found = draws.interval(alpha)
    assert found.shape == (len(INDEX), 2)
    np.testing.assert_allclose(found[continuous], expected, rtol=1e-13)
    np.testing.assert_array_equal(found[[3, 4, 8]], 5.0)


def test_interval_ends_of_classes_are_classes(draws):
    lower, upper = draws.interval(0.1)[[0, 6]].T
    assert set(lower) | set(upper) <= set(LEVELS)
    assert (lower <= upper).all()


@pytest.mark.parametrize("alpha", [0, 1, -0.1, 5, NAN])
def test_a_level_outside_zero_to_one_is_refused(draws, alpha):
    with pytest.raises(ConfigError, match=f"^alpha must be between 0 and 1, got {alpha}$"):
        draws.interval(alpha)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_table_without_missing_cells_has_no_draws_to_show(dtype):
    table = observations([[1.0, 2.0], [3.0, 5.0]])
    values = np.empty((1, 4, 0), dtype)
    draws = Draws(table, Codec.learn(table), Sampled(values, np.zeros(0), np.zeros(0), NOTHING))
    assert draws.values.shape == (4, 0)
    assert [draws.point(kind).shape for kind in POINTS] == [(0,)] * 3
    assert draws.sd().shape == (0,)
    assert draws.interval().shape == (0, 2)
    np.testing.assert_array_equal(draws.complete(3), table.values)


def test_constant_columns_alone_are_filled_with_their_value():
    table = observations([[1.0, NAN], [NAN, 2.0]])
    values = np.empty((1, 4, 0), np.float32)
    draws = Draws(table, Codec.learn(table), Sampled(values, np.zeros(0), np.zeros(0), NOTHING))
    assert draws.index.tolist() == [[0, 1], [1, 0]]
    assert draws.complete(0).tolist() == [[1, 2], [1, 2]]
    assert draws.point().tolist() == [2, 1]
    assert draws.interval().tolist() == [[2, 2], [1, 1]]
    assert draws.sd().tolist() == [0, 0]
