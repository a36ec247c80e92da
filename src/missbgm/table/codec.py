"""Fitted coding of columns: scaling, class indices and the order in which the model sees them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, Self

import numpy as np
from numpy.typing import NDArray

from missbgm.errors import TableError
from missbgm.table.array import Observations, Pattern, Values
from missbgm.table.power import Power

Kind = Literal["gaussian", "bernoulli", "categorical"]
Kinds = Sequence[Kind] | Mapping[int, Kind] | None
KINDS: tuple[Kind, ...] = ("gaussian", "bernoulli", "categorical")
PILED = 0.05  # the share of a column's observed cells at an end of it that makes the end a bound


@dataclass(frozen=True)
class Codec:
    """How a table's columns become the numbers that the model sees, and back.

    Attributes
    ----------
    order
        The table's columns in the model's order: continuous ones first, then by number of classes.
        Columns with a single observed value say nothing and are left out.
    location, scale
        For every column of the table; a column that is left out has scale 0.
    levels
        The sorted values of every discrete column.
    power
        A further transformation of the model's columns, or None.
    bounds
        Lowest and highest value of every column that a cell is filled with, or None.
    """

    order: NDArray[np.intp]
    location: Values
    scale: Values
    levels: Mapping[int, Values]
    power: Power | None = None
    bounds: Values | None = None

    @classmethod
    def learn(cls, table: Observations, kinds: Kinds = None, *, standardize: bool = True) -> Self:
        values, observed = table
        empty = np.flatnonzero(~observed.any(axis=0))
        if len(empty):
            raise TableError(
                f"columns {empty.tolist()} have no observed cell, so nothing can be said about them; drop "
                "them before fitting."
            )
        levels = {j: np.unique(values[observed[:, j], j]) for j in _discrete(kinds, values.shape[1])}
        low, high = np.nanmin(values, axis=0), np.nanmax(values, axis=0)
        varying = low < high
        location, scale = np.zeros(values.shape[1]), np.ones(values.shape[1])
        if standardize:
            location, scale = np.nanmean(values, axis=0), np.nanstd(values, axis=0)
        # A spread that vanishes beside the values themselves rounds to zero: the column is constant.
        varying &= scale > 0
        location, scale = np.where(varying, location, low), np.where(varying, scale, 0.0)
        n_classes = [len(levels[j]) if j in levels else 0 for j in range(values.shape[1])]
        order = sorted(np.flatnonzero(varying), key=lambda j: (n_classes[j], j))
        return cls(np.array(order, dtype=np.intp), location, scale, levels)

    @property
    def n_columns(self) -> int:
        return len(self.location)

    @property
    def n_classes(self) -> list[int]:
        """Number of classes of the columns in the model's order, 0 for continuous ones."""
        return [len(self.levels[j]) if j in self.levels else 0 for j in self.order]

    def encode(self, table: Observations) -> tuple[NDArray[np.float32], Pattern]:
        """Numbers for the model, 0 in missing cells, and which of them are observed."""
        observed = table.observed[:, self.order]
        codes = np.zeros(observed.shape, np.float32)
        for i, j in enumerate(self.order):
            seen = observed[:, i]
            codes[seen, i] = self._encode_cells(table.values[seen, j], j)
        if self.power is not None:
            codes = np.where(observed, self.power.encode(codes), 0).astype(np.float32)
        return codes, observed

    def log_jacobian(self, table: Observations) -> Values:
        """Sum over each row's observed cells of the log derivative of `encode`; continuous columns only."""
        observed = table.observed[:, self.order]
        codes = np.zeros(observed.shape)
        for i, j in enumerate(self.order):
            codes[observed[:, i], i] = self._encode_cells(table.values[observed[:, i], j], j)
        bent = 0.0 if self.power is None else self.power.log_jacobian(codes, observed)
        return bent - np.where(observed, np.log(self.scale[self.order]), 0.0).sum(axis=1)

    def encode_values(self, values: Values, place: int) -> Values:
        """Values of the continuous column in one place of the model's order, coded."""
        codes = self._encode_cells(values, int(self.order[place]))
        return codes if self.power is None else self.power.taken(place).encode(codes[:, None])[:, 0]

    def _encode_cells(self, cells: Values, column: int) -> Values:
        if column not in self.levels:
            return (cells - self.location[column]) / self.scale[column]
        levels = self.levels[column]
        index = np.minimum(np.searchsorted(levels, cells), len(levels) - 1)
        unknown = np.unique(cells[levels[index] != cells])
        if len(unknown):
            raise TableError(
                f"column {column} holds {unknown.tolist()}, never seen when the model was fitted to its "
                f"classes {levels.tolist()}; recode these cells or make them NaN."
            )
        return index.astype(np.float64)

    @property
    def bends(self) -> bool:
        """Whether the value of a mean of codes is not the mean of their values."""
        return self.power is not None or self.bounds is not None

    def bounded(self, table: Observations) -> Self:
        """The same coding, which fills no cell beyond an end of its column where many cells lie.

        A normal density knows no ends: it would go on beyond the zeros of a column of amounts.
        """
        low, high = (end(table.values, axis=0) for end in (np.nanmin, np.nanmax))
        seen = table.observed.sum(axis=0)
        bounds = np.array(
            [
                np.where((self.scale > 0) & ((table.values == end).sum(axis=0) > PILED * seen), end, beyond)
                for end, beyond in ((low, -np.inf), (high, np.inf))
            ]
        )
        return replace(self, bounds=bounds) if np.isfinite(bounds).any() else self

    def decode(self, codes: NDArray[np.floating], columns: NDArray[np.intp]) -> Values:
        """Codes back to values; the last axis of `codes` runs along `columns` (of the table)."""
        if self.power is not None:
            place = np.zeros(self.n_columns, np.intp)
            place[self.order] = np.arange(len(self.order))
            coded = np.isin(columns, self.order)
            codes = np.where(coded, self.power.decode(codes, place[columns]), codes)
        decoded = self.location[columns] + self.scale[columns] * codes.astype(np.float64)
        for j, levels in self.levels.items():
            cells = columns == j
            if self.scale[j] > 0 and cells.any():
                decoded[..., cells] = levels[np.clip(codes[..., cells], 0, len(levels) - 1).astype(int)]
        return decoded if self.bounds is None else np.clip(decoded, *self.bounds[:, columns])

    def decode_table(self, codes: NDArray[np.floating], table: Observations) -> Values:
        """A completed table: observed cells as they came, missing ones decoded."""
        completed = np.tile(self.location, (len(codes), 1))
        completed[:, self.order] = self.decode(codes, self.order)
        return np.where(table.observed, table.values, completed)


def _discrete(kinds: Kinds, n_columns: int) -> list[int]:
    if kinds is None:
        return []
    named = dict(kinds) if isinstance(kinds, Mapping) else dict(enumerate(kinds))
    if not isinstance(kinds, Mapping) and len(named) != n_columns:
        raise TableError(f"kinds must name {n_columns} columns; got {len(named)}.")
    for column, kind in named.items():
        if kind not in KINDS or not 0 <= column < n_columns:
            raise TableError(
                f"kinds must give columns 0 to {n_columns - 1} one of {', '.join(KINDS)}; "
                f"got {column!r}: {kind!r}."
            )
    return [column for column, kind in named.items() if kind != "gaussian"]
