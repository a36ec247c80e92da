"""Columns of every kind from the face of the engine with integrated missing cells."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from missbgm import MissBGM
from missbgm.errors import ConfigError, TableError

Array = NDArray[Any]
KINDS: dict[int, Any] = {2: "bernoulli", 3: "categorical", 4: "ordinal", 5: "count"}
SMALL: dict[str, Any] = {
    "engine": "collapse",
    "z_dim": 2,
    "posterior": {"n_mcmc": 100},
    "collapse": {"n_iter": 120, "n_fold_iter": 40, "n_proposals": 30, "n_refits": 2, "transform": "raw"},
}
LABELS = np.array([2.0, 3.0, 7.0])  # of the nominal column's classes


def table(n: int, seed: int = 0, rate: float = 0.25, n_factors: int = 2) -> tuple[Array, Array, Array]:
    """Factors behind two continuous columns and one of each kind; cells missing by chance."""
    rng = np.random.default_rng(seed)
    z = rng.standard_normal((n, n_factors))[:, [0, n_factors - 1]]
    x = np.empty((n, 6))
    x[:, :2] = 20 + 5 * (z + 0.4 * rng.standard_normal((n, 2)))
    x[:, 2] = np.where(1.5 * z[:, 0] + rng.logistic(size=n) > 0.5, 10, -10)
    utility = 1.5 * np.stack([z[:, 0], z[:, 1], -z[:, 0]], axis=1)
    x[:, 3] = LABELS[np.argmax(utility + rng.gumbel(size=(n, 3)), axis=1)]
    x[:, 4] = 1 + np.digitize(z[:, 1] + 0.6 * rng.standard_normal(n), [-1, 0, 1])
    x[:, 5] = rng.poisson(np.exp(0.8 + 0.5 * z[:, 0] - 0.3 * z[:, 1]))
    missing = rng.random(x.shape) < rate
    missing[:, 0], missing[0] = False, False
    return x, np.where(missing, np.nan, x), missing


TRUTH, DATA, MISSING = table(600)  # one shape for nearly all tests, so that little is compiled


def fit(data: Array = DATA, kinds: Any = None, **changes: Any) -> MissBGM:
    settings = {**SMALL, **changes}
    return MissBGM(settings).fit(data, kinds=KINDS if kinds is None else kinds, verbose=0)


@pytest.fixture(scope="module")
def model() -> MissBGM:
    return fit()


def test_a_mixed_table_is_completed_and_observed_cells_come_back_bit_for_bit(model: MissBGM) -> None:
    assert model.status_ == "finished"
    completed, intervals = model.predict(verbose=0)
    for filled in (model.x_map_imputed_, completed, model.draws_.complete(3), model.impute(DATA)):
        assert filled[~MISSING].tobytes() == DATA[~MISSING].tobytes()
        for j in (2, 3, 4):
            assert set(filled[:, j]) <= set(TRUTH[:, j])
        assert (filled[:, 5] >= 0).all()
        np.testing.assert_array_equal(filled[:, 5], np.floor(filled[:, 5]))
    assert np.isfinite(intervals).all()
    assert (model.draws_.sd() >= 0).all()


def test_the_same_seed_gives_the_same_answer(model: MissBGM) -> None:
    np.testing.assert_array_equal(fit().x_map_imputed_, model.x_map_imputed_)


def test_the_choice_is_made_and_told_for_every_column(model: MissBGM) -> None:
    summary = model.summary()
    for candidate in ("raw mcar", "raw ignorable", "raw selfmask", "raw selection-", "raw selection+"):
        assert candidate in summary
    assert "chosen by held-out rows" in summary


def test_a_card_of_classes_has_their_values(model: MissBGM) -> None:
    for column, levels in ((2, [-10, 10]), (3, LABELS), (4, [1, 2, 3, 4])):
        card = model.mechanism_card(column)
        np.testing.assert_array_equal(card.value, levels)
        assert ((card.probability > 0) & (card.probability < 1)).all()
        assert (card.lower <= card.upper).all()
        assert str(card).count("\n") == len(levels)
    assert model.mechanism_card(5).value[0] == 0


@pytest.fixture(scope="module")
def by_chance() -> MissBGM:
    model = fit(missingness="mcar")
    model.predict(verbose=0)
    return model


@pytest.mark.parametrize("name", ["ignorable", "selfmask"])
def test_named_mechanisms_are_taken_and_rows_have_a_likelihood(name: str) -> None:
    model = fit(missingness=name)
    assert f"- {name}, column 1" in model.summary()
    found = model.log_prob()
    assert np.isfinite(found).all()
    np.testing.assert_allclose(model.log_prob(DATA[:7]), found[:7], atol=1e-3)


def test_a_table_of_classes_alone_is_completed() -> None:
    """Accuracy beyond that of the commonest class, which columns without a factor behind them cannot have."""
    truth, data, missing = (a[:, 2:5] for a in table(600, n_factors=1))
    settings = {**SMALL["collapse"], "transform": "auto"}
    model = fit(data, ["bernoulli", "categorical", "ordinal"], missingness="mcar", collapse=settings)
    for j in range(3):
        cells = missing[:, j]
        levels, counts = np.unique(data[~cells, j], return_counts=True)
        commonest = np.mean(truth[cells, j] == levels[counts.argmax()])
        assert np.mean(model.x_map_imputed_[cells, j] == truth[cells, j]) > commonest
    assert np.isfinite(model.log_prob()).all()


@pytest.mark.slow
def test_several_components_take_mixed_tables() -> None:
    settings = {**SMALL["collapse"], "components": 2}
    for columns in (slice(1, 4), slice(2, 4)):
        kinds = ["gaussian", "bernoulli", "categorical"][columns.start - 1 :]
        model = fit(DATA[:, columns], kinds, missingness="selfmask", collapse=settings)
        assert model.status_ == "finished"
        assert np.isfinite(model.predict(verbose=0)[0]).all()
        assert np.isfinite(model.log_prob()).all()
        assert np.isfinite(model.mechanism_card(1).probability).all()


@pytest.mark.parametrize("column", [2, 3, 4, 5])
def test_probabilities_of_missing_classes_are_calibrated(column: int, by_chance: MissBGM) -> None:
    """Cells of each class, in halves by how probable it was said to be; false alarms: 1e-4 over columns.

    Given the parameters, the truth is one more draw: the number of cells of a class is a sum of independent
    indicators of the drawn probabilities. The parameters are uncertain by about as much as three times as
    many observed cells leave them.
    """
    cells = np.flatnonzero(by_chance.draws_.index[:, 1] == column)
    drawn, hidden = by_chance.draws_.values[:, cells], TRUTH[MISSING[:, column], column]
    levels = np.unique(TRUTH[:, column]) if column < 5 else np.arange(6.0)
    p = np.stack([(drawn == level).mean(axis=0) for level in levels])
    hit = np.stack([hidden == level for level in levels])
    scores = []
    for chance, came in zip(p, hit, strict=True):
        for half in (chance > np.median(chance), chance <= np.median(chance)):
            variance = (chance * (1 - chance))[half].sum()
            if variance > 3:
                scores.append((came[half].sum() - chance[half].sum()) / np.sqrt(4 / 3 * variance))
    assert 2 * stats.norm.sf(np.abs(scores).max()) > 1e-4 / 4 / len(scores)


@pytest.mark.slow
def test_self_masked_classes_are_restored_better_than_by_chance_alone() -> None:
    """Every second cell of the higher class goes missing: what is left has too few of them."""
    truth = table(1_500, seed=9, rate=0.0)[0][:, :3]
    rng = np.random.default_rng(1)
    data = truth.copy()
    gone = (truth[:, 2] == 10) & (rng.random(len(truth)) < 0.5)
    data[gone, 2] = np.nan
    settings = {**SMALL["collapse"], "n_iter": 300, "n_refits": 0, "components": 1}
    shares = []
    for name in ("mcar", "selfmask"):
        model = fit(data, {2: "bernoulli"}, missingness=name, collapse=settings)
        model.predict(verbose=0)
        shares.append((model.draws_.values == 10).mean())
    assert shares[1] > shares[0] + 0.1


# Refusals


@pytest.mark.parametrize(
    ("missingness", "reason"),
    [
        ("selection", "selection needs residuals of a continuous column, and column 2 is bernoulli"),
        ({"4": "selection"}, "selection needs residuals of a continuous column, and column 4 is ordinal"),
        ({"5": "below(1)"}, "below needs a limit of a continuous column, and column 5 is count"),
        ({"3": "above(1)"}, "above needs a limit of a continuous column, and column 3 is categorical"),
    ],
)
def test_mechanisms_of_continuous_columns_are_refused_for_classes(missingness: Any, reason: str) -> None:
    with pytest.raises(ConfigError, match=f"{reason}; name selfmask for it"):
        fit(missingness=missingness)


@pytest.mark.parametrize("kind", ["ordinal", "count"])
def test_the_papers_engine_refuses_kinds_it_has_no_heads_for(kind: str) -> None:
    with pytest.raises(ConfigError, match=f"kinds names {kind}, and the networks of engine: alternate"):
        MissBGM({"epochs": 1}).fit(DATA, kinds={4: kind}, verbose=0)


@pytest.mark.parametrize(
    ("cells", "reason"),
    [
        ([0.5], r"column 0 is said to be a count and holds \[0.5\]"),
        ([-1.0], r"column 0 is said to be a count and holds \[-1.0\]"),
        ([1e6], "column 0 counts up to 1e\\+06, too far for a sum over all counts"),
    ],
)
def test_columns_that_are_no_counts_are_refused(cells: Sequence[float], reason: str) -> None:
    data = np.arange(40.0).reshape(20, 2)
    data[3, 0] = cells[0]
    with pytest.raises(TableError, match=reason):
        fit(data, {0: "count"})


def test_new_rows_may_have_larger_counts_but_not_any(model: MissBGM) -> None:
    new = TRUTH[:2].copy()
    new[0, 5] = np.nanmax(DATA[:, 5]) + 1
    assert np.isfinite(model.log_prob(new)).all()
    new[0, 5] = 10_000
    with pytest.raises(TableError, match="the counts that the model knows are whole numbers from 0 to"):
        model.impute(new)
    new[0] = TRUTH[0]
    new[0, 3] = 5
    with pytest.raises(TableError, match="never seen when the model was fitted"):
        model.impute(new)
