"""The warm start: a coded table completed by neighbours, and what follows when pretraining fails."""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.typing import NDArray

from missbgm.bgm.joint import Model
from missbgm.bgm.likelihood import Columns
from missbgm.config import Config, EgmInit
from missbgm.fit import warm
from missbgm.fit.egm import GameLosses
from missbgm.fit.start import neighbours_fill
from missbgm.fit.warm import Warm, fill, to_features, warm_start

Array = NDArray[Any]
COLUMNS = Columns.of_classes([0, 0, 2, 3])
CONFIG = Config(
    z_dim=2,
    g_units=(8,),
    missingness_units=(4,),
    n_neighbors=3,
    egm_init=EgmInit(n_iter=4, e_units=(8,), dz_units=(4, 4), dx_units=(4, 4)),
)
OFF = replace(CONFIG, egm_init=EgmInit(enabled=False))


def table(n: int = 40) -> tuple[Array, Array]:
    """Codes, 0 in missing cells, and what is observed."""
    rng = np.random.default_rng(0)
    z = rng.standard_normal(n)
    noisy = z[:, None] + 0.3 * rng.standard_normal((n, 3))
    codes = np.column_stack([noisy[:, :2], noisy[:, 2] > 0, np.digitize(z, [-0.5, 0.5])]).astype(np.float32)
    observed = rng.random(codes.shape) < 0.7
    return np.where(observed, codes, 0).astype(np.float32), observed


def start(config: Config, seed: int = 0) -> Warm:
    return warm_start(np.random.default_rng(seed), COLUMNS, *table(), config)


# Filling


def one_hot(codes: Array) -> Array:
    return np.column_stack([codes[:, :3], *[codes[:, 3] == k for k in range(3)]]).astype(np.float32)


def test_rows_first_features_are_one_hot() -> None:
    codes, _ = table()
    np.testing.assert_array_equal(to_features(COLUMNS, codes), one_hot(codes))


def test_codes_are_completed_from_neighbours_in_feature_space() -> None:
    codes, observed = table()
    completed, features = fill(COLUMNS, codes, observed, CONFIG, np.random.default_rng(0))
    seen = observed[:, [0, 1, 2, 3, 3, 3]]
    expected = neighbours_fill(one_hot(codes), seen, 3, np.random.default_rng(0))
    np.testing.assert_array_equal(features, expected)
    np.testing.assert_array_equal(completed[observed], codes[observed])
    np.testing.assert_array_equal(completed[:, :2], expected[:, :2])
    np.testing.assert_array_equal(
        completed[:, 2], np.where(observed[:, 2], codes[:, 2], expected[:, 2] > 0.5)
    )
    most = expected[:, 3:].argmax(axis=1)
    np.testing.assert_array_equal(completed[:, 3], np.where(observed[:, 3], codes[:, 3], most))
    assert completed.dtype == np.float32


# Starting


@pytest.fixture(scope="module")
def pretrained() -> Warm:
    return start(CONFIG)


def test_pretraining_moves_the_generator_and_encodes_the_rows(pretrained: Warm) -> None:
    plain = start(OFF)
    assert pretrained.finite
    assert {name: len(losses) for name, losses in pretrained.history.items()} == dict.fromkeys(
        GameLosses._fields, 4
    )
    assert np.asarray(pretrained.z).shape == (40, 2)
    for a, b in zip(
        jax.tree.leaves(pretrained.model.generator), jax.tree.leaves(plain.model.generator), strict=True
    ):
        assert not np.array_equal(a, b)
    for a, b in zip(
        jax.tree.leaves(pretrained.model.mechanism), jax.tree.leaves(plain.model.mechanism), strict=True
    ):
        np.testing.assert_array_equal(a, b)
    np.testing.assert_array_equal(pretrained.x, plain.x)


def test_disabled_pretraining_starts_from_the_prior_and_is_no_failure() -> None:
    got = start(OFF)
    assert got.finite
    assert got.history == {}
    rng = np.random.default_rng(0)
    model = Model.create(rng, COLUMNS, z_dim=2, g_units=(8,), missingness_units=(4,), uncertain=False)
    expected = rng.standard_normal((40, 2), dtype=np.float32)
    np.testing.assert_array_equal(got.z, expected)
    for a, b in zip(jax.tree.leaves(got.model), jax.tree.leaves(model), strict=True):
        np.testing.assert_array_equal(a, b)


def broken_at(place: str) -> Any:
    def pretrain(rng: Any, model: Model, features: Any, config: Config) -> tuple[Model, Any, GameLosses]:
        z, losses = jnp.zeros((len(features), 2)), GameLosses(*np.zeros((5, 3), np.float32))
        if place == "z":
            z = z.at[3, 1].set(jnp.inf)
        if place == "losses":
            losses = losses._replace(cycle_x=np.array([0, np.nan, 0], np.float32))
        return model, z, losses

    return pretrain


@pytest.mark.parametrize("place", ["z", "losses"])
def test_pretraining_that_is_not_finite_falls_back_on_the_prior(
    monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    monkeypatch.setattr(warm, "pretrain", broken_at(place))
    got = start(CONFIG)
    np.testing.assert_array_equal(got.z, start(OFF).z)
    assert not got.finite
    assert got.history == {}


def test_pretraining_that_is_finite_everywhere_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warm, "pretrain", broken_at("nowhere"))
    got = start(CONFIG)
    assert got.finite
    np.testing.assert_array_equal(got.z, np.zeros((40, 2)))


def test_a_learning_rate_that_is_far_too_large_falls_back(pretrained: Warm) -> None:
    # The fixture compiled the game; the rate is not part of its program.
    got = start(replace(CONFIG, egm_init=replace(CONFIG.egm_init, lr=1e30)))
    assert not got.finite
    assert np.isfinite(got.z).all()
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(got.model))
    np.testing.assert_array_equal(got.x, pretrained.x)


def test_the_seed_decides(pretrained: Warm) -> None:
    again, other = start(CONFIG), start(CONFIG, seed=1)
    np.testing.assert_array_equal(again.z, pretrained.z)
    assert not np.array_equal(other.z, pretrained.z)
