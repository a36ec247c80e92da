"""Small blocks of every discrete kind, set by hand, and what enumeration in double precision says of them.

A line in `LAWS` enrols a kind in every law of discrete columns; its law is written from its definition.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import special, stats

from missbgm.bgm.classes import BLOCKS, SMALLEST_STEP, Codes
from missbgm.bgm.factor import SCALE_FLOOR, Assumed, Factor, Mixture

Array = NDArray[np.float64]
N_CLASSES = {"bernoulli": (2, 2), "categorical": (3, 5), "ordinal": (3, 5), "count": (9, 14)}
FAMILIES = ("mcar", "ignorable", "selfmask")


def _bernoulli(predictor: Array, shape: Array, n: int) -> Array:
    return np.stack([special.expit(-predictor[0]), special.expit(predictor[0])])


def _categorical(predictor: Array, shape: Array, n: int) -> Array:
    return special.softmax(predictor[:n], axis=0)


def _ordinal(predictor: Array, shape: Array, n: int) -> Array:
    cuts = np.concatenate([[0.0], np.cumsum(SMALLEST_STEP + np.exp(shape))])[: n - 1]
    reached = [np.zeros_like(predictor[0]), *(stats.norm.cdf(c - predictor[0]) for c in cuts)]
    return np.diff([*reached, np.ones_like(predictor[0])], axis=0)


def _count(predictor: Array, shape: Array, n: int) -> Array:
    size, mean = np.exp(shape[0]), np.exp(predictor[0])
    p = stats.nbinom.pmf(np.arange(n)[:, None], size, size / (size + mean))
    return p / p.sum(axis=0)


LAWS: dict[str, Callable[[Array, Array, int], Array]] = {
    "bernoulli": _bernoulli,
    "categorical": _categorical,
    "ordinal": _ordinal,
    "count": _count,
}
N_PREDICTORS = {"categorical": 5}
N_SHAPES = {"ordinal": 3, "count": 1}
CASES = tuple((kind, family) for kind in LAWS for family in FAMILIES)


class Case(NamedTuple):
    """Two continuous columns and two of one discrete kind, with all numbers in double precision."""

    kind: str
    family: str
    model: Mixture
    assumed: Assumed
    codes: Codes

    @property
    def part(self) -> Factor:
        return self.model.part(0)

    def chances(self, j: int, z: Array) -> Array:
        """Probability of every class of the j-th discrete column at latent rows."""
        block = self.model.discrete[0]
        slope, constant, shape = (
            np.asarray(a[0, j], float) for a in (block.slope, block.constant, block.shape)
        )
        return LAWS[self.kind](slope @ z + constant[:, None], shape, N_CLASSES[self.kind][j])

    def chance_observed(self, j: int, z: Array) -> Array:
        """P(observed | class, latent row) of the j-th discrete column, classes by rows."""
        n, m = N_CLASSES[self.kind][j], self.model
        probit = np.full((n, z.shape[1]), float(m.intercept[2 + j]))
        if self.family == "ignorable":
            probit = probit + np.asarray(m.coupling[0, 2 + j], float) @ z
        if self.family == "selfmask" and self.kind == "categorical":
            probit = probit + np.asarray(m.discrete[0].effect[j, :n], float)[:, None]
        elif self.family == "selfmask":
            slope = float(m.shared[0]) + float(m.deviation[2 + j])
            probit = probit + slope * np.asarray(self.codes.value[j, :n], float)[:, None]
        return stats.norm.cdf(probit)

    def missing(self, j: int, z: Array) -> Array:
        """P(class, missing | latent row) of the j-th discrete column."""
        return self.chances(j, z) * (1 - self.chance_observed(j, z))

    def normal(self, j: int, x: Array, observed: Any, z: Array) -> Array:
        """Log density of a continuous column's cells, value and pattern; `factors.py` has its own laws."""
        m, scale = self.model, SCALE_FLOOR + np.exp(float(self.model.log_scale[0, j]))
        mean = np.asarray(m.weight[0, j], float) @ z + float(m.bias[0, j])
        slope = float(m.shared[0]) if self.family == "selfmask" else 0.0
        seen = stats.norm.logpdf(x, mean, scale) + stats.norm.logcdf(self._probit(j, x, z))
        gone = stats.norm.logcdf(-self._probit(j, mean, z) / np.sqrt(1 + (slope * scale) ** 2))
        return np.where(observed, seen, gone)

    def _probit(self, j: int, x: Array, z: Array) -> Array:
        """Of a continuous column's cells being observed."""
        m, probit = self.model, np.full(z.shape[1], float(self.model.intercept[j]))
        if self.family == "ignorable":
            probit = probit + np.asarray(m.coupling[0, j], float) @ z
        return probit + float(m.shared[0]) * x if self.family == "selfmask" else probit

    def log_joint(self, z: Array, x: Array, observed: Any) -> Array:
        """log p(z, x_obs, r), every missing class summed over; columns first."""
        total = stats.norm.logpdf(z).sum(axis=0)
        for j in range(2):
            total = total + self.normal(j, x[j], observed[j], z)
            index = x[2 + j].astype(int), np.arange(z.shape[1])
            seen = (self.chances(j, z) * self.chance_observed(j, z))[index]
            total = total + np.log(np.where(observed[2 + j], seen, self.missing(j, z).sum(axis=0)))
        return total

    def simulate(self, rng: np.random.Generator, n: int) -> tuple[Array, Array, NDArray[np.bool_]]:
        """Latent rows, complete rows and patterns, columns first."""
        m, z = self.model, rng.standard_normal((self.model.weight.shape[2], n))
        x, seen = np.zeros((4, n)), np.ones((4, n), bool)
        for j in range(2):
            scale = SCALE_FLOOR + np.exp(float(m.log_scale[0, j]))
            x[j] = (
                np.asarray(m.weight[0, j], float) @ z + float(m.bias[0, j]) + scale * rng.standard_normal(n)
            )
            seen[j] = rng.random(n) < stats.norm.cdf(self._probit(j, x[j], z))
            reached = np.cumsum(self.chances(j, z), axis=0)
            x[2 + j] = np.minimum((reached < rng.random(n)).sum(axis=0), len(reached) - 1)
            chance = self.chance_observed(j, z)[x[2 + j].astype(int), np.arange(n)]
            seen[2 + j] = rng.random(n) < chance
        return z, x, seen


