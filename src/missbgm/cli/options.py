"""What the command line accepts; nothing heavy is imported here, so that help is quick."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter
from cyclopts.validators import Number

AtLeastOne = Number(gte=1)


def _file_name(_: type, value: Path | None) -> None:
    if value is not None and str(value).startswith("-") and str(value) != "-":
        raise ValueError(f"expected a file name, got {str(value)!r}; write ./{value} if it is one")


def _assignment(_: type, values: list[str]) -> None:
    for value in values:
        if not value.partition("=")[0].strip() or "=" not in value:
            raise ValueError(f"expected name=value, such as posterior.n_mcmc=200; got {value!r}")


Point = Literal["mean", "median", "mode", "map"]
Flag = Annotated[bool, Parameter(negative="", show_default=False)]
# A lone "-" is a stream, and cyclopts takes it only where it takes everything that begins with one.
Output = Annotated[Path, Parameter(allow_leading_hyphen=True, validator=_file_name)]
Names = Annotated[tuple[str, ...], Parameter(negative="")]


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class ImputeOptions:
    """Options of `missbgm impute`."""

    output: Annotated[Output, Parameter(name=["--output", "-o"])]
    """Where the completed table goes; - for standard output. Observed cells keep their text."""

    config: Path | None = None
    """YAML file of settings; the package's defaults without one."""

    seed: Annotated[int, Parameter(validator=Number(gte=0))] = 0
    """Same seed, table and settings: same answer."""

    draws: Output | None = None
    """Write completed draws in the long format that R reads with mice::as.mids: columns .imp (0 for the table
    with holes) and .id, then the table's."""

    n_draws: Annotated[int, Parameter(validator=AtLeastOne)] = 20
    """How many draws --draws writes, evenly spread over all that were kept."""

    cells: Output | None = None
    """Write posterior mean, standard deviation and interval of every missing cell."""

    summary: Output | None = None
    """Write what was missing, how the fit and the chains ended, and under which settings, in plain text."""

    point: Point = "mean"
    """What fills a missing cell: the mean, median or mode of its draws, or the mode of all jointly (map)."""

    na: Annotated[Names, Parameter(allow_leading_hyphen=True, show_default=False)] = ()
    """A further token for missing cells, beside nothing, NA, N/A, NaN, null, None, ? and a full stop. May be
    repeated."""

    set: Annotated[Names, Parameter(validator=_assignment, show_default=False)] = ()
    """Override a setting by its dotted name, such as posterior.n_mcmc=200. May be repeated."""

    quiet: Flag = False
    """Print nothing but errors."""

    @property
    def outputs(self) -> list[tuple[str, Path]]:
        """Files to be written, each with what it holds."""
        given = {
            "completed table": self.output,
            "cells": self.cells,
            "draws": self.draws,
            "summary": self.summary,
        }
        return [(content, path) for content, path in given.items() if path is not None]


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class SimulateOptions:
    """Options of `missbgm simulate`."""

    output: Annotated[Output, Parameter(name=["--output", "-o"])]
    """Where the table with holes goes; - for standard output."""

    rows: Annotated[int, Parameter(validator=AtLeastOne)] = 500
    """Number of rows."""

    columns: Annotated[int, Parameter(validator=AtLeastOne)] = 50
    """Number of columns; the first five have no hole."""

    missing_rate: float = 0.2
    """Share of missing cells in the other columns, between 0 and 1."""

    seed: Annotated[int, Parameter(validator=Number(gte=0))] = 123
    """Same seed, same table."""

    truth: Output | None = None
    """Write the complete table as well."""

    quiet: Flag = False
    """Print nothing but errors."""

    @property
    def outputs(self) -> list[tuple[str, Path]]:
        """Files to be written, each with what it holds."""
        truth = [] if self.truth is None else [("complete table", self.truth)]
        return [("table with holes", self.output), *truth]
