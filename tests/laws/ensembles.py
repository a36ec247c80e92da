"""Many independent chains, and tests of what they end in.

A row's chain depends on its own key alone, so copies of one row with different numbers are independent, and
so are their last states: p-values need no effective sample size. Every law turns what it compares into
p-values and `judge`s them together at one false-alarm rate.
"""

from typing import Any

import equinox as eqx
import jax
import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from by_hand import forward, one_hot, outputs_of
from missbgm.bgm.joint import Model
from missbgm.bgm.likelihood import VARIANCE_FLOOR, Columns
from missbgm.randomness import Seeds
from missbgm.sample.gibbs import Adaptation, Chains, Kernels, sweeps

Array = NDArray[Any]

RATE = 1e-4  # of a false alarm in one test, split evenly over its comparisons
LEVELS = np.array([0.05, 0.25, 0.5, 0.75, 0.95])
KERNELS = ("autoregressive", "hmc")
BLOCK = 2048  # rows a call: one program serves ensembles of every size
SEGMENT = 25  # sweeps a call


def short_and_long(short: int, long: int) -> Any:
    """Two sizes of one law: the default suite's, and that of `make laws`."""
    return pytest.mark.parametrize(
        "size",
        [pytest.param(short, id="short"), pytest.param(long, id="long", marks=pytest.mark.slow)],
    )


def settled(
    model: Model,
    z: Array,
    x: Array,
    observed: Array,
    *,
    beta: float,
    kernel: str,
    n_sweeps: int,
    seed: int = 0,
) -> tuple[Array, Array]:
    """Last states (z, x) of one chain a row, features first; steps adapt in the first half of the sweeps."""
    n = z.shape[1]
    ends = []
    for start in range(0, n, BLOCK):
        rows = np.resize(np.arange(start, min(start + BLOCK, n)), BLOCK)
        seeds = Seeds(jax.random.key(seed), rows.astype(np.uint32), np.uint32(0))
        chains = Chains.start(z[:, rows].astype(np.float32), x[:, rows].astype(np.float32), 0.1)
        chains = swept(model, chains, observed[:, rows], seeds, beta, kernel, n_sweeps, n_sweeps // 2)
        ends.append((np.asarray(chains.z), np.asarray(chains.x)))
    z, x = (np.concatenate(parts, axis=1)[:, :n].astype(float) for parts in zip(*ends, strict=True))
    return z, x


def swept(
    model: Model,
    chains: Chains,
    observed: Array,
    seeds: Seeds,
    beta: float,
    kernel: str,
    n_sweeps: int,
    n_adapt: int,
) -> Chains:
    """The chains after `n_sweeps` sweeps, a multiple of `SEGMENT`."""
    kernels = Kernels(n_leapfrog=5, x_kernel=kernel, target_accept=0.75)
    adaptation = Adaptation(np.int32(0), np.int32(n_adapt))
    for first in range(0, n_sweeps, SEGMENT):
        numbers = (np.int32(first), adaptation, np.float32(beta))
        chains, _ = sweeps(model, chains, observed, seeds, *numbers, length=SEGMENT, kernels=kernels)
    return chains


def copies(n: int, *rows: Array) -> list[Array]:
    """Arrays of rows, features first, with `n` neighbouring copies of each row."""
    return [np.repeat(a, n, axis=1) for a in rows]


def mixed_model() -> tuple[Model, list[int]]:
    """Small networks over two continuous columns, a binary one and one of three classes."""
    n_classes = [0, 0, 2, 3]
    model = Model.create(
        np.random.default_rng(3),
        Columns.of_classes(n_classes),
        z_dim=2,
        g_units=(4,),
        missingness_units=(4,),
        uncertain=False,
    )
    # Stronger weights than new ones have, so that what depends on what can be seen; variances of 0.5 or so,
    # lest cells tie z down so tightly that sweeps move slowly.
    model = Model(
        model.columns,
        jax.tree.map(lambda a: 1.2 * a, model.generator),
        jax.tree.map(lambda a: 2.0 * a, model.mechanism),
        model.moments,
    )
    bias = np.float32([0, 0, 0.5, 0.5, 0, 0, 0, 0])
    return eqx.tree_at(lambda m: m.generator.body.layers[-1].bias, model, bias), n_classes


def patterns_of(model: Model, n_classes: list[int], x: Array, rng: np.random.Generator) -> Array:
    """A draw of r | x, by hand."""
    logits = forward(model.mechanism.body, one_hot(x, n_classes))
    return rng.random(logits.shape) < 1 / (1 + np.exp(-logits))


def rows_of(model: Model, n_classes: list[int], z: Array, rng: np.random.Generator) -> Array:
    """A draw of x | z, by hand; neighbouring columns have different numbers of classes or none."""
    outputs, x, start = outputs_of(model, z), [], 0
    for block in model.columns.blocks:
        size, kind = block.size, n_classes[block.start]
        given = outputs[start : start + block.n_outputs]
        if kind == 0:
            sd = np.sqrt(np.logaddexp(0, given[size:]) + VARIANCE_FLOOR)
            x.append(given[:size] + sd * rng.standard_normal(sd.shape))
        elif kind == 2:
            x.append(rng.random(given.shape) < 1 / (1 + np.exp(-given)))
        else:
            logits = given.reshape(kind, size, -1)
            x.append(np.argmax(logits + rng.gumbel(size=logits.shape), axis=0))
        start += block.n_outputs
    return np.concatenate(x).astype(float)


def simulated(model: Model, n_classes: list[int], rng: np.random.Generator, n: int) -> tuple[Array, ...]:
    """Latent rows, completed rows and patterns from the model."""
    z = rng.standard_normal((len(model.moments.mean), n))
    x = rows_of(model, n_classes, z, rng)
    return z, x, patterns_of(model, n_classes, x, rng)


def mean_p(values: Array, expected: float) -> float:
    """Two-sided p-value of independent values having this mean."""
    return float(stats.ttest_1samp(values, expected).pvalue)


def same_mean_p(a: Array, b: Array) -> float:
    return float(stats.ttest_ind(a, b, equal_var=False).pvalue)


def counts_p(counts: Array, probabilities: Array) -> float:
    """Chi-square p-value of counts."""
    return float(stats.chisquare(counts, counts.sum() * probabilities / probabilities.sum()).pvalue)


def uniform_p(u: Array) -> float:
    """Kolmogorov-Smirnov p-value of independent uniform numbers."""
    return float(stats.kstest(u, "uniform").pvalue)


def quantiles_p(u: Array) -> float:
    """Chi-square p-value of the shares of uniform numbers between the levels of `LEVELS`."""
    edges = np.concatenate([[0], LEVELS, [1]])
    return counts_p(np.histogram(u, edges)[0], np.diff(edges))


def judge(p_values: dict[str, float], rate: float = RATE) -> None:
    """Fail if the least p-value is below the rate divided by the number of comparisons (Bonferroni)."""
    limit = rate / len(p_values)
    unlikely = {name: p for name, p in p_values.items() if not p >= limit}
    assert not unlikely, f"p-values below {limit:.1e}: {unlikely}"
