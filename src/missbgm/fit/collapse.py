"""Stochastic-approximation EM with the missing cells integrated out: latent rows drawn, parameters by Adam.

Every iteration takes the rows of one batch a Newton step nearer to the mode of p(z | x_obs, r), draws their
latent rows from the normal approximation there, and takes one gradient step of all parameters at the drawn
rows. Averages of the parameters over the last iterations are the estimate.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array
from numpy.typing import NDArray

from missbgm.bgm.cholesky import TINY, inverse_factor, times, transposed_times
from missbgm.bgm.factor import SCALE_FLOOR, Assumed, Factor, Prior, probits
from missbgm.bgm.joint import log_marginal
from missbgm.compiling import FOR_ONE_RUN, compiled
from missbgm.fit.laplace import curvature, evaluated, newton
from missbgm.types import Latent, Numbers, Observed, PerRow, RandomKey, Rng, Row, Tree

AVERAGED = 0.4  # of the iterations
LAST_RATE = 0.03  # as a share of the first
N_POWERS = 12  # of a matrix, to find its leading directions
START_CORRELATION = 0.8  # of a selection on residuals: at zero the likelihood has a saddle
_ADAM = optax.scale_by_adam(b1=0.9, b2=0.99)


class Rows(NamedTuple):
    """A coded table, rows first: values with 0 in missing cells, the pattern, and a weight for each row."""

    x: Numbers
    observed: Numbers
    weight: Numbers


def objective(
    model: Factor,
    assumed: Assumed,
    prior: Prior,
    z: Latent,
    x: Row,
    observed: Observed,
    weight: PerRow,
    n: Numbers,
) -> Array:
    """Minus the mean log density of rows at given latent rows, and the prior's share."""
    at = log_marginal(model, probits(model, assumed), assumed.masked, z, x, observed)
    return -jnp.sum(weight * at.log_prob) / jnp.sum(weight) + prior.penalty(model) / n


class State(NamedTuple):
    model: Factor
    adam: Tree
    average: Factor
    z: Array  # rows first
    losses: Array


@compiled(FOR_ONE_RUN)
def estimate(
    key: RandomKey,
    start: Factor,
    z: Numbers,
    rows: Rows,
    batches: Numbers,
    n_iterations: Numbers,
    assumed: Assumed,
    prior: Prior,
    rate: Numbers,
) -> State:
    """Run some iterations, each on the rows of one batch; answer averaged parameters, and losses.

    How many is a number and not a shape, so that short fits of candidates, the long one of all rows and
    refits are one program.
    """
    n = jnp.sum(rows.weight > 0)

    def step(number: Array, state: State) -> State:
        batch = batches[number]
        x, observed = rows.x[batch].T, rows.observed[batch].T
        predictors = probits(state.model, assumed)

        mode = evaluated(state.model, predictors, assumed.masked, state.z[batch].T, x, observed)
        moved = newton(mode)
        noise = jax.random.normal(jax.random.fold_in(key, number), moved.shape)
        drawn = moved + transposed_times(mode.inverse, noise)
        loss, gradient = jax.value_and_grad(objective)(
            state.model, assumed, prior, drawn, x, observed, rows.weight[batch], n
        )
        share = number / n_iterations
        speed = rate * (LAST_RATE + (1 - LAST_RATE) * 0.5 * (1 + jnp.cos(jnp.pi * share)))
        change, adam = _ADAM.update(gradient, state.adam)
        model = jax.tree.map(lambda a, s: a - speed * s, state.model, change)
        counted = jnp.maximum(1.0, number - (1 - AVERAGED) * n_iterations)
        average = jax.tree.map(lambda a, b: a + (b - a) / counted, state.average, model)
        z, losses = state.z.at[batch].set(moved.T), state.losses.at[number].set(loss)
        return State(model, adam, average, z, losses)

    state = State(start, _ADAM.init(start), start, z, jnp.zeros(len(batches)))
    return jax.lax.fori_loop(0, n_iterations, step, state)


class Start(NamedTuple):
    """Factor analysis of the observed cells: where every family begins."""

    weight: Array
    bias: Array
    variance: Array
    z: Array


