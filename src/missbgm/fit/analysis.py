"""EM for a mixture of factor analysers of the observed cells, pattern ignored: where every fit begins.

Discrete columns take part as standardised numbers (`features.py`).

All of it is in closed form, and so is what it says of cells hidden from held-out rows, which decides on the
number of components.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.scipy.special import logsumexp
from numpy.typing import NDArray

from missbgm.bgm.cholesky import TINY, curvature, inverse_factor, times, transposed_times
from missbgm.bgm.classes import Codes
from missbgm.bgm.factor import SCALE_FLOOR, Prior
from missbgm.bgm.likelihood import LOG_2PI
from missbgm.compiling import FOR_ONE_RUN, compiled
from missbgm.fit.features import features, sources
from missbgm.types import Latent, Numbers, Observed, PerRow, Rng, Row

N_POWERS = 12  # of a matrix, to find its leading directions
START_VARIANCE, START_SHARE = 0.5, 0.7  # of the noise, and of the loadings where components begin apart
FEWEST_CELLS = 0.1  # as many cells of variance 1 a column, where the prior has none


class Rows(NamedTuple):
    """A coded table, rows first: values with 0 in missing cells, the pattern, and a weight for each row."""

    x: Numbers
    observed: Numbers
    weight: Numbers
    classes: tuple[Codes, ...] = ()  # of the discrete columns, which come last

    @property
    def n_continuous(self) -> int:
        """Number of continuous columns."""
        return int(self.x.shape[1]) - sum(codes.size for codes in self.classes)

    def continuous(self) -> "Rows":
        """The continuous columns alone."""
        head = slice(0, self.n_continuous)
        return Rows(self.x[:, head], self.observed[:, head], self.weight) if self.classes else self

    def as_features(self) -> "Rows":
        """The table with every column continuous."""
        if not self.classes:
            return self
        place = sources(self.n_continuous, self.classes)
        x = features(np.asarray(self.x), self.n_continuous, self.classes)
        observed = np.asarray(self.observed)[:, place]
        return Rows(np.where(observed, x, 0).astype(np.float32), observed, self.weight)


class Start(NamedTuple):
    """Parameters of every component, and the latent rows' means under each, rows first."""

    share: Array
    weight: Array
    bias: Array
    variance: Array
    z: Array


class Explained(NamedTuple):
    """What one component says of rows: latent mean and covariance, and the density of the observed cells."""

    mean: Latent
    covariance: Array
    log_prob: PerRow


def explained(weight: Array, bias: Array, variance: Array, x: Row, observed: Observed) -> Explained:
    """The posterior of latent rows given observed cells, under one component."""
    seen = observed.astype(x.dtype)
    precision = 1 / variance[:, None]
    information = jnp.eye(weight.shape[1])[:, :, None] + curvature(weight, seen * precision)
    inverse = inverse_factor(information)
    residual = seen * (x - bias[:, None])
    whitened = times(inverse, weight.T @ (residual * precision))
    log_volume = jnp.sum(jnp.log(jnp.diagonal(inverse)), axis=1)
    noise = seen * (residual**2 * precision - jnp.log(precision) + LOG_2PI)
    log_prob = 0.5 * (jnp.sum(whitened**2, axis=0) - jnp.sum(noise, axis=0)) + log_volume
    covariance = jnp.einsum("kin,kjn->ijn", inverse, inverse)
    return Explained(transposed_times(inverse, whitened), covariance, log_prob)


def _of_all(start: Start, x: Row, observed: Observed) -> tuple[Explained, Array]:
    """Every component's account of rows, and the log weight of each component for each row."""
    found = jax.vmap(explained, (0, 0, 0, None, None))(start.weight, start.bias, start.variance, x, observed)
    return found, jax.nn.log_softmax(start.share)[:, None] + found.log_prob


class Told(NamedTuple):
    """What is said of rows: log p(x_obs), and mean and variance of every cell given x_obs; rows first."""

    log_prob: PerRow
    mean: Array
    variance: Array


