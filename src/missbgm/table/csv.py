"""Delimited text as tables: the text of every cell, character for character, and the number it stands for."""

import codecs
import csv
import math
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np

from missbgm.errors import TableError
from missbgm.table.array import Pattern, Values

# In order of preference: a comma may be a decimal mark, the others hardly ever are anything else.
DELIMITERS = ("\t", ";", "|", ",")
NA_TOKENS = frozenset({"", "na", "n/a", "#n/a", "<na>", "nan", "null", "none", "?", "."})
SNIFFED_CHARACTERS, SNIFFED_LINES = 65_536, 10
ENDINGS = "\r\n|\r|\n"


class Line(NamedTuple):
    """The cells of one line as they are written, quotes and spaces included, and what ends the line."""

    cells: Sequence[str]
    end: str


class Dialect(NamedTuple):
    """How a file is written."""

    delimiter: str
    encoding: str


@dataclass(frozen=True, eq=False)
class CsvTable:
    """A table of numbers read from text.

    Attributes
    ----------
    names
        Of the columns; x1, x2, ... when the file has no header.
    header
        The header's line, or None.
    lines
        The other lines, whose cells keep their text as it came.
    dialect
        How the file is written.
    values, observed
        The numbers, NaN in missing cells, and which cells are observed.
    """

    names: list[str]
    header: Line | None
    lines: list[Line]
    dialect: Dialect
    values: Values
    observed: Pattern

    @property
    def cells(self) -> list[list[str]]:
        """What every cell says, without quotes and surrounding spaces."""
        return [[plain(cell) for cell in line.cells] for line in self.lines]


def plain(cell: str) -> str:
    """The text of a cell without surrounding spaces and quotes."""
    text = cell.strip()
    if len(text) > 1 and text[0] == text[-1] == '"':
        return text[1:-1].replace('""', '"').strip()
    return text


def number(value: float) -> str:
    """A number as it is written to files: nine significant digits tell all 32-bit floats apart."""
    return f"{value:.9g}"


def read_csv(source: Path | BinaryIO, na: Collection[str] = ()) -> CsvTable:
    """Read a table of numbers, or raise a `TableError` that names the column or row at fault.

    The delimiter (tab, semicolon, bar or comma) and whether there is a header are found out. Blank lines
    are skipped, except inside a file of one column, where they are missing cells.

    Parameters
    ----------
    source
        A path, or a stream of bytes. UTF-8 with or without byte-order mark; Latin-1 if it is not UTF-8.
    na
        What stands for a missing cell beside nothing, NA, N/A, NaN, null, None, ? and a full stop.
    """
    text, encoding = _decoded(source.read_bytes() if isinstance(source, Path) else source.read())
    delimiter = _sniffed(text)
    lines = _without_blanks(list(_lines(text, delimiter)))
    if not lines:
        raise TableError("the file is empty; expected a header and rows of numbers.")
    tokens = _Tokens(na)
    header = lines.pop(0) if _is_header(lines, tokens) else None
    width = len(header.cells if header else lines[0].cells)
    names = _names(header) if header else [f"x{j}" for j in range(1, width + 1)]
    _check_shape(lines, width, delimiter)
    values = _numbers(lines, names, tokens)
    return CsvTable(names, header, lines, Dialect(delimiter, encoding), values, ~np.isnan(values))


def write_completed(file: BinaryIO, table: CsvTable, completed: Values) -> None:
    """Write a table as it came, with a number in each of its missing cells."""
    out = codecs.getwriter(table.dialect.encoding)(file)
    delimiter = table.dialect.delimiter
    if table.header:
        out.write(delimiter.join(table.header.cells) + table.header.end)
    for line, values, observed in zip(table.lines, completed.tolist(), table.observed.tolist(), strict=True):
        cells = (c if seen else number(v) for c, v, seen in zip(line.cells, values, observed, strict=True))
        out.write(delimiter.join(cells) + line.end)


def write_csv(file: BinaryIO, header: Iterable[str], rows: Iterable[Iterable[object]]) -> None:
    """Write a new file: UTF-8, commas, quotes where they are needed."""
    writer = csv.writer(codecs.getwriter("utf-8")(file), lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)


class _Tokens:
    """What stands for a missing cell: the usual tokens in any case, the user's own as text and as numbers."""

    def __init__(self, own: Collection[str]) -> None:
        self.texts = {token.strip() for token in own}
        parsed = (_number(text) for text in self.texts)
        self.numbers = {value for value in parsed if value is not None}

    def value(self, cell: str) -> float | None:
        """The cell's number, NaN if it is missing, None if it is text."""
        text = plain(cell)
        if text in self.texts or text.lower() in NA_TOKENS:
            return math.nan
        value = _number(text)
        return math.nan if value in self.numbers else value


