"""p(x_j | z): one class for each kind of column, over a run of neighbouring columns of that kind.

A completed row holds one number for each column; a categorical one holds the index of its class. Networks
read rows as *features*, in which a categorical column is one-hot.
"""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from missbgm.bgm.networks import softplus
from missbgm.types import Features, Observed, Outputs, PerRow, RandomKey, Row

VARIANCE_FLOOR = 1e-4
LOG_2PI = float(np.log(2 * np.pi))


class Likelihood(eqx.Module):
    """Columns `start` to `start + size` of a row, all of one kind."""

    start: int = eqx.field(static=True)
    size: int = eqx.field(static=True)

    @property
    def columns(self) -> slice:
        return slice(self.start, self.start + self.size)

    @property
    @abstractmethod
    def n_outputs(self) -> int:
        """How many outputs of the generator these columns read."""

    @property
    @abstractmethod
    def n_features(self) -> int:
        """How many features these columns become."""

    @abstractmethod
    def read(self, outputs: Array) -> Any:
        """The generator's outputs as parameters of the columns' distributions."""

    @abstractmethod
    def log_prob(self, parameters: Any, x: Array) -> Array:
        """log p(x_j | z), column by column."""

    @abstractmethod
    def mode(self, parameters: Any) -> Array:
        """The most probable values."""

    @abstractmethod
    def draw(self, parameters: Any, key: RandomKey) -> Array:
        """One draw of the columns."""

    @abstractmethod
    def features(self, x: Array) -> Array:
        """Values as features."""

    @abstractmethod
    def from_features(self, features: Array) -> Array:
        """The values nearest to features that need not be one-hot, such as averages over rows."""

    @abstractmethod
    def soft(self, parameters: Any, noise: Array) -> Array:
        """A draw in feature space that can be differentiated; for classes, their probabilities.

        ``noise`` is standard normal, one number a feature.
        """


class Normal(NamedTuple):
    mean: Array
    variance: Array


class Gaussian(Likelihood):
    """A continuous column; mean and variance heads."""

    @property
    def n_outputs(self) -> int:
        return 2 * self.size

    @property
    def n_features(self) -> int:
        return self.size

    def read(self, outputs: Array) -> Normal:
        return Normal(outputs[: self.size], softplus(outputs[self.size :]) + VARIANCE_FLOOR)

    def log_prob(self, parameters: Normal, x: Array) -> Array:
        mean, variance = parameters
        return -0.5 * ((x - mean) ** 2 / variance + jnp.log(variance) + LOG_2PI)

    def mode(self, parameters: Normal) -> Array:
        return parameters.mean

    def draw(self, parameters: Normal, key: RandomKey) -> Array:
        return self.soft(parameters, jax.random.normal(key, parameters.mean.shape))

    def features(self, x: Array) -> Array:
        return x

    def from_features(self, features: Array) -> Array:
        return features

    def soft(self, parameters: Normal, noise: Array) -> Array:
        return parameters.mean + jnp.sqrt(parameters.variance) * noise


class Classes(NamedTuple):
    log_probs: Array  # (classes, columns, *rows), normalised over classes


class Discrete(Likelihood):
    """Columns with finitely many classes, 0, 1, ..., n_classes - 1."""

    n_classes: eqx.AbstractVar[int]

    def log_prob(self, parameters: Classes, x: Array) -> Array:
        index = jax.lax.stop_gradient(x).astype(jnp.int32)[None]
        return jnp.take_along_axis(parameters.log_probs, index, axis=0)[0]

    def mode(self, parameters: Classes) -> Array:
        return jnp.argmax(parameters.log_probs, axis=0).astype(jnp.float32)

    def draw(self, parameters: Classes, key: RandomKey) -> Array:
        return jax.random.categorical(key, parameters.log_probs, axis=0).astype(jnp.float32)


class Bernoulli(Discrete):
    """A binary column; one logit head, one feature."""

    n_classes: int = eqx.field(static=True, default=2)

    @property
    def n_outputs(self) -> int:
        return self.size

    @property
    def n_features(self) -> int:
        return self.size

    def read(self, outputs: Array) -> Classes:
        return Classes(jnp.stack([-softplus(outputs), -softplus(-outputs)]))

    def features(self, x: Array) -> Array:
        return jax.lax.stop_gradient(x)

    def from_features(self, features: Array) -> Array:
        return (features > 0.5).astype(jnp.float32)

    def soft(self, parameters: Classes, noise: Array) -> Array:
        return jnp.exp(parameters.log_probs[1])


