"""The paper's face: its example, what it promises about tables and seeds, and what it refuses."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import yaml
from numpy.typing import NDArray

from missbgm import MissBGM, MissBGMWarning
from missbgm.datasets import simulate_mnar_oracle_data
from missbgm.errors import ConfigError, NotFittedError, TableError
from missbgm.sample import posterior

# Few sweeps suffice for what is promised here, and chains that short are rightly warned about.
pytestmark = pytest.mark.filterwarnings("ignore:The chains did not mix well")

Array = NDArray[Any]
EXAMPLE = Path(__file__).parents[1] / "configs" / "MNAR_oracle.yaml"
N, P = 30, 6
# Small, and alike in what shapes the compiled programs, so that most tests share them.
SMALL: dict[str, Any] = {
    "z_dim": 2,
    "g_units": [8],
    "missingness_units": [4],
    "epochs": 3,
    "n_inner_steps": 2,
    "test_epochs": 4,
    "egm_init": {"n_iter": 5, "e_units": [8], "dz_units": [4], "dx_units": [4]},
    "posterior": {"n_mcmc": 30, "burn_in": 20},
}
LINEAR = {"g_units": [], "missingness_units": [], "egm_init": {"enabled": False}}


def settings(**changes: Any) -> dict[str, Any]:
    merged = dict(SMALL)
    for name, value in changes.items():
        merged[name] = {**merged[name], **value} if isinstance(value, Mapping) else value
    return merged


class Table(NamedTuple):
    truth: Array
    data: Array

    @property
    def mask(self) -> Array:
        return (~np.isnan(self.data)).astype(int)

    @property
    def missing(self) -> Array:
        return np.isnan(self.data)


def table(n: int = N, p: int = P, seed: int = 0) -> Table:
    """One factor, columns of different scales around 0, 100, 200, ..., one row with nothing observed."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((n, 1)) + 0.5 * rng.standard_normal((n, p))
    x = x * (1 + np.arange(p)) + 100 * np.arange(p)
    missing = rng.random((n, p)) < 0.3
    missing[n // 2], missing[0], missing[-1] = True, False, False
    return Table(x, np.where(missing, np.nan, x))


TABLE, OTHER = table(), table(seed=1)


def fit(data: Any = None, seed: int = 0, params: Any = None, **given: Any) -> MissBGM:
    data = TABLE.data if data is None else data
    return MissBGM(settings() if params is None else params, random_seed=seed).fit(data, **given)


@pytest.fixture(scope="module")
def model() -> MissBGM:
    """Fitted, and never fitted again."""
    return fit()


@pytest.fixture(scope="module")
def answer(model: MissBGM) -> tuple[Array, Array]:
    return model.predict()


def same_bits(a: Array, b: Array) -> bool:
    return np.array_equal(np.asarray(a, float).view(np.uint64), np.asarray(b, float).view(np.uint64))


# The paper's example


def test_the_papers_example_runs_word_for_word() -> None:
    params = yaml.safe_load(EXAMPLE.read_text()) | settings()
    data = simulate_mnar_oracle_data(n_samples=N, x_dim=P)
    model = MissBGM(params, random_seed=42)
    model.fit(data=data["x_obs"], mask=data["mask"], x_true=data["x_full"])
    map_imputed = model.x_map_imputed_
    mcmc_imputed, intervals = model.predict(
        data=data["x_obs"], mask=data["mask"], x_true=data["x_full"], alpha=0.05
    )
    missing = data["mask"] == 0
    assert map_imputed.shape == mcmc_imputed.shape == (N, P)
    assert intervals.shape == (missing.sum(), 2)
    for completed in (map_imputed, mcmc_imputed):
        np.testing.assert_array_equal(completed[~missing], data["x_obs"][~missing])
        assert np.isfinite(completed).all()
    assert model.status_ == "finished"
    assert model.history_["rmse"].shape == (3,)


def test_the_mask_and_the_truth_may_be_none(model: MissBGM, answer: Any) -> None:
    given = MissBGM(settings()).fit(data=TABLE.data, mask=None, x_true=None)
    assert same_bits(given.x_map_imputed_, model.x_map_imputed_)
    assert "rmse" not in given.history_
    completed, intervals = given.predict(data=TABLE.data, mask=None, x_true=None)
    assert same_bits(completed, answer[0])
    assert same_bits(intervals, answer[1])
    assert not hasattr(given, "evaluation_")


def test_a_mask_hides_the_values_it_calls_missing(model: MissBGM) -> None:
    for mask in (TABLE.mask, TABLE.mask.astype(bool), TABLE.mask.tolist(), TABLE.mask.astype(float)):
        hidden = fit(TABLE.truth, mask=mask)
        assert same_bits(hidden.x_map_imputed_, model.x_map_imputed_)


def test_settings_come_as_a_mapping_a_config_or_a_file(model: MissBGM, tmp_path: Path) -> None:
    path = tmp_path / "settings.yaml"
    path.write_text(model.config.to_yaml())
    for params in (model.config, path, str(path)):
        assert MissBGM(params).config == model.config
    assert same_bits(fit(params=model.config).x_map_imputed_, model.x_map_imputed_)


# What is answered


def test_intervals_are_one_a_missing_cell_in_the_order_of_argwhere(answer: Any) -> None:
    completed, intervals = answer
    cells = np.argwhere(TABLE.mask == 0)
    assert completed.shape == (N, P)
    assert intervals.shape == (len(cells), 2)
    assert (intervals[:, 0] < intervals[:, 1]).all()
    # Columns are 100 apart and intervals far narrower.
    np.testing.assert_array_equal(np.round(intervals.mean(axis=1) / 100), cells[:, 1])
    np.testing.assert_array_equal(np.round(completed[tuple(cells.T)] / 100), cells[:, 1])


def test_intervals_and_points_are_quantiles_and_moments_of_the_draws(model: MissBGM) -> None:
    for alpha in (0.1, 0.5):
        completed, intervals = model.predict(alpha=alpha, point="median")
        draws = model.draws_.values
        expected = np.quantile(draws, [alpha / 2, 1 - alpha / 2], axis=0).T
        np.testing.assert_allclose(intervals, expected, rtol=1e-9)
        np.testing.assert_allclose(completed[TABLE.missing], np.median(draws, axis=0), rtol=1e-9)
    completed, _ = model.predict()
    np.testing.assert_allclose(completed[TABLE.missing], draws.mean(axis=0), rtol=1e-6, atol=1e-5)


def test_the_level_of_intervals_is_that_of_the_settings_unless_given() -> None:
    wide = fit(params=settings(posterior={"alpha": 0.5}))
    assert same_bits(wide.predict()[1], fit().predict(alpha=0.5)[1])


def test_modes_are_plausible_and_nearer_to_the_truth_than_the_mean(model: MissBGM) -> None:
    scaled = (model.x_map_imputed_ - TABLE.truth) / (1 + np.arange(P))
    means = (np.nanmean(TABLE.data, axis=0) - TABLE.truth) / (1 + np.arange(P))
    assert np.sqrt(np.mean(scaled[TABLE.missing] ** 2)) < 0.8 * np.sqrt(np.mean(means[TABLE.missing] ** 2))


def test_the_error_of_each_epoch_is_logged_when_the_truth_is_given() -> None:
    model = fit(x_true=TABLE.truth)
    errors = (model.x_map_imputed_ - TABLE.truth)[TABLE.missing]
    assert model.history_["rmse"][-1] == pytest.approx(np.sqrt(np.mean(errors**2)), rel=1e-12)
    assert all(len(terms) == 3 for terms in model.history_.values())
    assert all(len(losses) == 5 for losses in model.warm_history_.values())


def test_predictions_are_evaluated_when_the_truth_is_given(model: MissBGM, answer: Any) -> None:
    completed, intervals = model.predict(x_true=TABLE.truth)
    hidden = TABLE.truth[TABLE.missing]
    inside = [low <= value <= high for value, (low, high) in zip(hidden, intervals, strict=True)]
    expected = {
        "rmse": np.sqrt(np.mean((completed[TABLE.missing] - hidden) ** 2)),
        "coverage": np.mean(inside),
        "width": np.mean(intervals[:, 1] - intervals[:, 0]),
    }
    assert model.evaluation_ == pytest.approx(expected)
    assert same_bits(completed, answer[0])


# New tables


@pytest.fixture
def moves(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Row counts of the tables that were moved to a mode."""
    seen: list[int] = []
    original = posterior.moved_to_mode

    def counted(fitted: Any, inverse: Any, rows: Any, config: Any) -> Any:
        seen.append(len(rows.z))
        return original(fitted, inverse, rows, config)

    monkeypatch.setattr(posterior, "moved_to_mode", counted)
    return seen


def test_the_fitted_state_is_reused_for_the_fitted_table_only(
    model: MissBGM, answer: Any, moves: list[int]
) -> None:
    assert same_bits(model.predict(TABLE.data.copy())[0], answer[0])
    assert same_bits(model.impute(TABLE.truth, TABLE.mask), model.x_map_imputed_)
    assert moves == []
    model.predict(OTHER.data)
    changed = TABLE.data.copy()
    changed[0, 0] += 1e-9
    model.impute(changed)
    assert moves == [N, N]


def test_a_new_table_is_imputed_without_moving_what_was_fitted(model: MissBGM, answer: Any) -> None:
    before = model.x_map_imputed_.copy()
    completed, intervals = model.predict(OTHER.data)
    assert intervals.shape == (OTHER.missing.sum(), 2)
    assert np.isfinite(completed).all()
    np.testing.assert_array_equal(completed[~OTHER.missing], OTHER.data[~OTHER.missing])
    np.testing.assert_array_equal(np.round(intervals.mean(axis=1) / 100), np.argwhere(OTHER.missing)[:, 1])
    assert same_bits(model.x_map_imputed_, before)
    assert same_bits(model.predict()[0], answer[0])


def test_modes_of_a_new_table_are_those_of_its_rows_whatever_their_order(model: MissBGM) -> None:
    order = np.random.default_rng(0).permutation(N)
    whole, permuted = model.impute(OTHER.data), model.impute(OTHER.data[order])
    # Rows are moved by the same arithmetic; only sums may be taken in another order.
    np.testing.assert_allclose(permuted, whole[order], rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(model.impute(OTHER.data[3:12]), whole[3:12], rtol=1e-4, atol=1e-4)


def test_permuting_rows_permutes_the_fitted_modes() -> None:
    """Up to where training can have moved them.

    Both start from the same neighbours. Adam moves a cell by at most about its rate a step, here six steps of
    0.002 standard deviations each way; rows out of place would differ by about a standard deviation.
    """
    order = np.random.default_rng(0).permutation(N)
    whole, permuted = fit().x_map_imputed_, fit(TABLE.data[order]).x_map_imputed_
    apart = (permuted - whole[order]) / np.nanstd(TABLE.data, axis=0)
    assert np.abs(apart).max() < 2 * 6 * 0.002 * 1.5


# Observed cells


def test_observed_cells_are_unchanged_bit_for_bit_in_every_output() -> None:
    rng = np.random.default_rng(0)
    data = rng.standard_normal((N, P + 2))
    data[:, P] = 1e150  # constant
    data[:, P + 1] = 5e-324 * rng.integers(1, 9, size=N)  # varies by less than can be squared
    data[:6, 0] = [-0.0, 5e-324, 1e-310, -1e100, 0.1, np.nextafter(1, 2)]
    data[6:12] = np.where(rng.random((6, P + 2)) < 0.4, np.nan, data[6:12])
    seen = ~np.isnan(data)
    model = fit(data)
    outputs = [model.x_map_imputed_, model.impute(data), model.impute(data[3:9]), model.predict()[0]]
    outputs += [model.predict(data[3:9])[0], model.draws_.complete(0)]
    for output in outputs:
        rows = slice(3, 9) if len(output) == 6 else slice(None)
        assert same_bits(output[seen[rows]], data[rows][seen[rows]])
        assert np.isfinite(output).all()
    assert (model.x_map_imputed_[6:12, P] == 1e150).all()


def test_the_callers_arrays_are_left_alone() -> None:
    data, mask, truth = TABLE.truth.copy(), TABLE.mask.copy(), TABLE.truth.copy()
    model = fit(data, mask=mask, x_true=truth)
    completed, _ = model.predict(data, mask, x_true=truth)
    completed[:] = 0
    model.x_map_imputed_[:] = 0
    assert same_bits(data, TABLE.truth)
    assert same_bits(truth, TABLE.truth)
    np.testing.assert_array_equal(mask, TABLE.mask)
    assert same_bits(model.impute(data, mask), fit().x_map_imputed_)


# Seeds and the truth


def test_the_same_seed_gives_the_same_answer_and_another_another(model: MissBGM, answer: Any) -> None:
    again, other = fit(), fit(seed=1)
    assert same_bits(again.x_map_imputed_, model.x_map_imputed_)
    for a, b in zip(again.predict(), answer, strict=True):
        assert same_bits(a, b)
    missing = TABLE.missing
    assert (other.x_map_imputed_[missing] != model.x_map_imputed_[missing]).mean() > 0.9
    assert (other.predict()[0][missing] != answer[0][missing]).all()


def test_predicting_twice_gives_the_same_answer(model: MissBGM, answer: Any) -> None:
    assert same_bits(model.predict()[0], answer[0])
    assert same_bits(model.predict(TABLE.data)[1], answer[1])


@pytest.mark.parametrize("stopping", [{}, {"patience": 1, "tolerance": 0.5}])
def test_the_truth_never_alters_a_fit(stopping: Mapping[str, Any]) -> None:
    params = settings() | {"early_stopping": stopping}
    blind, seeing = fit(params=params), fit(params=params, x_true=TABLE.truth)
    lying = fit(params=params, x_true=1e6 - TABLE.truth)
    for other in (seeing, lying):
        assert same_bits(other.x_map_imputed_, blind.x_map_imputed_)
        assert other.status_ == blind.status_
        assert {k: v.tolist() for k, v in other.history_.items() if k != "rmse"} == {
            k: v.tolist() for k, v in blind.history_.items()
        }
        for a, b in zip(other.predict(x_true=TABLE.truth), blind.predict(), strict=True):
            assert same_bits(a, b)


def test_early_stopping_is_reported() -> None:
    model = fit(params=settings() | {"early_stopping": {"patience": 1, "tolerance": 0.9}})
    assert model.status_ == "stopped early"
    assert len(model.history_["objective"]) == 2


# Kinds of columns


@pytest.fixture(scope="module")
def survey() -> Table:
    """Continuous, yes or no (coded 1 and 2), one of three (coded 10, 20 and 30), continuous."""
    rng = np.random.default_rng(0)
    z = rng.standard_normal(N)
    columns = [z + 0.3 * rng.standard_normal(N), 1 + (z > 0), 20 + 10 * np.digitize(z, [-0.5, 0.5]) - 10]
    truth = np.column_stack([*columns, rng.standard_normal(N)])
    missing = rng.random(truth.shape) < 0.3
    missing[:3] = False
    return Table(truth, np.where(missing, np.nan, truth))


KINDS = ["gaussian", "bernoulli", "categorical", "gaussian"]


@pytest.fixture(scope="module")
def surveyed(survey: Table) -> MissBGM:
    return fit(survey.data, params=settings(**LINEAR), kinds=KINDS)


def test_discrete_columns_are_completed_by_their_own_values(surveyed: MissBGM, survey: Table) -> None:
    completed, intervals = surveyed.predict(point="mean")
    for output in (surveyed.x_map_imputed_, completed, surveyed.impute(survey.data[5:20])):
        assert set(output[:, 1]) <= {1, 2}
        assert set(output[:, 2]) <= {10, 20, 30}
    levels = np.isin(intervals, [1, 2, 10, 20, 30])
    columns = np.argwhere(survey.missing)[:, 1]
    assert levels[np.isin(columns, [1, 2])].all()
    assert not levels[np.isin(columns, [0, 3])].any()
    assert (np.isin(surveyed.draws_.values[:, columns == 2], [10, 20, 30])).all()


def test_kinds_may_be_named_by_column_alone(surveyed: MissBGM, survey: Table) -> None:
    named = fit(survey.data, params=settings(**LINEAR), kinds={2: "categorical", 1: "bernoulli"})
    assert same_bits(named.x_map_imputed_, surveyed.x_map_imputed_)


def test_a_class_never_seen_in_fitting_is_refused(surveyed: MissBGM, survey: Table) -> None:
    data = survey.data.copy()
    data[0, 2] = 40
    with pytest.raises(TableError, match=r"column 2 holds \[40.0\], never seen when the model was fitted"):
        surveyed.predict(data)


@pytest.mark.parametrize(
    ("kinds", "words"),
    [
        (["gaussian"], f"kinds must name {P} columns; got 1"),
        ({P: "bernoulli"}, f"kinds must give columns 0 to {P - 1} one of gaussian, bernoulli, categorical"),
        ({0: "poisson"}, "got 0: 'poisson'"),
    ],
)
def test_kinds_that_make_no_sense_are_refused(kinds: Any, words: str) -> None:
    with pytest.raises(TableError, match=words):
        fit(kinds=kinds)


# Tables of odd shapes


@pytest.mark.parametrize(
    ("n", "p"),
    [
        pytest.param(N, 1, id="one column"),
        pytest.param(N, 2, id="two columns"),
        pytest.param(5, 12, id="more columns than rows, fewer rows than a batch"),
    ],
)
def test_tables_of_odd_shapes_are_completed(n: int, p: int) -> None:
    given = table(n, p)
    model = fit(given.data, params=settings(**LINEAR))
    completed, intervals = model.predict()
    for output in (completed, model.x_map_imputed_):
        np.testing.assert_array_equal(output[~given.missing], given.data[~given.missing])
        assert np.isfinite(output).all()
        low, high = np.nanmin(given.data, axis=0), np.nanmax(given.data, axis=0)
        assert ((output > low - 5 * (high - low)) & (output < high + 5 * (high - low))).all()
    assert intervals.shape == (given.missing.sum(), 2)
    assert (intervals[:, 0] < intervals[:, 1]).all()


def test_a_row_with_nothing_observed_is_completed_near_the_means(model: MissBGM, answer: Any) -> None:
    assert np.isnan(TABLE.data[N // 2]).all()
    apart = (answer[0][N // 2] - np.nanmean(TABLE.data, axis=0)) / np.nanstd(TABLE.data, axis=0)
    assert (np.abs(apart) < 1.5).all()
    assert np.isfinite(model.x_map_imputed_[N // 2]).all()


def test_a_table_with_no_missing_cell_comes_back_as_it_is() -> None:
    model = fit(TABLE.truth, x_true=TABLE.truth)
    completed, intervals = model.predict(x_true=TABLE.truth)
    assert same_bits(model.x_map_imputed_, TABLE.truth)
    assert same_bits(completed, TABLE.truth)
    assert intervals.shape == (0, 2)
    assert model.history_["rmse"].tolist() == [0, 0, 0]
    assert model.evaluation_["rmse"] == 0
    assert np.isnan(model.evaluation_["coverage"])
    assert model.check_.verdict == "Nothing to check: no missing cell was drawn."
    assert np.isfinite(model.predict(OTHER.data)[0]).all()


def test_a_constant_column_is_completed_by_its_constant() -> None:
    data = np.column_stack([TABLE.data, np.full(N, 7.5)])
    data[4:9, P] = np.nan
    model = fit(data)
    completed, intervals = model.predict()
    assert (model.x_map_imputed_[:, P] == 7.5).all()
    assert (completed[:, P] == 7.5).all()
    assert (intervals[np.argwhere(np.isnan(data))[:, 1] == P] == 7.5).all()
    # It says nothing about the others.
    assert same_bits(model.x_map_imputed_[:, :P], fit().x_map_imputed_)


@pytest.mark.parametrize("n", [1, 4])
def test_a_table_in_which_nothing_varies_needs_no_model(n: int) -> None:
    data = np.tile([3.0, -1.0], (n, 1))
    data[1:, 1] = np.nan
    model = fit(data)
    completed, intervals = model.predict()
    np.testing.assert_array_equal(completed, np.tile([3, -1], (n, 1)))
    np.testing.assert_array_equal(intervals, np.tile([-1.0], (n - 1, 2)))
    assert same_bits(model.x_map_imputed_, completed)
    assert model.status_ == "finished"
    assert model.history_ == {}


def test_no_epochs_leave_the_warm_start() -> None:
    model = fit(params=settings() | {"epochs": 0})
    assert model.status_ == "finished"
    assert model.history_["objective"].shape == (0,)
    assert np.isfinite(model.x_map_imputed_).all()


def test_anything_that_looks_like_a_table_of_numbers_will_do(model: MissBGM) -> None:
    assert same_bits(fit(TABLE.data.tolist()).x_map_imputed_, model.x_map_imputed_)
    none = np.where(TABLE.missing, None, TABLE.data.astype(object))
    assert same_bits(fit(none).x_map_imputed_, model.x_map_imputed_)
    np.testing.assert_array_equal(
        fit(TABLE.truth.astype(object), mask=TABLE.mask).x_map_imputed_, model.x_map_imputed_
    )


# What is refused

NUMBERS = np.array([[1.0, 2.0], [3.0, np.nan], [5.0, 4.0]])
INFINITE = np.array([[1.0, 2.0], [3.0, np.inf], [-np.inf, 4.0]])
REFUSED = {
    "text": (lambda m: m.fit([["a", 1.0], [2.0, 3.0]]), TableError, "data must hold numbers, with NaN"),
    "ragged": (lambda m: m.fit([[1.0], [2.0, 3.0]]), TableError, "data must hold numbers, with NaN"),
    "one dimension": (lambda m: m.fit([1.0, 2.0]), TableError, r"rows by columns.*got shape \(2,\)"),
    "three dimensions": (lambda m: m.fit(np.ones((2, 2, 2))), TableError, r"got shape \(2, 2, 2\)"),
    "no rows": (lambda m: m.fit(np.ones((0, 3))), TableError, r"at least one of each; got shape \(0, 3\)"),
    "infinite": (
        lambda m: m.fit(INFINITE),
        TableError,
        "data has 2 infinite cells, the first in row 1, column 1; give a finite number, or NaN",
    ),
    "mask of another shape": (
        lambda m: m.fit(NUMBERS, mask=np.ones((2, 2))),
        TableError,
        r"mask must have the shape of data, \(3, 2\); got \(2, 2\)",
    ),
    "mask of other numbers": (
        lambda m: m.fit(NUMBERS, mask=np.full((3, 2), 2)),
        TableError,
        r"mask must hold 1 \(observed\) and 0 \(missing\) only",
    ),
    "mask that disagrees": (
        lambda m: m.fit(NUMBERS, mask=np.ones((3, 2))),
        TableError,
        r"mask says 1 \(observed\) for 1 cells of data that are NaN, the first in row 1, column 1.*1 - mask",
    ),
    "column with nothing observed": (
        lambda m: m.fit(np.where([[True, False]], NUMBERS, np.nan)),
        TableError,
        r"columns \[1\] have no observed cell.*drop them before fitting",
    ),
    "nothing observed": (
        lambda m: m.fit(np.full((2, 2), np.nan)),
        TableError,
        r"columns \[0, 1\] have no observed cell",
    ),
    "truth of another shape": (
        lambda m: m.fit(NUMBERS, x_true=np.ones((2, 2))),
        ConfigError,
        r"x_true must have the shape of data, \(3, 2\); got \(2, 2\)",
    ),
    "truth of text": (
        lambda m: m.fit(NUMBERS, x_true=[["a", "b"]] * 3),
        TableError,
        "x_true must hold numbers",
    ),
    "predict before fit": (
        lambda m: m.predict(NUMBERS),
        NotFittedError,
        r"has not been fitted; call fit\(data\) first",
    ),
    "impute before fit": (
        lambda m: m.impute(NUMBERS),
        NotFittedError,
        r"has not been fitted; call fit\(data\) first",
    ),
}


@pytest.mark.parametrize(("act", "error", "words"), REFUSED.values(), ids=REFUSED.keys())
def test_what_cannot_be_used_is_refused_in_words(
    act: Callable[[MissBGM], Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        act(MissBGM(settings()))


def test_a_table_of_other_columns_is_refused_after_fitting(model: MissBGM) -> None:
    words = f"fitted to {P} columns, and this table has {P - 1}; pass the same columns in the same order"
    for ask in (model.predict, model.impute):
        with pytest.raises(TableError, match=words):
            ask(TABLE.data[:, 1:])


def test_a_truth_of_another_shape_is_refused_when_predicting(model: MissBGM) -> None:
    with pytest.raises(ConfigError, match="x_true must have the shape of data"):
        model.predict(x_true=TABLE.truth[1:])


@pytest.mark.parametrize(("alpha", "words"), [(0.0, "alpha must be between 0 and 1"), (1.5, "got 1.5")])
def test_levels_out_of_range_are_refused(model: MissBGM, alpha: float, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        model.predict(alpha=alpha)


def test_unknown_points_are_refused(model: MissBGM) -> None:
    with pytest.raises(ConfigError, match="point must be one of mean, median, mode, got 'best'"):
        model.predict(point="best")


@pytest.mark.parametrize(
    ("params", "words"),
    [
        ({"z_dim": 0}, "z_dim must be an integer of at least 1, got 0"),
        ({"batch_size": -4}, "batch_size must be an integer of at least 1, got -4"),
        ({"lr_x": 0}, "lr_x must be a finite number above 0, got 0"),
        ({"beta": -0.1}, "beta must be a finite number of at least 0, got -0.1"),
        ({"posterior": {"n_mcmc": 0}}, "posterior.n_mcmc must be an integer of at least 1, got 0"),
        ({"epoch": 3}, "unknown setting 'epoch'; did you mean 'epochs'"),
    ],
)
def test_settings_out_of_range_are_refused_when_they_are_given(params: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        MissBGM(params)


@pytest.mark.parametrize("seed", [-1, 1.5, True, "0", None, 2**63])
def test_seeds_are_whole_numbers_from_zero(seed: Any) -> None:
    with pytest.raises(ConfigError, match="random_seed must be an integer from 0 to"):
        MissBGM(random_seed=seed)


def test_numpys_integers_are_seeds_too() -> None:
    assert MissBGM(random_seed=np.int64(3)).random_seed == 3


# Numerical trouble


@pytest.mark.parametrize("change", [{"lr_theta": 1e6}, {"lr_z": 1e20}, {"lr_x": 1e30}])
def test_divergence_is_a_status_and_a_warning_that_says_what_to_change(change: Mapping[str, float]) -> None:
    with pytest.warns(MissBGMWarning, match="training diverged.*lower lr_theta, lr_phi, lr_z or lr_x"):
        model = fit(params=settings(epochs=30) | change)
    assert model.status_ == "diverged"
    completed, intervals = model.predict()
    for output in (model.x_map_imputed_, completed, intervals, *model.history_.values()):
        assert np.isfinite(output).all()
    np.testing.assert_array_equal(completed[~TABLE.missing], TABLE.data[~TABLE.missing])


def test_a_warm_start_that_diverges_is_skipped_with_a_warning() -> None:
    with pytest.warns(MissBGMWarning, match=r"warm start diverged and was skipped; lower egm_init.lr"):
        model = fit(params=settings(egm_init={"lr": 1e30}))
    assert model.status_ == "finished"
    assert model.warm_history_ == {}
    assert np.isfinite(model.x_map_imputed_).all()


def test_chains_that_did_not_mix_are_warned_about(model: MissBGM) -> None:
    with pytest.warns(MissBGMWarning, match="The chains did not mix well.*Raise posterior.burn_in"):
        model.predict()
    assert not model.check_.mixed


def test_one_wild_cell_does_not_spoil_the_others() -> None:
    data = TABLE.data.copy()
    data[0, 0] = 1e30
    model = fit(data)
    completed, intervals = model.predict()
    for output in (model.x_map_imputed_, completed, intervals):
        assert np.isfinite(output).all()
    assert completed[0, 0] == 1e30
