"""p(x_j | z) of discrete columns beside a factor model: one class for each kind, a block of columns each.

A column has finitely many classes, whose probabilities follow from linear predictors that are affine in the
latent row. A missing cell is therefore integrated out by a finite sum over its classes, and drawn by its
exact conditional. Columns come first, then classes or predictors, and rows last.
"""

from abc import abstractmethod
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array
from jax.scipy.special import gammaln, logsumexp

from missbgm.bgm.cholesky import curvature
from missbgm.bgm.normal import hazard, log_cdf
from missbgm.types import Numbers, Observed, Row, Scalar

NEVER = -1e9  # the log probability of what cannot be
BEYOND = 1e4  # a cut point that no predictor crosses
SMALLEST_STEP = 0.01  # between cut points
CONSTANT, EFFECT = 0.05, 1.0  # precisions of the priors of constants, and of free effects on the pattern


class Codes(eqx.Module):
    """What is fixed of a block's columns: their kind, and numbers of every class, columns first."""

    kind: str = eqx.field(static=True)
    value: Numbers  # on which a self-mask may depend: the class's number, standardised
    dead: Numbers  # 1 where the column has no such class
    frequency: Numbers  # among observed cells

    @property
    def size(self) -> int:
        """Number of columns."""
        return len(self.value)


class Pattern(NamedTuple):
    """The probit of being observed: affine in the latent row, and moved by the cell's class."""

    constant: Array
    weight: Array  # (columns, d)
    effect: Array  # (columns, classes)
    dead: Array  # (columns, classes)


class Block(eqx.Module):
    """Parameters of neighbouring columns of one kind, columns first."""

    slope: Array  # of the predictors on the latent row: (columns, predictors, d)
    constant: Array  # (columns, predictors)
    shape: Array  # whatever else the kind needs, (columns, any)
    effect: Array  # of every class on the pattern, where classes have no order: (columns, classes or 0)

    @property
    def size(self) -> int:
        """Number of columns."""
        return self.slope.shape[-3]

    def predictor(self, z: Array) -> Array:
        """Predictors at latent rows, ``(columns, predictors, rows)``."""
        return self.slope @ z + self.constant[..., None]

    @abstractmethod
    def log_prob(self, predictor: Array, dead: Array) -> Array:
        """Log probability of every class, ``(columns, classes, rows)``."""

    @abstractmethod
    def gradient(self, cells: "Cells") -> Array:
        """Derivative of the cells' log density in their predictors."""

    @abstractmethod
    def information(self, cells: "Cells") -> Array:
        """Information of the cells on the latent row, positive semidefinite: ``(d, d, rows)``.

        Of an observed cell it is the expected one; of a missing one, as much of it as the pattern tells: with
        one canonical predictor minus the second derivative, and 0 where that is negative.
        """

    def own(self, slope: Array, codes: Codes) -> Array:
        """What each class adds to the pattern's probit if that depends on the cell's own value."""
        return slope[:, None] * codes.value

    def penalty(self, weight: Numbers) -> Scalar:
        """Minus the log prior up to a constant; `weight` is the precision of slopes."""
        parts = (weight, self.slope), (CONSTANT, self.constant), (EFFECT, self.effect)
        return 0.5 * sum((a * jnp.sum(b**2) for a, b in parts), start=jnp.zeros(())) + self._shape_penalty()

    def _shape_penalty(self) -> Scalar:
        return jnp.zeros(())


class Cells(NamedTuple):
    """What is known of the cells of a block, ``(columns, classes, rows)`` unless said."""

    evidence: Array  # log density of what is observed of the cell, (columns, rows)
    predictor: Array  # (columns, predictors, rows)
    dead: Array  # (columns, classes)
    log_prob: Array  # of every class given the latent row
    log_posterior: Array  # and given what is observed of the cell
    probit: Array  # whose normal probability is that of the pattern, class aside: (columns, rows)

    @property
    def posterior(self) -> Array:
        """Probability of every class given the latent row and what is observed of the cell."""
        return jnp.exp(self.log_posterior)


