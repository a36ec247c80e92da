"""Numeric tables: what is observed, what is refused and how it is said."""

import numpy as np
import pytest

from missbgm.errors import TableError
from missbgm.table.array import as_matrix, check_width, observations

NAN = np.nan


@pytest.mark.parametrize(
    "data",
    [
        [[1, 2], [3, 4]],
        ((1.0, 2.0), (3.0, 4.0)),
        [["1", " 2 "], ["3e0", "4."]],
        np.array([[1, 2], [3, 4]], np.float16),
        np.array([[1, 2], [3, 4]], object),
        np.array([[1, 3], [2, 4]], np.int8).T,
    ],
    ids=["lists", "tuples", "text", "half precision", "objects", "transposed"],
)
def test_anything_array_like_becomes_a_matrix_of_doubles(data):
    matrix = as_matrix(data, "data")
    assert matrix.dtype == np.float64
    assert matrix.tolist() == [[1, 2], [3, 4]]


def test_the_matrix_is_a_copy():
    data = np.ones((2, 2))
    as_matrix(data, "data")[0, 0] = 7
    assert data[0, 0] == 1


def test_none_is_a_missing_cell():
    table = observations([[None, 1.0]])
    assert table.observed.tolist() == [[False, True]]


@pytest.mark.parametrize(
    ("data", "shape"),
    [([1.0, 2.0], (2,)), (3.0, ()), ([[[1.0]]], (1, 1, 1)), ([[]], (1, 0)), (np.ones((0, 3)), (0, 3))],
)
def test_a_table_has_two_axes_and_a_cell(data, shape):
    with pytest.raises(TableError) as error:
        as_matrix(data, "x_true")
    assert str(error.value) == (
        f"x_true must be a table of rows by columns, at least one of each; got shape {shape}. "
        "Reshape one row to (1, columns) and one column to (rows, 1)."
    )


@pytest.mark.parametrize("data", [[["a", 1]], [[1, 2], [3]], [[{}]], [[1 + 2j]]])
def test_what_is_not_a_number_is_refused_with_the_cause(data):
    with pytest.raises(
        TableError, match=r"^data must hold numbers.*converting it failed: .+Code text"
    ) as error:
        as_matrix(data, "data")
    assert error.value.__cause__ is not None


def test_observed_is_what_is_not_nan():
    table = observations([[1, NAN], [NAN, 4]])
    assert table.observed.tolist() == [[True, False], [False, True]]
    np.testing.assert_array_equal(table.values, [[1, NAN], [NAN, 4]])


@pytest.mark.parametrize("kind", [bool, int, float, object])
def test_a_value_that_the_mask_hides_is_missing(kind):
    data = np.array([[1.0, 2.0], [NAN, 4.0]])
    table = observations(data, np.array([[1, 0], [0, 1]]).astype(kind))
    np.testing.assert_array_equal(table.values, [[1, NAN], [NAN, 4]])
    assert table.observed.dtype == bool
    assert table.observed.tolist() == [[True, False], [False, True]]
    assert data[0, 1] == 2, "the caller's array must stay as it is"


@pytest.mark.parametrize("infinity", [np.inf, -np.inf])
def test_infinite_cells_are_counted_and_the_first_is_located(infinity):
    data = [[1, 2, 3], [4, 5, infinity], [infinity, 8, 9]]
    with pytest.raises(
        TableError, match=r"^x has 2 infinite cells, the first in row 1, column 2; give a finite"
    ):
        observations(data, name="x")


def test_a_mask_of_another_shape_is_refused():
    with pytest.raises(TableError) as error:
        observations([[1.0, 2.0]], [[1], [1]])
    assert str(error.value) == "mask must have the shape of data, (1, 2); got (2, 1)."


@pytest.mark.parametrize("odd", [2, -1, 0.5, NAN])
def test_a_mask_holds_ones_and_zeros_only(odd):
    with pytest.raises(TableError, match=r"^mask must hold 1 \(observed\) and 0 \(missing\) only\.$"):
        observations([[1.0, 2.0]], [[1, odd]])


def test_a_mask_that_means_missing_is_found_out():
    data = np.array([[1.0, 2.0], [3.0, NAN], [NAN, 6.0]])
    with pytest.raises(
        TableError, match=r"^mask says 1 \(observed\) for 2 cells of data that are NaN"
    ) as error:
        observations(data, np.isnan(data))
    assert "the first in row 1, column 1. In this mask 1 means observed; pass 1 - mask" in str(error.value)


def test_same_as_compares_values_and_patterns():
    table = observations([[1, NAN], [3, 4]])
    assert table.same_as(observations([[1, 2], [3, 4]], [[1, 0], [1, 1]]))
    assert not table.same_as(observations([[1, NAN], [3, 5]]))
    assert not table.same_as(observations([[1, 2], [3, 4]]))
    assert not table.same_as(observations([[1, NAN]]))


def test_check_width_refuses_another_number_of_columns():
    table = observations([[1, 2, 3]])
    check_width(table, 3)
    with pytest.raises(
        TableError, match=r"^the model was fitted to 2 columns, and this table has 3; pass the same"
    ):
        check_width(table, 2)
