"""A mixture of linear factor models of columns, and a probit of which of their cells are observed.

Within a component everything is linear and normal; several components bend a density to any shape.

Data and probit are affine in the latent row, so that missing cells are integrated out in closed form. A cell
is observed when a standard normal ``y``, correlated with the cell's standardised residual ``e``, exceeds a
threshold. Given the latent row and the cell's value, ``P(observed) = Phi(q)`` with ``q`` affine in both;
given the latent row alone, ``P(missing) = Phi(q)`` with another ``q`` that is affine in the latent row. What
a column's mechanism assumes is data, not code: the same compiled program serves every family.

Discrete columns (`classes.py`) come after the continuous ones and share their latent rows and mechanisms.
"""

from itertools import pairwise
from typing import NamedTuple, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from missbgm.bgm.classes import Block, Codes, Pattern
from missbgm.types import Numbers, Scalar

SCALE_FLOOR = 0.02
STEEPEST = 3.5  # of a selection on residuals, on the scale of arctanh(correlation): a slope of 16.5
LARGEST_SLOPE = 40.0  # of self-masking, per standard deviation of the column
CERTAIN = 30.0  # a probit that stands for probability one
FAMILIES = ("mcar", "ignorable", "selfmask", "selection", "below", "above")


class Assumed(NamedTuple):
    """What each column's mechanism is assumed to be, as numbers: one of each a column, 0 or 1 unless said."""

    masked: Numbers  # whether the pattern of the column is modelled at all
    coupled: Numbers  # whether the probit may depend on the latent row
    own: Numbers  # whether it depends on the cell's own value
    residual: Numbers  # whether it depends on the cell's residual given the latent row
    varied: Numbers  # whether the dependence may differ from column to column
    side: Numbers  # 1: missing exactly below a known limit; -1: exactly above it
    limit: Numbers  # that limit, on the model's scale
    classes: tuple[Codes, ...] = ()  # of the blocks of discrete columns, which come last

    @classmethod
    def of(
        cls,
        families: list[str],
        masked: Numbers,
        limits: Numbers | None = None,
        classes: tuple[Codes, ...] = (),
    ) -> Self:
        """Numbers for a family named for each column.

        Columns without a missing cell have no pattern; one that is cut at a known limit has it for certain.
        """

        def named(*names: str) -> Numbers:
            return np.array([family in names for family in families], np.float32)

        limit = np.zeros(len(families)) if limits is None else limits
        side = named("below") - named("above")
        return cls(
            np.where(side == 0, masked, 1).astype(np.float32),
            named("ignorable", "selection"),
            named("selfmask"),
            named("selection"),
            named("selection"),
            side,
            np.asarray(limit, np.float32),
            classes,
        )

    def among(self, columns: slice) -> Self:
        """The numbers of some columns."""
        return type(self)(*(part[columns] for part in self[:7]))


class Factor(eqx.Module):
    """One component's parameters of the data and of the pattern; columns lead every array but `shared`."""

    weight: Array  # of the latent row, (p, d)
    bias: Array
    log_scale: Array  # the noise's scale above its floor
    intercept: Array  # of the probit of being observed
    coupling: Array  # of that probit with the latent row, (p, d)
    deviation: Array  # of a column's dependence on its own value or residual from the shared one
    shared: Array  # that dependence, on own values and on residuals
    discrete: tuple[Block, ...] = ()  # the columns of the mechanism that are left after the continuous ones

    @property
    def n_continuous(self) -> int:
        """Number of continuous columns."""
        return len(self.weight)

    @property
    def discrete_columns(self) -> list[slice]:
        """Which columns each block of discrete ones has."""
        ends = np.cumsum([self.n_continuous, *(block.size for block in self.discrete)]).tolist()
        return [slice(start, end) for start, end in pairwise(ends)]

    @property
    def scale(self) -> Array:
        """Standard deviation of each column's noise."""
        return SCALE_FLOOR + jnp.exp(self.log_scale)


class Mixture(eqx.Module):
    """Parameters of all components; they lead arrays of the data, and share what masks a cell.

    A pattern that depends on a cell's own value cannot depend on the component as well.
    """

    share: Array  # of the rows, on a logarithmic scale, up to a constant
    weight: Array
    bias: Array
    log_scale: Array
    coupling: Array
    intercept: Array
    deviation: Array
    shared: Array
    discrete: tuple[Block, ...] = ()  # all but the effects of a block lead with components

    @property
    def size(self) -> int:
        """Number of components."""
        return len(self.share)

    @property
    def log_share(self) -> Array:
        """Log probability of each component."""
        return jax.nn.log_softmax(self.share)

    @property
    def parts(self) -> Factor:
        """Every component, stacked."""

        def repeated(a: Array) -> Array:
            return jnp.broadcast_to(a, (self.size, *a.shape))

        mechanism = repeated(self.intercept), self.coupling, repeated(self.deviation), repeated(self.shared)
        blocks = (eqx.tree_at(lambda b: b.effect, b, repeated(b.effect)) for b in self.discrete)
        return Factor(self.weight, self.bias, self.log_scale, *mechanism, discrete=tuple(blocks))

    def part(self, number: Numbers) -> Factor:
        """One component."""
        return jax.tree.map(lambda a: a[number], self.parts)