def known(
    block: Block,
    pattern: Pattern,
    masked: Array,
    predictor: Array,
    probit: Array,
    x: Row,
    observed: Observed,
) -> Cells:
    """Every class of every cell, weighted by what is observed: its value, and whether it is there.

    An observed cell has one class; a missing one has all, each with the probability to be missing. That
    depends on the latent row or on the class, never on both: the class adds the same in every row.
    """
    log_prob = block.log_prob(predictor, pattern.dead)
    signed = jnp.where(observed, probit, -probit)
    seen, gone = (_added(pattern, sign)[:, :, None] for sign in (1.0, -1.0))
    classes = jnp.arange(log_prob.shape[1], dtype=x.dtype)[:, None]
    present = observed[:, None]
    added = masked[:, None, None] * jnp.where(present, seen, gone)
    joint = jnp.where(present & (x[:, None] != classes), NEVER, log_prob + added)
    within = logsumexp(joint, axis=1)
    evidence = within + masked[:, None] * log_cdf(signed)
    return Cells(evidence, predictor, pattern.dead, log_prob, joint - within[:, None], signed)


def _added(pattern: Pattern, sign: float) -> Array:
    """What a class adds to the log probability of the pattern, ``(columns, classes)``."""
    base = sign * pattern.constant[:, None]
    return log_cdf(base + sign * pattern.effect) - log_cdf(base)


def at_latent(block: Block, pattern: Pattern, masked: Array, z: Array, x: Row, observed: Observed) -> Cells:
    """`known` at latent rows that the columns share."""
    probit = pattern.constant[:, None] + pattern.weight @ z
    return known(block, pattern, masked, block.predictor(z), probit, x, observed)


class Derivatives(NamedTuple):
    """Gradient and information of a block's cells on the latent row."""

    gradient: Array
    information: Array


def derivatives(
    block: Block, pattern: Pattern, masked: Array, cells: Cells, observed: Observed
) -> Derivatives:
    """Derivatives of the cells' log density in the latent row; see `Block.information`."""
    d = block.slope.shape[-1]
    # A pattern depends on the latent row or on the cell's class, never on both: nothing is mixed here.
    steep = masked[:, None] * hazard(cells.probit)
    on_probit = jnp.where(observed, steep, -steep)
    curved = steep * (hazard(cells.probit) + cells.probit)
    on_predictor = block.gradient(cells)
    gradient = (
        block.slope.reshape(-1, d).T @ on_predictor.reshape(-1, observed.shape[1])
        + pattern.weight.T @ on_probit
    )
    return Derivatives(gradient, block.information(cells) + curvature(pattern.weight, curved))


def _normalised(log_prob: Array, dead: Array) -> Array:
    return jax.nn.log_softmax(jnp.where(dead[:, :, None] > 0, NEVER, log_prob), axis=1)


class Single(Block):
    """Kinds with one predictor; derivatives of their log probabilities in it are autodiff's."""

    def score(self, cells: Cells) -> Array:
        """Derivative of every class's log probability in the predictor."""

        def told(predictor: Array) -> Array:
            return self.log_prob(predictor, cells.dead)

        return jax.jvp(told, (cells.predictor,), (jnp.ones_like(cells.predictor),))[1]

    def gradient(self, cells: Cells) -> Array:
        return jnp.sum(cells.posterior * self.score(cells), axis=1, keepdims=True)

    def information(self, cells: Cells) -> Array:
        return curvature(self.slope[:, 0], self.amount(cells))

    def amount(self, cells: Cells) -> Array:
        """Information on the predictor, ``(columns, rows)``."""
        score, posterior = self.score(cells), cells.posterior
        expected = jnp.sum(jnp.exp(cells.log_prob) * score**2, axis=1)
        mean = jnp.sum(posterior * score, axis=1)
        unknown = jnp.sum(posterior * (score - mean[:, None]) ** 2, axis=1)
        return jnp.maximum(expected - unknown, 0.0)


