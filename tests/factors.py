"""Small models of every family, set by hand, and what quadrature in double precision says of them.

A line in `FAMILIES` enrols a mechanism in every law of one component, and with that in every law of mixtures:
`MIXTURES` has each family with each number of components in `COMPONENTS`.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import special, stats

from missbgm.bgm.factor import SCALE_FLOOR, Assumed, Factor, Mixture, probits

Array = NDArray[np.float64]

LIMIT = 0.4
# The probability that a cell is observed given its value and the latent row's part in it: written from the
# definition of each mechanism, and independent of the package's affine probits.
FAMILIES = ("mcar", "ignorable", "selfmask", "selection", "below", "above")
COMPONENTS = (1, 2)
MIXTURES = tuple((family, n) for n in COMPONENTS for family in FAMILIES)


class Case(NamedTuple):
    """One component of p columns of one family, and its numbers in double precision."""

    family: str
    model: Factor
    assumed: Assumed
    weight: Array
    bias: Array
    scale: Array
    intercept: Array
    coupling: Array
    strength: Array  # slope on own values, or arctanh of the correlation with residuals

    @property
    def p(self) -> int:
        return len(self.bias)

    def mean(self, z: Array) -> Array:
        """Means of cells, ``(p, rows)``, at latent rows ``(d, rows)``."""
        return self.weight @ z + self.bias[:, None]

    def chance_observed(self, x: Array, z: Array) -> Array:
        """P(observed | value, latent row), ``(p, rows)``, from the definition of the family."""
        start = self.intercept[:, None] + (
            self.coupling @ z if self.family in ("ignorable", "selection") else 0
        )
        if self.family == "below":
            return (x >= LIMIT).astype(float)
        if self.family == "above":
            return (x <= LIMIT).astype(float)
        if self.family == "selfmask":
            return stats.norm.cdf(start + self.strength[:, None] * x)
        if self.family == "selection":
            rho = np.tanh(self.strength)[:, None]
            residual = (x - self.mean(z)) / self.scale[:, None]
            return stats.norm.cdf((start + rho * residual) / np.sqrt(1 - rho**2))
        return stats.norm.cdf(start) + 0 * x

    def missing_density(self, x: Array, z: Array) -> Array:
        """p(value, missing | latent row)."""
        normal = stats.norm.pdf(x, self.mean(z), self.scale[:, None])
        return normal * (1 - self.chance_observed(x, z))

    def integrated(self, z: Array, power: int = 0) -> Array:
        """Integral of value^power p(value, missing | latent row) over values, by the trapezoid rule."""
        steps = np.linspace(-9, 9, 20_001)
        if self.family in ("below", "above"):
            return self._cut(z, power)
        total = np.zeros((self.p, z.shape[1]))
        for column in range(z.shape[1]):
            at = z[:, [column]]
            x = self.mean(at) + self.scale[:, None] * steps
            values = x**power * self.missing_density(x, np.repeat(at, len(steps), axis=1))
            total[:, column] = np.trapezoid(values, x, axis=1)
        return total

    def _cut(self, z: Array, power: int) -> Array:
        # The trapezoid rule needs the cut on a node.
        total = np.zeros((self.p, z.shape[1]))
        for j in range(self.p):
            for column in range(z.shape[1]):
                mean, scale = self.mean(z)[j, column], self.scale[j]
                far = mean - 9 * scale if self.family == "below" else mean + 9 * scale
                x = np.linspace(min(far, LIMIT), max(far, LIMIT), 20_001)
                total[j, column] = np.trapezoid(x**power * stats.norm.pdf(x, mean, scale), x)
        return total

    def simulate(self, rng: np.random.Generator, n: int) -> tuple[Array, Array, NDArray[np.bool_]]:
        """Latent rows, complete rows and patterns, features first."""
        z = rng.standard_normal((self.weight.shape[1], n))
        x = self.mean(z) + self.scale[:, None] * rng.standard_normal((self.p, n))
        return z, x, rng.random(x.shape) < self.chance_observed(x, z)


def case_of(family: str, p: int = 4, d: int = 2, seed: int = 0, strength: float = 1.2) -> Case:
    """A model of a family with random parameters of moderate size."""
    rng = np.random.default_rng(seed)
    weight, coupling = 0.8 * rng.standard_normal((p, d)), 0.5 * rng.standard_normal((p, d))
    bias, intercept = 0.5 * rng.standard_normal(p), rng.uniform(0, 1, p)
    log_scale = rng.uniform(-1, 0, p)
    deviation = 0.2 * rng.standard_normal(p) if family == "selection" else np.zeros(p)
    parts = (weight, bias, log_scale, intercept, coupling, deviation, np.full(2, strength))
    single = [np.asarray(part, np.float32) for part in parts]
    model = Factor(*single)
    assumed = Assumed.of([family] * p, np.ones(p), np.full(p, LIMIT))
    weight, bias, log_scale, intercept, coupling, deviation, shared = (a.astype(float) for a in single)
    scale = SCALE_FLOOR + np.exp(log_scale)
    return Case(family, model, assumed, weight, bias, scale, intercept, coupling, shared[0] + deviation)


class Mixed(NamedTuple):
    """Several components of one family; what masks a cell is the same in all but for the coupling."""

    parts: tuple[Case, ...]
    share: Array
    model: Mixture
    assumed: Assumed

    @property
    def p(self) -> int:
        return self.parts[0].p

    @property
    def size(self) -> int:
        return len(self.parts)

    def simulate(self, rng: np.random.Generator, n: int) -> tuple[Array, Array, NDArray[np.bool_]]:
        """Components of rows; complete rows and patterns, features first."""
        drawn = [part.simulate(rng, n)[1:] for part in self.parts]
        component = rng.choice(self.size, n, p=self.share)
        x, observed = (np.stack(each)[component, :, np.arange(n)].T for each in zip(*drawn, strict=True))
        return component, x, observed

    def coded(self, n: int, seed: int = 0) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
        """A table as the package sees it, rows first, 0 in missing cells."""
        _, x, observed = self.simulate(np.random.default_rng(seed), n)
        return np.where(observed, x, 0).T.astype(np.float32), observed.T.copy()

    def log_joint(self, z: Array, x: Array, observed: Any) -> Array:
        """log p(component, z, x_obs, r) of each component, at latent rows of rows, features first."""
        each = [log_joint_fast(part, z, x, observed) for part in self.parts]
        return np.log(self.share)[:, None] + np.array(each)

    def log_evidence(self, x: Array, observed: Any) -> Array:
        """log p(component, x_obs, r) of each component for one row, on a grid that is exact to 1e-6."""
        d = self.parts[0].weight.shape[1]
        axis = np.linspace(-6, 6, 121 if d == 2 else 481)
        grid = np.stack([a.ravel() for a in np.meshgrid(*[axis] * d)])
        many = [np.repeat(np.asarray(a)[:, None], grid.shape[1], axis=1) for a in (x, observed)]
        return special.logsumexp(self.log_joint(grid, *many), axis=1) + d * np.log(axis[1] - axis[0])


def mixed_of(
    family: str, n_components: int = 1, p: int = 4, d: int = 2, seed: int = 0, **given: Any
) -> Mixed:
    """Components of a family with random parameters of moderate size; the last ones are rarer."""
    cases = [case_of(family, p, d, seed + 100 * k, **given) for k in range(n_components)]
    first = cases[0]
    parts = tuple(
        case._replace(
            model=Factor(
                case.model.weight,
                case.model.bias,
                case.model.log_scale,
                first.model.intercept,
                case.model.coupling,
                first.model.deviation,
                first.model.shared,
            ),
            intercept=first.intercept,
            strength=first.strength,
        )
        for case in cases
    )
    share = np.arange(n_components, 0, -1) / (n_components * (n_components + 1) / 2)
    stacked = [
        np.stack([getattr(part.model, name) for part in parts])
        for name in ("weight", "bias", "log_scale", "coupling")
    ]
    mechanism = first.model.intercept, first.model.deviation, first.model.shared
    # A constant on the logarithmic scale is nothing.
    model = Mixture(np.float32(np.log(share) + 0.7), *stacked, *mechanism)
    return Mixed(parts, share, model, first.assumed)


def log_joint(case: Case, z: Array, x: Array, observed: Any) -> Array:
    """log p(z, x_obs, r) by hand, missing cells integrated by quadrature; features first."""
    seen = stats.norm.logpdf(x, case.mean(z), case.scale[:, None])
    with np.errstate(divide="ignore"):
        seen = seen + np.log(case.chance_observed(x, z))
        gone = np.log(case.integrated(z))
    return stats.norm.logpdf(z).sum(axis=0) + np.where(observed, seen, gone).sum(axis=0)


def log_joint_fast(case: Case, z: Array, x: Array, observed: Any) -> Array:
    """`log_joint` for many latent rows: missing cells by their closed form, which has a test of its own."""
    given = probits(case.model, case.assumed)
    probit = np.asarray(given.missing_constant, float)[:, None] + np.asarray(given.missing_weight, float) @ z
    with np.errstate(divide="ignore"):
        pattern = np.log(case.chance_observed(x, z))
    seen = stats.norm.logpdf(x, case.mean(z), case.scale[:, None]) + pattern
    return stats.norm.logpdf(z).sum(axis=0) + np.where(observed, seen, special.log_ndtr(probit)).sum(axis=0)
