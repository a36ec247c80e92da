"""Draws with missing cells integrated out: latent rows by weighted proposals or HMC, then the cells."""

from functools import partial

import jax
import jax.numpy as jnp
from jax import Array

from missbgm.bgm.cholesky import transposed_times
from missbgm.bgm.factor import Assumed, Factor, probits
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


@partial(jax.jit, static_argnames="n_draws")
def resample(keys: RowKeys, z: Array, log_weight: Array, *, n_draws: int) -> Array:
    """Equally weighted latent draws, ``(draws, d, rows)``, by systematic resampling in random order."""
    weight = jax.nn.softmax(log_weight, axis=0)
    reached = jnp.cumsum(weight, axis=0)
    uniform = row_uniform(folded(keys, CHOICE), 1)[0]

    def one(number: Array) -> Array:
        # Multiples of the golden ratio are evenly spread in whatever order they come.
        position = jnp.modf(uniform + number * 0.6180339887498949)[0] * reached[-1]
        index = jnp.minimum(jnp.sum(reached < position, axis=0), len(weight) - 1)
        return jnp.take_along_axis(z, index[None, None], axis=0)[0]

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
    """Latent draws, ``(draws, d, rows)``, by HMC in the metric of the mode."""
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


@compiled(IN_ONE_PIECE)
def fill(keys: RowKeys, model: Factor, assumed: Assumed, z: Array, row: Numbers, column: Numbers) -> Array:
    """Draw some missing cells exactly, given each latent draw of their rows, ``(draws, d, rows)``.

    Parameters
    ----------
    keys
        Of the rows.
    model, assumed
        Parameters, and the mechanism's numbers.
    z
        Latent draws of the rows.
    row, column
        Where each cell is.

    Returns
    -------
    Array
        Draws by cells.
    """
    given = probits(model, assumed)
    scale = model.scale[column]
    correlation = (assumed.masked * given.correlation)[column]
    rest = jnp.sqrt(jnp.maximum(1 - correlation**2, 0.0))
    weight, missing_weight = model.weight[column].T, given.missing_weight[column].T
    # A cell's key is made once, and one call makes its numbers of all draws: two of them for each cipher.
    own = jax.vmap(lambda key, number: jax.random.fold_in(key, CELLS + number))(keys[row], column)
    uniform = row_uniform(own, 2 * len(z)).reshape(len(z), 2, len(row))

    def one(of_draw: tuple[Latent, Array]) -> Array:
        latent, uniform = of_draw[0][:, row], of_draw[1]
        probit = given.missing_constant[column] + jnp.sum(missing_weight * latent, axis=0)
        residual = correlation * below(probit, uniform[0]) + rest * as_normal(uniform[1])
        return model.bias[column] + jnp.sum(weight * latent, axis=0) + scale * residual

    return jax.lax.map(one, (z, uniform))


@compiled(FOR_ONE_RUN)
def moments(model: Factor, assumed: Assumed, z: Array, log_weight: Array) -> tuple[Row, Row]:
    """Mean and mean square of every cell were it missing, over weighted latent rows, ``(p, rows)`` each.

    The cell is integrated out given each latent row, so that only the latent rows' noise is left.
    """
    given = probits(model, assumed)
    correlation = (assumed.masked * given.correlation)[:, None]
    weight = jax.nn.softmax(log_weight, axis=0)
    scale = model.scale[:, None]

    def add(number: Array, sums: tuple[Row, Row]) -> tuple[Row, Row]:
        probit = given.missing_constant[:, None] + given.missing_weight @ z[number]
        lam = hazard(probit)
        mean = model.weight @ z[number] + model.bias[:, None] - scale * correlation * lam
        variance = scale**2 * (1 - correlation**2 * lam * (probit + lam))
        return sums[0] + weight[number] * mean, sums[1] + weight[number] * (mean**2 + variance)

    zeros = jnp.zeros((len(model.bias), z.shape[2]))
    return jax.lax.fori_loop(0, len(z), add, (zeros, zeros))
