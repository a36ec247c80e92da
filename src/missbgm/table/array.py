"""Numeric arrays as tables: what is observed, and clear errors for what cannot be used."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from missbgm.errors import TableError

Values = NDArray[np.float64]
Pattern = NDArray[np.bool_]


class Observations(NamedTuple):
    """A table of numbers, NaN where a cell is missing, and which cells are observed."""

    values: Values
    observed: Pattern

    def same_as(self, other: "Observations") -> bool:
        """Whether the same cells are observed with the same values."""
        return np.array_equal(self.observed, other.observed) and np.array_equal(
            self.values, other.values, equal_nan=True
        )


def as_matrix(data: Any, name: str) -> Values:
    """A two-dimensional float array from anything array-like, or a `TableError`."""
    try:
        values = np.array(data, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise TableError(
            f"{name} must hold numbers, with NaN for missing cells; converting it failed: {error}. "
            "Code text and categories as numbers first."
        ) from error
    if values.ndim != 2 or 0 in values.shape:
        raise TableError(
            f"{name} must be a table of rows by columns, at least one of each; got shape {values.shape}. "
            "Reshape one row to (1, columns) and one column to (rows, 1)."
        )
    return values


def observations(data: Any, mask: Any = None, name: str = "data") -> Observations:
    """Read a table and its mask (1 = observed; taken from the NaNs when there is none).

    A finite value where the mask says 0 is hidden and treated as missing.
    """
    values = as_matrix(data, name)
    infinite = np.argwhere(np.isinf(values))
    if len(infinite):
        row, column = infinite[0]
        raise TableError(
            f"{name} has {len(infinite)} infinite cells, the first in row {row}, column {column}; "
            "give a finite number, or NaN if the value is unknown."
        )
    present = ~np.isnan(values)
    observed = present if mask is None else _pattern(mask, present, name)
    return Observations(np.where(observed, values, np.nan), observed)


def _pattern(mask: Any, present: Pattern, name: str) -> Pattern:
    given = np.asarray(mask)
    if given.shape != present.shape:
        raise TableError(f"mask must have the shape of {name}, {present.shape}; got {given.shape}.")
    if given.dtype != bool and not np.isin(given, (0, 1)).all():
        raise TableError("mask must hold 1 (observed) and 0 (missing) only.")
    observed = given.astype(bool)
    wrong = np.argwhere(observed & ~present)
    if len(wrong):
        row, column = wrong[0]
        raise TableError(
            f"mask says 1 (observed) for {len(wrong)} cells of {name} that are NaN, the first in row {row}, "
            f"column {column}. In this mask 1 means observed; pass 1 - mask if yours means missing."
        )
    return observed


def check_width(table: Observations, n_columns: int) -> None:
    """Refuse a table with another number of columns than the fitted one."""
    if table.values.shape[1] != n_columns:
        raise TableError(
            f"the model was fitted to {n_columns} columns, and this table has {table.values.shape[1]}; "
            "pass the same columns in the same order."
        )
