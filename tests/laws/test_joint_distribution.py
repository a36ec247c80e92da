"""Geweke's joint distribution test (2004) of the sweep.

Two simulators of (z, x, r): from the model outright, and by sweeps that alternate with fresh data given what
the sweep drew. If the sweep keeps p(z, x_mis | x_obs, r), both have one law. Chains start in that law and
every row has a chain of its own: averages over a chain are independent from row to row, so that the spread
over rows gives honest standard errors, whatever the autocorrelation.
"""

from itertools import combinations_with_replacement
from typing import Any

import jax
import numpy as np
import pytest
from numpy.typing import NDArray

from laws.ensembles import (
    KERNELS,
    judge,
    mixed_model,
    patterns_of,
    rows_of,
    same_mean_p,
    short_and_long,
    simulated,
)
from missbgm.randomness import Seeds
from missbgm.sample.gibbs import Adaptation, Chains, Kernels, sweeps

Array = NDArray[Any]

N_ROUNDS = 40
REFRESHED = 0.1


def moments(z: Array, x: Array, observed: Array, n_classes: list[int]) -> dict[str, Array]:
    """Values whose means are compared: first moments and products of all there is, one number a row."""
    parts = {f"z {i}": value for i, value in enumerate(z)}
    for j, kind in enumerate(n_classes):
        if kind > 2:
            parts |= {f"x {j} is {k}": (x[j] == k).astype(float) for k in range(1, kind)}
        else:
            parts[f"x {j}"] = x[j]
    parts |= {f"r {j}": value.astype(float) for j, value in enumerate(observed)}
    pairs = combinations_with_replacement(parts, 2)
    # The square of an indicator is the indicator.
    products = {f"{a} * {b}": parts[a] * parts[b] for a, b in pairs if a != b or not _is_indicator(parts[a])}
    return {name: value for name, value in (parts | products).items() if np.ptp(value) > 0}


def _is_indicator(values: Array) -> bool:
    return bool(np.isin(values, (0, 1)).all())


@pytest.mark.parametrize("kernel", KERNELS)
@short_and_long(2048, 16384)
def test_sweeps_and_fresh_data_keep_the_joint_law(kernel: str, size: int) -> None:
    """False alarms: about 1e-4, over first and second moments of z, x and r."""
    model, n_classes = mixed_model()
    rng = np.random.default_rng(11)
    kernels = Kernels(n_leapfrog=5, x_kernel=kernel, target_accept=0.75)
    totals: dict[str, Array] = {}
    z, x, observed = simulated(model, n_classes, rng, size)
    seeds = Seeds(jax.random.key(2), np.arange(size, dtype=np.uint32), np.uint32(0))
    # Steps are fixed: one that remembers would not leave the joint law alone.
    never = Adaptation(np.int32(0), np.int32(0))
    for number in range(N_ROUNDS):
        chains = Chains.start(z.astype(np.float32), x.astype(np.float32), 0.4)
        given = (model, chains, observed, seeds, np.int32(number), never, np.float32(1))
        chains, _ = sweeps(*given, length=1, kernels=kernels)
        z, x = np.asarray(chains.z, float), np.array(chains.x, float)
        for name, value in moments(z, x, observed, n_classes).items():
            totals[name] = totals.get(name, 0.0) + value
        # r given x for every row; for some, observed and missing cells given z first.
        fresh = rng.random(size) < REFRESHED
        x[:, fresh] = rows_of(model, n_classes, z[:, fresh], rng)
        observed = patterns_of(model, n_classes, x, rng)
    expected = moments(*simulated(model, n_classes, rng, 20 * size), n_classes)
    judge({name: same_mean_p(totals[name] / N_ROUNDS, expected[name]) for name in expected})
