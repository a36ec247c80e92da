"""Algorithm 1 as pure steps: latent rows, then missing cells, then both networks, batch by batch.

Every row has Adam moments of its own, touched only when the row is in the batch: a row that is visited
once an epoch then moves as far as its own gradients say, whatever the number of rows.
"""

from typing import NamedTuple, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array

from missbgm.bgm.joint import (
    Model,
    log_latent,
    log_missing,
    log_missingness,
    log_prior,
    update_classes,
)
from missbgm.bgm.networks import Generator, Moments, is_uncertain, penalty
from missbgm.compiling import CHEAPLY, compiled
from missbgm.config import Config
from missbgm.types import Latent, Numbers, Observed, PerRow, RandomKey, Rng, Row, Scalar, Tree

GRADIENT_LIMIT = 25.0
_ADAM = optax.scale_by_adam(b1=0.9, b2=0.99, eps=1e-7)
# Flat: one vector of moments instead of a pair of arrays for each weight matrix; it compiles faster.
ADAM = optax.flatten(_ADAM)
ROW_ADAM = optax.chain(optax.clip_by_global_norm(GRADIENT_LIMIT), _ADAM)


class Rates(NamedTuple):
    """The settings that a step reads as numbers, so that changing them compiles nothing."""

    z: Numbers
    x: Numbers
    theta: Numbers
    phi: Numbers
    beta: Numbers
    penalty: Numbers

    @classmethod
    def of(cls, config: Config, n_cells: int) -> Self:
        """Losses are per cell; the divergence of uncertain weights, one a table, is shared out likewise."""
        weight = config.kl_weight / n_cells if config.use_bnn else config.weight_decay
        numbers = (config.lr_z, config.lr_x, config.lr_theta, config.lr_phi, config.beta, weight)
        return cls(*(np.float32(number) for number in numbers))


class Rows(eqx.Module):
    """What is unknown about rows, with its optimiser's moments; features first within a batch."""

    z: Latent
    x: Row
    z_moments: Tree
    x_moments: Tree

    @classmethod
    def start(cls, z: Latent, x: Row) -> Self:
        return cls(z, x, _per_row(ROW_ADAM.init)(z), _per_row(ROW_ADAM.init)(x))


class State(NamedTuple):
    """Everything that Algorithm 1 moves; rows lead every array of `rows`."""

    model: Model
    theta_moments: Tree
    phi_moments: Tree
    rows: Tree  # `Rows`, or None while a scan carries them apart


@jax.jit
def _fresh(model: Model, z: Array, x: Array) -> State:
    rows = jax.tree.map(lambda a: jnp.moveaxis(a, -1, 0), Rows.start(z.T, x.T))
    return State(model, ADAM.init(model.generator), ADAM.init(model.mechanism), rows)


def start(model: Model, z: Numbers, x: Numbers) -> State:
    """The state of Algorithm 1 for tables of latent and completed rows, with fresh moments for all."""
    # Every optimiser starts at zero, so its shapes are enough and nothing is compiled.
    zeros = jax.tree.map(lambda a: np.zeros(a.shape, a.dtype), _fresh.eval_shape(model, z, x))
    return zeros._replace(model=model, rows=eqx.tree_at(lambda rows: (rows.z, rows.x), zeros.rows, (z, x)))


class Losses(NamedTuple):
    """Named parts of the training objective, per row and column, averaged over an epoch."""

    prior: Tree
    data: Tree
    missingness: Tree
    generator_penalty: Tree
    mechanism_penalty: Tree


def _per_row(function: Tree) -> Tree:
    return jax.vmap(function, in_axes=-1, out_axes=-1)


def _moved(value: Array, gradient: Array, moments: Tree, rate: Array) -> tuple[Array, Tree]:
    step, moments = _per_row(ROW_ADAM.update)(gradient, moments)
    return value - rate * step, moments


def local_step(model: Model, rows: Rows, observed: Observed, rates: Rates) -> Rows:
    """One step of the latent rows, then one of their missing cells, at fixed networks."""
    p = len(observed)

    def latent_loss(z: Latent) -> Scalar:
        return -jnp.sum(log_latent(model, z, rows.x)[0]) / p

    z, z_moments = _moved(rows.z, jax.grad(latent_loss)(rows.z), rows.z_moments, rates.z)
    parameters = model.parameters(z)

    def missing_loss(x: Row) -> Scalar:
        return -jnp.sum(log_missing(model, parameters, x, observed, rates.beta)) / p

    gradient = jnp.where(observed, 0.0, jax.grad(missing_loss)(rows.x))
    x, x_moments = _moved(rows.x, gradient, rows.x_moments, rates.x)
    x = update_classes(model, parameters, x, observed, rates.beta, lambda w, _: jnp.argmax(w, axis=0))
    return Rows(z, x, z_moments, x_moments)


class Batch(NamedTuple):
    rows: Rows
    observed: Observed
    weight: PerRow  # 0 for rows that only fill the last batch


