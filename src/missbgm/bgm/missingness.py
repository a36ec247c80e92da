"""p(r | x): how the chance that a cell is observed depends on the completed row."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Self

import equinox as eqx
import jax.numpy as jnp
from jax import Array

from missbgm.bgm.networks import Perceptron, softplus
from missbgm.types import Features, Observed, PerRow, RandomKey, Rng


class Mechanism(eqx.Module):
    """What is believed about the observation pattern."""

    @abstractmethod
    def log_prob(self, features: Features, observed: Observed, key: RandomKey | None = None) -> PerRow:
        """log p(r | x) of a row; a key perturbs uncertain weights."""


class Network(Mechanism):
    """The paper's mechanism: every cell's logit is an output of one network of the whole completed row."""

    body: Perceptron

    @classmethod
    def create(
        cls, rng: Rng, n_features: int, units: Sequence[int], n_columns: int, *, uncertain: bool
    ) -> Self:
        return cls(Perceptron.create(rng, (n_features, *units, n_columns), uncertain=uncertain))

    def logits(self, features: Features, key: RandomKey | None = None) -> Array:
        return self.body(features, key)

    def log_prob(self, features: Features, observed: Observed, key: RandomKey | None = None) -> PerRow:
        logits = self.logits(features, key)
        return -jnp.sum(softplus(jnp.where(observed, -logits, logits)), axis=0)