class Bernoulli(Single):
    """Two classes; the predictor is the logit of the second."""

    def log_prob(self, predictor: Array, dead: Array) -> Array:
        return jnp.concatenate([jax.nn.log_sigmoid(-predictor), jax.nn.log_sigmoid(predictor)], axis=1)


class Categorical(Block):
    """Classes without an order; one predictor each, of which a softmax is taken.

    Priors on all of them make them unique.
    """

    def log_prob(self, predictor: Array, dead: Array) -> Array:
        return _normalised(predictor, dead)

    def gradient(self, cells: Cells) -> Array:
        return cells.posterior - jnp.exp(cells.log_prob)

    def information(self, cells: Cells) -> Array:
        d, n = self.slope.shape[-1], cells.predictor.shape[-1]
        probability = jnp.exp(cells.log_prob)
        # Traces of the expected information, and of what the pattern leaves unknown of it: the part that is
        # known may be indefinite, and its share of the trace times the whole is not.
        expected, unknown = (1 - jnp.sum(p**2, axis=1) for p in (probability, cells.posterior))
        share = jnp.clip(1 - unknown / jnp.maximum(expected, 1e-9), 0.0, 1.0)
        flat = (share[:, None] * probability).reshape(-1, n)
        mean = jnp.sum(self.slope[..., None] * probability[:, :, None], axis=1)
        return curvature(self.slope.reshape(-1, d), flat) - jnp.einsum("jin,jkn,jn->ikn", mean, mean, share)

    def own(self, slope: Array, codes: Codes) -> Array:
        return self.effect * (1 - codes.dead)


class Ordinal(Single):
    """Ordered classes, cut out of a normal around the predictor: a cumulative probit.

    The first cut point is 0, as the constant moves all; `shape` has the logarithms of the steps between cut
    points.
    """

    def log_prob(self, predictor: Array, dead: Array) -> Array:
        steps = SMALLEST_STEP + jnp.exp(self.shape)
        inner = jnp.concatenate([jnp.zeros((len(steps), 1)), jnp.cumsum(steps, axis=1)], axis=1)
        # Above the last class that a column has there is no further cut.
        inner = jnp.where(dead[:, 1:] > 0, BEYOND, inner[:, : dead.shape[1] - 1])
        end = jnp.full_like(inner[:, :1], BEYOND)
        lower, upper = (
            jnp.concatenate(ends, axis=1)[:, :, None] - predictor for ends in ((-end, inner), (inner, end))
        )
        # In the upper tail differences vanish beside one: both ends are mirrored there.
        mirrored = lower + upper > 0
        low, high = jnp.where(mirrored, -upper, lower), jnp.where(mirrored, -lower, upper)
        log_high = log_cdf(high)
        gap = jnp.minimum(log_cdf(low) - log_high, -1e-7)
        return jnp.where(dead[:, :, None] > 0, NEVER, log_high + jnp.log(-jnp.expm1(gap)))

    def _shape_penalty(self) -> Scalar:
        return 0.5 * 0.1 * jnp.sum(self.shape**2)


class Count(Single):
    """Counts from 0 to a bound: a negative binomial with log link, cut there and normalised again.

    `shape` is the logarithm of its size: the larger, the nearer to a Poisson law.
    """

    def log_prob(self, predictor: Array, dead: Array) -> Array:
        count = jnp.arange(dead.shape[1], dtype=predictor.dtype)
        ways = gammaln(count + jnp.exp(self.shape)) - gammaln(count + 1)
        log_odds = -jax.nn.softplus(self.shape[..., None] - predictor)
        return _normalised(ways[:, :, None] + count[:, None] * log_odds, dead)

    def _shape_penalty(self) -> Scalar:
        return 0.5 * 0.25 * jnp.sum((self.shape - 2.0) ** 2)


BLOCKS: dict[str, type[Block]] = {
    "bernoulli": Bernoulli,
    "categorical": Categorical,
    "ordinal": Ordinal,
    "count": Count,
}
