"""What every engine leaves behind when it has been fitted, and what it can be asked."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from missbgm.config import Config
from missbgm.summary.card import MechanismCard
from missbgm.summary.draws import Draws
from missbgm.table.array import Observations, Values
from missbgm.table.codec import Codec, Kinds


class Task(NamedTuple):
    """What an engine is given."""

    table: Observations
    kinds: Kinds
    config: Config
    seed: int
    truth: Values | None  # logged, and nothing else
    verbose: int
    names: Sequence[str] | None = None  # of the columns


def rmse(completed: Values, truth: Values, table: Observations) -> float:
    """Root mean squared error over the missing cells."""
    errors = (completed - truth)[~table.observed]
    return float(np.sqrt(np.mean(errors**2))) if errors.size else 0.0


@dataclass(frozen=True)
class Fitted(ABC):
    """A fitted engine.

    Attributes
    ----------
    task
        What it was fitted to.
    codec
        How the table's columns became the model's numbers.
    history, warm_history
        Named losses by epoch or iteration.
    status
        ``"finished"``, ``"stopped early"`` or ``"diverged"``.
    warnings
        What the user should be told of the fit.
    """

    task: Task
    codec: Codec
    history: dict[str, NDArray[Any]]
    warm_history: dict[str, NDArray[Any]]
    status: str
    warnings: tuple[str, ...]

    @abstractmethod
    def completed(self) -> Values:
        """The fitted table, completed by the engine's point estimate."""

    @abstractmethod
    def impute(self, table: Observations) -> Values:
        """Any table of the same columns, completed by the engine's point estimate."""

    @abstractmethod
    def draw(self, table: Observations, verbose: int) -> Draws:
        """Draws of the missing cells of a table of the same columns."""

    @abstractmethod
    def log_prob(self, table: Observations) -> Values:
        """log p(x_obs, r) of every row of a table of the same columns, in the table's units."""

    @abstractmethod
    def summary(self) -> str:
        """In plain words, which assumption on the missing cells the answer rests on."""

    @abstractmethod
    def mechanism_card(self, column: int) -> MechanismCard:
        """The assumed curve P(missing | value) of one column."""