def _generator_step(
    state: State, batch: Batch, rates: Rates, key: RandomKey | None
) -> tuple[Generator, Moments, Tree, tuple[Scalar, Scalar]]:
    model, (z, x) = state.model, (batch.rows.z, batch.rows.x)
    moments = Moments.of_batch(z, batch.weight)
    scale = 1 / (jnp.sum(batch.weight) * len(x))

    def loss(generator: Generator) -> tuple[Scalar, tuple[Scalar, Scalar]]:
        log_prob = model.columns.log_prob(model.columns.read(generator(z, moments, key)), x)
        data = -jnp.sum(batch.weight * log_prob) * scale
        cost = rates.penalty * penalty(generator)
        return data + cost, (data, cost)

    gradient, terms = jax.grad(loss, has_aux=True)(model.generator)
    step, adam = ADAM.update(gradient, state.theta_moments)
    generator = optax.apply_updates(model.generator, jax.tree.map(lambda s: -rates.theta * s, step))
    return generator, model.moments.moved_towards(moments), adam, terms


def _mechanism_step(
    state: State, batch: Batch, rates: Rates, key: RandomKey | None
) -> tuple[Tree, Tree, tuple[Scalar, Scalar]]:
    model, x = state.model, batch.rows.x
    scale = 1 / (jnp.sum(batch.weight) * len(x))

    def loss(mechanism: Tree) -> tuple[Scalar, tuple[Scalar, Scalar]]:
        candidate = eqx.tree_at(lambda m: m.mechanism, model, mechanism)
        pattern = -jnp.sum(batch.weight * log_missingness(candidate, x, batch.observed, key)) * scale
        cost = rates.penalty * penalty(mechanism)
        return pattern + cost, (pattern, cost)

    gradient, terms = jax.grad(loss, has_aux=True)(model.mechanism)
    step, adam = ADAM.update(gradient, state.phi_moments)
    mechanism = optax.apply_updates(model.mechanism, jax.tree.map(lambda s: -rates.phi * s, step))
    return mechanism, adam, terms


def global_step(state: State, batch: Batch, rates: Rates, key: RandomKey) -> tuple[State, Losses]:
    """One step of both networks at the completed batch."""
    keys = jax.random.split(key) if is_uncertain(state.model) else (None, None)
    generator, moments, theta_moments, (data, cost_g) = _generator_step(state, batch, rates, keys[0])
    mechanism, phi_moments, (pattern, cost_f) = _mechanism_step(state, batch, rates, keys[1])
    model = Model(state.model.columns, generator, mechanism, moments)
    prior = -jnp.sum(batch.weight * log_prior(batch.rows.z)) / (jnp.sum(batch.weight) * len(batch.rows.x))
    return State(model, theta_moments, phi_moments, state.rows), Losses(prior, data, pattern, cost_g, cost_f)


class Visits(NamedTuple):
    """The order in which an epoch visits rows; made on the host, so that no sorting is compiled."""

    rows: Numbers  # batches by places; the last batch is filled up with rows of weight 0
    weight: Numbers
    inverse: Numbers  # where each row of the table is visited

    @classmethod
    def shuffled(cls, rng: Rng, n_rows: int, batch_size: int) -> Self:
        order = rng.permutation(n_rows).astype(np.int32)
        shape = (-(-n_rows // batch_size), batch_size)
        weight = (np.arange(shape[0] * batch_size) < n_rows).astype(np.float32)
        return cls(np.resize(order, shape), weight.reshape(shape), np.argsort(order).astype(np.int32))


@compiled(CHEAPLY, static_argnames="n_inner")
def epoch(
    key: RandomKey,
    number: Numbers,
    visits: Visits,
    state: State,
    observed: Array,
    rates: Rates,
    *,
    n_inner: int,
) -> tuple[State, Losses]:
    """Visit every row once, batch by batch."""

    def batched(a: Array) -> Array:
        return jnp.moveaxis(a[visits.rows], 1, -1)

    def unbatched(a: Array) -> Array:
        return jnp.moveaxis(a, -1, 1).reshape(-1, *a.shape[1:-1])[visits.inverse]

    def visit(state: State, given: tuple[Batch, RandomKey]) -> tuple[State, tuple[Rows, Losses]]:
        batch, key = given
        key_draw, key_step = jax.random.split(key)
        model = state.model.drawn(key_draw)
        rows = jax.lax.fori_loop(
            0, n_inner, lambda _, rows: local_step(model, rows, batch.observed, rates), batch.rows
        )
        state, losses = global_step(state, batch._replace(rows=rows), rates, key_step)
        return state, (rows, losses)

    batches = Batch(jax.tree.map(batched, state.rows), batched(observed), visits.weight)
    keys = jax.random.split(jax.random.fold_in(key, number), len(visits.rows))
    light, (rows, losses) = jax.lax.scan(visit, state._replace(rows=None), (batches, keys))
    share = jnp.sum(visits.weight, axis=1) / len(observed)
    return light._replace(rows=jax.tree.map(unbatched, rows)), jax.tree.map(lambda a: share @ a, losses)


@jax.jit
def refine(model: Model, rows: Rows, observed: Observed, rates: Rates, n_steps: Array) -> Rows:
    """Latent rows and missing cells of a block of rows moved to a mode, networks fixed."""
    return jax.lax.fori_loop(0, n_steps, lambda _, rows: local_step(model, rows, observed, rates), rows)
