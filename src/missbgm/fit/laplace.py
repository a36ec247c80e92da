"""The posterior of latent rows, missing cells integrated out: its mode, and draws around it.

Student proposals around the mode of p(z | x_obs, r) are weighted by the density that they were not drawn
from; the weights also estimate log p(x_obs, r) of every row.
"""

from collections.abc import Iterator
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.scipy.special import gammaln, logsumexp
from numpy.typing import NDArray

from missbgm.bgm.cholesky import curvature, inverse_factor, times, transposed_times
from missbgm.bgm.classes import derivatives
from missbgm.bgm.factor import Assumed, Factor, Mixture, Probits, probits
from missbgm.bgm.joint import discrete_parts, log_marginal
from missbgm.compiling import FOR_ONE_RUN, compiled
from missbgm.randomness import Seeds, as_normal, lattice, row_integers, row_keys
from missbgm.types import Latent, Numbers, Observed, PerRow, RandomKey, Row, RowKeys

LARGEST_STEP = 2.0
NEWTON_STEPS = 12
FREEDOM = 8  # degrees of freedom of the proposals; even, so that a few uniforms make a chi-square


class Mode(NamedTuple):
    """Latent rows, what the log density says there, and the inverse factor of its curvature."""

    z: Latent
    log_prob: PerRow
    gradient: Array
    inverse: Array  # L^-1 with L L' minus the Hessian


def evaluated(model: Factor, given: Probits, masked: Numbers, z: Latent, x: Row, observed: Observed) -> Mode:
    """Log density of latent rows, its gradient, and its curvature."""
    at = log_marginal(model, given, masked, z, x, observed)
    precision, seen = 1 / model.scale, observed[: model.n_continuous]
    on_observed, on_missing = jnp.where(seen, at.hazard, 0.0), jnp.where(seen, 0.0, at.hazard)
    gradient = (
        (precision[:, None] * model.weight).T @ at.residual
        + given.observed_weight.T @ on_observed
        + given.missing_weight.T @ on_missing
        - z
    )
    bend = at.probit + at.hazard
    information = (
        jnp.eye(len(z))[:, :, None]
        + curvature(precision[:, None] * model.weight, seen.astype(z.dtype))
        + curvature(given.observed_weight, on_observed * bend)
        + curvature(given.missing_weight, on_missing * bend)
    )
    for cells, block, pattern, columns in discrete_parts(model, given, at):
        bent = derivatives(block, pattern, masked[columns], cells, observed[columns])
        gradient, information = gradient + bent.gradient, information + bent.information
    return Mode(z, at.log_prob, gradient, inverse_factor(information))


def log_volume(inverse: Array) -> PerRow:
    """Log determinant of the inverse factors: up to a constant, of the normals' volume."""
    return jnp.sum(jnp.log(jnp.diagonal(inverse)), axis=1)


def newton(mode: Mode) -> Latent:
    """Latent rows one damped Newton step on."""
    step = transposed_times(mode.inverse, times(mode.inverse, mode.gradient))
    length = jnp.sqrt(jnp.sum(step**2, axis=0))
    return mode.z + step * jnp.minimum(1.0, LARGEST_STEP / jnp.maximum(length, 1e-9))


class Proposed(NamedTuple):
    """Weighted latent draws of a block of rows, as many under each component."""

    z: Array  # components, proposals, latent dimensions, rows
    log_weight: Array  # components, proposals, rows
    mode: Mode  # under each component

    @property
    def log_evidence(self) -> Array:
        """log p(x_obs, r, component) of every component and row, estimated."""
        return logsumexp(self.log_weight, axis=1) - np.log(self.log_weight.shape[1])

    @property
    def log_prob(self) -> PerRow:
        """log p(x_obs, r) of every row, estimated."""
        return logsumexp(self.log_evidence, axis=0)

    @property
    def effective_share(self) -> PerRow:
        """Effective share of every row's proposals, each component counted by its probability."""
        total = 2 * logsumexp(self.log_weight, axis=1) - logsumexp(2 * self.log_weight, axis=1)
        within = jnp.exp(total) / self.log_weight.shape[1]
        return jnp.sum(jax.nn.softmax(self.log_evidence, axis=0) * within, axis=0)


