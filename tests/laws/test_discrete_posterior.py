"""All columns discrete, one latent dimension: missing classes against enumeration times quadrature over z."""

from itertools import product
from typing import Any

import jax
import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import integrate

from by_hand import log_joint, model_of
from laws.ensembles import copies, counts_p, judge, mean_p, settled, short_and_long
from missbgm.bgm.joint import Model
from missbgm.bgm.likelihood import Columns
from missbgm.config import Posterior
from missbgm.sample.posterior import Rows, draw_posterior

Array = NDArray[Any]

N_CLASSES = [2, 2, 3, 3]
OBSERVED = np.array([[1, 0, 0, 0], [0, 1, 0, 1]], bool).T
X = np.array([[1, 0, 0, 0], [0, 0, 0, 2]], float).T
Z = np.linspace(-8, 8, 1601)


def discrete_model() -> Model:
    """Affine networks with weights of size 1 or so; every mask depends on every column."""
    rng, columns = np.random.default_rng(5), Columns.of_classes(N_CLASSES)
    weight, bias = 1.2 * rng.standard_normal((columns.n_outputs, 1)), rng.standard_normal(columns.n_outputs)
    slopes = 1.5 * rng.standard_normal((len(N_CLASSES), columns.n_features))
    return model_of(columns, weight, bias, slopes, 0.5 * rng.standard_normal(len(N_CLASSES)))


MODEL = discrete_model()


def combinations(row: int) -> Array:
    """Completed rows, one for each combination of classes of the missing cells; columns first."""
    choices = [[x] if o else range(k) for x, o, k in zip(X[:, row], OBSERVED[:, row], N_CLASSES, strict=True)]
    return np.array(list(product(*choices)), float).T


def enumerated(row: int, beta: float) -> tuple[Array, Array]:
    """Probability of every combination, and the mean of z there."""
    rows = combinations(row)
    x, z = np.repeat(rows, len(Z), axis=1), np.tile(Z, rows.shape[1])
    terms = log_joint(MODEL, N_CLASSES, z[None], x, OBSERVED[:, row, None])
    density = np.exp(terms.prior + terms.data + beta * terms.missingness).reshape(-1, len(Z))
    total = integrate.simpson(density, x=Z, axis=1)
    return total / total.sum(), integrate.simpson(Z * density, x=Z, axis=1) / total


def counted(row: int, x: Array) -> tuple[Array, Array]:
    """Which combination every row of `x` is, and how many there are of each."""
    same = (x[:, :, None] == combinations(row)[:, None, :]).all(axis=0)
    assert same.any(axis=1).all(), "a row that is none of the combinations"
    return same.argmax(axis=1), same.sum(axis=0)


def lumped(values: Array, together: Array) -> Array:
    """Values, but the sum of some of them in their stead."""
    rest = values[together].sum(axis=0, keepdims=True)
    return np.concatenate([values[~together], rest]) if together.any() else values


@pytest.mark.parametrize("beta", [0.3, 1.0])
@short_and_long(4096, 131072)
def test_chains_settle_in_the_enumerated_posterior(beta: float, size: int) -> None:
    """False alarms: 1e-4, over joint frequencies of missing classes and the mean of z given each."""
    n = X.shape[1]
    z, x, observed = copies(size, np.full((1, n), 1.5), np.where(OBSERVED, X, 0), OBSERVED)
    z, x = settled(MODEL, z, x, observed, beta=beta, kernel="autoregressive", n_sweeps=100)
    p_values = {}
    for row in range(n):
        mine = slice(row * size, (row + 1) * size)
        probabilities, means = enumerated(row, beta)
        which, counts = counted(row, x[:, mine])
        # Rare combinations together, so that every expected count is large enough for chi-square.
        rare = size * probabilities < 20
        p_values[f"row {row}, classes"] = counts_p(lumped(counts, rare), lumped(probabilities, rare))
        for k in np.flatnonzero(counts > 200):
            latent = z[0, mine][which == k]
            p_values[f"row {row}, z at {k}"] = mean_p(latent, means[k])
    judge(p_values)


@short_and_long(256, 2048)
def test_draws_have_the_enumerated_frequencies(size: int) -> None:
    """False alarms: 1e-4; copies of a row are independent, its draws are not: one z-score a combination."""
    z, x, observed = copies(size, np.zeros((1, 2)), np.where(OBSERVED, X, 0), OBSERVED)
    rows = Rows(
        z.T.astype(np.float32),
        x.T.astype(np.float32),
        observed.T,
        np.arange(2 * size, dtype=np.uint32),
    )
    settings = Posterior(burn_in=50, n_mcmc=40, thin=5)
    values = draw_posterior(jax.random.key(1), MODEL, rows, settings, beta=1.0).values[0]
    p_values, at = {}, 0
    for row in range(X.shape[1]):
        missing = ~OBSERVED[:, row]
        cells = slice(at, at + size * missing.sum())
        draws = values[:, cells].reshape(len(values), size, -1)
        probabilities, _ = enumerated(row, 1.0)
        names = combinations(row)[missing].T
        shares = np.stack([(draws == name).all(axis=2).mean(axis=0) for name in names])
        # Rare combinations together, so that a chain's share is near enough to Gaussian.
        rare = probabilities < 0.02
        pairs = zip(lumped(shares, rare), lumped(probabilities, rare), strict=True)
        p_values |= {f"row {row}, combination {k}": mean_p(*pair) for k, pair in enumerate(pairs)}
        at = cells.stop
    judge(p_values)
