"""The mechanisms that settings name, for the columns of one table."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Self

from missbgm.config import LIMITED
from missbgm.errors import ConfigError, TableError
from missbgm.table.array import Observations
from missbgm.table.codec import Codec

UNNAMED = "ignorable"  # the mechanism of columns that a mapping leaves out
CONTINUOUS = {
    "selection": "residuals of a continuous column",
    "below": "a limit of a continuous column",
    "above": "a limit of a continuous column",
}
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
            _check_kinds([setting] * len(codec.order), codec, names)
            return cls([setting] * len(codec.order), {})
        named = {_place(column, codec.n_columns, names): name for column, name in setting}
        families, limits = [], {}
        for place, column in enumerate(codec.order.tolist()):
            name = named.get(column, UNNAMED)
            found = LIMITED.fullmatch(name)
            families.append(found[1] if found else name)
            if found:
                limits[place] = float(found[2])
        _check_kinds(families, codec, names)
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


def _check_kinds(families: Sequence[str], codec: Codec, names: Names) -> None:
    """Refuse mechanisms that need a continuous value for columns of classes."""
    for family, kind, column in zip(families, codec.kinds, codec.order.tolist(), strict=True):
        if kind != "gaussian" and family in ("selection", "below", "above"):
            raise ConfigError(
                f"missingness: {family} needs {CONTINUOUS[family]}, and {label(column, names)} is {kind}; "
                "name selfmask for it: its cells then go missing by their own class."
            )


def _check_limit(side: str, limit: float, table: Observations, column: int, names: Names) -> None:
    values = table.values[table.observed[:, column], column]
    wrong = values[values < limit if side == "below" else values > limit]
    if len(wrong):
        raise TableError(
            f"{label(column, names)} is said to be missing exactly {side} {limit:g}, but {len(wrong)} of its "
            f"observed cells are {side} it, such as {wrong[0]:.6g}; correct the limit, or hide these cells."
        )
