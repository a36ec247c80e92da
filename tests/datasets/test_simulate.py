"""The synthetic benchmark: oracle against `scipy.stats.truncnorm` and Monte Carlo."""

import numpy as np
import pytest
from scipy.stats import norm, truncnorm

from missbgm.datasets import simulate_mnar_oracle_data
from missbgm.datasets.simulate import OracleData, _cut_normal
from missbgm.errors import ConfigError

PER_CELL = ("oracle_mean", "oracle_sd", "oracle_lower", "oracle_upper", "ignorable_mean")


@pytest.fixture(scope="module")
def data() -> OracleData:
    return simulate_mnar_oracle_data(n_samples=2000, x_dim=50, missing_rate=0.3)


def test_shapes_types_and_agreement(data: OracleData) -> None:
    missing = data["mask"] == 0
    assert data["x_obs"].shape == data["x_full"].shape == data["mask"].shape == (2000, 50)
    assert data["x_obs"].dtype == data["x_full"].dtype == np.float64
    assert data["mask"].dtype.kind == "i"
    assert set(np.unique(data["mask"])) == {0, 1}
    np.testing.assert_array_equal(np.isnan(data["x_obs"]), missing)
    np.testing.assert_array_equal(data["x_obs"][~missing], data["x_full"][~missing])
    for name in PER_CELL:
        assert data[name].shape == (missing.sum(),)


def test_anchors_are_always_observed(data: OracleData) -> None:
    assert (data["mask"][:, :5] == 1).all()
    wide = simulate_mnar_oracle_data(50, 8, n_anchor=7, missing_rate=0.9)
    assert (wide["mask"][:, :7] == 1).all()
    assert (wide["mask"][:, 7] == 0).any()


def test_actual_rate_is_the_rate_outside_the_anchors(data: OracleData) -> None:
    assert data["actual_missing_rate"] == pytest.approx((data["mask"][:, 5:] == 0).mean())
    # 90,000 independent cells: 5 standard errors, false alarm 6e-7 were the seed not fixed.
    assert abs(data["actual_missing_rate"] - 0.3) < 5 * np.sqrt(0.3 * 0.7 / 90_000)


def test_every_missing_value_exceeds_its_threshold(data: OracleData) -> None:
    missing = data["mask"] == 0
    mu, sigma, kappa = _recovered(data, 0.3)
    assert (data["x_full"][missing] > mu + kappa * sigma - 1e-12).all()
    assert (data["oracle_lower"] > mu + kappa * sigma).all()


def test_oracle_order_is_row_major(data: OracleData) -> None:
    """Given the anchors the mean is linear in them: one regression a column recovers it exactly."""
    cells = np.argwhere(data["mask"] == 0)
    for column in (5, 27, 49):
        chosen = cells[:, 1] == column
        design = np.column_stack([np.ones(chosen.sum()), data["x_full"][cells[chosen, 0], :5]])
        for name in ("oracle_mean", "ignorable_mean"):
            value = data[name][chosen]
            fitted = design @ np.linalg.lstsq(design, value, rcond=None)[0]
            np.testing.assert_allclose(fitted, value, atol=1e-10)
        assert np.ptp(data["oracle_sd"][chosen]) == 0


@pytest.mark.parametrize("rate", [1e-6, 0.05, 0.3, 0.7, 1 - 1e-6])
@pytest.mark.parametrize("alpha", [0.05, 0.5])
def test_cut_normal_is_the_truncated_normal(rate: float, alpha: float) -> None:
    cut = _cut_normal(rate, alpha)
    assert norm.sf(cut.kappa) == pytest.approx(rate, rel=1e-12)
    above, below = truncnorm(cut.kappa, np.inf), truncnorm(-np.inf, cut.kappa)
    assert cut.mean == pytest.approx(above.mean(), rel=1e-8, abs=1e-12)
    # SciPy's variance of a far tail is itself a difference of large numbers.
    assert cut.sd == pytest.approx(above.std(), rel=1e-6)
    assert cut.lower == pytest.approx(above.ppf(alpha / 2), rel=1e-8)
    assert cut.upper == pytest.approx(above.ppf(1 - alpha / 2), rel=1e-8)
    assert cut.mean_below == pytest.approx(below.mean(), rel=1e-8, abs=1e-12)


