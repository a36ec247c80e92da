"""Models with weights set by hand, small enough that their posteriors are known or can be integrated.

The generator is affine, ``outputs = W z + b`` (its normalisation is the identity), and so is the mechanism,
``logits = A features + a``.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import expit, log_expit

from missbgm.bgm.joint import Model
from missbgm.bgm.likelihood import VARIANCE_FLOOR, Columns
from missbgm.bgm.missingness import Network
from missbgm.bgm.networks import EPSILON, Dense, Generator, Moments, Normalisation, Perceptron, leaky_relu

Array = NDArray[Any]


def raw_variance(variance: ArrayLike) -> Array:
    """The output that a Gaussian block reads as this variance."""
    return np.log(np.expm1(np.asarray(variance) - VARIANCE_FLOOR))


def affine(weight: ArrayLike, bias: ArrayLike) -> Perceptron:
    layer = Dense(np.asarray(weight, np.float32), np.asarray(bias, np.float32))
    return Perceptron((layer,), leaky_relu)


def model_of(
    columns: Columns, weight: ArrayLike, bias: ArrayLike, slopes: ArrayLike, intercepts: ArrayLike
) -> Model:
    """A model whose two networks are affine maps."""
    d = np.asarray(weight).shape[1]
    identity = Moments(np.zeros(d, np.float32), np.full(d, 1 - EPSILON, np.float32))
    generator = Generator(Normalisation.create(d), affine(weight, bias))
    return Model(columns, generator, Network(affine(slopes, intercepts)), identity)


class Factor(NamedTuple):
    """Factor analysis, x = loadings z + offset + noise, with logit p(r_j = 1) = intercept_j + slope_j x_j."""

    loadings: Array
    offset: Array
    variance: Array
    slope: Array
    intercept: Array

    @property
    def model(self) -> Model:
        p = len(self.offset)
        weight = np.vstack([self.loadings, np.zeros_like(self.loadings)])
        bias = np.concatenate([self.offset, raw_variance(self.variance)])
        return model_of(Columns.of_classes([0] * p), weight, bias, np.diag(self.slope), self.intercept)

    def latent(self, x: Array, observed: Array) -> tuple[Array, Array]:
        """Mean and covariance of z given the observed cells of one row."""
        w, noise = self.loadings[observed], self.variance[observed]
        covariance = np.linalg.inv(np.eye(w.shape[1]) + (w.T / noise) @ w)
        return covariance @ (w.T / noise) @ (x - self.offset)[observed], covariance

    def missing(self, x: Array, observed: Array) -> tuple[Array, Array]:
        """Mean and covariance of the missing cells given the observed ones, the mechanism ignored."""
        mean, covariance = self.latent(x, observed)
        w = self.loadings[~observed]
        return self.offset[~observed] + w @ mean, w @ covariance @ w.T + np.diag(self.variance[~observed])

    def simulate(self, rng: np.random.Generator, n: int) -> tuple[Array, Array, Array]:
        """Latent rows, completed rows and patterns, rows first."""
        z = rng.standard_normal((n, self.loadings.shape[1]))
        x = z @ self.loadings.T + self.offset
        x = x + np.sqrt(self.variance) * rng.standard_normal(x.shape)
        observed = rng.random(x.shape) < expit(self.intercept + self.slope * x)
        return z.astype(np.float32), x.astype(np.float32), observed


FACTOR = Factor(
    loadings=np.array([[1.0, 0.0], [0.8, -0.6], [-0.5, 0.9], [0.3, 0.7]]),
    offset=np.array([0.5, -1.0, 0.0, 2.0]),
    variance=np.array([0.3, 0.5, 0.2, 1.0]),
    slope=np.array([0.0, 1.5, -2.0, 1.0]),
    intercept=np.array([1.0, 0.5, 0.0, -1.5]),
)


class LogTerms(NamedTuple):
    """Terms of the log joint density, in double precision."""

    prior: Array
    data: Array
    missingness: Array


def forward(network: Perceptron, h: Array) -> Array:
    """A perceptron by hand; features first."""
    for i, layer in enumerate(network.layers):
        h = np.where(h > 0, h, 0.2 * h) if i else h
        bias = np.asarray(layer.bias, float)
        h = np.asarray(layer.weight, float) @ h + bias.reshape(-1, *[1] * (h.ndim - 1))
    return h


def outputs_of(model: Model, z: Array) -> Array:
    """What the generator says, by hand."""
    norm, moments = model.generator.normalisation, model.moments
    tall = (-1, *[1] * (z.ndim - 1))
    scale = np.asarray(norm.scale, float) / np.sqrt(np.asarray(moments.variance, float) + EPSILON)
    centred = (z - np.asarray(moments.mean, float).reshape(tall)) * scale.reshape(tall)
    return forward(model.generator.body, centred + np.asarray(norm.shift, float).reshape(tall))


def one_hot(x: Array, n_classes: list[int]) -> Array:
    """Features of completed rows: neighbouring columns of equally many classes go class by class."""
    features, start = [], 0
    while start < len(n_classes):
        kind = n_classes[start]
        end = start + 1
        while end < len(n_classes) and n_classes[end] == kind:
            end += 1
        block = x[start:end]
        features += [block] if kind in (0, 2) else [(block == k).astype(float) for k in range(kind)]
        start = end
    return np.concatenate(features)


def log_probs_of(outputs: Array, x: Array, n_classes: list[int]) -> Array:
    """log p(x_j | z), column by column, from the generator's outputs."""
    terms, start, at = [], 0, 0
    while start < len(n_classes):
        kind = n_classes[start]
        size = 1
        while start + size < len(n_classes) and n_classes[start + size] == kind:
            size += 1
        n_outputs = {0: 2, 2: 1}.get(kind, kind) * size
        given, cells = outputs[at : at + n_outputs], x[start : start + size]
        if kind == 0:
            variance = np.logaddexp(0, given[size:]) + VARIANCE_FLOOR
            terms.append(-0.5 * ((cells - given[:size]) ** 2 / variance + np.log(2 * np.pi * variance)))
        elif kind == 2:
            terms.append(cells * given - np.logaddexp(0, given))
        else:
            logits = given.reshape(kind, size, *given.shape[1:])
            lit = np.stack([cells == k for k in range(kind)])
            terms.append((logits * lit).sum(axis=0) - np.log(np.exp(logits).sum(axis=0)))
        start, at = start + size, at + n_outputs
    return np.concatenate(terms)


def log_joint(model: Model, n_classes: list[int], z: Array, x: Array, observed: Array) -> LogTerms:
    """The joint density's terms by hand, in double precision; features first, any trailing shape."""
    z, x = np.asarray(z, float), np.asarray(x, float)
    prior = -0.5 * (z**2 + np.log(2 * np.pi)).sum(axis=0)
    data = log_probs_of(outputs_of(model, z), x, n_classes).sum(axis=0)
    logits = forward(model.mechanism.body, one_hot(x, n_classes))
    missingness = np.where(observed, log_expit(logits), log_expit(-logits)).sum(axis=0)
    return LogTerms(prior, data, missingness)
