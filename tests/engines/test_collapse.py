"""The engine with integrated missing cells from the face: answers, refusals, words, cards, refits."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from missbgm import Config, MissBGM, MissBGMWarning
from missbgm.datasets import simulate_mnar_oracle_data
from missbgm.errors import ConfigError, TableError

Array = NDArray[Any]
SMALL: dict[str, Any] = {
    "engine": "collapse",
    "z_dim": 2,
    "posterior": {"n_mcmc": 60},
    "collapse": {"n_iter": 60, "n_fold_iter": 40, "n_proposals": 30, "n_refits": 3},
}


def settings(**changes: Any) -> dict[str, Any]:
    merged = dict(SMALL)
    for name, value in changes.items():
        merged[name] = {**merged.get(name, {}), **value} if name in ("posterior", "collapse") else value
    return merged


def table(n: int = 120, p: int = 6, seed: int = 0) -> tuple[Array, Array]:
    """Two factors, columns of different scales; column 0 is complete, large values of others go missing."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((n, 2)) @ rng.standard_normal((2, p)) + 0.5 * rng.standard_normal((n, p))
    missing = rng.random((n, p)) < stats.norm.cdf(x - 1)
    missing[:, 0], missing[0], missing[1, 1:] = False, False, True
    x = x * (1 + np.arange(p)) + 10 * np.arange(p)
    return x, np.where(missing, np.nan, x)


TRUTH, DATA = table()
MISSING = np.isnan(DATA)


def fit(data: Any = DATA, seed: int = 0, **changes: Any) -> MissBGM:
    return MissBGM(settings(**changes), random_seed=seed).fit(data, verbose=0)


@pytest.fixture(scope="module")
def model() -> MissBGM:
    return fit()


# What the face promises


def test_observed_cells_come_back_bit_for_bit(model: MissBGM) -> None:
    completed, intervals = model.predict(verbose=0)
    for filled in (model.x_map_imputed_, completed, model.draws_.complete(0), model.impute(DATA)):
        np.testing.assert_array_equal(filled[~MISSING], DATA[~MISSING])
        assert np.isfinite(filled).all()
    assert intervals.shape == (MISSING.sum(), 2)
    assert (intervals[:, 0] < intervals[:, 1]).all()


def test_the_same_seed_gives_the_same_answer_and_another_another(model: MissBGM) -> None:
    again, other = fit(), fit(seed=1)
    np.testing.assert_array_equal(again.x_map_imputed_, model.x_map_imputed_)
    np.testing.assert_array_equal(again.predict(verbose=0)[0], model.predict(verbose=0)[0])
    assert not np.array_equal(other.x_map_imputed_, model.x_map_imputed_)


def test_the_truth_decides_nothing(model: MissBGM) -> None:
    told = MissBGM(settings()).fit(DATA, x_true=TRUTH + 1e6, verbose=0)
    np.testing.assert_array_equal(told.x_map_imputed_, model.x_map_imputed_)
    model.predict(x_true=TRUTH, verbose=0)
    assert set(model.evaluation_) == {"rmse", "coverage", "width"}


def test_the_point_estimate_is_near_the_mean_of_draws(model: MissBGM) -> None:
    completed, _ = model.predict(verbose=0)
    spread = model.draws_.sd()
    error = (model.x_map_imputed_ - completed)[MISSING] / spread
    assert np.sqrt(np.mean(error**2)) < 0.5
    blind = np.where(MISSING, np.nanmean(DATA, axis=0), DATA)
    assert np.std((completed - TRUTH)[MISSING]) < np.std((blind - TRUTH)[MISSING])


def test_a_row_is_drawn_alike_with_and_without_the_others(model: MissBGM) -> None:
    row = int(np.flatnonzero(MISSING.any(axis=1))[5])
    others = np.where(np.arange(len(DATA))[:, None] == row, DATA, TRUTH)
    model.predict(verbose=0)
    cells = model.draws_.index[:, 0] == row
    together = model.draws_.values[:, cells]
    model.predict(others, verbose=0)
    np.testing.assert_allclose(model.draws_.values, together, rtol=1e-4, atol=1e-4)


