"""Chains for every row of a table: blocks of rows of one shape, run side by side, missing cells kept."""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Lock
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from missbgm.bgm.joint import Model, Terms
from missbgm.bgm.networks import is_uncertain
from missbgm.config import Config, Posterior
from missbgm.fit.alternate import Rates, refine
from missbgm.fit.alternate import Rows as Local
from missbgm.fit.start import Inverse, complete
from missbgm.randomness import Seeds
from missbgm.sample.check import Check, Weighing, checked
from missbgm.sample.gibbs import Adaptation, Chains, Kernels, Trace, sweeps
from missbgm.types import RandomKey

ADAPT_SHARE = 0.8  # of the burn-in
TRACE_CELLS = 2_000_000  # the largest trace of one segment, in cells
SEGMENT = 50
CHECKED_CELLS = 100
WEIGHTS = 2**31  # a chain's number that no chain has: the weights' randomness

_COMPILING = Lock()

OnSweeps = Callable[[int, int], None]


class Rows(NamedTuple):
    """Rows to draw for: a mode to start from, the pattern, and the number that seeds each row."""

    z: NDArray[np.float32]
    x: NDArray[np.float32]
    observed: NDArray[np.bool_]
    numbers: NDArray[np.uint32]

    def taken(self, index: NDArray[np.intp]) -> "Rows":
        return Rows(self.z[index], self.x[index], self.observed[index], self.numbers[index])


class Sampled(NamedTuple):
    """Draws of the missing cells, row by row, with streaming moments over every sweep after burn-in."""

    values: NDArray[np.floating]  # chains, draws, cells
    mean: NDArray[np.float64]
    sd: NDArray[np.float64]
    check: Check | Weighing


class Phase(NamedTuple):
    """Sweeps with one draw of the weights: some to settle, then some draws kept."""

    model: Model
    discarded: int
    kept: int