@compiled(FOR_ONE_RUN)
def analysed(rows: Rows, guess: Numbers, n_iterations: Numbers) -> Start:
    """EM for the factor model of the observed cells, pattern ignored, from a random guess of the loadings."""
    weight = _leading(rows, guess)
    x, seen = rows.x.T, rows.observed.T.astype(jnp.float32)
    counted = seen * rows.weight
    d = weight.shape[1]
    count = jnp.sum(counted, axis=1)
    bias = jnp.sum(counted * x, axis=1) / jnp.maximum(count, 1)

    def latent(state: Start) -> tuple[Array, Array]:
        precision = 1 / state.variance
        information = jnp.eye(d)[:, :, None] + curvature(state.weight, seen * precision[:, None])
        inverse = inverse_factor(information)
        score = (state.weight * precision[:, None]).T @ (seen * (x - state.bias[:, None]))
        covariance = jnp.einsum("kin,kjn->ijn", inverse, inverse)
        return transposed_times(inverse, times(inverse, score)), covariance

    def step(_: int, state: Start) -> Start:
        mean, covariance = latent(state)
        design = jnp.concatenate([mean, jnp.ones((1, mean.shape[1]))])
        products = (design[:, None] * design[None]).at[:d, :d].add(covariance)
        moments = (products.reshape((d + 1) ** 2, -1) @ counted.T).reshape(d + 1, d + 1, -1)
        ridge = jnp.diag(jnp.append(jnp.ones(d), 1e-6))[:, :, None]
        target = design @ (counted * x).T
        inverse = inverse_factor(moments + ridge)
        solution = transposed_times(inverse, times(inverse, target))
        left = jnp.sum(counted * x**2, axis=1) - 2 * jnp.sum(solution * target, axis=0)
        left += jnp.einsum("ip,ijp,jp->p", solution, moments, solution)
        variance = jnp.maximum((left + 0.1) / (count + 0.1), 1.5 * SCALE_FLOOR**2)
        return Start(solution[:d].T, solution[d], variance, mean.T)

    begin = Start(weight, bias, jnp.full(len(x), 0.5), jnp.zeros((x.shape[1], d)))
    return jax.lax.fori_loop(0, n_iterations, step, begin)


def _leading(rows: Rows, guess: Array) -> Array:
    """Loadings along the principal directions of a table whose missing cells hold the mean."""
    x = jnp.sqrt(rows.weight) * jnp.where(rows.observed, rows.x, 0.0).T

    def square(directions: Array) -> Array:
        return x @ (x.T @ directions) / jnp.maximum(jnp.sum(rows.weight), 1)

    def orthonormal(directions: Array) -> Array:
        return directions @ inverse_factor((directions.T @ directions)[:, :, None])[:, :, 0].T

    directions = jax.lax.fori_loop(0, N_POWERS, lambda _, q: orthonormal(square(q)), orthonormal(guess))
    strength = directions.T @ square(directions) + TINY * jnp.eye(guess.shape[1])
    # A' with A A' the strength: any rotation of the loadings is as good.
    return directions @ jnp.linalg.inv(inverse_factor(strength[:, :, None])[:, :, 0])


def begun(start: Start, assumed: Assumed, observed_rate: NDArray[np.float64], sign: float = 0.0) -> Factor:
    """Parameters to begin with; a selection on residuals begins at a strong one of the given sign."""
    from scipy.stats import norm

    intercept = norm.ppf(np.clip(observed_rate, 0.01, 0.99))
    lam = norm.pdf(intercept) / norm.cdf(intercept)
    p, d = start.weight.shape
    rho = sign * START_CORRELATION * np.asarray(assumed.residual) * np.asarray(assumed.masked)
    scale = np.sqrt(np.asarray(start.variance)) / np.sqrt(
        np.maximum(1 - rho**2 * lam * (lam + intercept), 0.15)
    )
    arrays = (
        np.asarray(start.weight),
        np.asarray(start.bias) - scale * rho * lam,
        np.log(np.maximum(scale - SCALE_FLOOR, 5e-3)),
        intercept,
        np.zeros((p, d)),
        np.zeros(p),
        np.array([0.0, np.arctanh(sign * START_CORRELATION)]),
    )
    return Factor(*(np.asarray(a, np.float32) for a in arrays))


def batches(rng: Rng, usable: NDArray[np.intp], n_iterations: int, size: int) -> NDArray[np.int32]:
    """Numbers of the rows of every batch: usable rows in shuffled order, over and over."""
    n_shuffles = -(-n_iterations * size // len(usable))
    order = np.concatenate([rng.permutation(usable) for _ in range(n_shuffles)])
    return order[: n_iterations * size].reshape(n_iterations, size).astype(np.int32)