@compiled(FOR_ONE_RUN)
def told(start: Start, x: Array, observed: Array) -> Told:
    """What the components together say of rows, exactly."""
    found, log_weight = _of_all(start, x.T, observed.T)
    share = jax.nn.softmax(log_weight, axis=0)[:, None]
    means = start.weight @ found.mean + start.bias[:, :, None]
    n_components, p, d = start.weight.shape
    outer = (start.weight[:, :, :, None] * start.weight[:, :, None, :]).reshape(n_components, p, d * d)
    spreads = outer @ found.covariance.reshape(n_components, d * d, -1) + start.variance[:, :, None]
    mean = jnp.sum(share * means, axis=0)
    variance = jnp.sum(share * (spreads + (means - mean) ** 2), axis=0)
    return Told(logsumexp(log_weight, axis=0), mean.T, variance.T)


def centres(rng: Rng, rows: Rows, usable: NDArray[np.intp], n_components: int) -> NDArray[np.float32]:
    """Where components begin: at rows of the table, missing cells at the mean; one begins at the mean."""
    x = np.where(np.asarray(rows.observed), np.asarray(rows.x), 0).astype(np.float32)
    if n_components == 1:
        seen = np.asarray(rows.observed)[usable].sum(axis=0)
        return (x[usable].sum(axis=0) / np.maximum(seen, 1))[None]
    return x[rng.choice(usable, n_components, replace=len(usable) < n_components)]


@compiled(FOR_ONE_RUN)
def analysed(rows: Rows, guess: Numbers, centres: Numbers, prior: Prior, n_iterations: Numbers) -> Start:
    """Run EM from components at the given centres, with loadings from a random guess."""
    x, observed = rows.x.T, rows.observed.T
    n_components, d = len(centres), guess.shape[1]

    def step(_: int, state: Start) -> Start:
        found, log_weight = _of_all(state, x, observed)
        share = jax.nn.softmax(log_weight, axis=0) * rows.weight
        loadings, bias, variance = jax.vmap(_regressed, (0, 0, None, None, None))(
            found, share, x, observed, prior
        )
        return Start(
            jnp.log(jnp.sum(share, axis=1) + prior.rows),
            loadings,
            bias,
            variance,
            found.mean.transpose(2, 0, 1),
        )

    weight = (START_SHARE if n_components > 1 else 1.0) * _leading(rows, guess)
    begin = Start(
        jnp.zeros(n_components),
        jnp.broadcast_to(weight, (n_components, *weight.shape)),
        jnp.asarray(centres),
        jnp.full((n_components, len(x)), START_VARIANCE),
        jnp.zeros((x.shape[1], n_components, d)),
    )
    return jax.lax.fori_loop(0, n_iterations, step, begin)


def _regressed(
    found: Explained, share: PerRow, x: Row, observed: Observed, prior: Prior
) -> tuple[Array, Array, Array]:
    """Loadings, bias and noise of every column, from latent rows and how much each row counts."""
    d = len(found.mean)
    counted = observed.astype(x.dtype) * share
    design = jnp.concatenate([found.mean, jnp.ones((1, x.shape[1]))])
    products = (design[:, None] * design[None]).at[:d, :d].add(found.covariance)
    moments = (products.reshape((d + 1) ** 2, -1) @ counted.T).reshape(d + 1, d + 1, -1)
    ridge = jnp.diag(jnp.append(jnp.ones(d), TINY + prior.bias))[:, :, None]
    target = design @ (counted * x).T
    inverse = inverse_factor(moments + ridge)
    solution = transposed_times(inverse, times(inverse, target))
    # What is left and the prior's part of the slopes, without which the objective would fall at times.
    left = jnp.sum(counted * x**2, axis=1) - jnp.sum(solution * target, axis=0)
    count, cells = jnp.sum(counted, axis=1), prior.cells * prior.variance
    variance = (left + cells + FEWEST_CELLS) / (count + prior.cells + FEWEST_CELLS)
    return solution[:d].T, solution[d], jnp.maximum(variance, 1.5 * SCALE_FLOOR**2)


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