def case_of(kind: str, family: str, d: int = 2, seed: int = 0) -> Case:
    """Random parameters of moderate size; the second discrete column has more classes than the first."""
    rng = np.random.default_rng(seed)
    most = max(N_CLASSES[kind])

    def some(*shape: int, size: float = 1.0) -> NDArray[np.float32]:
        return (size * rng.standard_normal(shape)).astype(np.float32)

    dead = (np.arange(most) >= np.array(N_CLASSES[kind])[:, None]).astype(np.float32)
    value = (np.linspace(-1.5, 1.5, most) * (1 - dead)).astype(np.float32)
    codes = Codes(kind, value, dead, np.full((2, most), 1 / most, np.float32))
    n_predictors, n_shapes = N_PREDICTORS.get(kind, 1), N_SHAPES.get(kind, 0)
    block = BLOCKS[kind](
        some(1, 2, n_predictors, d, size=0.8),
        some(1, 2, n_predictors, size=0.5) + np.float32(0.8 if kind in ("ordinal", "count") else 0),
        some(1, 2, n_shapes, size=0.4) + np.float32(1.0 if kind == "count" else -0.3),
        some(2, most if kind == "categorical" else 0, size=0.7),
    )
    model = Mixture(
        some(1),
        some(1, 2, d, size=0.8),
        some(1, 2, size=0.5),
        some(1, 2, size=0.3) - np.float32(0.5),
        some(1, 4, d, size=0.5),
        np.abs(some(4, size=0.6)),
        some(4, size=0.2),
        np.float32([1.0, 0.5]),
        (block,),
    )
    return Case(kind, family, model, Assumed.of([family] * 4, np.ones(4), None, (codes,)), codes)
