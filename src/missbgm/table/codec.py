"""Fitted coding of columns: scaling, class indices and the order in which the model sees them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, Self

import numpy as np
from numpy.typing import NDArray

from missbgm.errors import TableError
from missbgm.table.array import Observations, Pattern, Values
from missbgm.table.power import Power

Kind = Literal["gaussian", "bernoulli", "categorical", "ordinal", "count"]
Kinds = Sequence[Kind] | Mapping[int, Kind] | None
KINDS: tuple[Kind, ...] = ("gaussian", "bernoulli", "categorical", "ordinal", "count")
PILED = 0.05  # the share of a column's observed cells at an end of it that makes the end a bound
BEYOND_BOUND = 1e-6  # the probability of counts that are larger than any that the model knows
MOST_COUNTS = 500  # the largest bound: a law of more is nearly continuous, and slow to sum


@dataclass(frozen=True)
class Codec:
    """How a table's columns become the numbers that the model sees, and back.

    Attributes
    ----------
    order
        The table's columns in the model's order: continuous ones first, then by kind and number of classes.
        Columns with a single observed value say nothing and are left out.
    location, scale
        For every column of the table; a column that is left out has scale 0.
    levels
        The sorted values of every discrete column; all counts up to a bound.
    power
        A further transformation of the model's continuous columns, or None.
    kind
        Of every discrete column; two classes are binary whether they were called nominal or not.
    bounds
        Lowest and highest value of every column that a cell is filled with, or None.
    """

    order: NDArray[np.intp]
    location: Values
    scale: Values
    levels: Mapping[int, Values]
    power: Power | None = None
    kind: Mapping[int, Kind] = field(default_factory=dict)
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
        named = _discrete(kinds, values.shape[1])
        levels = {j: _levels(j, kind, values[observed[:, j], j]) for j, kind in named.items()}
        kind = {j: _settled(named[j], len(levels[j])) for j in levels}
        low, high = np.nanmin(values, axis=0), np.nanmax(values, axis=0)
        varying = low < high
        location, scale = np.zeros(values.shape[1]), np.ones(values.shape[1])
        if standardize:
            location, scale = np.nanmean(values, axis=0), np.nanstd(values, axis=0)
        # A spread that vanishes beside the values themselves rounds to zero: the column is constant.
        varying &= scale > 0
        location, scale = np.where(varying, location, low), np.where(varying, scale, 0.0)

        def place(j: int) -> tuple[int, int, int]:
            return KINDS.index(kind.get(j, "gaussian")), len(levels.get(j, ())), j

        order = sorted(np.flatnonzero(varying).tolist(), key=place)
        return cls(np.array(order, dtype=np.intp), location, scale, levels, kind=kind)

    @property
    def n_columns(self) -> int:
        return len(self.location)

    @property
    def n_classes(self) -> list[int]:
        """Number of classes of the columns in the model's order, 0 for continuous ones."""
        return [len(self.levels[j]) if j in self.levels else 0 for j in self.order]

    @property
    def kinds(self) -> list[Kind]:
        """Kind of the columns in the model's order."""
        return [self.kind.get(j, "gaussian") for j in self.order.tolist()]

    @property
    def n_continuous(self) -> int:
        """Number of continuous columns, which are the first in the model's order."""
        return self.kinds.count("gaussian")

    def encode(self, table: Observations) -> tuple[NDArray[np.float32], Pattern]:
        """Numbers for the model, 0 in missing cells, and which of them are observed."""
        observed = table.observed[:, self.order]
        codes = np.zeros(observed.shape, np.float32)
        for i, j in enumerate(self.order):
            seen = observed[:, i]
            codes[seen, i] = self._encode_cells(table.values[seen, j], j)
        if self.power is not None:
            head = slice(0, self.n_continuous)
            codes[:, head] = np.where(observed[:, head], self.power.encode(codes[:, head]), 0)
        return codes, observed

    def log_jacobian(self, table: Observations) -> Values:
        """Sum over each row's observed cells of continuous columns of the log derivative of `encode`."""
        continuous = self.order[: self.n_continuous]
        observed = table.observed[:, continuous]
        codes = np.zeros(observed.shape)
        for i, j in enumerate(continuous):
            codes[observed[:, i], i] = self._encode_cells(table.values[observed[:, i], j], j)
        bent = 0.0 if self.power is None else self.power.log_jacobian(codes, observed)
        return bent - np.where(observed, np.log(self.scale[continuous]), 0.0).sum(axis=1)

    def encode_values(self, values: Values, place: int) -> Values:
        """Values of the column in one place of the model's order, coded."""
        codes = self._encode_cells(values, int(self.order[place]))
        if self.power is None or place >= self.n_continuous:
            return codes
        return self.power.taken(place).encode(codes[:, None])[:, 0]

    def _encode_cells(self, cells: Values, column: int) -> Values:
        if column not in self.levels:
            return (cells - self.location[column]) / self.scale[column]
        levels = self.levels[column]
        index = np.minimum(np.searchsorted(levels, cells), len(levels) - 1)
        unknown = np.unique(cells[levels[index] != cells])
        if len(unknown) and self.kind.get(column) == "count":
            raise TableError(
                f"column {column} holds {unknown.tolist()}; the counts that the model knows are whole "
                f"numbers from 0 to {levels[-1]:g}: correct these cells, or fit again with them."
            )
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

    def bounded(self, table: Observations, limited: Sequence[int] = ()) -> Self:
        """The same coding, which fills no cell beyond an end of its column where many cells lie.

        A normal density knows no ends: it would go on beyond the zeros of a column of amounts. Columns that
        are `limited` are cut where they end, so that their missing cells do lie beyond it.
        """
        low, high = (end(table.values, axis=0) for end in (np.nanmin, np.nanmax))
        seen = table.observed.sum(axis=0)
        continuous = (self.scale > 0) & ~np.isin(np.arange(self.n_columns), [*self.levels, *limited])
        bounds = np.array(
            [
                np.where(continuous & ((table.values == end).sum(axis=0) > PILED * seen), end, beyond)
                for end, beyond in ((low, -np.inf), (high, np.inf))
            ]
        )
        return replace(self, bounds=bounds) if np.isfinite(bounds).any() else self

    def decode(self, codes: NDArray[np.floating], columns: NDArray[np.intp]) -> Values:
        """Codes back to values; the last axis of `codes` runs along `columns` (of the table)."""
        if self.power is not None:
            continuous = self.order[: self.n_continuous]
            place = np.zeros(self.n_columns, np.intp)
            place[continuous] = np.arange(len(continuous))
            coded = np.isin(columns, continuous)
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


