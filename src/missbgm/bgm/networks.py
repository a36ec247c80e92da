"""Networks: dense layers with fixed or uncertain weights, perceptrons, the generator and the critics."""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from missbgm.types import Latent, Outputs, RandomKey, Rng, Scalar, Tree

INITIAL_SPREAD = -3.0  # softplus(-3) = 0.049: a new uncertain weight is nearly a fixed one
PRIOR_SD = 1.0
EPSILON = 1e-3


def along_rows(vector: Array, like: Array) -> Array:
    """Reshape a vector of features so that it broadcasts against features-first `like`."""
    return vector.reshape(vector.shape + (1,) * (like.ndim - 1))


def softplus(h: Array) -> Array:
    """log(1 + exp(h)), in the form that costs least when differentiated."""
    return jnp.maximum(h, 0) + jnp.log1p(jnp.exp(-jnp.abs(h)))


def leaky_relu(h: Array) -> Array:
    return jnp.where(h > 0, h, 0.2 * h)


class Layer(eqx.Module):
    """An affine map whose weights are fixed (`Dense`) or have a Gaussian posterior (`UncertainDense`)."""

    @abstractmethod
    def __call__(self, h: Array, key: RandomKey | None = None) -> Array: ...

    @abstractmethod
    def draw(self, key: RandomKey) -> "Dense":
        """One set of weights from their posterior."""

    @abstractmethod
    def penalty(self) -> Scalar:
        """What the weights cost: squared norm when fixed, divergence from the prior when uncertain."""


class Dense(Layer):
    weight: Array
    bias: Array

    @classmethod
    def create(cls, rng: Rng, n_in: int, n_out: int) -> Self:
        limit = np.sqrt(6 / (n_in + n_out))
        return cls(rng.uniform(-limit, limit, (n_out, n_in)).astype(np.float32), np.zeros(n_out, np.float32))

    def __call__(self, h: Array, key: RandomKey | None = None) -> Array:
        return self.weight @ h + along_rows(self.bias, h)

    def draw(self, key: RandomKey) -> "Dense":
        return self

    def penalty(self) -> Scalar:
        return jnp.sum(self.weight**2) + jnp.sum(self.bias**2)


class UncertainDense(Layer):
    """Weights with independent Gaussian posteriors, perturbed by Flipout (Wen et al., 2018).

    The rows of one call share one draw of the weights' deviations; random signs on inputs and outputs
    make the perturbations of different rows uncorrelated. Without a key the mean weights are used.
    """

    mean: Dense
    spread: Dense  # softplus of it is the standard deviation

    @classmethod
    def create(cls, rng: Rng, n_in: int, n_out: int) -> Self:
        mean = Dense.create(rng, n_in, n_out)
        return cls(mean, jax.tree.map(lambda w: np.full_like(w, INITIAL_SPREAD), mean))

    def deviation(self, key: RandomKey) -> Dense:
        keys = jax.random.split(key)
        noise = [sd * jax.random.normal(k, sd.shape) for k, sd in zip(keys, self._scales(), strict=True)]
        return Dense(*noise)

    def __call__(self, h: Array, key: RandomKey | None = None) -> Array:
        if key is None:
            return self.mean(h)
        key, key_in, key_out = jax.random.split(key, 3)
        signs_in = jax.random.rademacher(key_in, h.shape, h.dtype)
        signs_out = jax.random.rademacher(key_out, (len(self.mean.bias), *h.shape[1:]), h.dtype)
        return self.mean(h) + self.deviation(key)(h * signs_in) * signs_out

    def draw(self, key: RandomKey) -> Dense:
        return jax.tree.map(jnp.add, self.mean, self.deviation(key))

    def penalty(self) -> Scalar:
        """Kullback-Leibler divergence of the posterior from the N(0, PRIOR_SD^2) prior."""
        means = (self.mean.weight, self.mean.bias)
        terms = [
            jnp.sum(jnp.log(PRIOR_SD / sd) + (sd**2 + m**2) / (2 * PRIOR_SD**2) - 0.5)
            for m, sd in zip(means, self._scales(), strict=True)
        ]
        return jnp.sum(jnp.stack(terms))

    def _scales(self) -> tuple[Array, Array]:
        return softplus(self.spread.weight), softplus(self.spread.bias)


