"""The guard's statistics against scipy, and what they say when the model is true and when it is not."""

import numpy as np
import pytest
from scipy import stats

from missbgm.fit.guard import agreement, binormal_cdf, uniforms, untied


@pytest.mark.parametrize("rho", [-0.999, -0.7, 0.0, 0.4, 0.95])
def test_the_binormal_cdf_is_scipys(rho):
    rng = np.random.default_rng(0)
    h, k = rng.standard_normal((2, 30))
    h[0], k[1], h[2], k[2] = 0, 0, 0, 0
    found = binormal_cdf(h, k, np.full(30, rho))
    law = stats.multivariate_normal([0, 0], [[1, rho], [rho, 1]])
    np.testing.assert_allclose(found, [law.cdf([a, b]) for a, b in zip(h, k, strict=True)], atol=2e-5)


@pytest.mark.parametrize("rho", [-0.99, -0.5, 0.0, 0.8])
def test_observed_cells_of_a_true_selection_are_uniform(rho):
    """False alarms: 1e-4. Cells are observed where a normal correlated with the residual exceeds -m."""
    rng = np.random.default_rng(1)
    e, other, m = rng.standard_normal(20_000), rng.standard_normal(20_000), 0.6
    observed = rho * e + np.sqrt(1 - rho**2) * other > -m
    n = observed.sum()
    u = uniforms(e[observed], np.full(n, m), np.full(n, rho))
    assert stats.kstest(u, "uniform").pvalue > 1e-4


def test_statistics_are_scipys():
    rng = np.random.default_rng(2)
    u = rng.random((1, 200, 3))
    observed = rng.random((200, 3)) < 0.7
    found = agreement(u, observed, np.array([0, 2]))
    columns = [u[0, observed[:, j], j] for j in (0, 2)]
    kolmogorov = [np.sqrt(len(c)) * stats.kstest(c, "uniform").statistic for c in columns]
    cramer = [(stats.cramervonmises(c, "uniform").statistic - 1 / 6) / len(c) for c in columns]
    np.testing.assert_allclose(found.worst, kolmogorov, rtol=1e-9)
    assert np.sign(found.distance) * found.distance**2 == pytest.approx(np.mean(cramer), rel=1e-9)


def test_the_stated_noise_is_that_of_uniform_cells():
    rng = np.random.default_rng(3)
    observed = rng.random((150, 5)) < 0.6
    squared = []
    for _ in range(400):
        found = agreement(rng.random((1, 150, 5)), observed, np.arange(5))
        squared.append(np.sign(found.distance) * found.distance**2)
    assert np.std(squared) == pytest.approx(found.noise, rel=0.2)
    assert abs(np.mean(squared)) < 4 * found.noise / np.sqrt(400)


def test_cells_that_are_not_uniform_are_seen():
    rng = np.random.default_rng(4)
    u = rng.beta(1.4, 1.0, (2, 500, 4))
    found = agreement(u, np.ones((500, 4), bool), np.arange(4))
    assert found.distance > 0.05
    assert (found.worst > 2.2).all()


def test_columns_with_a_common_value_are_tied():
    rng = np.random.default_rng(5)
    x = rng.standard_normal((200, 5))
    x[:3, 1] = 0.5  # 1.5 % of the cells
    x[:5, 2] = 0.5  # 2.5 %
    x[:, 3] = np.round(x[:, 3])
    observed = np.ones((200, 5), bool)
    observed[:, 4] = False
    np.testing.assert_array_equal(untied(x, observed), [True, True, False, False, False])
    few = np.array([[1.0], [1.0], [2.0], [3.0]])  # two of four cells are forgiven
    assert untied(few, np.ones((4, 1), bool)).all()
