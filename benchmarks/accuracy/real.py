"""Accuracy of the engine with integrated missing cells on real tables, beside simple methods on their masks.

Masks by the paper's rule, completely at random, and by a strong rule of the cell's own value.
"""

import warnings
from collections.abc import Iterator
from statistics import mean
from typing import Any

from benchmarks.accuracy.baselines import BASELINES, extra_trees
from benchmarks.accuracy.collapse import answered, rmse
from benchmarks.rows import Row

PAPER, MCAR, STRONG = "real", "real-mcar", "real-strong"
CASES = (PAPER, MCAR, STRONG)
TABLES = ("wine", "breast", "concrete")
SEEDS, RATE, SLOPE = range(1, 11), 0.2, -3.0
METHODS = BASELINES | {"extra_trees": extra_trees}


def cases(names: list[str]) -> Iterator[Row]:
    """Settings of every run."""
    for name in CASES:
        if name in names:
            for table in TABLES:
                for seed in SEEDS:
                    yield {"case": name, "table": table, "rate": RATE, "seed": seed}


def run(case: Row) -> Row:
    """Fit and draw under the automatic choice and under an ignorable mechanism."""
    from missbgm import MissBGMWarning
    from missbgm.datasets import hide, load_dataset, standardize

    warnings.simplefilter("ignore", MissBGMWarning)
    x = standardize(load_dataset(case["table"]).x)
    observed = _observed(case, x)
    holes, hidden, seed = hide(x, observed), x[~observed], case["seed"]
    row = answered("auto", holes, x, observed, seed)
    row.pop("sd")
    row["impute_rmse"] = row.pop("mean_rmse")  # "mean" is a method here
    row["ignorable"] = answered("ignorable", holes, x, observed, seed)["rmse"]
    row["ratio"] = row["rmse"] / row["ignorable"]
    methods = METHODS if case["case"] == PAPER else {}
    return row | {f"{name}_rmse": rmse(f(holes, seed)[~observed], hidden) for name, f in methods.items()}


def _observed(case: Row, x: Any) -> Any:
    import numpy as np
    from scipy.optimize import brentq
    from scipy.special import expit

    from missbgm.datasets import ampute_mnar

    if case["case"] == PAPER:
        return ampute_mnar(x, case["rate"], seed=case["seed"])
    rng = np.random.default_rng((case["seed"], 2))
    slope = SLOPE if case["case"] == STRONG else 0.0
    shift = brentq(lambda c: expit(slope * x + c).mean() - (1 - case["rate"]), -30, 30)
    observed = rng.random(x.shape) < expit(slope * x + shift)
    # Rows and columns with nothing observed keep their first cell.
    observed[~observed.any(axis=1), 0] = True
    observed[0, ~observed.any(axis=0)] = True
    return observed


def summarised(rows: list[Row]) -> None:
    """Print means over seeds, of the newest commit that has rows of these cases."""
    rows = [row for row in rows if row["case"] in CASES]
    if not rows:
        return
    rows = [row for row in rows if row["commit"] == rows[-1]["commit"]]
    columns = ("rmse", "coverage", "ignorable", "ratio", "worst", *(f"{name}_rmse" for name in METHODS))
    print(f"{'case':<12}{'table':<10}{'seeds':>6}" + "".join(f"{name:>18}" for name in columns))
    for key in dict.fromkeys((row["case"], row["table"]) for row in rows):
        same = [row | {"worst": row["ratio"]} for row in rows if (row["case"], row["table"]) == key]
        figures = [
            (max if name == "worst" else mean)(row.get(name, float("nan")) for row in same)
            for name in columns
        ]
        print(f"{key[0]:<12}{key[1]:<10}{len(same):>6}" + "".join(f"{x:>18.3f}" for x in figures))
