"""The command `simulate`: the synthetic benchmark as a CSV file."""

from collections.abc import Callable
from functools import partial
from math import isnan
from pathlib import Path
from typing import BinaryIO

from missbgm.cli.options import SimulateOptions
from missbgm.cli.outputs import Writer, check_outputs, named, write_outputs
from missbgm.datasets.simulate import simulate_mnar_oracle_data
from missbgm.table.array import Values
from missbgm.table.csv import write_csv


def run(options: SimulateOptions, say: Callable[[str], None]) -> None:
    """Simulate and write."""
    check_outputs(path for _, path in options.outputs)
    data = simulate_mnar_oracle_data(
        options.rows, options.columns, missing_rate=options.missing_rate, seed=options.seed
    )
    tables = (data["x_obs"], data["x_full"])
    writers: dict[Path, Writer] = {
        path: partial(_write, table=table) for (_, path), table in zip(options.outputs, tables, strict=False)
    }
    write_outputs(writers)
    for content, path in options.outputs:
        say(f"wrote {named(path)}: {content}")


def _write(file: BinaryIO, table: Values) -> None:
    names = [f"x{j}" for j in range(1, table.shape[1] + 1)]
    rows = (["" if isnan(cell) else repr(cell) for cell in row] for row in table.tolist())
    write_csv(file, names, rows)
