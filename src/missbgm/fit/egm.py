"""Encoding-generative pretraining: encoder and generator taught each other against two critics.

Least-squares adversarial losses with soft labels match encodings to the prior and generated rows to the
table; cycle losses in both directions make encoder and generator inverse to each other. The encoder's
latent rows start Algorithm 1; the encoder is then dropped.
"""

from typing import NamedTuple, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array

from missbgm.bgm.joint import Model
from missbgm.bgm.networks import Critic, Generator, Moments, Perceptron, is_uncertain, penalty
from missbgm.compiling import FOR_ONE_RUN, compiled
from missbgm.config import Config, EgmInit
from missbgm.fit.alternate import Rates
from missbgm.types import Features, Latent, RandomKey, Rng, Scalar, Tree, new_key

REAL, FAKE = 0.9, 0.1
CYCLE_WEIGHT = 10.0
# Flat: one vector of moments instead of one pair of arrays a weight matrix; it compiles faster.
ADAM = optax.flatten(optax.scale_by_adam(b1=0.5, b2=0.9, eps=1e-7))


class Players(eqx.Module):
    """The networks of the game: `moved` against `critics`."""

    generator: Generator
    encoder: Perceptron
    z_critic: Critic
    x_critic: Critic

    @classmethod
    def create(cls, rng: Rng, model: Model, settings: EgmInit) -> Self:
        d, q = len(model.moments.mean), model.columns.n_features
        return cls(
            model.generator,
            Perceptron.create(rng, (q, *settings.e_units, d)),
            Critic.create(rng, d, settings.dz_units),
            Critic.create(rng, q, settings.dx_units),
        )


class GameLosses(NamedTuple):
    """Named losses of the pretraining, one number a batch."""

    critics: Array
    adversarial_z: Array
    adversarial_x: Array
    cycle_z: Array
    cycle_x: Array


def _off(scores: Array, label: float) -> Scalar:
    return jnp.mean((scores - label) ** 2)


def _generated(
    model: Model, generator: Generator, z: Latent, noise: Features, key: RandomKey
) -> tuple[Features, Moments]:
    """A differentiable draw of rows, in feature space, and the batch's moments."""
    moments = Moments.of_batch(z, jnp.ones(z.shape[1]))
    outputs = generator(z, moments, key if is_uncertain(generator) else None)
    return model.columns.soft(model.columns.read(outputs), noise), moments


class Batch(NamedTuple):
    """Random material of one step."""

    rows: Features
    z: Latent
    noise: Array  # one layer for each draw of rows
    key: RandomKey


def _critics_loss(critics: tuple[Critic, Critic], players: Players, model: Model, batch: Batch) -> Scalar:
    fake_rows, _ = _generated(model, players.generator, batch.z, batch.noise[0], batch.key)
    pairs = (batch.z, players.encoder(batch.rows)), (batch.rows, fake_rows)
    # Real and fake rows are scored as two batches of one call, each with moments of its own.
    scores = [jax.vmap(c)(jnp.stack(pair)) for c, pair in zip(critics, pairs, strict=True)]
    (real_z, fake_z), (real_x, fake_x) = scores
    off_z, off_x = (
        _off(real, REAL) + _off(fake, FAKE) for real, fake in ((real_z, fake_z), (real_x, fake_x))
    )
    return (off_z + off_x) / 2


def _pair_loss(
    pair: tuple[Generator, Perceptron], players: Players, model: Model, batch: Batch, weight: Array
) -> tuple[Scalar, tuple[tuple[Scalar, ...], list[Moments]]]:
    generator, encoder = pair
    key_there, key_back = jax.random.split(batch.key)
    fake_rows, prior_moments = _generated(model, generator, batch.z, batch.noise[0], key_there)
    encoded = encoder(jnp.concatenate([batch.rows, fake_rows], axis=1))
    fake_z, rebuilt_z = jnp.split(encoded, 2, axis=1)
    rebuilt_rows, encoded_moments = _generated(model, generator, fake_z, batch.noise[1], key_back)
    terms = (
        _off(players.z_critic(fake_z), REAL),
        _off(players.x_critic(fake_rows), REAL),
        jnp.mean((rebuilt_z - batch.z) ** 2),
        jnp.mean((rebuilt_rows - batch.rows) ** 2),
    )
    total = terms[0] + terms[1] + CYCLE_WEIGHT * (terms[2] + terms[3]) + weight * penalty(generator)
    return total, (terms, [prior_moments, encoded_moments])