def block_rows(n_rows: int) -> int:
    """How many rows run together: full blocks for long tables, quarters of one for short ones.

    A few shapes serve every table, so that the sampler is compiled once. 256 rows keep the intermediate
    arrays in a core's cache; an accelerator wants more.
    """
    full = 256 if jax.default_backend() == "cpu" else 16_384
    quarter = full // 4
    return min(full, max(1, -(-n_rows // quarter)) * quarter)


def cut(rows: Rows) -> list[tuple[Rows, int]]:
    """Blocks of one shape and how many of their rows are real; rows that only fill up miss nothing."""
    n, size = len(rows.z), block_rows(len(rows.z))
    blocks = []
    for start in range(0, n, size):
        n_real = min(size, n - start)
        block = rows.taken(np.resize(np.arange(start, start + n_real), size))
        block.observed[n_real:] = True
        blocks.append((block, n_real))
    return blocks


def moved_to_mode(model: Model, inverse: Inverse, rows: Rows, config: Config) -> Rows:
    """New rows moved to a mode of their latent row and missing cells, the networks fixed."""
    centre, rates = model.at_mean(), Rates.of(config, rows.x.size)
    n_steps = np.int32(config.test_epochs * config.n_inner_steps)
    parts = []
    for block, n_real in cut(rows):
        observed = jnp.asarray(block.observed.T)
        z, x = complete(centre, inverse, jnp.asarray(block.x.T), observed)
        moved = refine(centre, Local.start(z, x), observed, rates, n_steps)
        parts.append((np.asarray(moved.z).T[:n_real], np.asarray(moved.x).T[:n_real]))
    z, x = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    return rows._replace(z=z, x=x)


def plan(model: Model, key: RandomKey, settings: Posterior) -> list[Phase]:
    """One phase for fixed weights; one for each draw of uncertain weights, each with sweeps to settle in."""
    if not is_uncertain(model):
        return [Phase(model, settings.burn_in, settings.n_mcmc)]
    n = min(settings.n_weight_draws, settings.n_mcmc)
    kept = np.diff(np.linspace(0, settings.n_mcmc, n + 1).astype(int))
    draw = jax.jit(lambda model, i: model.drawn(jax.random.fold_in(jax.random.fold_in(key, WEIGHTS), i)))
    settle = -(-settings.burn_in // n)
    return [
        Phase(draw(model, np.uint32(i)), settle if i else settings.burn_in, int(k))
        for i, k in enumerate(kept)
    ]


def segment_length(n_sweeps: int, block_cells: int) -> int:
    """How many sweeps one call makes: few lengths, so that few programs, within a bound on the trace."""
    bound = max(1, TRACE_CELLS // block_cells)
    return min(bound, SEGMENT if n_sweeps > SEGMENT else 10)


class Recorder:
    """Gathers what one chain of one block of rows leaves behind; kept draws go straight to `out`."""

    def __init__(self, block: Rows, n_real: int, settings: Posterior, out: NDArray[np.floating]) -> None:
        self.row, self.column = np.nonzero(~block.observed)
        self.n_real, self.thin, self.out = n_real, settings.thin, out
        self.total, self.squares = np.zeros(len(self.row)), np.zeros(len(self.row))
        self.terms = np.zeros((len(Terms._fields), settings.n_mcmc))
        self.acceptance = np.zeros((2, n_real))
        self.n_used = self.n_kept = 0

    def record(self, trace: Trace, skipped: int, ended: int) -> None:
        """Take the sweeps of a segment from `skipped` up to `ended`."""
        used = slice(skipped, ended)
        cells = np.asarray(trace.x)[used][:, self.column, self.row]
        self.total += cells.sum(axis=0, dtype=np.float64)
        self.squares += np.square(cells, dtype=np.float64).sum(axis=0)
        for i, accepted in enumerate((trace.z_acceptance, trace.x_acceptance)):
            self.acceptance[i] += np.asarray(accepted)[used, : self.n_real].sum(axis=0)
        kept = np.arange(self.n_used, self.n_used + len(cells)) % self.thin == self.thin - 1
        draws = slice(self.n_kept, self.n_kept + int(kept.sum()))
        self.out[draws] = cells[kept]
        for i, term in enumerate(trace.terms):
            self.terms[i, draws] = np.asarray(term)[used][kept, : self.n_real].sum(axis=1)
        self.n_used, self.n_kept = self.n_used + len(cells), draws.stop


def run_chain(
    stages: list[Phase],
    block: Rows,
    seeds: Seeds,
    settings: Posterior,
    beta: float,
    recorder: Recorder,
    on_sweeps: Callable[[int], None],
) -> None:
    """Run every stage for one block of rows."""
    observed = np.ascontiguousarray(block.observed.T)
    chains = Chains.start(jnp.asarray(block.z.T), jnp.asarray(block.x.T), settings.step_size)
    kernels = Kernels(settings.n_leapfrog, settings.x_kernel, settings.target_accept)
    weight = np.float32(beta)
    number = 0
    for stage in stages:
        chains = chains.adapting_anew() if number else chains
        adaptation = Adaptation(np.int32(number), np.int32(number + ADAPT_SHARE * stage.discarded))
        n_sweeps = stage.discarded + stage.kept * settings.thin
        length = segment_length(n_sweeps, block.x.size)
        for first in range(0, n_sweeps, length):
            given = (stage.model, chains, observed, seeds, np.int32(number), adaptation, weight)
            with _COMPILING:  # the call returns at once; two threads must not compile the same program
                chains, trace = sweeps(*given, length=length, kernels=kernels)
            number += length
            ended = min(length, n_sweeps - first)
            skipped = max(0, stage.discarded - first)
            if skipped < ended:
                recorder.record(trace, skipped, ended)
            on_sweeps(ended)


def draw_posterior(
    key: RandomKey,
    model: Model | None,
    rows: Rows,
    settings: Posterior,
    beta: float,
    on_sweeps: OnSweeps | None = None,
) -> Sampled:
    """Draw the missing cells of a table, every row with chains of its own.

    A row's draws depend on the key, the model, its cells and its number alone. Rows with no missing cell
    cost nothing, and there is no model when no column varies. ``on_sweeps(done, of)`` counts sweeps of
    blocks.
    """
    incomplete = np.flatnonzero(~rows.observed.all(axis=1))
    rows = rows.taken(incomplete)
    ends = np.concatenate([[0], np.cumsum((~rows.observed).sum(axis=1))])
    values = np.empty((settings.n_chains, settings.n_mcmc, ends[-1]), settings.dtype)
    if model is None or not len(incomplete):
        return Sampled(values, np.zeros(0), np.zeros(0), checked({}, np.zeros(0), np.zeros(0)))
    stages = plan(model, key, settings)
    jobs, start = [], 0
    for block, n_real in cut(rows):
        cells = slice(ends[start], ends[start + n_real])
        for chain in range(settings.n_chains):
            jobs.append((chain, block, Recorder(block, n_real, settings, values[chain, :, cells])))
        start += n_real
    n_all = len(jobs) * sum(stage.discarded + stage.kept * settings.thin for stage in stages)
    done = 0

    def count(n: int) -> None:
        nonlocal done
        done += n
        if on_sweeps:
            on_sweeps(done, n_all)

    def run(job: tuple[int, Rows, Recorder]) -> None:
        chain, block, recorder = job
        seeds = Seeds(key, block.numbers, np.uint32(chain))
        run_chain(stages, block, seeds, settings, beta, recorder, count)

    with ThreadPoolExecutor(n_workers()) as pool:
        list(pool.map(run, jobs))
    recorders = [[job[2] for job in jobs if job[0] == chain] for chain in range(settings.n_chains)]
    return _gathered(values, recorders)


def n_workers() -> int:
    """Blocks run at a time: one a core, or one on an accelerator."""
    if jax.default_backend() != "cpu":
        return 1
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _gathered(values: NDArray[np.floating], recorders: list[list[Recorder]]) -> Sampled:
    """Moments over chains, and the check of total log densities and of some cells evenly spread."""

    def joined(name: str, axis: int) -> NDArray[np.float64]:
        return np.stack([np.concatenate([getattr(r, name) for r in c], axis=axis) for c in recorders])

    n_used = recorders[0][0].n_used * len(recorders)
    mean = joined("total", 0).sum(axis=0) / n_used
    variance = np.maximum(joined("squares", 0).sum(axis=0) / n_used - mean**2, 0)
    acceptance = joined("acceptance", 1) / recorders[0][0].n_used
    terms = np.stack([sum(r.terms for r in chain) for chain in recorders])
    series = {name: terms[:, i] for i, name in enumerate(Terms._fields)}
    n_cells = values.shape[2]
    for cell in np.unique(np.linspace(0, n_cells - 1, min(n_cells, CHECKED_CELLS)).astype(int)):
        series[f"cell {cell}"] = values[:, :, cell].astype(np.float64)
    check = checked(series, acceptance[:, 0], acceptance[:, 1])
    return Sampled(values, mean, np.sqrt(variance * n_used / max(n_used - 1, 1)), check)