def _number(text: str) -> float | None:
    try:
        # Python reads 1_000 as a number; no other program does.
        return None if "_" in text else float(text)
    except ValueError:
        return None


def _decoded(content: bytes) -> tuple[str, str]:
    if b"\0" in content:
        raise TableError("the file is not plain text (it holds NUL bytes); save the table as CSV in UTF-8.")
    encoding = "utf-8-sig" if content.startswith(codecs.BOM_UTF8) else "utf-8"
    try:
        return content.decode(encoding), encoding
    except UnicodeDecodeError:
        return content.decode("latin-1"), "latin-1"


def _lines(text: str, delimiter: str) -> Iterator[Line]:
    """Cut text into lines of cells and lose no character but delimiters."""
    if '"' not in text:
        parts = [*re.split(f"({ENDINGS})", text), ""]
        yield from (
            Line(line.split(delimiter), end) for line, end in zip(parts[::2], parts[1::2], strict=True)
        )
        return
    mark = re.escape(delimiter)
    cell = re.compile(rf'( *"[^"]*(?:""[^"]*)*" *|[^{mark}\r\n]*)({mark}|{ENDINGS}|\Z)')
    cells: list[str] = []
    for match in cell.finditer(text):
        cells.append(match[1])
        if match[2] != delimiter:
            yield Line(cells, match[2])
            cells = []
        if not match[2]:
            return


def _is_blank(line: Line) -> bool:
    return len(line.cells) == 1 and not line.cells[0].strip()


def _without_blanks(lines: list[Line]) -> list[Line]:
    filled = [i for i, line in enumerate(lines) if not _is_blank(line)]
    if filled and len(lines[filled[0]].cells) == 1:
        return lines[filled[0] : filled[-1] + 1]
    return [lines[i] for i in filled]


def _sniffed(text: str) -> str:
    """The first delimiter that cuts the first lines into equally many cells, or else the busiest one."""
    sample, widths = text[:SNIFFED_CHARACTERS], {}
    for delimiter in DELIMITERS:
        lines = (line for line in _lines(sample, delimiter) if not _is_blank(line))
        widths[delimiter] = [len(line.cells) for line in islice(lines, SNIFFED_LINES)] or [1]
    even = [delimiter for delimiter, found in widths.items() if len(set(found)) == 1 and found[0] > 1]
    return even[0] if even else max(reversed(DELIMITERS), key=lambda delimiter: widths[delimiter][0])


def _is_header(lines: list[Line], tokens: _Tokens) -> bool:
    if any(tokens.value(cell) is None for cell in lines[0].cells):
        return True
    # Names such as years look like numbers, but R puts names in quotes and numbers not.
    quoted = [all(cell.lstrip().startswith('"') for cell in line.cells) for line in lines[:2]]
    return quoted == [True, False]


def _names(header: Line) -> list[str]:
    names = [plain(cell) for cell in header.cells]
    if "" in names:
        raise TableError(
            f"column {names.index('') + 1} has no name; name it in the header, or remove it if it holds row "
            "numbers or comes from a delimiter at the end of every line."
        )
    for j, name in enumerate(names):
        if (first := names.index(name)) < j:
            raise TableError(
                f"columns {first + 1} and {j + 1} are both called {name!r}; give each a name of its own."
            )
    return names


def _check_shape(lines: list[Line], width: int, delimiter: str) -> None:
    if not lines:
        raise TableError("the file has a header and no rows; expected at least one row of numbers.")
    for i, line in enumerate(lines, 1):
        if len(line.cells) != width:
            raise TableError(
                f"row {i} has {len(line.cells)} cells, expected {width} as in the first line; mend that row "
                f"(cells are told apart by {delimiter!r})."
            )


def _numbers(lines: list[Line], names: list[str], tokens: _Tokens) -> Values:
    values = np.empty((len(lines), len(names)))
    refused: dict[int, tuple[int, str]] = {}
    for i, line in enumerate(lines):
        for j, cell in enumerate(line.cells):
            value = tokens.value(cell)
            if value is None or math.isinf(value):
                refused.setdefault(j, (i + 1, plain(cell)))
            else:
                values[i, j] = value
    if refused:
        raise TableError(_explain(refused, names))
    return values


def _explain(refused: dict[int, tuple[int, str]], names: list[str]) -> str:
    column = min(refused)
    row, text = refused.pop(column)
    others = ", ".join(repr(names[j]) for j in sorted(refused))
    return (
        f"column {names[column]!r} holds {text!r} in row {row} (not counting the header), which is not a "
        "finite number; columns must be numeric in this version. Code it as numbers, drop it, or name "
        f"{text!r} as a token for missing cells."
        + (" Write decimals with a point." if re.fullmatch(r"[-+]?\d*,\d+", text) else "")
        + (f" The same goes for {others}." if others else "")
    )
