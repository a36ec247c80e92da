"""Draws with missing cells integrated out: latent rows by weighted proposals or HMC, then the cells."""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from missbgm.bgm.cholesky import transposed_times
from missbgm.bgm.factor import Assumed, Factor, Mixture, Probits, probits
from missbgm.bgm.joint import log_marginal
from missbgm.bgm.normal import below, hazard
from missbgm.compiling import FOR_ONE_RUN, IN_ONE_PIECE, compiled
from missbgm.fit.laplace import Mode
from missbgm.randomness import as_normal, folded, row_uniform
from missbgm.sample.hmc import StepSize, chosen, transition
from missbgm.types import Latent, Numbers, Observed, PerRow, Row, RowKeys

N_LEAPFROG, TARGET, THINNING = 5, 0.8, 3

# What a row's randomness is for, beside the numbers of its proposals and draws.
CHOICE, CHAIN, CELLS = 1 << 28, 1 << 29, 1 << 30


class Weighted(NamedTuple):
    """Weighted latent rows of a block, as many under each component."""

    z: Array  # components, proposals, d, rows
    log_weight: Array  # components, proposals, rows


class Drawn(NamedTuple):
    """Equally likely latent rows, and the component that each of them is under."""

    z: Array  # draws, d, rows
    component: Array  # draws, rows


@partial(jax.jit, static_argnames="n_draws")
def resample(keys: RowKeys, weighted: Weighted, *, n_draws: int) -> Drawn:
    """Equally weighted latent draws by systematic resampling in random order."""
    n_components, n_proposals, d, n = weighted.z.shape
    weight = jax.nn.softmax(weighted.log_weight.reshape(-1, n), axis=0)
    reached = jnp.cumsum(weight, axis=0)
    uniform = row_uniform(folded(keys, CHOICE), 1)[0]
    z = weighted.z.reshape(-1, d, n)

    def one(number: Array) -> Drawn:
        # Multiples of the golden ratio are evenly spread in whatever order they come.
        position = jnp.modf(uniform + number * 0.6180339887498949)[0] * reached[-1]
        index = jnp.minimum(jnp.sum(reached < position, axis=0), len(weight) - 1)
        return Drawn(jnp.take_along_axis(z, index[None, None], axis=0)[0], index // n_proposals)

    return jax.lax.map(one, jnp.arange(n_draws))


@compiled(IN_ONE_PIECE, static_argnames=("n_burn", "n_draws"))
def chain(
    keys: RowKeys,
    model: Factor,
    assumed: Assumed,
    mode: Mode,
    x: Row,
    observed: Observed,
    *,
    n_burn: int,
    n_draws: int,
) -> Array:
    """Latent draws under one component, ``(draws, d, rows)``, by HMC in the metric of the mode."""
    given = probits(model, assumed)
    d = len(mode.z)

    def density(u: Array) -> tuple[PerRow, None]:
        z = mode.z + transposed_times(mode.inverse, u)
        return log_marginal(model, given, assumed.masked, z, x, observed).log_prob, None

    def move(state: tuple[Array, StepSize], number: Array) -> tuple[tuple[Array, StepSize], Array]:
        u, step = state
        uniform = row_uniform(folded(keys, CHAIN + number), d + 1)
        adapting = number < n_burn
        point, acceptance = transition(
            as_normal(uniform[:d]), uniform[d], density, u, step.used(adapting), N_LEAPFROG
        )
        step = chosen(adapting, step.adapted(acceptance, number, TARGET), step)
        return (point.position, step), point.position

    start = (jnp.zeros_like(mode.z), StepSize.start(0.3, x.shape[1]))
    n_moves = n_burn + n_draws * THINNING
    _, path = jax.lax.scan(move, start, jnp.arange(n_moves))
    kept = path[n_burn + THINNING - 1 :: THINNING]
    return mode.z + jax.vmap(lambda u: transposed_times(mode.inverse, u))(kept)


@compiled(FOR_ONE_RUN)
def fill(
    keys: RowKeys, model: Mixture, assumed: Assumed, drawn: Drawn, x: Row, observed: Observed, first: Numbers
) -> Array:
    """Draw every missing cell exactly, given each of some latent draws: ``(draws, p, rows)``."""
    parts = model.parts
    given = _all_probits(model, assumed)
    p = len(x)
    correlation = assumed.masked * given.correlation
    rest = jnp.sqrt(jnp.maximum(1 - correlation**2, 0.0))

    def one(number_and_draw: tuple[Array, Drawn]) -> Row:
        number, (latent, component) = number_and_draw
        uniform = row_uniform(folded(keys, CELLS + number), 2 * p)

        def of_row(numbers: Array) -> Array:
            return numbers.T[:, component]

        def affine(constant: Array, weight: Array) -> Array:
            # Under every component, and then the row's own: cheaper than loadings for every row.
            found = constant[:, :, None] + weight @ latent
            return jnp.take_along_axis(found, component[None, None], axis=0)[0]

        probit = affine(given.missing_constant, given.missing_weight)
        residual = of_row(correlation) * below(probit, uniform[:p]) + of_row(rest) * as_normal(uniform[p:])
        value = affine(parts.bias, parts.weight) + of_row(parts.scale) * residual
        return jnp.where(observed, x, value)

    return jax.lax.map(one, (first + jnp.arange(len(drawn.z), dtype=jnp.uint32), drawn))


@compiled(FOR_ONE_RUN)
def moments(model: Mixture, assumed: Assumed, weighted: Weighted) -> tuple[Row, Row]:
    """Mean and mean square of every cell were it missing, over weighted latent rows, ``(p, rows)`` each.

    The cell is integrated out given each latent row, so that only the latent rows' noise is left.
    """
    parts, all_given = model.parts, _all_probits(model, assumed)
    n_components, n_proposals, d, n = weighted.z.shape
    weight = jax.nn.softmax(weighted.log_weight.reshape(-1, n), axis=0)
    z = weighted.z.reshape(-1, d, n)

    def add(number: Array, sums: tuple[Row, Row]) -> tuple[Row, Row]:
        part, given = jax.tree.map(lambda a: a[number // n_proposals], (parts, all_given))
        correlation, scale = (assumed.masked * given.correlation)[:, None], part.scale[:, None]
        probit = given.missing_constant[:, None] + given.missing_weight @ z[number]
        lam = hazard(probit)
        mean = part.weight @ z[number] + part.bias[:, None] - scale * correlation * lam
        variance = scale**2 * (1 - correlation**2 * lam * (probit + lam))
        return sums[0] + weight[number] * mean, sums[1] + weight[number] * (mean**2 + variance)

    zeros = jnp.zeros((len(model.intercept), n))
    return jax.lax.fori_loop(0, n_components * n_proposals, add, (zeros, zeros))


def _all_probits(model: Mixture, assumed: Assumed) -> Probits:
    return jax.vmap(lambda part: probits(part, assumed))(model.parts)
