"""Uncertain weights: Flipout through several layers, and draws of cells that include the weights' variance.

One layer's Flipout is held against closed forms with the networks' own tests.
"""

from typing import Any

import jax
import numpy as np
import pytest
from numpy.typing import NDArray

from by_hand import raw_variance
from laws.ensembles import judge, mean_p, same_mean_p, short_and_long
from missbgm.bgm.joint import Model
from missbgm.bgm.likelihood import Columns
from missbgm.bgm.missingness import Network
from missbgm.bgm.networks import (
    EPSILON,
    Dense,
    Generator,
    Moments,
    Normalisation,
    Perceptron,
    UncertainDense,
    draw_weights,
    leaky_relu,
)
from missbgm.config import Posterior
from missbgm.sample.posterior import Rows, draw_posterior

Array = NDArray[Any]

WEIGHT = np.array([[1.0], [-0.7], [0.9]])
OFFSET = np.array([0.3, -0.2, 0.5])
VARIANCE = np.array([0.4, 0.6, 0.5])
WEIGHT_SD = np.array([[0.1], [0.1], [0.4]])
WIDE_SD = np.array([[0.4], [0.3], [0.4]])
OFFSET_SD = np.array([0.2, 0.3, 0.5])
OBSERVED = np.array([True, True, False])
X = np.array([1.5, -1.0, 0.0])


def raw(sd: Any) -> Array:
    """What an uncertain layer reads as this standard deviation."""
    return np.log(np.expm1(np.asarray(sd, float))).astype(np.float32)


def uncertain_model(weight_sd: Array) -> Model:
    """Factor analysis whose loadings and offsets are uncertain; its variances are as good as known."""
    nearly_0 = np.full((3, 1), 1e-6)
    mean = Dense(
        np.vstack([WEIGHT, np.zeros((3, 1))]).astype(np.float32),
        np.concatenate([OFFSET, raw_variance(VARIANCE)]).astype(np.float32),
    )
    spread = Dense(raw(np.vstack([weight_sd, nearly_0])), raw(np.concatenate([OFFSET_SD, nearly_0[:, 0]])))
    identity = Moments(np.zeros(1, np.float32), np.full(1, 1 - EPSILON, np.float32))
    body = Perceptron((UncertainDense(mean, spread),), leaky_relu)
    still = Perceptron((Dense(np.zeros((3, 3), np.float32), np.zeros(3, np.float32)),), leaky_relu)
    generator = Generator(Normalisation.create(1), body)
    return Model(Columns.of_classes([0, 0, 0]), generator, Network(still), identity)


def conditional(weight: Array, offset: Array) -> tuple[Array, Array]:
    """Mean and variance of the missing cell given the observed ones, for many draws of the weights."""
    w, noise, last = weight[:, :2], VARIANCE[:2], weight[:, 2]
    variance = 1 / (1 + (w**2 / noise).sum(axis=1))
    mean = variance * (w * (X[:2] - offset[:, :2]) / noise).sum(axis=1)
    return offset[:, 2] + last * mean, last**2 * variance + VARIANCE[2]


def directly_drawn(n: int, weight_sd: Array) -> tuple[Array, Array]:
    """The same for `n` draws of the weights by NumPy."""
    rng = np.random.default_rng(4)
    weight = (WEIGHT + weight_sd * rng.standard_normal((n, 3, 1)))[:, :, 0]
    return conditional(weight, OFFSET + OFFSET_SD * rng.standard_normal((n, 3)))


def variance_p(size: int, n_settle: int, weight_sd: Array) -> dict[str, float]:
    """P-values of the parts of the law of total variance, from `size` draws of the weights.

    Copies of one row share the draws of the weights and nothing else: within one draw their spread is the
    conditional variance, and their mean varies from draw to draw as the conditional mean does.
    """
    n_copies = 64
    rows = Rows(
        np.zeros((n_copies, 1), np.float32),
        np.tile(X, (n_copies, 1)).astype(np.float32),
        np.tile(OBSERVED, (n_copies, 1)),
        np.arange(n_copies, dtype=np.uint32),
    )
    # One draw is kept for each draw of the weights, after `n_settle` sweeps.
    settings = Posterior(burn_in=n_settle * size, n_mcmc=size, n_weight_draws=size)
    sampled = draw_posterior(jax.random.key(3), uncertain_model(weight_sd), rows, settings, beta=0)
    values = sampled.values[0].astype(float)
    means, variances = directly_drawn(400_000, weight_sd)
    assert means.var() > 0.3 * variances.mean()
    centre, centres, own = means.mean(), values.mean(axis=1), values.var(axis=1, ddof=1)
    return {
        "mean": mean_p(centres, centre),
        "own variance": same_mean_p(own, variances),
        "weights' variance": mean_p((centres - centre) ** 2 - own / n_copies, means.var()),
        "total variance": mean_p(((values - centre) ** 2).mean(axis=1), means.var() + variances.mean()),
    }


@short_and_long(400, 4000)
def test_draws_have_the_weights_variance_on_top_of_their_own(size: int) -> None:
    """False alarms: about 1e-4, over the parts of the law of total variance."""
    judge(variance_p(size, 9, WEIGHT_SD))


@pytest.mark.slow
def test_chains_move_under_every_draw_of_the_weights() -> None:
    """False alarms: about 1e-4. A step that one draw of the weights likes is too long for another."""
    judge(variance_p(2000, 49, WIDE_SD))


@short_and_long(20_000, 400_000)
def test_flipout_through_layers_has_the_law_of_directly_drawn_weights(size: int) -> None:
    """False alarms: about 1e-4, over moments and products of the outputs of one row and of two.

    For one row Flipout's signs cancel, layer by layer, if layers are perturbed independently. For two rows
    only means and variances are those of directly drawn weights.
    """
    generator = Generator.create(np.random.default_rng(0), 2, (3,), 2, uncertain=True)
    wide = jax.tree.map(lambda w: np.where(w == -3.0, np.float32(-0.3), w), generator)
    moments, z = Moments.standard(2), np.array([[0.5, 0.5], [-1.5, -1.5]], np.float32)
    keys = jax.random.split(jax.random.key(0), size)
    perturbed = np.asarray(jax.jit(jax.vmap(lambda key: wide(z, moments, key)))(keys), float)
    drawn = np.asarray(jax.jit(jax.vmap(lambda key: draw_weights(wide, key)(z, moments)))(keys), float)
    p_values = {}
    for row in range(2):
        a, b = perturbed[:, :, row], drawn[:, :, row]
        for i in range(2):
            for power in (1, 2, 4):
                p_values[f"row {row}, output {i}, power {power}"] = same_mean_p(
                    a[:, i] ** power, b[:, i] ** power
                )
        p_values[f"row {row}, product"] = same_mean_p(a[:, 0] * a[:, 1], b[:, 0] * b[:, 1])
    judge(p_values)
