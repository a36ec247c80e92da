"""R-hat and effective sample size against closed forms, and every sentence of the verdict."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import special
from scipy.signal import lfilter

from missbgm.sample.check import ESS_LIMIT, RHAT_LIMIT, Check, checked, ess, rhat

Array = NDArray[Any]
ROWS = np.full((1, 3), 0.8)


def autoregressive(rho: float, chains: int, n: int, seed: int = 0) -> Array:
    """Stationary chains with autocorrelation rho, rho^2, ..."""
    rng = np.random.default_rng(seed)
    noise = np.sqrt(1 - rho**2) * rng.standard_normal((chains, n))
    first = rng.standard_normal((chains, 1))
    return lfilter([1], [1, -rho], noise, axis=1, zi=rho * first)[0]


# Effective sample size


@pytest.mark.parametrize("rho", [-0.5, 0.0, 0.5, 0.9])
def test_effective_size_of_an_autoregression_is_its_closed_form(rho: float) -> None:
    """n (1 - rho) / (1 + rho), averaged over 30 series of 4 chains.

    Over 600 seeds the estimate's standard deviation is at most 17 % of it, so 3 % for the mean, and Geyer's
    truncation biases it by at most 8 % (at rho = -0.5): 15 % is exceeded less than once in a thousand seeds.
    """
    n = 1_000
    sizes = [ess(autoregressive(rho, 4, n, seed)) for seed in range(30)]
    # Ranks of a Gaussian are Gaussian scores again: the normalisation changes nothing.
    assert np.mean(sizes) == pytest.approx(4 * n * (1 - rho) / (1 + rho), rel=0.15)


def test_neither_depends_on_units_and_effective_size_not_on_a_monotone_transform() -> None:
    x = autoregressive(0.5, 2, 400)
    assert rhat(3 * x + 7) == pytest.approx(rhat(x), rel=1e-12)
    assert ess(np.exp(3 * x) + 7) == pytest.approx(ess(x), rel=1e-12)


def test_effective_size_is_bounded_for_chains_that_alternate() -> None:
    x = np.tile([-1.0, 1.0], (2, 200)) + 0.01 * autoregressive(0, 2, 400)
    assert ess(x) == pytest.approx(800 * np.log10(800))


def test_effective_size_of_chains_apart_is_about_their_number() -> None:
    x = autoregressive(0, 2, 500) + np.array([[0.0], [50.0]])
    assert ess(x) < 5


# R-hat


def plain_split_rhat(x: Array) -> float:
    """Of the ranks' normal scores, written with sums."""
    m, n = x.shape[0] * 2, x.shape[1] // 2
    order = np.argsort(np.argsort(x.ravel())) + 1
    scores = special.ndtri((order - 0.375) / (x.size + 0.25)).reshape(m, n)
    means = [sum(chain) / n for chain in scores]
    within = sum(sum((v - mean) ** 2 for v in c) / (n - 1) for c, mean in zip(scores, means, strict=True)) / m
    grand = sum(means) / m
    between = sum((mean - grand) ** 2 for mean in means) / (m - 1)
    return float(np.sqrt((n - 1) / n + between / within))


def test_rhat_is_the_larger_of_that_of_values_and_of_distances_to_the_median() -> None:
    x = autoregressive(0.7, 3, 100)
    expected = max(plain_split_rhat(x), plain_split_rhat(np.abs(x - np.median(x))))
    assert rhat(x) == pytest.approx(expected, rel=1e-12)


def test_rhat_of_independent_draws_is_near_one() -> None:
    """R-hat - 1 is about chi-square(2m - 1)/(2mn) over split chains: 1.02 is far beyond any chance here."""
    assert 0.995 < rhat(autoregressive(0, 4, 1_000)) < 1.02


def test_rhat_sees_chains_apart_a_drift_within_one_and_unequal_spreads() -> None:
    x = autoregressive(0, 2, 400)
    assert rhat(x + np.array([[0.0], [2.0]])) > 1.2
    assert rhat(x[:1] + np.linspace(0, 3, 400)) > 1.2
    assert rhat(x * np.array([[1.0], [5.0]])) > 1.2
    assert rhat(x) < RHAT_LIMIT


