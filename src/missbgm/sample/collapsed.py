"""Draws with missing cells integrated out: latent rows by weighted proposals or HMC, then the cells."""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from missbgm.bgm.cholesky import transposed_times
from missbgm.bgm.classes import at_latent, known
from missbgm.bgm.factor import Assumed, Factor, Mixture, Probits, probits
from missbgm.bgm.joint import log_marginal
from missbgm.bgm.normal import below, hazard
from missbgm.compiling import FOR_ONE_RUN, IN_ONE_PIECE, compiled
from missbgm.fit.laplace import Mode
from missbgm.randomness import as_normal, folded, row_uniform
from missbgm.sample.hmc import StepSize, chosen, transition
from missbgm.types import Numbers, Observed, PerRow, Row, RowKeys

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
    _, n_proposals, d, n = weighted.z.shape
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


class _Cells(NamedTuple):
    """What draws of some cells read of their components and columns."""

    bias: Array
    weight: Array
    scale: Array
    correlation: Array
    constant: Array
    missing_weight: Array


@compiled(IN_ONE_PIECE)
def fill(
    keys: RowKeys, model: Mixture, assumed: Assumed, drawn: Drawn, row: Numbers, column: Numbers
) -> Array:
    """Draw some missing cells of continuous columns exactly, given each latent draw of their rows.

    Parameters
    ----------
    keys
        Of the rows.
    model, assumed
        Parameters, and the mechanism's numbers.
    drawn
        Latent draws of the rows.
    row, column
        Where each cell is.

    Returns
    -------
    Array
        Draws by cells.
    """
    parts, given = model.parts, _all_probits(model, assumed)
    correlation = assumed.masked[: parts.weight.shape[1]] * given.correlation
    every = _Cells(
        parts.bias, parts.weight, parts.scale, correlation, given.missing_constant, given.missing_weight
    )
    first = jax.tree.map(lambda a: a[0, column], every)
    uniform = row_uniform(_cell_keys(keys, row, column), 2 * len(drawn.z)).reshape(len(drawn.z), 2, len(row))

    def one(of_draw: tuple[Drawn, Array]) -> Array:
        (z, component), uniform = of_draw
        latent, under = z[:, row].T, component[row]
        cell = first if model.size == 1 else jax.tree.map(lambda a: a[under, column], every)
        probit = cell.constant + jnp.sum(cell.missing_weight * latent, axis=1)
        rest = jnp.sqrt(jnp.maximum(1 - cell.correlation**2, 0.0))
        residual = cell.correlation * below(probit, uniform[0]) + rest * as_normal(uniform[1])
        return cell.bias + jnp.sum(cell.weight * latent, axis=1) + cell.scale * residual

    return jax.lax.map(one, (drawn, uniform))


def _cell_keys(keys: RowKeys, row: Numbers, column: Numbers) -> RowKeys:
    # A cell's key is made once, and one call makes its numbers of all draws: two of them for each cipher.
    return jax.vmap(lambda key, number: jax.random.fold_in(key, CELLS + number))(keys[row], column)


@compiled(IN_ONE_PIECE, static_argnames="number")
def fill_classes(
    keys: RowKeys,
    model: Mixture,
    assumed: Assumed,
    drawn: Drawn,
    row: Numbers,
    column: Numbers,
    *,
    number: int,
) -> Array:
    """Draw some missing cells of one block of discrete columns exactly; see `fill`.

    `number` says which block. A cell is treated as a column of its own with one row.
    """
    start = model.part(0).discrete_columns[number].start
    every = model.parts.discrete[number], _all_probits(model, assumed).classes[number]
    masked, place = jnp.asarray(assumed.masked)[column], column - start
    uniform = row_uniform(_cell_keys(keys, row, column), len(drawn.z))
    nothing = jnp.zeros((len(row), 1)), jnp.zeros((len(row), 1), bool)

    def one(of_draw: tuple[Drawn, Array]) -> Array:
        (z, component), uniform = of_draw
        latent, under = z[:, row].T, component[row]
        block, pattern = jax.tree.map(lambda a: a[under, place], every)
        predictor = jnp.sum(block.slope * latent[:, None], axis=2) + block.constant
        probit = pattern.constant + jnp.sum(pattern.weight * latent, axis=1)
        cells = known(block, pattern, masked, predictor[..., None], probit[:, None], *nothing)
        reached = jnp.cumsum(cells.posterior[:, :, 0], axis=1)
        return jnp.sum(reached < (uniform * reached[:, -1])[:, None], axis=1).astype(z.dtype)

    return jax.lax.map(one, (drawn, uniform))


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
        masked = assumed.masked[: part.n_continuous]
        correlation, scale = (masked * given.correlation)[:, None], part.scale[:, None]
        probit = given.missing_constant[:, None] + given.missing_weight @ z[number]
        lam = hazard(probit)
        mean = part.weight @ z[number] + part.bias[:, None] - scale * correlation * lam
        variance = scale**2 * (1 - correlation**2 * lam * (probit + lam))
        square = mean**2 + variance
        first, second = _class_moments(part, given, assumed, z[number], mean, square)
        return sums[0] + weight[number] * first, sums[1] + weight[number] * second

    zeros = jnp.zeros((len(model.intercept), n))
    return jax.lax.fori_loop(0, n_components * n_proposals, add, (zeros, zeros))


def _class_moments(
    part: Factor, given: Probits, assumed: Assumed, z: Array, mean: Row, square: Row
) -> tuple[Row, Row]:
    """Moments of continuous columns followed by those of the numbers of missing cells' classes."""
    for block, pattern, columns in zip(part.discrete, given.classes, part.discrete_columns, strict=True):
        nothing = jnp.zeros((block.size, z.shape[1])), jnp.zeros((block.size, z.shape[1]), bool)
        cells = at_latent(block, pattern, jnp.asarray(assumed.masked)[columns], z, *nothing)
        number = jnp.arange(cells.log_prob.shape[1], dtype=z.dtype)[:, None]
        mean = jnp.concatenate([mean, jnp.sum(cells.posterior * number, axis=1)])
        square = jnp.concatenate([square, jnp.sum(cells.posterior * number**2, axis=1)])
    return mean, square


def _all_probits(model: Mixture, assumed: Assumed) -> Probits:
    return jax.vmap(lambda part: probits(part, assumed))(model.parts)