class Probits(NamedTuple):
    """A cell's probit, affine in its value and the latent row, and how it ties the value to the pattern."""

    observed_constant: Array
    observed_slope: Array  # on the cell's value
    observed_weight: Array  # on the latent row, (p, d)
    missing_constant: Array
    missing_weight: Array  # (p, d)
    correlation: Array  # of a cell's residual with the normal whose sign is the pattern
    classes: tuple[Pattern, ...] = ()  # of the blocks of discrete columns


def probits(model: Factor, assumed: Assumed) -> Probits:
    """The affine probits of every column, continuous ones first."""
    patterns = tuple(
        _pattern(block, codes, model, assumed, columns)
        for block, codes, columns in zip(model.discrete, assumed.classes, model.discrete_columns, strict=True)
    )
    if not patterns:
        return _continuous(model, assumed)
    columns = slice(0, model.n_continuous)
    cut = (getattr(model, name)[columns] for name in ("intercept", "coupling", "deviation"))
    head = Factor(model.weight, model.bias, model.log_scale, *cut, model.shared)
    return _continuous(head, assumed.among(columns))._replace(classes=patterns)


def _pattern(block: Block, codes: Codes, model: Factor, assumed: Assumed, columns: slice) -> Pattern:
    """What masks discrete columns; each may depend on its own value in a way of its own."""
    own = jnp.clip(model.shared[0] + model.deviation[columns], -LARGEST_SLOPE, LARGEST_SLOPE)
    effect = jnp.asarray(assumed.own[columns])[:, None] * block.own(own, codes)
    weight = jnp.asarray(assumed.coupled[columns])[:, None] * model.coupling[columns]
    return Pattern(model.intercept[columns], weight, effect, jnp.asarray(codes.dead))


def _continuous(model: Factor, assumed: Assumed) -> Probits:
    varied = assumed.varied * model.deviation
    own = assumed.own * jnp.clip(model.shared[0] + varied, -LARGEST_SLOPE, LARGEST_SLOPE)
    steep = assumed.residual * jnp.clip(model.shared[1] + varied, -STEEPEST, STEEPEST)
    slope, stretch = jnp.sinh(steep) / model.scale, jnp.cosh(steep)
    coupling = assumed.coupled[:, None] * model.coupling
    shrink = 1 / jnp.sqrt(1 + (own * model.scale) ** 2)
    uncut = jnp.where(assumed.side == 0, 1.0, 0.0)
    cut = assumed.side / model.scale
    return Probits(
        observed_constant=uncut * (stretch * model.intercept - slope * model.bias) + CERTAIN * (1 - uncut),
        observed_slope=uncut * (own + slope),
        observed_weight=uncut[:, None] * (stretch[:, None] * coupling - slope[:, None] * model.weight),
        missing_constant=cut * (assumed.limit - model.bias)
        - uncut * shrink * (model.intercept + own * model.bias),
        missing_weight=-cut[:, None] * model.weight
        - (uncut * shrink)[:, None] * (coupling + own[:, None] * model.weight),
        correlation=uncut * (jnp.tanh(steep) + own * model.scale * shrink) + assumed.side,
    )


class Prior(NamedTuple):
    """Precisions of the parameters' normal priors; with several components, more to keep small ones sane."""

    weight: float = 0.5
    coupling: float = 4.0
    deviation: float = 1 / 0.3**2
    shared: float = 1 / 9
    bias: float = 0.0
    cells: float = 0.0  # as many cells of variance `variance` a component and column, as it were
    variance: float = 0.3
    rows: float = 1.0  # as many rows a component, as it were

    @classmethod
    def of(cls, n_components: int) -> Self:
        """The prior for this many components."""
        return cls() if n_components == 1 else cls(bias=0.1, cells=2.0)

    def penalty(self, model: Mixture) -> Scalar:
        """Minus the log prior, up to a constant."""
        parts = (model.weight, model.coupling, model.deviation, model.shared, model.bias)
        normal = sum(
            (precision * jnp.sum(part**2) for precision, part in zip(self[:5], parts, strict=True)),
            start=jnp.zeros(()),
        )
        scale = SCALE_FLOOR + jnp.exp(model.log_scale)
        noise = self.cells * jnp.sum(2 * jnp.log(scale) + self.variance / scale**2)
        classes = sum((block.penalty(self.weight) for block in model.discrete), start=jnp.zeros(()))
        return 0.5 * (normal + noise) - self.rows * jnp.sum(model.log_share) + classes
