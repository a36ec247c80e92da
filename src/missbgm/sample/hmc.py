"""Hamiltonian Monte Carlo for a block of independent rows, each with its own step size and verdict."""

from collections.abc import Callable
from typing import Any, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from missbgm.types import Numbers, PerRow

# Dual averaging as in Hoffman & Gelman (2014), section 3.2.1.
GAMMA, DELAY, DECAY = 0.05, 10.0, 0.75

LogDensity = Callable[[Array], tuple[PerRow, Any]]


class StepSize(NamedTuple):
    """A dual-averaging state for every row."""

    log_step: Numbers
    log_average: Numbers
    error: Numbers
    anchor: Numbers

    @classmethod
    def start(cls, step_size: float, n_rows: int) -> Self:
        log_step = np.full(n_rows, np.log(step_size), np.float32)
        return cls(log_step, log_step, np.zeros_like(log_step), log_step + np.float32(np.log(10)))

    def restarted(self) -> "StepSize":
        """A fresh search from where the last one ended."""
        found = self.log_average
        return StepSize(found, found, jnp.zeros_like(found), found + np.float32(np.log(10)))

    def adapted(self, acceptance: PerRow, number: Array, target: float) -> "StepSize":
        """The state after sweep `number` (from 0) accepted with these probabilities."""
        t = number + 1.0
        error = (1 - 1 / (t + DELAY)) * self.error + (target - acceptance) / (t + DELAY)
        log_step = self.anchor - jnp.sqrt(t) / GAMMA * error
        share = t**-DECAY
        return StepSize(log_step, share * log_step + (1 - share) * self.log_average, error, self.anchor)

    def used(self, adapting: Array) -> PerRow:
        """The step size of a sweep: the trial one while adapting, the averaged one when frozen."""
        return jnp.exp(jnp.where(adapting, self.log_step, self.log_average))


class Point(NamedTuple):
    """A position with what is known there; `extra` is whatever the density computed on the way."""

    position: Array
    log_prob: PerRow
    gradient: Array
    extra: Any


def evaluated(log_density: LogDensity, position: Array) -> Point:
    def total(position: Array) -> tuple[Array, tuple[PerRow, Any]]:
        log_prob, extra = log_density(position)
        return jnp.sum(log_prob), (log_prob, extra)

    gradient, (log_prob, extra) = jax.grad(total, has_aux=True)(position)
    return Point(position, log_prob, gradient, extra)


def chosen(accept: Array, new: Any, old: Any) -> Any:
    """Row by row, the new state where accepted; rows are the last axis of every array."""
    return jax.tree.map(lambda a, b: jnp.where(accept, a, b), new, old)


def acceptance_of(log_ratio: PerRow) -> PerRow:
    """Acceptance probabilities; a ratio that is not a number rejects."""
    return jnp.exp(jnp.minimum(jnp.where(jnp.isnan(log_ratio), -jnp.inf, log_ratio), 0.0))


def transition(
    momentum: Array,
    uniform: PerRow,
    log_density: LogDensity,
    position: Array,
    step_size: PerRow,
    n_leapfrog: int,
    free: Array | float = 1.0,
) -> tuple[Point, PerRow]:
    """One HMC transition of every row.

    Parameters
    ----------
    momentum, uniform
        The randomness: standard normals like `position`, and a uniform for each row's verdict.
    log_density
        Position to each row's log density and anything else worth keeping.
    position
        Coordinates by rows.
    step_size
        One a row.
    n_leapfrog
        Leapfrog steps.
    free
        1 where a coordinate may move, 0 where it is held.

    Returns
    -------
    tuple
        The new point and each row's acceptance probability.
    """
    start = evaluated(log_density, position)
    momentum = momentum * free

    def leapfrog(_: int, given: tuple[Point, Array]) -> tuple[Point, Array]:
        point, momentum = given
        half = momentum + 0.5 * step_size * point.gradient * free
        point = evaluated(log_density, point.position + step_size * half)
        return point, half + 0.5 * step_size * point.gradient * free

    end, final = jax.lax.fori_loop(0, n_leapfrog, leapfrog, (start, momentum))
    kinetic = 0.5 * (jnp.sum(final**2, axis=0) - jnp.sum(momentum**2, axis=0))
    acceptance = acceptance_of(end.log_prob - start.log_prob - kinetic)
    return chosen(uniform < acceptance, end, start), acceptance