def test_history_and_status(model: MissBGM) -> None:
    assert model.status_ == "finished"
    assert len(model.history_["objective"]) == 60
    assert model.check_.verdict.startswith("Rows were drawn by weighted proposals")


def test_new_rows_are_answered_by_the_fitted_model(model: MissBGM) -> None:
    new = TRUTH[:5].copy()
    new[:, 0] = np.nan  # never missing in the fit
    new[4] = np.nan
    for filled in (model.impute(new), model.predict(new, verbose=0)[0]):
        assert np.isfinite(filled).all()
        np.testing.assert_array_equal(filled[:4, 1:], new[:4, 1:])


def test_log_probabilities_of_rows_are_in_the_units_of_the_table(model: MissBGM) -> None:
    """A table in units a thousand times smaller has densities a thousand times larger, cell by cell."""
    found = model.log_prob()
    assert found.shape == (len(DATA),)
    np.testing.assert_allclose(model.log_prob(DATA[:7]), found[:7], atol=1e-4)
    scaled = fit(1e-3 * DATA)
    expected = found + np.log(1e3) * (~MISSING).sum(axis=1)
    np.testing.assert_allclose(scaled.log_prob(), expected, atol=0.05)


@pytest.mark.parametrize("transform", ["raw", "yeo-johnson"])
def test_answers_move_with_the_columns_units(transform: str) -> None:
    units = np.array([1e-3, 1e3, 1, 10, 5, 0.1])
    one = fit(missingness="mcar", collapse={"transform": transform})
    other = fit(DATA * units + 7, missingness="mcar", collapse={"transform": transform})
    spread = np.nanstd(DATA, axis=0)
    np.testing.assert_allclose(
        other.x_map_imputed_, one.x_map_imputed_ * units + 7, atol=0.02 * (spread * units).max()
    )


# Mechanisms


@pytest.mark.parametrize("name", ["mcar", "ignorable", "selfmask", "selection"])
def test_a_named_mechanism_is_taken(name: str) -> None:
    model = fit(missingness=name)
    summary = model.summary()
    assert f"- {name}, column 1" in summary
    assert "as named in the settings" in summary
    assert "column 0" not in summary


def test_a_mechanism_for_each_column() -> None:
    names = list("abcdef")
    wanted = {"b": "selfmask", "2": "mcar", "d": "selection"}
    model = MissBGM(settings(missingness=wanted)).fit(DATA, names=names, verbose=0)
    summary = model.summary()
    for line in ("- selfmask, b:", "- mcar, c:", "- selection, d:", "- ignorable, e, f:"):
        assert line in summary


@pytest.mark.parametrize("transform", ["raw", "yeo-johnson"])
@pytest.mark.parametrize("side", ["below", "above"])
def test_cells_beyond_a_known_limit_are_drawn_beyond_it(side: str, transform: str) -> None:
    rng = np.random.default_rng(3)
    x = rng.standard_normal((150, 1)) + 0.6 * rng.standard_normal((150, 4))
    x[:, 1] = np.exp(x[:, 1])
    limit = float(np.quantile(x[:, 1], 0.3 if side == "below" else 0.7))
    gone = x[:, 1] < limit if side == "below" else x[:, 1] > limit
    data = x.copy()
    data[gone, 1] = np.nan
    data[:10, 2] = np.nan
    chosen = {"missingness": {"1": f"{side}({limit!r})"}, "collapse": {"transform": transform}}
    model = fit(data, **chosen)
    model.predict(verbose=0)
    drawn = model.draws_.values[:, model.draws_.index[:, 1] == 1]
    beyond = drawn < limit + 1e-5 if side == "below" else drawn > limit - 1e-5
    assert beyond.all()
    assert (
        f"{side}({limit:g}), column 1: cells are missing exactly where the value is {side} {limit:g}"
        in model.summary()
    )
    card = model.mechanism_card(1)
    inside = card.value < limit if side == "below" else card.value > limit
    np.testing.assert_array_equal(card.probability, inside.astype(float))


def test_an_observed_cell_beyond_its_limit_is_refused() -> None:
    with pytest.raises(
        TableError, match=r"column 1 is said to be missing exactly below 100, but \d+ of its observed"
    ):
        fit(missingness={"1": "below(100)"})


