"""Accuracy of the engine with integrated missing cells: RMSE beside the oracle, coverage, what was assumed.

Three kinds of masks on the paper's synthetic table, as it is or with exponentiated targets: its own (cells
above their conditional quantile), completely at random, and at random given the anchors.
"""

import warnings
from collections import Counter
from collections.abc import Iterator
from statistics import mean
from typing import Any

from benchmarks.rows import Row, cpu_seconds

SELF, MCAR, MAR = "collapse", "collapse-mcar", "collapse-mar"
CASES = (SELF, MCAR, MAR)
SIZES, RATES, SEEDS = (500, 1000, 5000), (0.3, 0.5, 0.7), (1, 2, 3)
SHAPES = ("gaussian", "exponentiated")
N_ANCHOR, N_DRAWS = 5, 200


def cases(names: list[str]) -> Iterator[Row]:
    """Settings of every run."""
    for name in CASES:
        if name not in names:
            continue
        for n in SIZES if name == SELF else SIZES[:1]:
            for rate in RATES if name == SELF else RATES[:1]:
                for shape in SHAPES[:1] if name == SELF else SHAPES:
                    for seed in SEEDS:
                        yield {"case": name, "n": n, "rate": rate, "shape": shape, "seed": seed}


def run(case: Row) -> Row:
    """Fit and draw; the truth is only compared with the answer."""
    from missbgm import MissBGMWarning
    from missbgm.datasets import hide, simulate_mnar_oracle_data

    warnings.simplefilter("ignore", MissBGMWarning)
    data = simulate_mnar_oracle_data(case["n"], 50, missing_rate=case["rate"], seed=case["seed"])
    x, observed = _table(case, data)
    holes = hide(x, observed)
    row = answered("auto", holes, x, observed, case["seed"])
    if case["case"] == SELF:
        hidden = x[~observed]
        row["oracle"] = rmse(data["oracle_mean"], hidden)
        row["ratio"] = row["rmse"] / row["oracle"]
        width = (data["oracle_upper"] - data["oracle_lower"]).mean()
        row["width_ratio"] = row.pop("width") / float(width)
        row["sd_rmse"] = rmse(row.pop("sd"), data["oracle_sd"])
    else:
        row.pop("sd")
        row["ignorable"] = answered("ignorable", holes, x, observed, case["seed"])["rmse"]
        row["ratio"] = row["rmse"] / row["ignorable"]
    return row


def _table(case: Row, data: Any) -> tuple[Any, Any]:
    """The complete table, and the pattern of the case."""
    import numpy as np
    from scipy.stats import norm

    x, observed = data["x_full"].copy(), data["mask"] == 1
    rng = np.random.default_rng((case["seed"], 1))
    anchors, targets = x[:, :N_ANCHOR], x[:, N_ANCHOR:]
    rate, size = case["rate"], targets.shape
    if case["case"] == MCAR:
        observed[:, N_ANCHOR:] = rng.random(size) > rate
    if case["case"] == MAR:
        slopes = rng.normal(size=(N_ANCHOR, size[1])) / np.sqrt(N_ANCHOR)
        chance = norm.cdf(norm.ppf(1 - rate) * np.sqrt(2) + anchors @ slopes)
        observed[:, N_ANCHOR:] = rng.random(size) < chance
    if case["shape"] == "exponentiated":
        x[:, N_ANCHOR:] = np.exp(0.7 * targets)
    return x, observed


def answered(missingness: str, holes: Any, x: Any, observed: Any, seed: int) -> Row:
    """What a fit under a mechanism reaches."""
    from missbgm import MissBGM

    settings = {"engine": "collapse", "missingness": missingness, "posterior": {"n_mcmc": N_DRAWS}}
    start = cpu_seconds()
    model = MissBGM(settings, random_seed=seed).fit(holes, verbose=0)
    fitted = cpu_seconds()
    model.predict(x_true=x, verbose=0)
    drawn = cpu_seconds()
    choice = model._fit.choice  # type: ignore[attr-defined]
    assumed = Counter(f for f, masked in zip(choice.families, (~observed).any(axis=0), strict=True) if masked)
    return {
        "rmse": model.evaluation_["rmse"],
        "mean_rmse": rmse(model.x_map_imputed_[~observed], x[~observed]),
        "coverage": model.evaluation_["coverage"],
        "width": model.evaluation_["width"],
        "sd": model.draws_.sd(),
        "assumed": {"scale": choice.transform, **dict(assumed)},
        "refused": choice.refused,
        "fit_cpu": round(fitted - start, 2),
        "draw_cpu": round(drawn - fitted, 2),
    }


def rmse(guess: Any, truth: Any) -> float:
    """Root mean squared error."""
    return float(((guess - truth) ** 2).mean() ** 0.5)


def summarised(rows: list[Row]) -> None:
    """Print means over seeds, of the newest commit that has rows of these cases."""
    rows = [row for row in rows if row["case"] in CASES]
    if not rows:
        return
    rows = [row for row in rows if row["commit"] == rows[-1]["commit"]]
    columns = ("ratio", "worst", "coverage", "width_ratio", "sd_rmse", "fit_cpu", "draw_cpu")
    print(
        f"{'case':<14}{'n':>6}{'rate':>6}  {'shape':<14}{'seeds':>6}" + "".join(f"{c:>13}" for c in columns)
    )
    for key in dict.fromkeys((row["case"], row["n"], row["rate"], row["shape"]) for row in rows):
        same = [row for row in rows if (row["case"], row["n"], row["rate"], row["shape"]) == key]
        figures = [
            max(row["ratio"] for row in same) if name == "worst" else mean(row.get(name, 0) for row in same)
            for name in columns
        ]
        assumed = ", ".join(sorted({" ".join(map(str, row["assumed"])) for row in same}))
        print(
            f"{key[0]:<14}{key[1]:>6}{key[2]:>6}  {key[3]:<14}{len(same):>6}"
            + "".join(f"{x:>13.3f}" for x in figures)
            + f"  {assumed}"
        )
