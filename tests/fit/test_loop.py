"""The loop around Algorithm 1: history, stopping and what happens when training diverges."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import jax
import numpy as np
import pytest
from numpy.typing import NDArray

from by_hand import FACTOR, log_joint
from missbgm.bgm.joint import Model
from missbgm.bgm.likelihood import Columns
from missbgm.config import Config, EarlyStopping
from missbgm.fit import alternate, loop
from missbgm.fit.alternate import Losses, State
from missbgm.fit.loop import Estimate, Fitted, named, train

Array = NDArray[Any]
CONFIG = Config(epochs=5, batch_size=4, n_inner_steps=2, beta=0.3)
NAMES = ["prior", "data", "missingness", "generator_penalty", "mechanism_penalty", "objective"]


def start(n: int = 12) -> tuple[State, Array]:
    z, x, observed = FACTOR.simulate(np.random.default_rng(0), n)
    return alternate.start(FACTOR.model, z, x), observed


def run(config: Config, on_epoch: Any = None, seed: int = 0) -> Fitted:
    state, observed = start()
    return train(np.random.default_rng(seed), state, observed, config, on_epoch)


# Real epochs


@pytest.fixture(scope="module")
def fitted() -> Fitted:
    return run(CONFIG)


def test_history_names_every_term_once_an_epoch(fitted: Fitted) -> None:
    assert list(fitted.history) == NAMES
    assert all(terms.shape == (5,) and np.isfinite(terms).all() for terms in fitted.history.values())
    assert fitted.status == "finished"


def test_the_objective_is_prior_plus_data_plus_beta_times_missingness(fitted: Fitted) -> None:
    history = fitted.history
    expected = history["prior"] + history["data"] + CONFIG.beta * history["missingness"]
    np.testing.assert_array_equal(history["objective"], expected)
    losses = Losses(*np.array([1.0, 2.0, 10.0, 50.0, 60.0], np.float32))
    assert named(losses, 0.5) == dict(zip(NAMES, [1.0, 2.0, 10.0, 50.0, 60.0, 8.0], strict=True))


def test_losses_are_those_of_the_joint_density_per_row_and_column() -> None:
    # At zero rates nothing moves. All rows make one batch, whose moments normalise the latent rows.
    tiny = 1e-30
    config = replace(
        CONFIG, epochs=1, batch_size=12, lr_z=tiny, lr_x=tiny, lr_theta=tiny, lr_phi=tiny, n_inner_steps=1
    )
    state, observed = start()
    z, x = np.asarray(state.rows.z), np.asarray(state.rows.x)
    terms = log_joint(FACTOR.model, [0] * 4, z.T, x.T, observed.T)
    sd = np.sqrt(z.var(axis=0) + 1e-3)
    data = log_joint(FACTOR.model, [0] * 4, ((z - z.mean(axis=0)) / sd).T, x.T, observed.T).data
    history = run(config).history
    np.testing.assert_allclose(history["prior"], -terms.prior.mean() / 4, rtol=1e-5)
    np.testing.assert_allclose(history["data"], -data.mean() / 4, rtol=1e-4)
    np.testing.assert_allclose(history["missingness"], -terms.missingness.mean() / 4, rtol=1e-5)


def test_the_objective_falls() -> None:
    objective = run(replace(CONFIG, epochs=60)).history["objective"]
    assert objective[-10:].mean() < objective[:5].mean() - 0.05


def test_a_seed_decides_and_a_watcher_does_not(fitted: Fitted) -> None:
    watched = run(CONFIG, lambda number, estimate, terms: {"objective of another": -1.0})
    for a, b in zip(jax.tree.leaves(fitted.state), jax.tree.leaves(watched.state), strict=True):
        np.testing.assert_array_equal(a, b)
    other = run(CONFIG, seed=1)
    assert not np.array_equal(other.state.rows.z, fitted.state.rows.z)


def test_no_epochs_leave_the_state_as_it_is_and_an_empty_history() -> None:
    state, observed = start()
    got = train(np.random.default_rng(0), state, observed, replace(CONFIG, epochs=0))
    assert got.state is state
    assert got.status == "finished"
    assert {name: terms.shape for name, terms in got.history.items()} == dict.fromkeys(NAMES, (0,))


# Epochs of which only the losses matter


def scripted(data: Sequence[float], spoil: Callable[[int, State], State] | None = None) -> Any:
    """A stand-in for an epoch: the data term goes by a script, and rows count epochs."""

    def epoch(key: Any, number: Any, visits: Any, state: State, *_: Any, **__: Any) -> tuple[State, Losses]:
        rows = alternate.Rows.start(state.rows.z.T + 1, state.rows.x.T)
        rows = jax.tree.map(np.transpose, rows)
        moved = state._replace(rows=rows)
        term = np.float32(data[int(number)])
        losses = Losses(np.float32(0), term, *[np.float32(0)] * 3)
        return (spoil(int(number), moved) if spoil else moved), losses

    return epoch


def epochs_run(got: Fitted) -> int:
    state, _ = start()
    return round(float((np.asarray(got.state.rows.z) - state.rows.z).mean()))


def stopping(patience: int, tolerance: float = 0.0, epochs: int = 10) -> Config:
    return Config(epochs=epochs, early_stopping=EarlyStopping(patience=patience, tolerance=tolerance))


@pytest.mark.parametrize(
    ("patience", "data", "stopped_after"),
    [
        (1, [5, 4, 4, 3, 2], 3),
        (2, [5, 4, 4, 3, 3, 3, 2], 6),
        (3, [5, 6, 6, 6, 1], 4),
        (2, [-1, -2, -1, -2, -3], 4),
        (1, [0, -1, 0], 3),
    ],
)
def test_training_stops_after_epochs_without_improvement(
    monkeypatch: pytest.MonkeyPatch, patience: int, data: list[float], stopped_after: int
) -> None:
    monkeypatch.setattr(loop, "epoch", scripted(data))
    got = run(stopping(patience))
    assert got.status == "stopped early"
    assert epochs_run(got) == stopped_after
    np.testing.assert_array_equal(got.history["data"], data[:stopped_after])


def test_only_improvements_beyond_the_relative_tolerance_count(monkeypatch: pytest.MonkeyPatch) -> None:
    data = [-100.0, -100.5, -101.6, -102.0, -102.3, -110.0]
    monkeypatch.setattr(loop, "epoch", scripted(data))
    assert epochs_run(run(stopping(2, tolerance=0.01))) == 5
    assert epochs_run(run(stopping(2, tolerance=0.001, epochs=6))) == 6


@pytest.mark.parametrize("patience", [0, 4])
def test_without_patience_or_reason_training_goes_to_the_end(
    monkeypatch: pytest.MonkeyPatch, patience: int
) -> None:
    monkeypatch.setattr(loop, "epoch", scripted([5.0, 6, 6, 6]))
    got = run(stopping(patience, epochs=4))
    assert got.status == "finished"
    assert epochs_run(got) == 4


def test_what_a_watcher_answers_is_logged_and_never_stops_training(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "epoch", scripted([5.0, 4, 3, 2]))
    seen = []

    def watch(number: int, estimate: Estimate, terms: dict[str, float]) -> dict[str, float]:
        seen.append((number, terms["data"], float(estimate.z.mean())))
        return {"rmse": 10.0 + number}

    got = run(stopping(1, epochs=4), watch)
    assert got.status == "finished"
    np.testing.assert_array_equal(got.history["rmse"], [10, 11, 12, 13])
    assert [number for number, _, _ in seen] == [0, 1, 2, 3]
    np.testing.assert_array_equal([data for _, data, _ in seen], got.history["data"])
    np.testing.assert_allclose(np.diff([z for _, _, z in seen]), 0.75, rtol=1e-4)
    # A truth that improves does not keep training going either.
    monkeypatch.setattr(loop, "epoch", scripted([5.0, 5, 5, 5]))
    improving = run(stopping(2, epochs=4), lambda number, estimate, terms: {"rmse": 1.0 / (number + 1)})
    assert improving.status == "stopped early"
    assert epochs_run(improving) == 3


def test_the_estimate_favours_late_epochs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "epoch", scripted([5.0] * 6))
    first = start()[0].rows.z
    got = run(stopping(0, epochs=6))
    # Products of the shares that later epochs leave: t (t + 1) for epoch t.
    weights = np.arange(1, 7) * np.arange(2, 8)
    expected = (weights * np.arange(1, 7)).sum() / weights.sum()
    np.testing.assert_allclose(np.asarray(got.estimate.z) - first, expected, rtol=1e-5)
    assert epochs_run(got) == 6
    last = run(replace(stopping(0, epochs=6), average_iterates=False))
    np.testing.assert_array_equal(last.estimate.z, last.state.rows.z)


def test_classes_are_those_of_the_last_epoch() -> None:
    columns = Columns.of_classes([0, 2])
    model = Model.create(
        np.random.default_rng(0), columns, z_dim=1, g_units=(), missingness_units=(), uncertain=False
    )
    z = np.zeros((2, 1), np.float32)
    before, after = (np.array(x, np.float32) for x in ([[1, 0], [2, 1]], [[3, 1], [4, 0]]))
    got = loop._towards(Estimate(model, z, before), Estimate(model, z + 2, after), np.float32(0.25))
    np.testing.assert_allclose(got.x, [[1.5, 1], [2.5, 0]])
    np.testing.assert_allclose(got.z, z + 0.5)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_loss_that_is_not_finite_keeps_the_last_finite_state(
    monkeypatch: pytest.MonkeyPatch, bad: float
) -> None:
    monkeypatch.setattr(loop, "epoch", scripted([5.0, 4, bad, 3]))
    watched: list[int] = []
    got = run(stopping(0, epochs=4), lambda number, estimate, terms: watched.append(number) or {})
    assert got.status == "diverged"
    assert epochs_run(got) == 2
    np.testing.assert_array_equal(got.history["data"], [5, 4])
    assert watched == [0, 1]


@pytest.mark.parametrize("name", ["z", "x"])
def test_rows_that_are_not_finite_count_as_divergence(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    def spoil(number: int, state: State) -> State:
        rows = {"z": state.rows.z, "x": state.rows.x}
        if number == 1:
            rows[name] = rows[name].copy()
            rows[name][2, 0] = np.nan
        return state._replace(
            rows=alternate.Rows(rows["z"], rows["x"], state.rows.z_moments, state.rows.x_moments)
        )

    monkeypatch.setattr(loop, "epoch", scripted([5.0, 4, 3], spoil))
    got = run(stopping(0, epochs=3))
    assert got.status == "diverged"
    assert epochs_run(got) == 1


def test_divergence_in_the_first_epoch_keeps_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "epoch", scripted([np.nan]))
    got = run(stopping(0, epochs=1))
    assert got.status == "diverged"
    assert epochs_run(got) == 0
    assert {name: len(terms) for name, terms in got.history.items()} == dict.fromkeys(NAMES, 0)


def test_rates_that_are_far_too_large_end_as_divergence_with_finite_rows() -> None:
    got = run(replace(CONFIG, epochs=50, lr_theta=1e20))
    assert got.status == "diverged"
    assert len(got.history["objective"]) < 50
    assert all(np.isfinite(terms).all() for terms in got.history.values())
    assert np.isfinite(np.asarray(got.state.rows.z)).all()
    assert np.isfinite(np.asarray(got.state.rows.x)).all()
