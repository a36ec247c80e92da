"""Encoding-generative pretraining: what the game attains, and its losses against copies by hand."""

from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.typing import NDArray

from missbgm.bgm.joint import Model
from missbgm.bgm.likelihood import Columns
from missbgm.bgm.networks import Moments, penalty
from missbgm.config import Config, EgmInit
from missbgm.fit import egm
from missbgm.fit.egm import GameLosses, Players, pretrain

Array = NDArray[Any]
CONFIG = Config(
    z_dim=2,
    g_units=(8,),
    missingness_units=(4,),
    batch_size=32,
    egm_init=EgmInit(n_iter=600, e_units=(16,), dz_units=(8, 8), dx_units=(8, 8)),
)
COLUMNS = Columns.of_classes([0, 0, 0, 2, 3])


def table(n: int = 300) -> Array:
    """Completed features of two continuous factors and of classes that follow them."""
    rng = np.random.default_rng(0)
    z = rng.standard_normal((n, 2))
    x = z @ np.array([[1, 0.5, -0.5], [0, 0.8, 0.8]]) + 0.3 * rng.standard_normal((n, 3))
    kind = np.digitize(z[:, 0], [-0.5, 0.5])
    return np.column_stack([x, z[:, 1] > 0, np.eye(3)[kind]]).astype(np.float32)


class Game(NamedTuple):
    start: Model
    model: Model
    z: Array
    losses: GameLosses


def play(config: Config = CONFIG, seed: int = 0) -> Game:
    rng = np.random.default_rng(seed)
    start = Model.create(
        rng, COLUMNS, z_dim=2, g_units=config.g_units, missingness_units=(4,), uncertain=config.use_bnn
    )
    model, z, losses = pretrain(rng, start, jnp.asarray(table()), config)
    return Game(start, model, np.asarray(z), GameLosses(*map(np.asarray, losses)))


@pytest.fixture(scope="module")
def game() -> Game:
    return play()


# What a game attains


def test_cycle_losses_fall(game: Game) -> None:
    for name in ("cycle_z", "cycle_x"):
        losses = getattr(game.losses, name)
        assert losses.shape == (600,)
        assert losses[-100:].mean() < 0.6 * losses[:20].mean()


def test_adversarial_losses_end_near_a_draw(game: Game) -> None:
    # A critic that cannot tell answers 0.5, between its two labels: 0.4 squared for each of four scores,
    # halved; one that knows all has none of it.
    draw = 2 * (egm.REAL - 0.5) ** 2
    assert 0.5 * draw < game.losses.critics[-100:].mean() < 1.1 * draw
    for name in ("adversarial_z", "adversarial_x"):
        assert getattr(game.losses, name)[-100:].mean() < 2 * draw


def test_encoded_rows_are_roughly_standard_and_tell_rows_apart(game: Game) -> None:
    assert game.z.shape == (300, 2)
    assert (np.abs(game.z.mean(axis=0)) < 0.5).all()
    assert ((game.z.std(axis=0) > 0.5) & (game.z.std(axis=0) < 1.6)).all()
    # A linear map of the encoded rows recovers most of the continuous columns.
    x, design = table()[:, :3], np.column_stack([game.z, np.ones(300)])
    residual = x - design @ np.linalg.lstsq(design, x, rcond=None)[0]
    assert residual.var() < 0.5 * x.var()


def test_the_pretrained_generator_rebuilds_rows_from_their_encoding(game: Game) -> None:
    features, rebuilt = table(), jax.jit(lambda model, z: model.columns.soft(model.parameters(z), noise))
    noise = np.zeros((7, 300), np.float32)

    def error(model: Model) -> Array:
        return ((np.asarray(rebuilt(model, game.z.T)).T - features) ** 2).mean(axis=0)

    assert (error(game.model)[:3] < 0.7 * features.var(axis=0)[:3]).all()
    assert error(game.model)[3:].mean() < 0.8 * features.var(axis=0)[3:].mean()
    assert error(game.start).mean() > 1.5 * error(game.model).mean()


def test_running_moments_follow_the_latent_rows_and_the_mechanism_stays(game: Game) -> None:
    moments = game.model.moments
    assert not np.array_equal(moments.mean, game.start.moments.mean)
    assert (np.abs(moments.mean) < 0.3).all()
    assert (np.abs(np.asarray(moments.variance) - 1) < 0.5).all()
    for a, b in zip(
        jax.tree.leaves(game.model.mechanism), jax.tree.leaves(game.start.mechanism), strict=True
    ):
        np.testing.assert_array_equal(a, b)


def test_the_same_seed_plays_the_same_game(game: Game) -> None:
    again = play()
    for a, b in zip(jax.tree.leaves(game), jax.tree.leaves(again), strict=True):
        np.testing.assert_array_equal(a, b)
    assert not np.array_equal(play(seed=1).z, game.z)


def test_uncertain_weights_are_pretrained_too() -> None:
    settings = EgmInit(n_iter=5, e_units=(), dz_units=(4,), dx_units=(4,))
    got = play(replace(CONFIG, use_bnn=True, kl_weight=1e-3, g_units=(), egm_init=settings))
    assert np.isfinite(got.z).all()
    for layer, before in zip(got.model.generator.body.layers, got.start.generator.body.layers, strict=True):
        assert (np.asarray(layer.mean.weight) != before.mean.weight).all()
        assert (np.asarray(layer.spread.weight) != before.spread.weight).all()