def test_constants_have_neither() -> None:
    constant = np.full((2, 50), 3.0)
    assert np.isnan(rhat(constant))
    assert np.isnan(ess(constant))


def test_odd_lengths_leave_out_the_middle() -> None:
    x = autoregressive(0.3, 2, 101)
    without = np.delete(x, 50, axis=1)
    assert rhat(x) == rhat(without)
    assert ess(x) == ess(without)


# The verdict


def test_good_series_are_said_to_have_mixed() -> None:
    series = {name: autoregressive(0.2, 2, 500, seed) for seed, name in enumerate(("prior", "cell 0"))}
    check = checked(series, ROWS, 0.5 * ROWS)
    assert check.mixed
    assert check.rhat == {name: rhat(x) for name, x in series.items()}
    assert check.ess == {name: ess(x) for name, x in series.items()}
    assert (check.z_acceptance, check.x_acceptance) == pytest.approx((0.8, 0.4))
    assert check.verdict == (
        f"The chains mixed (largest R-hat {check.worst_rhat:.3f}, least effective sample size "
        f"{check.least_ess:.0f})."
    )


def verdict_of(worst_rhat: float = 1.0, least_ess: float = 500.0, stuck: int = 0) -> Check:
    return Check({"a": 1.0, "b": worst_rhat}, {"a": least_ess, "b": 900.0}, 0.8, 0.8, stuck)


def test_at_the_limits_chains_have_just_mixed() -> None:
    assert verdict_of(RHAT_LIMIT, ESS_LIMIT).mixed
    assert not verdict_of(RHAT_LIMIT + 1e-6).mixed
    assert not verdict_of(least_ess=ESS_LIMIT - 1e-6).mixed


@pytest.mark.parametrize("check", [verdict_of(1.2), verdict_of(least_ess=20)])
def test_chains_apart_or_slow_are_told_to_run_longer(check: Check) -> None:
    figures = f"R-hat {check.worst_rhat:.3f}, least effective sample size {check.least_ess:.0f}"
    assert check.verdict.startswith("The chains did not mix well")
    assert figures in check.verdict
    assert "Raise posterior.burn_in and posterior.n_mcmc" in check.verdict
    assert "step_size" not in check.verdict


def test_rows_that_hardly_move_are_told_to_take_smaller_steps() -> None:
    verdict = verdict_of(stuck=4).verdict
    assert verdict.startswith("The chains did not mix well")
    assert "4 rows hardly ever accepted a move; lower posterior.step_size" in verdict
    assert "n_mcmc" not in verdict


def test_both_pieces_of_advice_are_given_when_both_apply() -> None:
    verdict = verdict_of(1.3, 20, 4).verdict
    assert "4 rows hardly ever" in verdict
    assert "Raise posterior.burn_in and posterior.n_mcmc" in verdict


def test_rows_are_stuck_when_either_move_is_hardly_ever_accepted() -> None:
    z, x = np.array([[0.8, 0.01, 0.8]]), np.array([[0.04, 0.9, 0.9]])
    assert checked({}, z, x).stuck_rows == 2
    assert checked({}, z[:, 2:], x[:, 2:]).stuck_rows == 0


def test_a_constant_series_beside_good_ones_does_not_spoil_the_verdict() -> None:
    series = {"cell 0": np.ones((2, 500)), "cell 1": autoregressive(0, 2, 500)}
    check = checked(series, ROWS, ROWS)
    assert check.mixed
    assert check.worst_rhat == check.rhat["cell 1"]
    assert check.least_ess == check.ess["cell 1"]


def test_without_missing_cells_there_is_nothing_to_check() -> None:
    check = checked({}, np.zeros(0), np.zeros(0))
    assert check.verdict == "Nothing to check: no missing cell was drawn."
    assert np.isnan(check.z_acceptance)
    assert np.isnan(check.x_acceptance)