def _descended(value: Tree, gradient: Tree, adam: Tree, rate: Array) -> tuple[Tree, Tree]:
    step, adam = ADAM.update(gradient, adam)
    return optax.apply_updates(value, jax.tree.map(lambda s: -rate * s, step)), adam


class GameState(NamedTuple):
    players: Players
    moments: Moments
    pair_adam: Tree
    critics_adam: Tree


def _batches(key: RandomKey, index: Array, table: Array, d: int) -> tuple[Batch, Batch]:
    """Material for the critics' step and for the pair's, from one call of the random generator."""
    key_noise, *keys = jax.random.split(key, 3)
    rows = table[index].swapaxes(1, 2)
    q, batch_size = rows.shape[1:]
    noise = jax.random.normal(key_noise, (2 * d + 3 * q, batch_size))
    z = noise[: 2 * d].reshape(2, d, batch_size)
    layers = noise[2 * d :].reshape(3, q, batch_size)
    return Batch(rows[0], z[0], layers[:1], keys[0]), Batch(rows[1], z[1], layers[1:], keys[1])


@compiled(FOR_ONE_RUN)
def play(
    key: RandomKey,
    model: Model,
    players: Players,
    table: Array,
    index: Array,
    rate: Array,
    weight: Array,
) -> tuple[Model, Array, GameLosses]:
    """The whole game, as one scan over minibatches; `index` holds two batches of rows for each."""
    d = len(model.moments.mean)

    def step(state: GameState, given: tuple[RandomKey, Array]) -> tuple[GameState, GameLosses]:
        players, moments, pair_adam, critics_adam = state
        for_critics, for_pair = _batches(*given, table, d)
        critics = (players.z_critic, players.x_critic)
        loss, gradient = jax.value_and_grad(_critics_loss)(critics, players, model, for_critics)
        critics, critics_adam = _descended(critics, gradient, critics_adam, rate)
        players = Players(players.generator, players.encoder, *critics)
        pair = (players.generator, players.encoder)
        gradient, (terms, seen) = jax.grad(_pair_loss, has_aux=True)(pair, players, model, for_pair, weight)
        pair, pair_adam = _descended(pair, gradient, pair_adam, rate)
        for batch in seen:
            moments = moments.moved_towards(batch)
        return GameState(Players(*pair, *critics), moments, pair_adam, critics_adam), GameLosses(loss, *terms)

    pair, critics = (players.generator, players.encoder), (players.z_critic, players.x_critic)
    state = GameState(players, model.moments, ADAM.init(pair), ADAM.init(critics))
    state, losses = jax.lax.scan(step, state, (jax.random.split(key, len(index)), index))
    model = Model(model.columns, state.players.generator, model.mechanism, state.moments)
    return model, state.players.encoder(table.T).T, losses


def pretrain(rng: Rng, model: Model, table: Array, config: Config) -> tuple[Model, Array, GameLosses]:
    """Play the game on a completed table of features.

    Returns the model with its pretrained generator, the encoded latent rows and the losses of every batch.
    """
    settings = config.egm_init
    penalty_weight = Rates.of(config, table.size).penalty
    players = Players.create(rng, model, settings)
    index = rng.integers(len(table), size=(settings.n_iter, 2, config.batch_size), dtype=np.int32)
    return play(
        new_key(rng),
        model,
        players,
        table,
        index,
        np.float32(settings.lr),
        penalty_weight,
    )