def _discrete(kinds: Kinds, n_columns: int) -> dict[int, Kind]:
    if kinds is None:
        return {}
    named = dict(kinds) if isinstance(kinds, Mapping) else dict(enumerate(kinds))
    if not isinstance(kinds, Mapping) and len(named) != n_columns:
        raise TableError(f"kinds must name {n_columns} columns; got {len(named)}.")
    for column, kind in named.items():
        if kind not in KINDS or not 0 <= column < n_columns:
            raise TableError(
                f"kinds must give columns 0 to {n_columns - 1} one of {', '.join(KINDS)}; "
                f"got {column!r}: {kind!r}."
            )
    return {column: kind for column, kind in named.items() if kind != "gaussian"}


def _settled(kind: Kind, n_levels: int) -> Kind:
    if kind in ("bernoulli", "categorical"):
        return "bernoulli" if n_levels == 2 else "categorical"
    return kind


def _levels(column: int, kind: Kind, cells: Values) -> Values:
    return np.unique(cells) if kind != "count" else np.arange(_bound(column, cells) + 1.0)


def _bound(column: int, cells: Values) -> int:
    """A count that is hardly ever exceeded, by a negative binomial of the cells' mean and variance."""
    from scipy.stats import nbinom, poisson

    wrong = np.unique(cells[(cells < 0) | (cells != np.floor(cells))])
    if len(wrong):
        raise TableError(
            f"column {column} is said to be a count and holds {wrong[:5].tolist()}; counts are 0, 1, 2, ...: "
            "correct these cells, or name another kind."
        )
    mean, variance = float(cells.mean()), float(cells.var())
    law = poisson(mean) if variance <= mean else nbinom(mean**2 / (variance - mean), mean / variance)
    bound = max(2 * float(cells.max()), float(law.ppf(1 - BEYOND_BOUND)))
    if bound > MOST_COUNTS:
        raise TableError(
            f"column {column} counts up to {cells.max():g}, too far for a sum over all counts; counts that "
            "large are nearly continuous: name it gaussian."
        )
    return int(bound)