# Losses by hand


def plain_encoder(network: Any, h: Array) -> Array:
    for i, layer in enumerate(network.layers):
        h = np.where(h > 0, h, 0.2 * h) if i else h
        h = np.asarray(layer.weight, float) @ h + np.asarray(layer.bias, float)[:, None]
    return h


def plain_critic(critic: Any, h: Array) -> Array:
    *hidden, last = critic.body.layers
    for i, layer in enumerate(hidden):
        h = np.asarray(layer.weight, float) @ h + np.asarray(layer.bias, float)[:, None]
        if i:
            h = (h - h.mean(axis=1, keepdims=True)) / np.sqrt(h.var(axis=1, keepdims=True) + 1e-3)
        h = np.tanh(h)
    return (np.asarray(last.weight, float) @ h + np.asarray(last.bias, float)[:, None])[0]


def plain_rows(generator: Any, z: Array, noise: Array) -> Array:
    """Rows of the five columns drawn in feature space."""
    centred = (z - z.mean(axis=1, keepdims=True)) / np.sqrt(z.var(axis=1, keepdims=True) + 1e-3)
    outputs = plain_encoder(generator.body, centred)
    sd = np.sqrt(np.logaddexp(0, outputs[3:6]) + 1e-4)
    logits = np.exp(outputs[7:])
    return np.vstack([outputs[:3] + sd * noise[:3], 1 / (1 + np.exp(-outputs[6:7])), logits / logits.sum(0)])


class Setting(NamedTuple):
    players: Players
    model: Model
    batch: egm.Batch
    fake: Array


@pytest.fixture(scope="module")
def setting() -> Setting:
    rng = np.random.default_rng(0)
    model = Model.create(rng, COLUMNS, z_dim=2, g_units=(8,), missingness_units=(4,), uncertain=False)
    players = Players.create(rng, model, CONFIG.egm_init)
    noise = rng.standard_normal((2, 7, 16)).astype(np.float32)
    z = rng.standard_normal((2, 16)).astype(np.float32)
    batch = egm.Batch(table()[:16].T, z, noise, jax.random.key(0))
    return Setting(players, model, batch, plain_rows(players.generator, z, noise[0]))


def test_the_critics_loss_is_least_squares_against_soft_labels(setting: Setting) -> None:
    players, model, batch, fake = setting
    critics = (players.z_critic, players.x_critic)
    got = jax.jit(egm._critics_loss)(critics, players, model, batch)
    encoded = plain_encoder(players.encoder, batch.rows)
    scores = [
        (plain_critic(players.z_critic, batch.z), 0.9),
        (plain_critic(players.z_critic, encoded), 0.1),
        (plain_critic(players.x_critic, batch.rows), 0.9),
        (plain_critic(players.x_critic, fake), 0.1),
    ]
    expected = sum(np.mean((score - label) ** 2) for score, label in scores) / 2
    np.testing.assert_allclose(got, expected, rtol=1e-4)


def test_the_pairs_loss_adds_adversarial_and_ten_times_the_cycle_terms(setting: Setting) -> None:
    players, model, batch, fake = setting
    pair = (players.generator, players.encoder)
    total, (terms, moments) = jax.jit(egm._pair_loss)(pair, players, model, batch, np.float32(0.3))
    fake_z = plain_encoder(players.encoder, batch.rows)
    expected = (
        np.mean((plain_critic(players.z_critic, fake_z) - 0.9) ** 2),
        np.mean((plain_critic(players.x_critic, fake) - 0.9) ** 2),
        np.mean((plain_encoder(players.encoder, fake) - batch.z) ** 2),
        np.mean((plain_rows(players.generator, fake_z, batch.noise[1]) - batch.rows) ** 2),
    )
    np.testing.assert_allclose(np.array(terms), expected, rtol=1e-4)
    cost = 0.3 * float(penalty(players.generator))
    np.testing.assert_allclose(total, expected[0] + expected[1] + 10 * sum(expected[2:]) + cost, rtol=1e-4)
    for got, h in zip(moments, (batch.z, fake_z), strict=True):
        assert isinstance(got, Moments)
        np.testing.assert_allclose(got.mean, h.mean(axis=1), rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(got.variance, h.var(axis=1), rtol=1e-4)


def test_batches_are_rows_of_the_table_and_fresh_normals() -> None:
    rows = jnp.asarray(table())
    index = np.random.default_rng(0).integers(300, size=(2, 400), dtype=np.int32)
    for_critics, for_pair = egm._batches(jax.random.key(1), index, rows, 2)
    np.testing.assert_array_equal(for_critics.rows, rows[index[0]].T)
    np.testing.assert_array_equal(for_pair.rows, rows[index[1]].T)
    assert for_critics.noise.shape == (1, 7, 400)
    assert for_pair.noise.shape == (2, 7, 400)
    drawn = np.concatenate([np.ravel(part) for b in (for_critics, for_pair) for part in (b.z, b.noise)])
    assert len(np.unique(drawn)) > 0.99 * len(drawn)
    assert abs(drawn.mean()) < 5 / np.sqrt(len(drawn))
    assert abs(drawn.var() - 1) < 5 * np.sqrt(2 / len(drawn))