def test_new_rows_beyond_a_limit_are_refused() -> None:
    low = float(np.nanmin(DATA[:, 1])) - 1
    model = fit(missingness={"1": f"below({low!r})"})
    new = TRUTH[:4].copy()
    new[0, 1] = low - 1
    for ask in (model.impute, model.log_prob):
        with pytest.raises(TableError, match="correct the limit, or hide these cells"):
            ask(new)


def test_a_cut_is_found_and_fills_what_was_cut() -> None:
    """The paper's benchmark in small: only a selection on residuals explains it, and the oracle is known."""
    data = simulate_mnar_oracle_data(400, 24, missing_rate=0.4, seed=11)
    model = MissBGM(
        settings(z_dim=5, posterior={"n_mcmc": 100}, collapse={"n_iter": 300, "n_fold_iter": 120})
    )
    model.fit(data["x_obs"], verbose=0).predict(x_true=data["x_full"], verbose=0)
    hidden = data["x_full"][data["mask"] == 0]
    oracle = np.sqrt(np.mean((data["oracle_mean"] - hidden) ** 2))
    assert model.evaluation_["rmse"] < 1.05 * oracle
    assert 0.92 < model.evaluation_["coverage"] < 0.98
    summary = model.summary()
    assert "- selection, column 5" in summary
    assert "chosen by held-out rows" in summary
    card = model.mechanism_card(7)
    assert card.probability[-1] > 0.9
    assert card.probability[0] < 0.05
    assert card.mechanism == "selection"


def test_cells_missing_by_chance_are_not_taken_for_a_cut() -> None:
    data = simulate_mnar_oracle_data(300, 20, missing_rate=0.3, seed=12)
    rng = np.random.default_rng(0)
    x = data["x_full"]
    gone = rng.random(x.shape) < 0.3
    gone[:, :5] = False
    quick = settings(z_dim=5, collapse={"n_refits": 0})  # refits decide nothing
    summary = MissBGM(quick).fit(np.where(gone, np.nan, x), verbose=0).summary()
    assert "A selection on residuals was refused: " in summary
    assert "- selection" not in summary


# Several components


def clumped(n: int = 240, seed: int = 5) -> tuple[Array, Array]:
    """Three clumps of rows, far apart in other units than one; a seventh of the cells missing by chance."""
    rng = np.random.default_rng(seed)
    centre = np.array([[0, 0, 0, 0], [2, -2, 2, 0], [-2, 0, 2, 2]])[rng.integers(3, size=n)]
    x = 10 + 5 * (centre + 0.2 * rng.standard_normal((n, 4)))
    missing = rng.random(x.shape) < 0.15
    missing[:20] = False
    return x, np.where(missing, np.nan, x)


CLUMPED, HOLED = clumped()


@pytest.fixture(scope="module")
def several() -> MissBGM:
    return fit(HOLED, z_dim=1, missingness="mcar")


def components_of(model: MissBGM) -> int:
    choice = model._fit.choice
    return int(choice.fitted.model.size)


def test_a_table_of_clumps_gets_several_components_and_better_answers(several: MissBGM) -> None:
    assert components_of(several) >= 3
    one = fit(HOLED, z_dim=1, missingness="mcar", collapse={"components": 1})
    assert components_of(one) == 1
    hidden = np.isnan(HOLED)
    errors = [np.sqrt(np.mean((m.x_map_imputed_ - CLUMPED)[hidden] ** 2)) for m in (several, one)]
    assert errors[0] < 0.6 * errors[1]
    assert several.log_prob(CLUMPED).mean() > one.log_prob(CLUMPED).mean() + 1


def test_a_table_without_clumps_gets_one_component(model: MissBGM) -> None:
    assert components_of(model) == 1
    assert "components" not in model.summary()


def test_draws_from_several_components_cover_the_truth(several: MissBGM) -> None:
    """Of 140 cells or so, hence the width of the band; each cell's coverage is a coin of its own."""
    several.predict(x_true=CLUMPED, verbose=0)
    assert 0.85 < several.evaluation_["coverage"] <= 1
    error = (several.x_map_imputed_ - several.draws_.filled(several.draws_.point("mean")))[np.isnan(HOLED)]
    assert np.sqrt(np.mean((error / several.draws_.sd()) ** 2)) < 0.5


