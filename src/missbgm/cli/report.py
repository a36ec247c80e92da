"""What a run leaves beside the completed table: cells, draws and a summary in words."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np

from missbgm import __version__
from missbgm.cli.outputs import named
from missbgm.cli.settings import changed
from missbgm.errors import TableError
from missbgm.models import MissBGM
from missbgm.summary.draws import Draws
from missbgm.table.array import Pattern
from missbgm.table.csv import CsvTable, number, write_csv

CELLS_HEADER = ("row", "column", "mean", "sd", "lower", "upper")
FILLED = {
    "mean": "posterior mean of each cell",
    "median": "posterior median of each cell",
    "mode": "mode of each cell's posterior draws",
    "map": "point estimate of the engine: the joint posterior mode of all cells (MAP), or the posterior mean "
    "with engine: collapse",
}
UNITS = {"alternate": "epochs", "collapse": "iterations"}
DRAWN = {"alternate": "Chains", "collapse": "Draws"}
MICE_COLUMNS = (".imp", ".id")


@dataclass(frozen=True)
class Run:
    """What there is to report on."""

    source: Path
    table: CsvTable
    model: MissBGM
    point: str
    seconds: float


def write_cells(file: BinaryIO, table: CsvTable, draws: Draws, alpha: float) -> None:
    """Write one line a missing cell: where it is, its posterior mean and sd, and its interval."""
    numbers = np.column_stack([draws.point("mean"), draws.sd(), draws.interval(alpha)])
    rows = (
        [row + 1, table.names[column], *map(number, cell)]
        for (row, column), cell in zip(draws.index.tolist(), numbers.tolist(), strict=True)
    )
    write_csv(file, CELLS_HEADER, rows)


def write_draws(file: BinaryIO, table: CsvTable, draws: Draws, n_draws: int) -> None:
    """Write the table with its holes and completed tables below one another, as R's mice reads them."""
    write_csv(file, [*MICE_COLUMNS, *table.names], _mice_rows(table, draws, n_draws))


def check_mice_names(table: CsvTable) -> None:
    """Refuse columns whose names the long format needs for itself."""
    for name in MICE_COLUMNS:
        if name in table.names:
            raise TableError(f"a column is called {name!r}, which --draws needs for itself; rename it.")


def _mice_rows(table: CsvTable, draws: Draws, n_draws: int) -> Iterator[list[object]]:
    cells, observed = table.cells, table.observed.tolist()
    chosen = np.arange(1, n_draws + 1) * draws.n_draws // n_draws - 1
    for imputation in range(n_draws + 1):
        filled = draws.complete(int(chosen[imputation - 1])).tolist() if imputation else None
        for i, (texts, seen) in enumerate(zip(cells, observed, strict=True)):
            row = filled[i] if filled else [None] * len(texts)
            yield [imputation, i + 1, *map(_cell, texts, seen, row)]


def _cell(text: str, seen: bool, value: float | None) -> str:
    if seen:
        return text
    return "NA" if value is None else number(value)


def write_summary(file: BinaryIO, run: Run) -> None:
    """Describe a run in plain text."""
    table, model = run.table, run.model
    missing = ~table.observed
    settings = [f"{name} = {now} (default {then})" for name, (now, then) in changed(model.config).items()]
    facts = [
        ("Table", named(run.source, "standard input")),
        ("Rows", str(len(missing))),
        ("Columns", str(len(table.names))),
        ("Missing cells", _share(missing)),
        *((f"  {name}", _share(missing[:, j])) for j, name in enumerate(table.names)),
        ("Filled with", FILLED[run.point]),
        ("Fit", f"{model.status_} ({len(model.history_.get('objective', ()))} {UNITS[model.config.engine]})"),
        (DRAWN[model.config.engine], _verdict(model)),
        *(("Setting", setting) for setting in settings or ["all at their defaults"]),
        ("Version", f"missbgm {__version__}"),
        ("Seed", str(model.random_seed)),
        ("Seconds", f"{run.seconds:.1f}"),
    ]
    width = max(len(name) for name, _ in facts)
    lines = [f"{name:<{width}}  {fact}" for name, fact in facts]
    file.write("\n".join([*lines, "", model.summary(), ""]).encode())


def _verdict(model: MissBGM) -> str:
    return model.check_.verdict if hasattr(model, "check_") else "No draws were made."


def _share(missing: Pattern) -> str:
    return f"{missing.sum()} of {missing.size} ({missing.mean():.1%})"
