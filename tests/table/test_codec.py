"""Coding of columns: scaling against NumPy, classes, order, and the way back."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from missbgm.errors import TableError
from missbgm.table.array import observations
from missbgm.table.codec import Codec

NAN = np.nan
FLOAT32 = np.finfo(np.float32).eps / 2  # the largest relative error of rounding to 32 bits

# Continuous, three classes, constant, two classes, continuous.
MIXED = np.array(
    [
        [1.0, 7.0, 5.0, -1.0, 10.0],
        [2.0, NAN, NAN, 4.0, 30.0],
        [NAN, 3.0, 5.0, NAN, 20.0],
        [6.0, 9.0, 5.0, 4.0, NAN],
    ]
)
KINDS = {1: "categorical", 3: "bernoulli"}


@pytest.fixture
def mixed():
    table = observations(MIXED)
    return table, Codec.learn(table, KINDS)


# Learning


def test_location_and_scale_are_the_observed_mean_and_sd(mixed):
    _, codec = mixed
    for j in (0, 1, 3, 4):
        seen = MIXED[~np.isnan(MIXED[:, j]), j]
        assert codec.location[j] == pytest.approx(seen.mean(), rel=1e-15)
        assert codec.scale[j] == pytest.approx(seen.std(), rel=1e-15)


def test_without_standardizing_location_is_zero_and_scale_one():
    codec = Codec.learn(observations(MIXED), KINDS, standardize=False)
    assert codec.location.tolist() == [0, 0, 5, 0, 0]
    assert codec.scale.tolist() == [1, 1, 0, 1, 1]


def test_the_model_sees_continuous_columns_first_then_fewer_classes_first(mixed):
    _, codec = mixed
    assert codec.order.tolist() == [0, 4, 3, 1]
    assert codec.n_classes == [0, 0, 2, 3]
    assert codec.n_columns == 5


def test_levels_are_the_sorted_observed_values(mixed):
    _, codec = mixed
    assert {j: levels.tolist() for j, levels in codec.levels.items()} == {1: [3, 7, 9], 3: [-1, 4]}


@pytest.mark.parametrize("kinds", [None, {}, {0: "gaussian"}, ["gaussian"] * 5, ("gaussian",) * 5])
def test_columns_are_gaussian_unless_they_are_named_otherwise(kinds):
    codec = Codec.learn(observations(MIXED), kinds)
    assert codec.n_classes == [0] * 4
    assert not codec.levels


def test_kinds_by_index_and_in_full_are_the_same(mixed):
    table, codec = mixed
    full = ["gaussian", "categorical", "gaussian", "bernoulli", "gaussian"]
    assert Codec.learn(table, full).order.tolist() == codec.order.tolist()
    assert Codec.learn(table, full).n_classes == codec.n_classes


def test_kinds_must_name_every_column():
    with pytest.raises(TableError, match=r"^kinds must name 5 columns; got 2\.$"):
        Codec.learn(observations(MIXED), ["gaussian", "gaussian"])


@pytest.mark.parametrize(
    ("kinds", "got"),
    [
        ({0: "poisson"}, "0: 'poisson'"),
        ({5: "gaussian"}, "5: 'gaussian'"),
        ({-1: "bernoulli"}, "-1: 'bernoulli'"),
    ],
)
def test_an_unknown_kind_or_column_is_refused(kinds, got):
    with pytest.raises(TableError) as error:
        Codec.learn(observations(MIXED), kinds)
    assert str(error.value) == (
        f"kinds must give columns 0 to 4 one of gaussian, bernoulli, categorical, ordinal, count; got {got}."
    )


def test_columns_without_an_observed_cell_are_refused():
    with pytest.raises(
        TableError, match=r"^columns \[0, 2\] have no observed cell.*drop them before fitting"
    ):
        Codec.learn(observations([[NAN, 1, NAN], [NAN, 2, NAN]]))


@pytest.mark.parametrize("standardize", [True, False])
@pytest.mark.parametrize("kinds", [None, {1: "categorical"}])
def test_constant_columns_are_left_out_and_filled_with_their_value(standardize, kinds):
    table = observations([[1.0, 0.1], [2.0, NAN], [4.0, 0.1], [NAN, 0.1]])
    codec = Codec.learn(table, kinds, standardize=standardize)
    assert codec.order.tolist() == [0]
    assert codec.decode_table(codec.encode(table)[0], table)[:, 1].tolist() == [0.1] * 4


def test_a_table_of_constants_has_no_column_left():
    table = observations([[3.0, NAN], [NAN, 4.0]])
    codec = Codec.learn(table)
    codes, observed = codec.encode(table)
    assert codes.shape == observed.shape == (2, 0)
    assert codec.decode_table(codes, table).tolist() == [[3, 4], [3, 4]]


def test_a_spread_too_small_for_doubles_counts_as_constant():
    table = observations([[0.0, 1.0], [1e-200, 2.0], [NAN, 3.0]])
    codec = Codec.learn(table)
    assert codec.order.tolist() == [1]
    assert codec.decode_table(codec.encode(table)[0], table)[2, 0] == 0


# Encoding


def test_codes_are_standardized_or_class_numbers_and_zero_where_missing(mixed):
    table, codec = mixed
    codes, observed = codec.encode(table)
    assert codes.dtype == np.float32
    sd = np.sqrt(14 / 3)
    tens = 10 / np.sqrt(200 / 3)
    expected = [[-2 / sd, -tens, 0, 1], [-1 / sd, tens, 1, 0], [0, 0, 0, 0], [3 / sd, 0, 1, 2]]
    np.testing.assert_allclose(codes, expected, rtol=2 * FLOAT32)
    np.testing.assert_array_equal(observed, table.observed[:, [0, 4, 3, 1]])


def test_hidden_classes_never_reach_the_model(mixed):
    _, codec = mixed
    table = observations(np.full((1, 5), 77.0), np.zeros((1, 5)))
    codes, observed = codec.encode(table)
    assert not codes.any()
    assert not observed.any()


@pytest.mark.parametrize("strange", [2.0, 8.0, 11.0])
def test_classes_never_seen_are_refused(mixed, strange):
    _, codec = mixed
    table = observations([[1.0, strange, 5.0, 4.0, 10.0], [1.0, 7.0, 5.0, 4.0, 10.0]])
    with pytest.raises(TableError) as error:
        codec.encode(table)
    assert str(error.value) == (
        f"column 1 holds [{strange}], never seen when the model was fitted to its classes [3.0, 7.0, 9.0]; "
        "recode these cells or make them NaN."
    )


# Decoding

NUMBERS = st.floats(-1e6, 1e6, width=32)


@settings(max_examples=100, deadline=None)
@given(arrays(np.float64, (6, 3), elements=NUMBERS), st.booleans())
def test_decoding_undoes_encoding_to_32_bits(values, standardize):
    table = observations(values)
    codec = Codec.learn(table, {2: "categorical"}, standardize=standardize)
    codes, _ = codec.encode(table)
    decoded = codec.decode(codes, codec.order)
    expected = values[:, codec.order]
    # A code is off by half a unit in its last place, and so is every double on the way.
    scaled = codec.scale[codec.order] * np.abs(codes) * FLOAT32
    slack = 4 * np.finfo(float).eps * (np.abs(expected) + np.abs(codec.location[codec.order]))
    assert (np.abs(decoded - expected) <= 1.01 * scaled + slack + codec.scale[codec.order] * 1e-45).all()
    classes = [codec.order.tolist().index(2)] if 2 in codec.order else []
    np.testing.assert_array_equal(decoded[:, classes], expected[:, classes])


@settings(max_examples=100, deadline=None)
@given(
    arrays(np.float64, (5, 4), elements=st.floats(-1e100, 1e100)),
    arrays(bool, (5, 4)).filter(lambda observed: observed.any(axis=0).all()),
    st.booleans(),
)
def test_observed_cells_come_back_bit_for_bit(values, observed, standardize):
    table = observations(values, observed)
    codec = Codec.learn(table, {3: "categorical"}, standardize=standardize)
    completed = codec.decode_table(np.ones((5, len(codec.order)), np.float32), table)
    assert completed[observed].tobytes() == values[observed].tobytes()
    assert np.isfinite(completed).all()


def test_missing_cells_are_decoded_by_hand(mixed):
    table, codec = mixed
    codes = np.zeros((4, 4), np.float32)
    codes[1] = [0, 0, 0, 2]
    codes[2] = [-1, 0, 1, 0]
    codes[3] = [0, 2, 0, 0]
    completed = codec.decode_table(codes, table)
    expected = MIXED.copy()
    expected[2, 0] = 3 - np.sqrt(14 / 3)
    expected[1, 1:3] = 9, 5
    expected[2, 3] = 4
    expected[3, 4] = 20 + 2 * np.sqrt(200 / 3)
    np.testing.assert_allclose(completed, expected, rtol=1e-15)


def test_decode_takes_columns_of_the_table_and_any_leading_axes(mixed):
    _, codec = mixed
    columns = np.array([3, 0, 1, 3, 2])
    codes = np.array([[[1, 0, 0, 0, 0]], [[0, 1, 2, 1, 0]]], np.float16)
    decoded = codec.decode(codes, columns)
    assert decoded.shape == (2, 1, 5)
    np.testing.assert_allclose(decoded[0, 0], [4, 3, 3, -1, 5], rtol=1e-15)
    np.testing.assert_allclose(decoded[1, 0], [-1, 3 + np.sqrt(14 / 3), 9, 4, 5], rtol=1e-15)


@pytest.mark.parametrize(("code", "value"), [(-3, 3), (0, 3), (1, 7), (2, 9), (9, 9)])
def test_class_numbers_out_of_range_become_the_nearest_class(mixed, code, value):
    _, codec = mixed
    assert codec.decode(np.array([float(code)]), np.array([1])).tolist() == [value]


def test_an_end_where_many_cells_lie_bounds_what_is_filled():
    values = np.array([[0, 1.0, 2], [0, 2, 2], [3, 3, 2], [5, 4, 2], [np.nan, np.nan, np.nan]])
    values = np.vstack([np.tile(values, (5, 1)), [[9, 0.5, 2], [9.5, 9, 2]]])
    codec = Codec.learn(observations(values)).bounded(observations(values))
    # Zeros are 10 of 22 cells; the single 0.5 and 9 are not 5 % of theirs, and the third column is constant.
    np.testing.assert_array_equal(codec.bounds, [[0, -np.inf, -np.inf], [np.inf, np.inf, np.inf]])
    assert codec.bends
    decoded = codec.decode(np.array([[-9.0, -9.0], [1.0, 1.0]]), np.array([0, 1]))
    np.testing.assert_allclose(decoded[0, 0], 0)
    assert decoded[0, 1] < -9
    np.testing.assert_allclose(decoded[1], codec.location[:2] + codec.scale[:2])


def test_a_table_without_crowded_ends_has_no_bounds():
    table = observations(np.random.default_rng(0).normal(size=(50, 2)))
    codec = Codec.learn(table)
    assert codec.bounded(table) is codec
    assert not codec.bends