def test_refits_of_several_components_differ_and_are_reproducible(several: MissBGM) -> None:
    first, second, third = several._fit.refits
    assert first.size == components_of(several)
    assert not np.array_equal(first.bias, second.bias)
    assert not np.array_equal(second.bias, third.bias)
    again = fit(HOLED, z_dim=1, missingness="mcar")
    np.testing.assert_array_equal(again._fit.refits[2].bias, third.bias)
    np.testing.assert_array_equal(again.x_map_imputed_, several.x_map_imputed_)


def test_a_fixed_number_of_components_is_kept_and_told() -> None:
    fixed = fit(HOLED, z_dim=1, collapse={"components": 2, "n_refits": 0})
    summary = fixed.summary()
    assert "raw mcar, 2 components" in summary
    assert "yeo-johnson selfmask, 2 components" in summary
    assert "raw selection- " in summary  # one component
    assert "Density: a mixture of 2 linear components." in summary
    card = fixed.mechanism_card(2)
    assert ((card.probability >= 0) & (card.probability <= 1)).all()


# Words


def test_the_summary_says_what_is_assumed_and_never_that_it_was_found(model: MissBGM) -> None:
    summary = model.summary()
    assert summary.startswith("Assumed mechanism (chosen by held-out rows):")
    assert "This is an assumption, not a finding" in summary
    for candidate in (
        "raw mcar",
        "raw selfmask",
        "yeo-johnson ignorable",
        "raw selection-",
        "raw selection+",
    ):
        assert candidate in summary
    assert summary.count("assumed\n") == 1
    assert "spread over 3 refits" in summary
    assert "detect" not in summary.lower()


def test_without_refits_the_summary_says_that_draws_are_not_proper() -> None:
    model = fit(missingness="mcar", collapse={"n_refits": 0})
    assert "n_refits = 0: all draws share one estimate" in model.summary()
    card = model.mechanism_card(1)
    assert np.isnan(card.lower).all()
    assert "no band" in str(card)


def test_refits_make_imputations_of_a_short_table_differ_more() -> None:
    """Means over a column's missing cells: what its parameters are uncertain by is common to these cells."""
    variances = []
    for n_refits in (0, 10):
        chosen = {"n_refits": n_refits, "transform": "raw", "n_iter": 400, "components": 1}
        model = fit(DATA[:40], missingness="mcar", collapse=chosen, posterior={"n_mcmc": 400})
        model.predict(verbose=0)
        columns = model.draws_.index[:, 1]
        means = [model.draws_.values[:, columns == j].mean(axis=1) for j in np.unique(columns)]
        variances.append(np.array([np.var(m) for m in means]))
    ratio = variances[1] / variances[0]
    assert np.exp(np.log(ratio).mean()) > 1.1


@pytest.mark.parametrize("column", [0, 6, -1, "a", None])
def test_a_card_of_no_column_is_refused(model: MissBGM, column: Any) -> None:
    with pytest.raises(ConfigError, match=r"no mechanism was assumed|column must be an index from 0 to 5"):
        model.mechanism_card(column)


# Small and odd tables


def test_a_complete_table_needs_no_mechanism() -> None:
    model = fit(TRUTH)
    np.testing.assert_array_equal(model.x_map_imputed_, TRUTH)
    completed, intervals = model.predict(verbose=0)
    np.testing.assert_array_equal(completed, TRUTH)
    assert intervals.shape == (0, 2)
    assert "none: no cell is missing" in model.summary()


@pytest.mark.parametrize("n", [2, 10, 29])
def test_few_rows_are_answered_without_a_comparison(n: int) -> None:
    data = DATA[:n].copy()
    data[:, 1:][np.isnan(data[:, 1:])] = 1.0
    data[0, 3] = np.nan
    model = fit(data)
    assert np.isfinite(model.predict(verbose=0)[0]).all()
    assert "Nothing was compared: fewer than 30 rows cannot compare mechanisms" in model.summary()


