"""Accuracy of both engines: RMSE beside the floor or the oracle of the same table, and coverage.

    python -m benchmarks.accuracy.measure                  every case; rows go to results/accuracy.jsonl
    python -m benchmarks.accuracy.measure wine concrete    some cases
    python -m benchmarks.accuracy.measure --table          what the rows say

Run from the repository's root. A case that has a row of the same commit is not run again.
"""

import argparse
import sys
import warnings
from collections.abc import Iterator
from math import nan
from statistics import mean
from typing import Any

from benchmarks.accuracy import collapse
from benchmarks.accuracy.baselines import BASELINES
from benchmarks.rows import ROOT, Row, append, cpu_seconds, provenance, read

FILE = "accuracy.jsonl"
SIMULATED = ("simulated", "bnn")
TABLES = ("wine", "breast", "concrete")
ALL = (*SIMULATED, *TABLES, *collapse.CASES)
SIZES, RATES, SIMULATED_SEEDS, MASK_SEEDS = (500, 1000, 5000), (0.3, 0.5, 0.7), (1, 2, 3), range(1, 11)

MOST_ROWS_DRAWN = 1_100  # longer tables show their mode only: drawing costs six times the fit


def cases(names: list[str]) -> Iterator[Row]:
    """Settings of every run, in the order of the paper's tables."""
    if "simulated" in names:
        yield from (
            {"case": "simulated", "n": n, "rate": rate, "seed": seed}
            for n in SIZES
            for rate in RATES
            for seed in SIMULATED_SEEDS
        )
    if "bnn" in names:
        yield from (
            {"case": "bnn", "n": n, "rate": 0.3, "seed": seed} for n in SIZES for seed in SIMULATED_SEEDS
        )
    yield from (
        {"case": name, "rate": 0.2, "seed": s} for name in TABLES if name in names for s in MASK_SEEDS
    )
    yield from collapse.cases(names)


def settings(case: Row) -> Any:
    from dataclasses import replace

    from missbgm import Config

    name = "MNAR_oracle" if case["case"] in SIMULATED else case["case"]
    config = Config.from_yaml(ROOT / "configs" / f"{name}.yaml")
    return replace(config, use_bnn=case["case"] == "bnn")


def run(case: Row) -> Row:
    """Fit and draw; the truth is only compared with the answer."""
    from missbgm import MissBGM, MissBGMWarning
    from missbgm.datasets import ampute_mnar, hide, load_dataset, simulate_mnar_oracle_data, standardize

    warnings.simplefilter("ignore", MissBGMWarning)
    row: Row = {}
    if case["case"] in SIMULATED:
        data = simulate_mnar_oracle_data(case["n"], 50, missing_rate=case["rate"], seed=case["seed"])
        x, observed = data["x_full"], data["mask"] == 1
        hidden = x[~observed]
        row["floor"] = _rmse(data["ignorable_mean"], hidden)
        row["oracle"] = _rmse(data["oracle_mean"], hidden)
    else:
        x = standardize(load_dataset(case["case"]).x)
        observed = ampute_mnar(x, case["rate"], seed=case["seed"])
        hidden = x[~observed]
    holes = hide(x, observed)
    row |= {f"{name}_rmse": _rmse(f(holes, case["seed"])[~observed], hidden) for name, f in BASELINES.items()}
    start = cpu_seconds()
    model = MissBGM(settings(case), random_seed=case["seed"]).fit(holes, verbose=0)
    row["fit_cpu"] = round(cpu_seconds() - start, 2)
    row["map_rmse"] = _rmse(model.x_map_imputed_[~observed], hidden)
    row["objective"] = model.history_["objective"][[0, -21, -1]].tolist()
    if len(x) <= MOST_ROWS_DRAWN:
        model.predict(x_true=x, verbose=0)
        row |= {f"{name}_draws": value for name, value in model.evaluation_.items()}
        row["mixed"] = model.check_.mixed
    return row


def _key(row: Row) -> Row:
    return {name: row.get(name) for name in ("case", "n", "rate", "shape", "seed", "commit")}


def _rmse(guess: Any, truth: Any) -> float:
    return float(((guess - truth) ** 2).mean() ** 0.5)


def summarised(rows: list[Row]) -> None:
    """Print means over seeds, of the newest commit that has rows of the paper's engine."""
    rows = [row for row in rows if row["case"] in SIMULATED + TABLES]
    rows = [row for row in rows if row["commit"] == rows[-1]["commit"]]
    columns = [*(f"{name}_rmse" for name in (*BASELINES, "map")), "floor", "oracle", "ratio"]
    columns += ["rmse_draws", "coverage_draws", "fit_cpu"]
    print(f"{'case':<10}{'n':>6}{'rate':>6}{'seeds':>6}" + "".join(f"{name:>16}" for name in columns))
    for key in dict.fromkeys((row["case"], row.get("n", 0), row["rate"]) for row in rows):
        same = [row for row in rows if (row["case"], row.get("n", 0), row["rate"]) == key]
        same = [row | {"ratio": row["map_rmse"] / row.get("floor", nan)} for row in same]
        means = (mean(row.get(name, nan) for row in same) for name in columns)
        print(f"{key[0]:<10}{key[1]:>6}{key[2]:>6}{len(same):>6}" + "".join(f"{x:>16.3f}" for x in means))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="case", help=", ".join(ALL))
    parser.add_argument("--table", action="store_true", help="print what the rows say and run nothing")
    given = parser.parse_args()
    unknown = set(given.names) - set(ALL)
    if unknown:
        sys.exit(f"unknown case {', '.join(sorted(unknown))}; expected {', '.join(ALL)}")
    if not given.table:
        origin = provenance()
        done = [_key(row) for row in read(FILE)]
        for case in cases(given.names or [*ALL]):
            if _key(case | origin) not in done:
                measured = collapse.run(case) if case["case"] in collapse.CASES else run(case)
                append(FILE, case | measured | origin)
    summarised(read(FILE))
    collapse.summarised(read(FILE))


if __name__ == "__main__":
    main()
