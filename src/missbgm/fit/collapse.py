"""Stochastic-approximation EM with the missing cells integrated out: latent rows drawn, parameters by Adam.

Every iteration takes the rows of one batch a Newton step nearer to the mode of p(z | x_obs, r) under every
component, draws their latent rows from the normal approximation there, and takes one gradient step of all
parameters at the drawn rows, each component counted by its probability. Averages of the parameters over the
last iterations are the estimate.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array
from numpy.typing import NDArray

from missbgm.bgm.cholesky import transposed_times
from missbgm.bgm.factor import SCALE_FLOOR, Assumed, Factor, Mixture, Prior, probits
from missbgm.bgm.joint import log_marginal
from missbgm.compiling import FOR_ONE_RUN, compiled
from missbgm.fit.analysis import Rows, Start
from missbgm.fit.features import begun as first_blocks
from missbgm.fit.laplace import Mode, evaluated, log_volume, newton
from missbgm.types import Latent, Numbers, Observed, PerRow, RandomKey, Rng, Row, Tree

AVERAGED = 0.4  # of the iterations
LAST_RATE = 0.03  # as a share of the first
START_CORRELATION = 0.8  # of a selection on residuals: at zero the likelihood has a saddle
_ADAM = optax.scale_by_adam(b1=0.9, b2=0.99)


def objective(
    model: Mixture,
    assumed: Assumed,
    prior: Prior,
    z: Array,
    share: Array,
    x: Row,
    observed: Observed,
    weight: PerRow,
    n: Numbers,
) -> Array:
    """Minus the mean log density of rows at given latent rows of every component, and the prior's part.

    `share` says how much each component counts for each row.
    """

    def log_prob(part: Factor, z: Latent) -> PerRow:
        return log_marginal(part, probits(part, assumed), assumed.masked, z, x, observed).log_prob

    told = jax.vmap(log_prob)(model.parts, z) + model.log_share[:, None]
    return -jnp.sum(weight * share * told) / jnp.sum(weight) + prior.penalty(model) / n


class State(NamedTuple):
    model: Mixture
    adam: Tree
    average: Mixture
    z: Array  # rows, components, d
    losses: Array


@compiled(FOR_ONE_RUN)
def estimate(
    key: RandomKey,
    start: Mixture,
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

        def mode_of(part: Factor, z: Latent) -> Mode:
            return evaluated(part, probits(part, assumed), assumed.masked, z, x, observed)

        mode = jax.vmap(mode_of)(state.model.parts, state.z[batch].transpose(1, 2, 0))
        evidence = state.model.log_share[:, None] + mode.log_prob + jax.vmap(log_volume)(mode.inverse)
        moved = jax.vmap(newton)(mode)
        noise = jax.random.normal(jax.random.fold_in(key, number), moved.shape)
        drawn = moved + jax.vmap(transposed_times)(mode.inverse, noise)
        given = drawn, jax.nn.softmax(evidence, axis=0), x, observed, rows.weight[batch]
        loss, gradient = jax.value_and_grad(objective)(state.model, assumed, prior, *given, n)
        share = number / n_iterations
        speed = rate * (LAST_RATE + (1 - LAST_RATE) * 0.5 * (1 + jnp.cos(jnp.pi * share)))
        change, adam = _ADAM.update(gradient, state.adam)
        model = jax.tree.map(lambda a, s: a - speed * s, state.model, change)
        counted = jnp.maximum(1.0, number - (1 - AVERAGED) * n_iterations)
        average = jax.tree.map(lambda a, b: a + (b - a) / counted, state.average, model)
        z, losses = state.z.at[batch].set(moved.transpose(2, 0, 1)), state.losses.at[number].set(loss)
        return State(model, adam, average, z, losses)

    state = State(start, _ADAM.init(start), start, z, jnp.zeros(len(batches)))
    return jax.lax.fori_loop(0, n_iterations, step, state)


def begun(start: Start, assumed: Assumed, observed_rate: NDArray[np.float64], sign: float = 0.0) -> Mixture:
    """Parameters to begin with; a selection on residuals begins at a strong one of the given sign."""
    from scipy.stats import norm

    intercept = norm.ppf(np.clip(observed_rate, 0.01, 0.99))
    p, (m, _, d) = len(intercept), start.weight.shape
    continuous = slice(0, p - sum(codes.size for codes in assumed.classes))
    of_features = (np.asarray(a, np.float64) for a in (start.weight, start.bias, start.variance))
    weight, bias, variance = of_features
    blocks = first_blocks(continuous.stop, assumed.classes, weight, bias)
    at = intercept[continuous]
    lam = norm.pdf(at) / norm.cdf(at)
    rho = (sign * START_CORRELATION * np.asarray(assumed.residual) * np.asarray(assumed.masked))[continuous]
    scale = np.sqrt(variance[:, continuous]) / np.sqrt(np.maximum(1 - rho**2 * lam * (lam + at), 0.15))
    arrays = (
        np.asarray(start.share),
        weight[:, continuous],
        bias[:, continuous] - scale * rho * lam,
        np.log(np.maximum(scale - SCALE_FLOOR, 5e-3)),
        np.zeros((m, p, d)),
        intercept,
        np.zeros(p),
        np.array([0.0, np.arctanh(sign * START_CORRELATION)]),
    )
    return Mixture(*(np.asarray(a, np.float32) for a in arrays), discrete=blocks)


def batches(rng: Rng, usable: NDArray[np.intp], n_iterations: int, size: int) -> NDArray[np.int32]:
    """Numbers of the rows of every batch: usable rows in shuffled order, over and over."""
    n_shuffles = -(-n_iterations * size // len(usable))
    order = np.concatenate([rng.permutation(usable) for _ in range(n_shuffles)])
    return order[: n_iterations * size].reshape(n_iterations, size).astype(np.int32)
