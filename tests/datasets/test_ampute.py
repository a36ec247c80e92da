"""The paper's MNAR mechanism for real data: calibrated, reproducible, never an empty row or column."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import expit

from missbgm.datasets import ampute_mnar, hide
from missbgm.datasets.ampute import _observe_some, _score, observation_probability
from missbgm.errors import ConfigError, TableError

X = np.random.default_rng(7).normal(2, 3, (1500, 12))


@pytest.mark.parametrize("rate", [1e-6, 0.05, 0.2, 0.5, 0.95, 1 - 1e-6])
@pytest.mark.parametrize("sign", [1, -1])
def test_mean_probability_is_exactly_the_target(rate: float, sign: int) -> None:
    score = sign * _score(X, np.random.default_rng(3))
    probability = observation_probability(score, rate)
    assert probability.mean() == pytest.approx(1 - rate, rel=1e-9)
    # One intercept for all cells: on the logit scale the probabilities differ by the scores alone.
    intercept = np.log(probability / (1 - probability)) - score
    np.testing.assert_allclose(intercept, intercept.mean(), atol=1e-7)


def test_calibration_agrees_with_plain_bisection() -> None:
    score = _score(X, np.random.default_rng(3))
    low, high = -50.0, 50.0
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (low, middle) if expit(score + middle).mean() > 0.8 else (middle, high)
    np.testing.assert_allclose(observation_probability(score, 0.2), expit(score + low), atol=1e-12)


def test_score_is_the_printed_formula() -> None:
    standard = (X - X.mean(axis=0)) / X.std(axis=0)
    weights = np.random.default_rng(5).normal(0, 0.3 / np.sqrt(12), (12, 12))
    expected = 0.6 * standard + 0.4 * np.tanh(standard @ weights)
    np.testing.assert_allclose(_score(X, np.random.default_rng(5)), expected, atol=1e-12)


@pytest.mark.parametrize("rate", [0.1, 0.2, 0.6])
def test_realised_rate_is_within_binomial_bounds(rate: float) -> None:
    observed = ampute_mnar(X, rate, seed=2)
    assert observed.dtype == np.bool_
    assert observed.shape == X.shape
    # Independent Bernoulli cells vary at most like a binomial: 5 standard errors, false alarm 6e-7.
    assert abs((~observed).mean() - rate) < 5 * np.sqrt(rate * (1 - rate) / X.size)


def test_sign_turns_the_direction_around() -> None:
    """Every column, since 1,500 rows put the difference of means 7 standard errors or more from 0."""
    for sign in (1, -1):
        observed = ampute_mnar(X, 0.3, seed=0, sign=sign)
        gaps = [x[o].mean() - x[~o].mean() for x, o in zip(X.T, observed.T, strict=True)]
        assert (sign * np.array(gaps) > 0).all()


def test_seed_decides_the_cells_and_the_table_is_left_alone() -> None:
    before = X.copy()
    first, again, other = (ampute_mnar(X, seed=seed) for seed in (4, 4, 5))
    np.testing.assert_array_equal(first, again)
    assert (first != other).any()
    np.testing.assert_array_equal(X, before)


def test_location_and_scale_do_not_matter() -> None:
    # Powers of two are multiplied without rounding, so the very same cells must come out.
    np.testing.assert_array_equal(ampute_mnar(X, seed=1), ampute_mnar(X * 1024, seed=1))


def test_no_empty_row_or_column_when_nearly_all_is_missing() -> None:
    for seed in range(20):
        observed = ampute_mnar(X[:40, :2], 0.95, seed=seed)
        assert observed.any(axis=1).all()
        assert observed.any(axis=0).all()


def test_constant_columns_and_one_row_give_no_nan() -> None:
    table = np.column_stack([np.full(50, 0.1), X[:50, 0], np.zeros(50)])
    assert np.isfinite(_score(table, np.random.default_rng(0))).all()
    assert 0 < ampute_mnar(table, 0.4).mean() < 1
    assert ampute_mnar([[3, 4]], 0.9).any()
    assert ampute_mnar(np.ones((30, 3)), 0.5).any(axis=0).all()


@settings(deadline=None, max_examples=100, derandomize=True)
@given(n=st.integers(1, 8), p=st.integers(1, 8), seed=st.integers(0, 99), share=st.floats(0, 0.6))
def test_repair_changes_as_few_cells_as_can_be(n: int, p: int, seed: int, share: float) -> None:
    rng = np.random.default_rng(seed)
    before = rng.random((n, p)) < share
    after = before.copy()
    _observe_some(after, rng)
    assert after.any(axis=1).all()
    assert after.any(axis=0).all()
    assert (after >= before).all()
    # One cell mends at most one row and one column.
    fewest = max((~before.any(axis=1)).sum(), (~before.any(axis=0)).sum())
    assert (after != before).sum() == fewest


@pytest.mark.parametrize(
    ("table", "said"),
    [
        (np.ones(3), r"shape \(3,\)"),
        (np.ones((0, 3)), r"shape \(0, 3\)"),
        (np.array([["1", "2"]]), "dtype <U1"),
        (np.array([[1, "a"]], dtype=object), "dtype object"),
        (np.array([[1.0, 2.0], [3.0, np.nan]]), r"x\[1, 1\] is nan and 1 cells"),
        (np.array([[1.0, np.inf], [np.nan, 2.0]]), r"x\[0, 1\] is inf and 2 cells"),
    ],
)
def test_tables_that_cannot_be_used(table: np.ndarray, said: str) -> None:
    with pytest.raises(TableError, match=said):
        ampute_mnar(table)


@pytest.mark.parametrize("setting", [{"missing_rate": 0}, {"missing_rate": 1}, {"sign": 0}, {"sign": "+"}])
def test_bad_settings_are_named(setting: dict) -> None:
    with pytest.raises(ConfigError, match=next(iter(setting))):
        ampute_mnar(X, **setting)


def test_hide_puts_nan_where_not_observed() -> None:
    table = np.arange(6).reshape(2, 3)
    observed = np.array([[True, False, True], [False, True, True]])
    hidden = hide(table, observed)
    assert hidden.dtype == np.float64
    np.testing.assert_array_equal(hidden, [[0, np.nan, 2], [np.nan, 4, 5]])
    np.testing.assert_array_equal(table, np.arange(6).reshape(2, 3))


def test_hide_refuses_other_shapes_and_integer_masks() -> None:
    with pytest.raises(TableError, match=r"\(2, 2\)"):
        hide(np.ones((2, 2)), np.ones((2, 3), bool))
    with pytest.raises(TableError, match="mask == 1"):
        hide(np.ones((2, 2)), np.ones((2, 2), int))
