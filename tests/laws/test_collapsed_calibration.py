"""Simulation-based calibration of rows drawn with missing cells integrated out, in both ways of drawing.

Each draw of a row comes from a copy of it with a number, and so a key, of its own.
"""

from collections.abc import Callable

import jax
import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats
from scipy.special import logsumexp

from factors import COMPONENTS, MIXTURES, Mixed, mixed_of
from laws.ensembles import judge, short_and_long
from laws.test_calibration import N_DRAWS, rank_p
from missbgm.sample import imputed
from missbgm.sample.imputed import Amounts, draw_collapsed

KEY = jax.random.key(17)
Array = NDArray[np.float64]


def calibrated(family: str, n_components: int, size: int) -> dict[str, float]:
    """P-values of uniform ranks of missing cells, and of two functions of completed rows."""
    mixed = mixed_of(family, n_components, seed=2)
    rng = np.random.default_rng(7)
    _, x, observed = mixed.simulate(rng, size)
    x, observed = x.T.astype(np.float32), observed.T
    many, seen = np.tile(x, (N_DRAWS, 1)), np.tile(observed, (N_DRAWS, 1))
    coded = np.where(seen, many, 0)
    drawn = draw_collapsed(KEY, (mixed.model,), mixed.assumed, coded, seen, Amounts(1, 80, "float32"))
    many = many.astype(float)
    many[~seen] = drawn.values[0, 0]
    completed = many.reshape(N_DRAWS, size, mixed.p)
    x = x.astype(float)
    density = density_of(mixed)
    p_values: dict[str, float] = {}
    for j in range(mixed.p):
        gone = ~observed[:, j]
        p_values |= rank_p(f"column {j}", x[gone, j], completed[:, gone, j], rng)
    some = ~observed.all(axis=1)
    p_values |= rank_p("density", density(x[some]), density(completed[:, some]), rng)
    p_values |= rank_p("spread", x[some].std(axis=1), completed[:, some].std(axis=2), rng)
    return p_values


def density_of(mixed: Mixed) -> Callable[[Array], Array]:
    """The log density of complete rows."""
    laws = [
        stats.multivariate_normal(case.bias, case.weight @ case.weight.T + np.diag(case.scale**2))
        for case in mixed.parts
    ]
    return lambda x: logsumexp(
        [np.log(share) + law.logpdf(x) for share, law in zip(mixed.share, laws, strict=True)], axis=0
    )


@pytest.mark.parametrize(("family", "n_components"), MIXTURES)
@short_and_long(400, 8192)
def test_truths_rank_uniformly_among_weighted_draws(family: str, n_components: int, size: int) -> None:
    """False alarms: 1e-4 over columns and functions of rows."""
    judge(calibrated(family, n_components, size))


@pytest.mark.slow
@pytest.mark.parametrize("n_components", COMPONENTS)
@pytest.mark.parametrize("family", ["selfmask", "selection", "below"])
def test_truths_rank_uniformly_among_draws_of_chains(
    family: str, n_components: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """False alarms: 1e-4 over columns and functions of rows; every row is drawn by HMC."""
    monkeypatch.setattr(imputed, "POOR", 2.0)
    judge(calibrated(family, n_components, 256))
