"""Seconds and memory of both engines, compile and run apart; one process a case.

    python -m benchmarks.speed.measure            every case; rows go to benchmarks/results/speed.jsonl
    python -m benchmarks.speed.measure cold       one case, printed only
    python -m benchmarks.speed.measure --only collapse collapse-warm    some cases, with rows

Run from the repository's root. CPU-seconds of all threads are what is compared; wall-clock seconds depend on
what else the machine does.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from benchmarks.rows import ROOT, Row, append, cpu_seconds, peak_mb, provenance

CONFIG = ROOT / "configs" / "MNAR_oracle.yaml"


class Stopwatch:
    """CPU and wall seconds by name."""

    def __init__(self) -> None:
        self.seconds: Row = {}

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        start = cpu_seconds(), time.perf_counter()
        yield
        self.seconds[f"{name}_cpu"] = round(cpu_seconds() - start[0], 3)
        self.seconds[f"{name}_wall"] = round(time.perf_counter() - start[1], 3)


def benchmark_table(n: int, missing_rate: float = 0.3) -> Any:
    from missbgm.datasets import simulate_mnar_oracle_data

    return simulate_mnar_oracle_data(n_samples=n, x_dim=50, missing_rate=missing_rate, seed=1)["x_obs"]


def phases() -> Row:
    """Every phase twice on the 500 x 50 table: the first time includes tracing and compiling."""
    import jax

    from missbgm import models
    from missbgm.fit import loop, warm
    from missbgm.sample import posterior

    watch, phase = Stopwatch(), "first"

    def timed(module: Any, name: str, label: str) -> None:
        function: Callable[..., Any] = getattr(module, name)

        def wrapped(*args: Any, **kwargs: Any) -> Any:
            with watch.timed(f"{label}_{phase}"):
                return jax.block_until_ready(function(*args, **kwargs))

        setattr(module, name, wrapped)

    timed(warm, "pretrain", "egm")
    timed(loop, "train", "epochs")
    timed(posterior, "draw_posterior", "sweeps")
    table = benchmark_table(500)
    for phase in ("first", "again"):
        with watch.timed(f"all_{phase}"):
            models.MissBGM(CONFIG, random_seed=42).fit(table, verbose=0).predict(verbose=0)
    seconds = watch.seconds
    compiled = {
        f"compile_{name}_cpu": round(seconds[f"{name}_first_cpu"] - seconds[f"{name}_again_cpu"], 3)
        for name in ("egm", "epochs", "sweeps", "all")
    }
    return compiled | {name: value for name, value in seconds.items() if "_again_" in name}


def memory() -> Row:
    """Fit and 1,000 kept draws of the 5,000 x 50 table."""
    from missbgm import MissBGM

    watch, table = Stopwatch(), benchmark_table(5000)
    with watch.timed("fit"):
        model = MissBGM(CONFIG, random_seed=42).fit(table, verbose=0)
    with watch.timed("predict"):
        model.predict(verbose=0)
    values = model.draws_.sampled.values
    kept = {"draws": values.shape[1], "cells": values.shape[2], "draws_mb": round(values.nbytes / 2**20, 1)}
    return watch.seconds | kept | {"peak_mb": round(peak_mb(), 1)}


def kernels() -> Row:
    """Effective draws of missing cells for each CPU-second, by kernel and weight of the mechanism."""
    row: Row = {}
    for beta in (0.01, 0.1, 1.0):
        for kernel in ("autoregressive", "hmc"):
            measured = _effective_draws(beta, kernel)
            row |= {f"{kernel}_beta_{beta:g}_{name}": value for name, value in measured.items()}
    return row


def _effective_draws(beta: float, kernel: str) -> Row:
    from statistics import median

    from missbgm import Config, MissBGM, MissBGMWarning

    warnings.simplefilter("ignore", MissBGMWarning)
    settings = Config.from_yaml(CONFIG).to_dict()
    settings["beta"], settings["posterior"]["x_kernel"] = beta, kernel
    model = MissBGM(settings, random_seed=42).fit(benchmark_table(500), verbose=0)
    model.predict(verbose=0)
    start = cpu_seconds()
    model.predict(verbose=0)
    seconds = cpu_seconds() - start
    ess = [value for name, value in model.check_.ess.items() if name.startswith("cell")]
    return {
        "cpu": round(seconds, 2),
        "ess_per_cpu_second": round(median(ess) / seconds, 1),
        "least_ess": round(min(ess), 1),
        "acceptance": round(model.check_.x_acceptance, 3),
    }


COLLAPSE = {"engine": "collapse", "posterior": {"n_mcmc": 200}}


def collapse() -> Row:
    """Choice of the mechanism, fit and 200 kept draws of the engine `collapse`, twice at n = 500."""
    from missbgm import MissBGM

    watch, table = Stopwatch(), benchmark_table(500)
    for phase in ("first", "again"):
        with watch.timed(f"all_{phase}"):
            MissBGM(COLLAPSE, random_seed=42).fit(table, verbose=0).predict(verbose=0)
    seconds = watch.seconds
    seconds["compile_all_cpu"] = round(seconds["all_first_cpu"] - seconds["all_again_cpu"], 3)
    return seconds | _effective_integrated()


def _effective_integrated() -> Row:
    """Effective draws of missing cells for each CPU-second: of 1,000, by the weights of the latent rows."""
    from statistics import median

    from missbgm import MissBGM

    model = MissBGM({"engine": "collapse"}, random_seed=42).fit(benchmark_table(500), verbose=0)
    model.predict(verbose=0)
    start = cpu_seconds()
    model.predict(verbose=0)
    seconds = cpu_seconds() - start
    effective = model.draws_.n_draws * median(model.check_.share.tolist())
    return {"draws_cpu": round(seconds, 3), "ess_per_cpu_second": round(effective / seconds, 1)}


def collapse_rows() -> Row:
    """The same at more rows, after compilation."""
    from missbgm import MissBGM

    watch = Stopwatch()
    MissBGM(COLLAPSE, random_seed=42).fit(benchmark_table(1000), verbose=0).predict(verbose=0)
    for n in (5_000, 10_000, 20_000, 50_000):
        table = benchmark_table(n)
        fit = MissBGM(COLLAPSE, random_seed=42).fit  # compiles the shape of the table
        fit(table[:, ::-1], verbose=0)
        with watch.timed(f"rows_{n}"):
            fit(table, verbose=0).predict(verbose=0)
    return watch.seconds | {"peak_mb": round(peak_mb(), 1)}


# The cases share one cache of compiled programs, empty at first: `warm` finds what `cold` left there.
CASES: dict[str, Callable[[], Row]] = {
    "cold": phases,
    "warm": phases,
    "memory": memory,
    "kernels": kernels,
    "collapse": collapse,
    "collapse-warm": collapse,
    "collapse-rows": collapse_rows,
}


def run_all(names: Sequence[str]) -> None:
    """Run cases, each in a process of its own; a failure is a row."""
    with tempfile.TemporaryDirectory() as cache:
        for case in names:
            done = subprocess.run(
                [sys.executable, "-m", "benchmarks.speed.measure", case],
                cwd=ROOT,
                env=os.environ | {"MISSBGM_CACHE": cache},
                capture_output=True,
                text=True,
                check=False,
            )
            failed = {"case": case, "status": done.stderr[-500:]} | provenance()
            append("speed.jsonl", json.loads(done.stdout.splitlines()[-1]) if not done.returncode else failed)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--only"]:
        run_all(sys.argv[2:])
    elif len(sys.argv) > 1:
        print(json.dumps({"case": sys.argv[1], "status": "ok"} | CASES[sys.argv[1]]() | provenance()))
    else:
        run_all([*CASES])