class Perceptron(eqx.Module):
    layers: tuple[Layer, ...]
    activation: Callable[[Array], Array] = eqx.field(static=True)

    @classmethod
    def create(
        cls,
        rng: Rng,
        sizes: Sequence[int],
        *,
        uncertain: bool = False,
        activation: Callable[[Array], Array] = leaky_relu,
    ) -> Self:
        layer = UncertainDense if uncertain else Dense
        return cls(tuple(layer.create(rng, *shape) for shape in pairwise(sizes)), activation)

    def __call__(self, h: Array, key: RandomKey | None = None) -> Array:
        keys = [None] * len(self.layers) if key is None else jax.random.split(key, len(self.layers))
        for layer, layer_key in zip(self.layers[:-1], keys[:-1], strict=True):
            h = self.activation(layer(h, layer_key))
        return self.layers[-1](h, keys[-1])


class Moments(eqx.Module):
    """Mean and variance that a batch normalisation uses: of a batch in training, running ones otherwise."""

    mean: Array
    variance: Array

    @classmethod
    def standard(cls, n: int) -> Self:
        return cls(np.zeros(n, np.float32), np.ones(n, np.float32))

    @classmethod
    def of_batch(cls, h: Array, weight: Array) -> Self:
        """Moments over the rows of `h`, each counted by its weight."""
        share = weight / jnp.sum(weight)
        mean = h @ share
        return cls(mean, ((h - mean[:, None]) ** 2) @ share)

    def moved_towards(self, batch: "Moments", rate: float = 0.01) -> "Moments":
        return jax.tree.map(
            lambda old, new: (1 - rate) * old + rate * jax.lax.stop_gradient(new), self, batch
        )


class Normalisation(eqx.Module):
    """Batch normalisation's learnt scale and shift; the moments come from outside."""

    scale: Array
    shift: Array

    @classmethod
    def create(cls, n: int) -> Self:
        return cls(np.ones(n, np.float32), np.zeros(n, np.float32))

    def __call__(self, h: Array, moments: Moments) -> Array:
        factor = self.scale * jax.lax.rsqrt(moments.variance + EPSILON)
        return (h - along_rows(moments.mean, h)) * along_rows(factor, h) + along_rows(self.shift, h)


class Generator(eqx.Module):
    """Latent row to the outputs that the likelihoods read; all heads share the last matrix product."""

    normalisation: Normalisation
    body: Perceptron

    @classmethod
    def create(cls, rng: Rng, d: int, units: Sequence[int], n_outputs: int, *, uncertain: bool) -> Self:
        return cls(
            Normalisation.create(d), Perceptron.create(rng, (d, *units, n_outputs), uncertain=uncertain)
        )

    def __call__(self, z: Latent, moments: Moments, key: RandomKey | None = None) -> Outputs:
        return self.body(self.normalisation(z, moments), key)


class Critic(eqx.Module):
    """Scores whether rows look real; hidden layers after the first are batch-normalised, tanh throughout."""

    body: Perceptron
    normalisations: tuple[Normalisation, ...]

    @classmethod
    def create(cls, rng: Rng, n_in: int, units: Sequence[int]) -> Self:
        body = Perceptron.create(rng, (n_in, *units, 1), activation=jnp.tanh)
        return cls(body, tuple(Normalisation.create(n) for n in units[1:]))

    def __call__(self, h: Array) -> Array:
        *hidden, last = self.body.layers
        for i, layer in enumerate(hidden):
            h = layer(h)
            if i > 0:
                h = self.normalisations[i - 1](h, Moments.of_batch(h, jnp.ones(h.shape[1])))
            h = self.body.activation(h)
        return last(h)[0]


def layers_of(network: Tree) -> list[Layer]:
    """Every affine layer in a network, whatever holds it."""
    leaves = jax.tree.leaves(network, is_leaf=lambda node: isinstance(node, Layer))
    return [leaf for leaf in leaves if isinstance(leaf, Layer)]


def penalty(network: Tree) -> Scalar:
    """Sum of the layers' penalties."""
    return jnp.sum(jnp.stack([layer.penalty() for layer in layers_of(network)]))


def is_uncertain(network: Tree) -> bool:
    return any(isinstance(layer, UncertainDense) for layer in layers_of(network))


def draw_weights(network: Tree, key: RandomKey) -> Tree:
    """The same network with every uncertain layer replaced by a draw of it."""
    layers = layers_of(network)
    keys = iter(jax.random.split(key, max(len(layers), 1)))
    return jax.tree.map(
        lambda node: node.draw(next(keys)) if isinstance(node, Layer) else node,
        network,
        is_leaf=lambda node: isinstance(node, Layer),
    )


def mean_weights(network: Tree) -> Tree:
    """The same network with every uncertain layer replaced by its posterior mean."""
    return jax.tree.map(
        lambda node: node.mean if isinstance(node, UncertainDense) else node,
        network,
        is_leaf=lambda node: isinstance(node, Layer),
    )
