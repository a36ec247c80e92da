"""The command `impute`: a table with holes in; a completed table, and what is known of its cells, out."""

import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

from missbgm.cli.options import ImputeOptions
from missbgm.cli.outputs import STREAM, Writer, check_outputs, named, write_outputs
from missbgm.cli.report import Run, check_mice_names, write_cells, write_draws, write_summary
from missbgm.cli.settings import read_settings
from missbgm.config import Config
from missbgm.errors import ConfigError, TableError
from missbgm.models import MissBGM
from missbgm.table.array import Values
from missbgm.table.csv import CsvTable, read_csv, write_completed

Say = Callable[[str], None]


def run(source: Path, options: ImputeOptions, say: Say) -> None:
    """Check all that can be checked; then fit, draw and write."""
    started = time.perf_counter()
    check_outputs([path for _, path in options.outputs], filter(None, (source, options.config)))
    config = read_settings(options.config, options.set)
    if options.draws:
        _check_n_draws(options.n_draws, config)
    table = _table(source, options, say)
    model = MissBGM(config, options.seed)
    model.fit(table.values, names=table.names, verbose=not options.quiet)
    completed = _completed(model, options)
    done = Run(source, table, model, options.point, time.perf_counter() - started)
    write_outputs(_writers(options, done, completed))
    for content, path in options.outputs:
        say(f"wrote {named(path)}: {content}")


def _check_n_draws(n_draws: int, config: Config) -> None:
    kept = config.posterior.n_mcmc * config.posterior.n_chains
    if n_draws > kept:
        raise ConfigError(
            f"--n-draws must be at most {kept}, the number of draws that are kept; got {n_draws}. Ask for "
            "fewer, or raise posterior.n_mcmc."
        )


def _table(source: Path, options: ImputeOptions, say: Say) -> CsvTable:
    try:
        table = read_csv(sys.stdin.buffer if source == STREAM else source, options.na)
        _check_columns(table)
        if options.draws:
            check_mice_names(table)
    except TableError as error:
        raise TableError(f"{named(source, 'standard input')}: {error}") from None
    if table.header is None:
        say("note: the first line holds numbers, so there is no header; columns are called x1, x2, ...")
    if table.observed.all():
        say("note: no cell is missing, so there is nothing to fill; name other tokens by --na.")
    return table


def _check_columns(table: CsvTable) -> None:
    empty = [repr(table.names[j]) for j in np.flatnonzero(~table.observed.any(axis=0))]
    if empty:
        raise TableError(
            f"no cell of {', '.join(empty)} is observed, so nothing can be said about it; drop that column."
        )


def _completed(model: MissBGM, options: ImputeOptions) -> Values:
    """The completed table; draws are left with the model when something asks for them."""
    if options.point == "map" and not (options.cells or options.draws):
        return model.x_map_imputed_
    point = "mean" if options.point == "map" else options.point
    completed, _ = model.predict(point=point, verbose=not options.quiet)
    return model.x_map_imputed_ if options.point == "map" else completed


def _writers(options: ImputeOptions, done: Run, completed: Values) -> dict[Path, Writer]:
    table, model = done.table, done.model
    writers: dict[Path, Writer] = {options.output: partial(write_completed, table=table, completed=completed)}
    if options.cells:
        alpha = model.config.posterior.alpha
        writers[options.cells] = partial(write_cells, table=table, draws=model.draws_, alpha=alpha)
    if options.draws:
        writers[options.draws] = partial(
            write_draws, table=table, draws=model.draws_, n_draws=options.n_draws
        )
    if options.summary:
        writers[options.summary] = partial(write_summary, run=done)
    return writers
