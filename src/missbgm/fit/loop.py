"""Epochs, stopping, history: the loop around the steps of Algorithm 1."""

from collections.abc import Callable
from typing import Literal, NamedTuple, Self

import jax
import numpy as np
from jax import Array

from missbgm.bgm.joint import Model
from missbgm.config import Config
from missbgm.fit.alternate import Losses, Rates, State, Visits, epoch
from missbgm.types import Numbers, Rng, new_key

AVERAGING = 2  # epoch t counts as about t^2, so that the last fifth have half of the weight

Status = Literal["finished", "stopped early", "diverged"]


class Estimate(NamedTuple):
    """What training answers: the networks, and every row's latent row and completion (rows first)."""

    model: Model
    z: Numbers
    x: Numbers

    @classmethod
    def of(cls, state: State) -> Self:
        return cls(state.model, state.rows.z, state.rows.x)


OnEpoch = Callable[[int, Estimate, dict[str, float]], dict[str, float]]


class Fitted(NamedTuple):
    """What training answers, where it ended and why, and every named loss on the way."""

    estimate: Estimate
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

    The estimate is an average over epochs that favours late ones (Shamir & Zhang, 2013): batches keep the
    iterates moving about a mode. Without ``config.average_iterates`` it is the last iterate.

    ``on_epoch(number, estimate, terms)`` may report progress and answer further numbers to log; nothing it
    answers enters a decision. When a loss stops being finite, what was finite last is kept.
    """
    rates, key = Rates.of(config, observed.size), new_key(rng)
    estimate = Estimate.of(state)
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
        share = (AVERAGING + 1) / (number + 1 + AVERAGING) if config.average_iterates else 1.0
        estimate = _towards(estimate, Estimate.of(state), np.float32(share))
        extra = on_epoch(number, estimate, terms) if on_epoch else {}
        history.append(terms | extra)
        if patience.exhausted_by(terms["objective"]):
            status = "stopped early"
            break
    names = history[0] if history else named(Losses(*[np.nan] * 5), config.beta)
    return Fitted(estimate, state, {name: np.array([row[name] for row in history]) for name in names}, status)


def _finite_rows(state: State) -> bool:
    return all(bool(np.isfinite(np.asarray(a)).all()) for a in (state.rows.z, state.rows.x))


@jax.jit
def _towards(average: Estimate, latest: Estimate, share: Array) -> Estimate:
    """The average moved towards the latest iterate; classes are its own, for they have no average."""
    moved = jax.tree.map(lambda a, b: b + (1 - share) * (a - b), average, latest)
    x = moved.x
    for _, block in latest.model.columns.discrete:
        x = x.at[:, block.columns].set(latest.x[:, block.columns])
    return moved._replace(x=x)
