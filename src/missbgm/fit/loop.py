"""Epochs, stopping, history: the loop around the steps of Algorithm 1."""

from collections.abc import Callable
from typing import Literal, NamedTuple

import numpy as np
from jax import Array

from missbgm.config import Config
from missbgm.fit.alternate import Losses, Rates, State, Visits, epoch
from missbgm.types import Rng, new_key

Status = Literal["finished", "stopped early", "diverged"]
OnEpoch = Callable[[int, State, dict[str, float]], dict[str, float]]


class Fitted(NamedTuple):
    """Where training ended, why, and every named loss on the way."""

    state: State
    history: dict[str, np.ndarray]
    status: Status


class _Patience:
    """Counts epochs since the objective last fell by more than a relative tolerance."""

    def __init__(self, config: Config) -> None:
        self.settings = config.early_stopping
        self.best = np.inf
        self.waited = 0

    def exhausted_by(self, objective: float) -> bool:
        if objective < self.best - self.settings.tolerance * abs(self.best if np.isfinite(self.best) else 0):
            self.best, self.waited = objective, 0
        else:
            self.waited += 1
        return 0 < self.settings.patience <= self.waited


def named(losses: Losses, beta: float) -> dict[str, float]:
    """Loss terms by name, with the tempered objective that they add up to."""
    terms = {name: float(value) for name, value in losses._asdict().items()}
    terms["objective"] = terms["prior"] + terms["data"] + beta * terms["missingness"]
    return terms


def train(rng: Rng, state: State, observed: Array, config: Config, on_epoch: OnEpoch | None = None) -> Fitted:
    """Run Algorithm 1 for the configured epochs.

    ``on_epoch(number, state, terms)`` may report progress and answer further numbers to log; nothing it
    answers enters a decision. When a loss stops being finite, the last finite state is kept.
    """
    rates, key = Rates.of(config), new_key(rng)
    patience = _Patience(config)
    history: list[dict[str, float]] = []
    status: Status = "finished"
    for number in range(config.epochs):
        moved, losses = epoch(
            key,
            np.uint32(number),
            Visits.shuffled(rng, len(observed), config.batch_size),
            state,
            observed,
            rates,
            n_inner=config.n_inner_steps,
        )
        terms = named(losses, config.beta)
        if not (np.isfinite(list(terms.values())).all() and _finite_rows(moved)):
            status = "diverged"
            break
        state = moved
        extra = on_epoch(number, state, terms) if on_epoch else {}
        history.append(terms | extra)
        if patience.exhausted_by(terms["objective"]):
            status = "stopped early"
            break
    names = history[0] if history else named(Losses(*[np.nan] * 5), config.beta)
    return Fitted(state, {name: np.array([row[name] for row in history]) for name in names}, status)


def _finite_rows(state: State) -> bool:
    return all(bool(np.isfinite(np.asarray(a)).all()) for a in (state.rows.z, state.rows.x))