def test_oracle_matches_monte_carlo(data: OracleData) -> None:
    mu, sigma, kappa = _recovered(data, 0.3)
    draws = np.random.default_rng(0).normal(size=400_000)
    tail, rest = draws[draws > kappa], draws[draws <= kappa]
    # Five standard errors of the mean, false alarm 6e-7 each were the seed not fixed.
    for name, sample in (("oracle_mean", tail), ("ignorable_mean", rest)):
        standardised = (data[name][0] - mu[0]) / sigma[0]
        assert abs(standardised - sample.mean()) < 5 * sample.std() / np.sqrt(sample.size)
    assert data["oracle_sd"][0] / sigma[0] == pytest.approx(tail.std(), rel=0.02)


def test_truth_is_covered_at_the_nominal_rate(data: OracleData) -> None:
    truth = data["x_full"][data["mask"] == 0]
    covered = (truth >= data["oracle_lower"]) & (truth <= data["oracle_upper"])
    # Given the mask the cells are independent: 5 standard errors, false alarm 6e-7.
    assert abs(covered.mean() - 0.95) < 5 * np.sqrt(0.05 * 0.95 / covered.size)
    scores = (truth - data["oracle_mean"]) / data["oracle_sd"]
    assert abs(scores.mean()) < 5 / np.sqrt(scores.size)


def test_paper_figures_for_oracle_and_ignorable_floor(data: OracleData) -> None:
    """Known root mean squared errors at a missing rate of .3: .47 for the oracle, 1.59 ignoring the mask."""
    truth = data["x_full"][data["mask"] == 0]
    # The noise scales are drawn anew with each seed, which moves both figures by a few per cent.
    assert np.sqrt(np.mean((truth - data["oracle_mean"]) ** 2)) == pytest.approx(0.471, rel=0.08)
    assert np.sqrt(np.mean((truth - data["ignorable_mean"]) ** 2)) == pytest.approx(1.589, rel=0.08)


def test_seed_decides_the_data() -> None:
    first, again, other = (simulate_mnar_oracle_data(20, 8, seed=seed) for seed in (1, 1, 2))
    for name in first:
        np.testing.assert_array_equal(first[name], again[name])
    assert (first["x_full"] != other["x_full"]).all()


def test_alpha_and_rate_leave_the_complete_table_alone() -> None:
    wide, narrow = (simulate_mnar_oracle_data(30, 9, alpha=alpha) for alpha in (0.05, 0.5))
    np.testing.assert_array_equal(wide["x_full"], narrow["x_full"])
    assert (wide["oracle_lower"] < narrow["oracle_lower"]).all()
    assert (wide["oracle_upper"] > narrow["oracle_upper"]).all()
    half = simulate_mnar_oracle_data(30, 9, missing_rate=0.5)
    np.testing.assert_array_equal(wide["x_full"], half["x_full"])
    assert ((wide["mask"] == 0) <= (half["mask"] == 0)).all()


@pytest.mark.parametrize("rate", [1e-6, 1 - 1e-6])
def test_extreme_rates_stay_finite(rate: float) -> None:
    data = simulate_mnar_oracle_data(200, 10, missing_rate=rate)
    missing = (data["mask"] == 0).sum()
    assert missing == (0 if rate < 0.5 else 200 * 5)
    assert all(np.isfinite(data[name]).all() for name in PER_CELL)


@pytest.mark.parametrize(
    ("setting", "named"),
    [
        ({"n_samples": 0}, "n_samples"),
        ({"n_samples": 2.5}, "n_samples"),
        ({"n_anchor": 0}, "n_anchor"),
        ({"n_anchor": 10}, "n_anchor"),
        ({"missing_rate": 0.0}, "missing_rate"),
        ({"missing_rate": 1.0}, "missing_rate"),
        ({"missing_rate": float("nan")}, "missing_rate"),
        ({"missing_rate": "0.2"}, "missing_rate"),
        ({"alpha": 0}, "alpha"),
        ({"alpha": 1}, "alpha"),
    ],
)
def test_bad_settings_are_named(setting: dict, named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        simulate_mnar_oracle_data(**{"n_samples": 10, "x_dim": 10, **setting})


def _recovered(data: OracleData, rate: float) -> tuple[np.ndarray, np.ndarray, float]:
    """Mean, standard deviation and cut of each missing cell, from what the dict holds and SciPy."""
    kappa = float(norm.isf(rate))
    sigma = data["oracle_sd"] / truncnorm(kappa, np.inf).std()
    return data["oracle_mean"] - sigma * truncnorm(kappa, np.inf).mean(), sigma, kappa
