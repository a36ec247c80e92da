"""Simulation-based calibration (Talts et al., 2018) of the row sampler at fixed parameters and beta = 1.

A truth simulated from the model ranks uniformly among draws of its posterior. The draws of one row are last
states of chains of their own, so that ranks need no thinning. Ranks of unknowns alone would not notice a
sampler that ignores the data, so terms of the joint density are ranked as well (Modrák et al., 2023).
"""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from by_hand import log_joint
from laws.ensembles import (
    KERNELS,
    counts_p,
    judge,
    mixed_model,
    rows_of,
    settled,
    short_and_long,
    simulated,
    uniform_p,
)
from missbgm.bgm.joint import Model

Array = NDArray[Any]

N_DRAWS = 15
KIND = {0: "continuous", 2: "binary", 3: "nominal"}


def rank_p(name: str, truth: Array, draws: Array, rng: np.random.Generator) -> dict[str, float]:
    """P-values of uniform ranks: `truth` has one number a row, `draws` one line a draw.

    Ties, which only classes have, are broken at random, and so is the place within a rank.
    """
    below = (draws < truth).sum(axis=0)
    rank = below + rng.integers(0, (draws == truth).sum(axis=0) + 1)
    counts = np.bincount(rank, minlength=N_DRAWS + 1)
    return {
        f"{name}, ranks": counts_p(counts, np.ones(N_DRAWS + 1)),
        f"{name}, law": uniform_p((rank + rng.random(len(rank))) / (N_DRAWS + 1)),
    }


def quantities(model: Model, n_classes: list[int], z: Array, x: Array, observed: Array) -> dict[str, Array]:
    """What is ranked besides missing cells: latent coordinates and terms of the joint density."""
    terms = log_joint(model, n_classes, z, x, observed)
    latent = {f"z {i}": value for i, value in enumerate(z)}
    return latent | {"data": terms.data, "missingness": terms.missingness, "joint": sum(terms)}


@pytest.mark.parametrize("kernel", KERNELS)
@short_and_long(512, 8192)
def test_truths_rank_uniformly_among_draws(kernel: str, size: int) -> None:
    """False alarms: 1e-4, over ranks of latent coordinates, cells of every kind and terms of the density."""
    model, n_classes = mixed_model()
    rng = np.random.default_rng(7)
    z, x, observed = simulated(model, n_classes, rng, size)
    assert (np.abs(observed.mean(axis=1) - 0.5) < 0.35).all()
    # Chains start at a row of the model that knows nothing of the truth but its observed cells.
    many = np.tile(observed, N_DRAWS)
    start = rng.standard_normal((len(z), many.shape[1]))
    filled = np.where(many, np.tile(x, N_DRAWS), rows_of(model, n_classes, start, rng))
    ends = settled(model, start, filled, many, beta=1.0, kernel=kernel, n_sweeps=400)
    drawn = ends[1].reshape(len(x), N_DRAWS, size)
    # Truths in the precision of draws, so that observed parts tie exactly where they must.
    z, x = z.astype(np.float32).astype(float), x.astype(np.float32).astype(float)
    p_values: dict[str, float] = {}
    for j, kind in enumerate(n_classes):
        gone = ~observed[j]
        p_values |= rank_p(f"{KIND[kind]} column {j}", x[j, gone], drawn[j][:, gone], rng)
    truths = quantities(model, n_classes, z, x, observed)
    draws = quantities(model, n_classes, ends[0], ends[1], many)
    for name, truth in truths.items():
        p_values |= rank_p(name, truth, draws[name].reshape(N_DRAWS, size), rng)
    judge(p_values)