class Categorical(Discrete):
    """A nominal column; one logit and one one-hot feature for each class."""

    n_classes: int = eqx.field(static=True)

    @property
    def n_outputs(self) -> int:
        return self.size * self.n_classes

    @property
    def n_features(self) -> int:
        return self.size * self.n_classes

    def read(self, outputs: Array) -> Classes:
        return Classes(jax.nn.log_softmax(self._by_class(outputs), axis=0))

    def features(self, x: Array) -> Array:
        classes = jnp.arange(self.n_classes, dtype=x.dtype).reshape(-1, *[1] * x.ndim)
        one_hot = (jax.lax.stop_gradient(x)[None] == classes).astype(x.dtype)
        return one_hot.reshape(-1, *x.shape[1:])

    def from_features(self, features: Array) -> Array:
        return jnp.argmax(self._by_class(features), axis=0).astype(jnp.float32)

    def soft(self, parameters: Classes, noise: Array) -> Array:
        log_probs = parameters.log_probs
        return jnp.exp(log_probs).reshape(-1, *log_probs.shape[2:])

    def _by_class(self, h: Array) -> Array:
        return h.reshape(self.n_classes, self.size, *h.shape[1:])


Parameters = tuple[Any, ...]


class Columns(eqx.Module):
    """The likelihoods of a whole row, side by side."""

    blocks: tuple[Likelihood, ...]

    @classmethod
    def of_classes(cls, n_classes: Sequence[int]) -> "Columns":
        """Blocks for columns given by their number of classes: 0 continuous, 2 binary, more nominal.

        The columns must be sorted so that equal numbers are neighbours.
        """
        blocks: list[Likelihood] = []
        start = 0
        while start < len(n_classes):
            kind = n_classes[start]
            size = next((i for i, k in enumerate(n_classes[start:]) if k != kind), len(n_classes) - start)
            if kind == 0:
                blocks.append(Gaussian(start, size))
            elif kind == 2:
                blocks.append(Bernoulli(start, size))
            else:
                blocks.append(Categorical(start, size, kind))
            start += size
        return cls(tuple(blocks))

    @property
    def n_columns(self) -> int:
        return sum(block.size for block in self.blocks)

    @property
    def n_outputs(self) -> int:
        return sum(block.n_outputs for block in self.blocks)

    @property
    def n_features(self) -> int:
        return sum(block.n_features for block in self.blocks)

    @property
    def discrete(self) -> list[tuple[int, Discrete]]:
        """Position among the blocks, and block, of every discrete one."""
        return [(i, block) for i, block in enumerate(self.blocks) if isinstance(block, Discrete)]

    @property
    def continuous(self) -> list[tuple[int, Gaussian]]:
        """Position among the blocks, and block, of every continuous one."""
        return [(i, block) for i, block in enumerate(self.blocks) if isinstance(block, Gaussian)]

    def read(self, outputs: Outputs) -> Parameters:
        parts = self._split(outputs, [block.n_outputs for block in self.blocks])
        return tuple(block.read(part) for block, part in zip(self.blocks, parts, strict=True))

    def log_prob(self, parameters: Parameters, x: Row) -> PerRow:
        """log p(x | z) of a row, the sum over its columns."""
        terms = [
            jnp.sum(block.log_prob(given, x[block.columns]), axis=0)
            for block, given in zip(self.blocks, parameters, strict=True)
        ]
        return sum(terms[1:], start=terms[0])

    def mode(self, parameters: Parameters) -> Row:
        return self._join([b.mode(given) for b, given in zip(self.blocks, parameters, strict=True)])

    def draw(self, parameters: Parameters, key: RandomKey) -> Row:
        keys = jax.random.split(key, len(self.blocks))
        return self._join(
            [b.draw(given, k) for b, given, k in zip(self.blocks, parameters, keys, strict=True)]
        )

    def soft(self, parameters: Parameters, noise: Features) -> Features:
        parts = self._split(noise, [block.n_features for block in self.blocks])
        return self._join(
            [b.soft(given, part) for b, given, part in zip(self.blocks, parameters, parts, strict=True)]
        )

    def features(self, x: Row) -> Features:
        return self._join([block.features(x[block.columns]) for block in self.blocks])

    def from_features(self, features: Features) -> Row:
        parts = self._split(features, [block.n_features for block in self.blocks])
        return self._join([b.from_features(part) for b, part in zip(self.blocks, parts, strict=True)])

    def observed_features(self, observed: Observed) -> Array:
        """Which features come from observed cells."""
        repeats = [block.n_features // block.size for block in self.blocks]
        parts = [
            jnp.tile(observed[b.columns], (r,) + (1,) * (observed.ndim - 1))
            for b, r in zip(self.blocks, repeats, strict=True)
        ]
        return self._join(parts)

    @staticmethod
    def _split(h: Array, sizes: list[int]) -> list[Array]:
        ends = np.cumsum(sizes)
        return [h[end - size : end] for end, size in zip(ends, sizes, strict=True)]

    @staticmethod
    def _join(parts: list[Array]) -> Array:
        return parts[0] if len(parts) == 1 else jnp.concatenate(parts)
