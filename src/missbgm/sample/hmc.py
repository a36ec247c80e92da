"""Hamiltonian Monte Carlo for a block of independent rows, each with its own step size and verdict."""

from collections.abc import Callable
from typing import Any, NamedTuple, Self

import jax
import jax.numpy as jnp
from jax import Array

from missbgm.types import PerRow, RowKeys

# Dual averaging as in Hoffman & Gelman (2014), section 3.2.1.
GAMMA, DELAY, DECAY = 0.05, 10.0, 0.75

LogDensity = Callable[[Array], tuple[PerRow, Any]]


class StepSize(NamedTuple):
    """A dual-averaging state for every row."""

    log_step: PerRow
    log_average: PerRow
    error: PerRow
    anchor: PerRow

    @classmethod
    def start(cls, step_size: float, n_rows: int) -> Self:
        log_step = jnp.full(n_rows, jnp.log(step_size))
        return cls(log_step, log_step, jnp.zeros(n_rows), log_step + jnp.log(10.0))

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


def row_normal(keys: RowKeys, n: int) -> Array:
    """Standard normals, ``(n, rows)``; a row's numbers depend on its own key alone."""
    return jax.vmap(lambda key: jax.random.normal(key, (n,)), out_axes=-1)(keys)


def row_uniform(keys: RowKeys) -> PerRow:
    return jax.vmap(jax.random.uniform)(keys)


def chosen(accept: Array, new: Any, old: Any) -> Any:
    """Row by row, the new state where accepted; rows are the last axis of every array."""
    return jax.tree.map(lambda a, b: jnp.where(accept, a, b), new, old)


def acceptance_of(log_ratio: PerRow) -> PerRow:
    """Acceptance probabilities; a ratio that is not a number rejects."""
    return jnp.exp(jnp.minimum(jnp.where(jnp.isnan(log_ratio), -jnp.inf, log_ratio), 0.0))


def transition(
    keys: RowKeys,
    log_density: LogDensity,
    position: Array,
    step_size: PerRow,
    n_leapfrog: int,
    free: Array | float = 1.0,
) -> tuple[Point, PerRow]:
    """One HMC transition of every row.

    Parameters
    ----------
    keys
        One key a row.
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
    momentum_keys, accept_keys = _split(keys)
    start = evaluated(log_density, position)
    momentum = row_normal(momentum_keys, len(position)) * free

    def leapfrog(_: int, given: tuple[Point, Array]) -> tuple[Point, Array]:
        point, momentum = given
        half = momentum + 0.5 * step_size * point.gradient * free
        point = evaluated(log_density, point.position + step_size * half)
        return point, half + 0.5 * step_size * point.gradient * free

    end, final = jax.lax.fori_loop(0, n_leapfrog, leapfrog, (start, momentum))
    kinetic = 0.5 * (jnp.sum(final**2, axis=0) - jnp.sum(momentum**2, axis=0))
    acceptance = acceptance_of(end.log_prob - start.log_prob - kinetic)
    accept = row_uniform(accept_keys) < acceptance
    return chosen(accept, end, start), acceptance


def _split(keys: RowKeys) -> tuple[RowKeys, RowKeys]:
    pairs = jax.vmap(jax.random.split)(keys)
    return pairs[:, 0], pairs[:, 1]
