"""The mechanisms that settings name, for the columns of one table."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Self

from missbgm.config import LIMITED
from missbgm.errors import ConfigError, TableError
from missbgm.table.array import Observations
from missbgm.table.codec import Codec

UNNAMED = "ignorable"  # the mechanism of columns that a mapping leaves out
Names = Sequence[str] | None


class Named(NamedTuple):
    """A mechanism for every column in the model's order, and the limits among them in the table's units."""

    families: list[str]
    limits: Mapping[int, float]

    @classmethod
    def read(
        cls, setting: str | tuple[tuple[str, str], ...], codec: Codec, table: Observations, names: Names
    ) -> Self:
        """What a setting means for a table."""
        if isinstance(setting, str):
            return cls([setting] * len(codec.order), {})
        named = {_place(column, codec.n_columns, names): name for column, name in setting}
        families, limits = [], {}
        for place, column in enumerate(codec.order.tolist()):
            name = named.get(column, UNNAMED)
            found = LIMITED.fullmatch(name)
            families.append(found[1] if found else name)
            if found:
                limits[place] = float(found[2])
        read = cls(families, limits)
        read.check(codec, table, names)
        return read

    def check(self, codec: Codec, table: Observations, names: Names) -> None:
        """Refuse a table whose observed cells lie beyond a known limit."""
        for place, limit in self.limits.items():
            _check_limit(self.families[place], limit, table, int(codec.order[place]), names)

    def name(self, place: int, family: str) -> str:
        """The mechanism of a column, its limit included."""
        return f"{family}({self.limits[place]:g})" if place in self.limits else family


def label(column: int, names: Names) -> str:
    """What a column is called."""
    return names[column] if names else f"column {column}"


def _place(column: str, n_columns: int, names: Names) -> int:
    if names and column in names:
        return list(names).index(column)
    if column.isdigit() and int(column) < n_columns:
        return int(column)
    known = f"one of {', '.join(names)}, or " if names else ""
    raise ConfigError(
        f"missingness names the column {column!r}, which the table does not have; expected {known}an index "
        f"from 0 to {n_columns - 1}."
    )


def _check_limit(side: str, limit: float, table: Observations, column: int, names: Names) -> None:
    values = table.values[table.observed[:, column], column]
    wrong = values[values < limit if side == "below" else values > limit]
    if len(wrong):
        raise TableError(
            f"{label(column, names)} is said to be missing exactly {side} {limit:g}, but {len(wrong)} of its "
            f"observed cells are {side} it, such as {wrong[0]:.6g}; correct the limit, or hide these cells."
        )
