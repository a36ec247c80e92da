"""Encoding-generative pretraining: encoder and generator taught each other against two critics.

Least-squares adversarial losses with soft labels match encodings to the prior and generated rows to the
table; cycle losses in both directions make encoder and generator inverse to each other. The encoder's
latent rows start Algorithm 1; the encoder is then dropped.
"""

from functools import partial
from typing import NamedTuple, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array

from missbgm.bgm.joint import Model
from missbgm.bgm.networks import Critic, Generator, Moments, Perceptron, is_uncertain, penalty
from missbgm.config import Config, EgmInit
from missbgm.types import Features, Latent, RandomKey, Scalar, Tree

REAL, FAKE = 0.9, 0.1
CYCLE_WEIGHT = 10.0
ADAM = optax.scale_by_adam(b1=0.5, b2=0.9, eps=1e-7)


class Players(eqx.Module):
    """The networks of the game: `moved` against `critics`."""

    generator: Generator
    encoder: Perceptron
    z_critic: Critic
    x_critic: Critic

    @classmethod
    def create(cls, key: RandomKey, model: Model, settings: EgmInit) -> Self:
        keys = jax.random.split(key, 3)
        d, q = len(model.moments.mean), model.columns.n_features
        return cls(
            model.generator,
            Perceptron.create(keys[0], (q, *settings.e_units, d)),
            Critic.create(keys[1], d, settings.dz_units),
            Critic.create(keys[2], q, settings.dx_units),
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
    model: Model, generator: Generator, z: Latent, key: RandomKey
) -> tuple[Features, Moments]:
    """A differentiable draw of rows, in feature space, and the batch's moments."""
    key_weights, key_draw = jax.random.split(key)
    moments = Moments.of_batch(z, jnp.ones(z.shape[1]))
    outputs = generator(z, moments, key_weights if is_uncertain(generator) else None)
    return model.columns.soft(model.columns.read(outputs), key_draw), moments


def _critics_loss(
    critics: tuple[Critic, Critic], players: Players, model: Model, z: Latent, rows: Features, key: RandomKey
) -> Scalar:
    z_critic, x_critic = critics
    fake_rows, _ = _generated(model, players.generator, z, key)
    z_loss = _off(z_critic(z), REAL) + _off(z_critic(players.encoder(rows)), FAKE)
    x_loss = _off(x_critic(rows), REAL) + _off(x_critic(fake_rows), FAKE)
    return (z_loss + x_loss) / 2


def _pair_loss(
    pair: tuple[Generator, Perceptron],
    players: Players,
    model: Model,
    z: Latent,
    rows: Features,
    key: RandomKey,
    weight: Array,
) -> tuple[Scalar, tuple[tuple[Scalar, ...], list[Moments]]]:
    generator, encoder = pair
    key_there, key_back = jax.random.split(key)
    fake_rows, prior_moments = _generated(model, generator, z, key_there)
    fake_z = encoder(rows)
    rebuilt_rows, encoded_moments = _generated(model, generator, fake_z, key_back)
    terms = (
        _off(players.z_critic(fake_z), REAL),
        _off(players.x_critic(fake_rows), REAL),
        jnp.mean((encoder(fake_rows) - z) ** 2),
        jnp.mean((rebuilt_rows - rows) ** 2),
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


@partial(jax.jit, static_argnames=("settings", "batch_size"))
def _play(
    key: RandomKey, model: Model, table: Array, rate: Array, weight: Array, *, settings: EgmInit, batch_size: int
) -> tuple[Model, Array, GameLosses]:
    key_init, key_game = jax.random.split(key)
    players = Players.create(key_init, model, settings)

    def step(state: GameState, key: RandomKey) -> tuple[GameState, GameLosses]:
        players, moments, pair_adam, critics_adam = state
        key_rows, key_z, key_critics, key_pair = jax.random.split(key, 4)
        rows = table[jax.random.randint(key_rows, (2, batch_size), 0, len(table))].swapaxes(1, 2)
        z = jax.random.normal(key_z, (2, len(moments.mean), batch_size))
        critics = (players.z_critic, players.x_critic)
        loss, gradient = jax.value_and_grad(_critics_loss)(critics, players, model, z[0], rows[0], key_critics)
        critics, critics_adam = _descended(critics, gradient, critics_adam, rate)
        players = Players(players.generator, players.encoder, *critics)
        pair = (players.generator, players.encoder)
        gradient, (terms, seen) = jax.grad(_pair_loss, has_aux=True)(
            pair, players, model, z[1], rows[1], key_pair, weight
        )
        pair, pair_adam = _descended(pair, gradient, pair_adam, rate)
        for batch in seen:
            moments = moments.moved_towards(batch)
        return GameState(Players(*pair, *critics), moments, pair_adam, critics_adam), GameLosses(loss, *terms)

    pair, critics = (players.generator, players.encoder), (players.z_critic, players.x_critic)
    state = GameState(players, model.moments, ADAM.init(pair), ADAM.init(critics))
    state, losses = jax.lax.scan(step, state, jax.random.split(key_game, settings.n_iter))
    model = Model(model.columns, state.players.generator, model.mechanism, state.moments)
    return model, state.players.encoder(table.T).T, losses


def pretrain(
    key: RandomKey, model: Model, table: Array, config: Config
) -> tuple[Model, Array, GameLosses]:
    """Play the game on a completed table of features.

    Returns the model with its pretrained generator, the encoded latent rows and the losses of every batch.
    """
    penalty_weight = np.float32(config.kl_weight if config.use_bnn else config.weight_decay)
    rate = np.float32(config.egm_init.lr)
    return _play(
        key, model, table, rate, penalty_weight, settings=config.egm_init, batch_size=config.batch_size
    )