@pytest.mark.parametrize(("p", "z_dim"), [(1, 3), (3, 12)])
def test_more_latent_dimensions_than_columns_do_no_harm(p: int, z_dim: int) -> None:
    data = DATA[:60, 1 : p + 1].copy()
    # Programs of twelve dimensions are long to compile: one of them.
    chosen = {"transform": "raw", "n_refits": 0, "components": int(z_dim > 3)}
    model = fit(data, z_dim=z_dim, missingness="mcar", collapse=chosen)
    assert model.status_ == "finished"
    assert np.isfinite(model.predict(verbose=0)[0]).all()
    assert np.isfinite(model.log_prob()).all()


def test_constant_columns_are_filled_with_their_value() -> None:
    data = np.column_stack([DATA, np.full(len(DATA), 3.0)])
    data[::7, 6] = np.nan
    model = fit(data)
    np.testing.assert_array_equal(model.x_map_imputed_[:, 6], 3.0)
    with pytest.raises(ConfigError, match="only one value"):
        model.mechanism_card(6)
    only = fit(data[:, 6:])
    np.testing.assert_array_equal(only.predict(verbose=0)[0], 3.0)
    assert "no column varies" in only.summary()
    np.testing.assert_array_equal(only.log_prob(), 0.0)


def test_a_wild_cell_does_not_spoil_the_others() -> None:
    data = DATA.copy()
    data[3, 0] = 1e30
    model = fit(data)
    assert np.isfinite(model.predict(verbose=0)[0]).all()


def test_a_fit_that_diverges_is_told() -> None:
    with pytest.warns(MissBGMWarning, match=r"the fit stopped being finite"):
        model = fit(missingness="mcar", collapse={"lr": 1e30, "transform": "raw", "n_refits": 0})
    assert model.status_ == "diverged"


# Refusals


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"missingness": "selfmask"}, "missingness: selfmask needs the missing cells integrated out"),
        ({"missingness": {"1": "mcar"}}, "missingness: 1: mcar needs the missing cells integrated out"),
        (
            {"engine": "collapse", "missingness": "network"},
            "missingness: network looks at whole completed rows",
        ),
        ({"engine": "collapse", "use_bnn": True}, "use_bnn is about networks"),
        ({"engine": "collapse", "standardize": False}, "works on standardised columns"),
    ],
)
def test_settings_that_contradict_one_another_are_refused(params: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        MissBGM(params)
    with pytest.raises(ConfigError, match=message):
        MissBGM(Config.from_dict(params))


@pytest.mark.parametrize("column", ["income", "6", "-1", "1.0"])
def test_an_unknown_column_is_refused(column: str) -> None:
    with pytest.raises(
        ConfigError, match=r"missingness names the column '.*', which the table does not have"
    ):
        fit(missingness={column: "mcar"})


@pytest.mark.parametrize("names", [list("abc"), list("aabcde")])
def test_names_must_be_one_a_column(names: list[str]) -> None:
    with pytest.raises(ConfigError, match="names must be 6 different names"):
        MissBGM(settings()).fit(DATA, names=names, verbose=0)


def test_the_papers_engine_has_words_but_no_card_and_no_likelihood() -> None:
    small = {
        "z_dim": 1,
        "epochs": 1,
        "g_units": [4],
        "missingness_units": [3],
        "egm_init": {"enabled": False},
    }
    model = MissBGM(small).fit(DATA[:20], verbose=0)
    assert "the paper's network with beta = 0.01" in model.summary()
    with pytest.raises(ConfigError, match="set engine to collapse for mechanism cards"):
        model.mechanism_card(1)
    with pytest.raises(ConfigError, match="set engine to collapse for it"):
        model.log_prob()


def test_cells_below_a_limit_lie_below_it_where_many_cells_are_at_the_lowest_value() -> None:
    """A crowded end bounds what is filled, but not in a column that is cut there."""
    rng = np.random.default_rng(0)
    data = rng.normal(size=(300, 1)) + 0.5 * rng.normal(size=(300, 4))
    data[:, 1] = np.round(data[:, 1])
    data[data[:, 1] < 0, 1] = np.nan
    assert (data[:, 1] == 0).mean() > 0.1
    collapse = {"transform": "raw", "components": 1, "n_refits": 0}
    found = fit(data, missingness={"1": "below(0)"}, collapse=collapse)
    found.predict(verbose=0)
    drawn = found.draws_.values
    assert (drawn < 0).all()