def _student(uniform: Array) -> Array:
    """Spherical Student draws of `FREEDOM` degrees of freedom; the last uniforms make the chi-square."""
    d = len(uniform) - FREEDOM // 2
    chi_square = -2 * jnp.sum(jnp.log(uniform[d:]), axis=0)
    return as_normal(uniform[:d]) * jnp.sqrt(FREEDOM / chi_square)


@compiled(FOR_ONE_RUN, static_argnames="n_proposals")
def propose(
    keys: RowKeys, model: Mixture, assumed: Assumed, x: Row, observed: Observed, *, n_proposals: int
) -> Proposed:
    """Find the mode of every row of a block under every component, and draw around it."""
    d = model.weight.shape[2]
    shifts = row_integers(keys, d + FREEDOM // 2)

    def under(given: tuple[Factor, Array]) -> Proposed:
        part, log_share = given
        z, log_weight, mode = _around(shifts, part, assumed, x, observed, n_proposals)
        return Proposed(z, log_weight + log_share, mode)

    return jax.lax.map(under, (model.parts, model.log_share))


def _around(
    shifts: Array, part: Factor, assumed: Assumed, x: Row, observed: Observed, n_proposals: int
) -> Proposed:
    """Weighted draws around the mode under one component."""
    given, d = probits(part, assumed), part.weight.shape[1]

    def at(z: Latent) -> Mode:
        return evaluated(part, given, assumed.masked, z, x, observed)

    start = jnp.zeros((d, x.shape[1]))
    begin = jax.tree.map(lambda a: jnp.zeros(a.shape, a.dtype), jax.eval_shape(at, start))
    # Where a step leads is evaluated at the start of the next, so that the density is compiled once.
    mode = jax.lax.fori_loop(0, NEWTON_STEPS + 1, lambda i, m: at(jnp.where(i == 0, start, newton(m))), begin)
    constant = gammaln((FREEDOM + d) / 2) - gammaln(FREEDOM / 2) - d / 2 * np.log(FREEDOM * np.pi)
    log_peak = constant - log_volume(mode.inverse)

    def one(number: Array) -> tuple[Array, Array]:
        t = _student(lattice(shifts, number))
        proposal = mode.z + transposed_times(mode.inverse, t)
        log_prob = log_marginal(part, given, assumed.masked, proposal, x, observed).log_prob
        tail = (FREEDOM + d) / 2 * jnp.log1p(jnp.sum(t**2, axis=0) / FREEDOM)
        return proposal, log_prob - (log_peak - tail)

    z, log_weight = jax.lax.map(one, jnp.arange(n_proposals, dtype=jnp.uint32))
    return Proposed(z, log_weight, mode)


BLOCK = 256  # rows together: their arrays stay in a core's cache, and one shape is compiled


def in_blocks(
    key: RandomKey,
    x: Numbers,
    observed: Numbers,
    chosen: Numbers,
    model: Mixture,
    assumed: Assumed,
    n_proposals: int,
) -> Iterator[tuple[NDArray[np.intp], Proposed]]:
    """Propose for some rows of a table, block by block; yields their numbers and what was found for them."""
    for start in range(0, len(chosen), BLOCK):
        place = np.asarray(chosen[start : start + BLOCK])
        filled = np.resize(place, BLOCK)
        keys = row_keys(Seeds(key, filled.astype(np.uint32), np.uint32(0)))
        parts = np.asarray(x)[filled].T, np.asarray(observed)[filled].T
        yield place, propose(keys, model, assumed, *parts, n_proposals=n_proposals)
