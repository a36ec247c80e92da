"""Discrete columns in the analysis that fits begin with: as standardised numbers, and back to their laws.

To the analysis every column is continuous: a nominal one is an indicator for each of its classes, any other
the number of its class. Loadings and means of these become slopes and constants by the derivative of each
kind's law, which is as good as a beginning needs to be; from zero loadings no gradient would lead anywhere
in a table of classes alone.
"""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from missbgm.bgm.classes import BLOCKS, SMALLEST_STEP, Block, Codes

Floats = NDArray[np.float64]

RAREST = 0.02  # a class's probability at a beginning, at least
STEEPEST = 3.0  # a slope at a beginning, at most
LARGEST_SIZE = 100.0  # of a negative binomial at a beginning


def codes_of(
    kinds: Sequence[str], n_classes: Sequence[int], x: NDArray[np.floating], observed: NDArray[np.bool_]
) -> tuple[Codes, ...]:
    """What is fixed of the discrete columns of a coded table, rows first: a block for each kind."""
    found = []
    for kind in BLOCKS:
        columns = [j for j, name in enumerate(kinds) if name == kind]
        if columns:
            found.append(_codes(kind, [n_classes[j] for j in columns], x[:, columns], observed[:, columns]))
    return tuple(found)


def _codes(
    kind: str, n_classes: Sequence[int], x: NDArray[np.floating], observed: NDArray[np.bool_]
) -> Codes:
    number = np.arange(max(n_classes))
    alive = number < np.array(n_classes)[:, None]
    counts = ((x[:, :, None] == number) & observed[:, :, None]).sum(axis=0)
    frequency = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    mean = frequency @ number
    sd = np.sqrt(np.maximum((frequency * (number - mean[:, None]) ** 2).sum(axis=1), 1e-12))
    value = np.where(alive, (number - mean[:, None]) / sd[:, None], 0.0)
    return Codes(kind, *(np.asarray(a, np.float32) for a in (value, ~alive, frequency)))


def n_features(codes: Codes) -> int:
    """How many features a column becomes."""
    return codes.value.shape[1] if codes.kind == "categorical" else 1


def sources(n_continuous: int, classes: Sequence[Codes]) -> NDArray[np.intp]:
    """Which column each feature comes from."""
    repeats = [1] * n_continuous + [n_features(codes) for codes in classes for _ in range(codes.size)]
    return np.repeat(np.arange(len(repeats)), repeats)


def features(x: NDArray[np.floating], n_continuous: int, classes: Sequence[Codes]) -> NDArray[np.floating]:
    """A coded table, rows first, as features: continuous columns as they are, classes standardised."""
    parts, start = [x[:, :n_continuous]], n_continuous
    for codes in classes:
        block = x[:, start : start + codes.size]
        start += codes.size
        index = block.astype(np.intp)
        if codes.kind == "categorical":
            mean, sd = _indicators(codes)
            hot = (index[:, :, None] == np.arange(codes.value.shape[1])) - mean
            parts.append((hot / sd).reshape(len(x), -1))
        else:
            parts.append(np.take_along_axis(np.asarray(codes.value).T, index, axis=0))
    return np.concatenate(parts, axis=1).astype(np.float32)


def _indicators(codes: Codes) -> tuple[Floats, Floats]:
    """Mean and standard deviation of the indicators of classes; 1 for those that no column has."""
    mean = np.asarray(codes.frequency, np.float64)
    sd = np.sqrt(mean * (1 - mean))
    return mean, np.where(sd > 0, sd, 1.0)


def begun(n_continuous: int, classes: Sequence[Codes], weight: Floats, bias: Floats) -> tuple[Block, ...]:
    """Blocks to begin with, components first, from the analysis of features."""
    found, start = [], n_continuous
    for codes in classes:
        size, each = codes.size, n_features(codes)
        part = slice(start, start + size * each)
        start += size * each
        m, d = len(weight), weight.shape[2]
        loading, mean = weight[:, part].reshape(m, size, each, d), bias[:, part].reshape(m, size, each)
        effect = np.zeros((size, codes.value.shape[1] if codes.kind == "categorical" else 0))
        arrays = *_BEGINNINGS[codes.kind](codes, loading, mean), effect
        found.append(BLOCKS[codes.kind](*(np.asarray(a, np.float32) for a in arrays)))
    return tuple(found)


Beginning = tuple[Floats, Floats, Floats]  # slopes, constants, shapes


def _clipped(slope: Floats) -> Floats:
    return np.clip(slope, -STEEPEST, STEEPEST)


def _numbers(codes: Codes, mean: Floats) -> tuple[Floats, Floats]:
    """Mean of the numbers of classes under each component, and their standard deviation in the table."""
    value = np.asarray(codes.value, np.float64)
    sd = 1 / (value[:, 1] - value[:, 0])
    return sd * (mean[..., 0] - value[:, 0]), sd


def _bernoulli(codes: Codes, loading: Floats, mean: Floats) -> Beginning:
    chance, sd = _numbers(codes, mean)
    chance = np.clip(chance, RAREST, 1 - RAREST)
    slope = _clipped(loading * (sd / (chance * (1 - chance)))[..., None, None])
    return slope, np.log(chance / (1 - chance))[..., None], np.zeros((*chance.shape, 0))


def _categorical(codes: Codes, loading: Floats, mean: Floats) -> Beginning:
    share, sd = _indicators(codes)
    alive = 1 - np.asarray(codes.dead, np.float64)
    chance = np.clip(share + sd * mean, RAREST, 1) * alive
    chance = chance / chance.sum(axis=-1, keepdims=True)
    some = np.where(alive > 0, chance, 1.0)
    slope = _clipped(loading * (alive * sd / some)[..., None])
    return slope, np.log(some), np.zeros((*mean.shape[:2], 0))


def _ordinal(codes: Codes, loading: Floats, mean: Floats) -> Beginning:
    from scipy.stats import norm

    # The classes are cuts of a normal whose variance is 1 given the latent row, and more without it.
    stretch = 1 / np.sqrt(np.maximum(1 - (loading[:, :, 0] ** 2).sum(axis=-1), 0.2))
    reached = np.clip(np.cumsum(codes.frequency, axis=1)[:, :-1], RAREST / 4, 1 - RAREST / 4)
    cuts = norm.ppf(reached) * stretch[..., None]
    steps = np.maximum(np.diff(cuts, axis=-1) - SMALLEST_STEP, SMALLEST_STEP)
    slope = _clipped(loading * stretch[..., None, None])
    return slope, (stretch * mean[..., 0] - cuts[..., 0])[..., None], np.log(steps)


def _count(codes: Codes, loading: Floats, mean: Floats) -> Beginning:
    rate, sd = _numbers(codes, mean)
    rate = np.maximum(rate, 0.1 * sd)
    slope = np.clip(loading * (sd / rate)[..., None, None], -STEEPEST / 2, STEEPEST / 2)
    constant = np.log(rate) - 0.5 * (slope[:, :, 0] ** 2).sum(axis=-1)
    size = np.clip(rate**2 / np.maximum(sd**2 - rate, 1e-9), 0.5, LARGEST_SIZE)
    return slope, constant[..., None], np.log(size)[..., None]


_BEGINNINGS: dict[str, Callable[[Codes, Floats, Floats], Beginning]] = {
    "bernoulli": _bernoulli,
    "categorical": _categorical,
    "ordinal": _ordinal,
    "count": _count,
}
