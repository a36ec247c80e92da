"""The rule of choice and its guard on scores made by hand; then with real fits."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from factors import mixed_of
from missbgm.bgm.factor import Assumed
from missbgm.fit import choose
from missbgm.fit.analysis import Rows
from missbgm.fit.choose import FEWEST_ROWS, LADDER, chosen, named
from missbgm.fit.folds import ROWS_EACH, Candidate, Fitted, Fitter, Folds, Judged, View

N, P = 300, 4
FITTER = Fitter(2, 1, 0.03, 100, 60, 40)
NOISE = np.random.default_rng(0).standard_normal(N)


def views(
    transforms: Sequence[str] = ("raw",), family: str = "mcar", n: int = N, seed: int = 0
) -> list[View]:
    rows = Rows(*mixed_of(family, p=P).coded(n, seed), np.ones(n, np.float32))
    return [View(name, rows, np.zeros(n), np.zeros(P)) for name in transforms]


class Scripted(Folds):
    """Scores by candidate's name instead of fits; uniforms and slope as scripted."""

    scores: dict[str, float]
    spread = 0.1
    u: Any = None
    slope = 16.0


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> type[Scripted]:
    mixed = mixed_of("selection", p=P)

    def judged(self: Scripted, candidate: Candidate, families: Sequence[str]) -> Judged:
        mean = self.scores.get(candidate.name, -10.0)
        return Judged(mean + Scripted.spread * np.roll(NOISE, len(candidate.name)), [])

    def uniforms(self: Scripted, candidate: Candidate, judged: Judged) -> Any:
        return np.random.default_rng(1).random((2, N, P)) if Scripted.u is None else Scripted.u

    def whole(self: Scripted, candidate: Candidate, families: Sequence[str]) -> Fitted:
        assumed = Assumed.of(list(families), np.ones(P))
        return Fitted(mixed.model, assumed, np.zeros((N, 1, 2), np.float32), np.zeros(3))

    for name, method in (("judged", judged), ("uniforms", uniforms), ("whole", whole)):
        monkeypatch.setattr(Folds, name, method)
    monkeypatch.setattr(choose, "_slope", lambda fitted, columns: Scripted.slope)
    monkeypatch.setattr(choose, "Folds", Scripted)
    # The tables are small: too small for the guard's own demand of cells.
    monkeypatch.setattr(choose.guard, "WORST_FIT", 0.08)
    for name, value in (("scores", {}), ("u", None), ("slope", 16.0)):
        monkeypatch.setattr(Scripted, name, value, raising=False)
    return Scripted


def choice(scores: dict[str, float], given: list[View] | None = None) -> choose.Choice:
    Scripted.scores = scores
    return chosen(np.random.default_rng(0), given or views(), FITTER)


def test_self_masking_is_assumed_unless_an_ignorable_mechanism_is_clearly_better(scripted: Any) -> None:
    assert choice({"raw selfmask": -5.0, "raw mcar": -4.999}).families == ["selfmask"] * P
    assert choice({"raw selfmask": -5.0, "raw mcar": -4.9}).families == ["mcar"] * P
    assert choice({"raw selfmask": -5.0, "raw ignorable": -5.1}).families == ["selfmask"] * P


def test_the_scale_is_that_of_the_best(scripted: Any) -> None:
    found = choice(
        {"raw selfmask": -5.0, "yeo-johnson mcar": -4.0, "yeo-johnson selfmask": -4.0001},
        views(("raw", "yeo-johnson")),
    )
    assert found.transform == "yeo-johnson"
    assert found.families == ["selfmask"] * P


def test_a_selection_that_passes_the_guard_is_assumed(scripted: Any) -> None:
    found = choice({"raw selfmask": -5.0, "raw selection-": -4.0})
    assert found.families == ["selection"] * P
    assert found.sign == -1.0
    assert found.refused == ""
    assert found.table[0].verdict == "assumed"
    assert [row.verdict for row in found.table].count("assumed") == 1


REFUSALS = {
    "no gain": ({"gain": 0.001}, "told no better"),
    "a poor fit": ({"u": np.random.default_rng(1).beta(1.6, 1, (2, N, P))}, "observed cells disagree"),
    "a soft cut": ({"slope": 13.0}, "the cut is too soft"),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_a_selection_that_fails_the_guard_is_refused_with_the_reason(scripted: Any, name: str) -> None:
    change, reason = REFUSALS[name]
    change = dict(change)
    gain = change.pop("gain", 1.0)
    for key, value in change.items():
        setattr(Scripted, key, value)
    found = choice({"raw selfmask": -5.0, "raw selection-": -5.0 + gain})
    assert reason in found.refused
    assert found.families == ["selfmask"] * P
    assert {row.verdict for row in found.table if "selection" in row.candidate} == {"refused"}


def test_too_few_cells_to_check_are_a_reason(scripted: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choose.guard, "WORST_FIT", 0.015)
    found = choice({"raw selfmask": -5.0, "raw selection-": -4.0})
    assert found.refused == "there are too few observed cells to check their shape"


def test_tied_columns_are_self_masked_beside_a_selection(scripted: Any) -> None:
    given = views()
    rows = given[0].rows
    x = rows.x.copy()
    x[:, 1] = np.round(x[:, 1])
    given = [given[0]._replace(rows=rows._replace(x=x))]
    found = choice({"raw selfmask": -5.0, "raw selection of 3 columns+": -4.0}, given)
    assert found.families == ["selection", "selfmask", "selection", "selection"]
    assert found.table[0].candidate == "raw selection of 3 columns+"


def test_one_failing_column_is_taken_out_once(scripted: Any) -> None:
    u = np.random.default_rng(1).random((2, N, P))
    u[:, :, 2] = np.random.default_rng(2).beta(1.5, 1, (2, N))
    Scripted.u = u
    found = choice({"raw selfmask": -5.0, "raw selection-": -4.0, "raw selection of 3 columns-": -4.2})
    assert found.families == ["selection", "selection", "selfmask", "selection"]


def test_a_table_with_ties_everywhere_cannot_carry_a_selection(scripted: Any) -> None:
    given = views()
    rows = given[0].rows
    given = [given[0]._replace(rows=rows._replace(x=np.round(rows.x)))]
    found = choice({"raw selfmask": -5.0, "raw selection-": -1.0}, given)
    assert "some value is too common" in found.refused


def test_differences_are_paired(scripted: Any) -> None:
    found = choice({"raw selfmask": -5.0, "raw mcar": -5.2})
    row = next(row for row in found.table if row.candidate == "raw mcar")
    paired = 0.1 * (np.roll(NOISE, len("raw mcar")) - np.roll(NOISE, len("raw selfmask")))
    assert row.gain == pytest.approx(-0.2 + paired.mean())
    assert row.standard_error == pytest.approx(paired.std() / np.sqrt(N))


# With real fits


def test_the_whole_ladder_is_scored_on_held_out_rows() -> None:
    calls: list[tuple[int, int]] = []
    found = chosen(
        np.random.default_rng(0), views(), FITTER, say=lambda done, total: calls.append((done, total))
    )
    assert {row.candidate for row in found.table} >= {Candidate("raw", *rung).name for rung in LADDER}
    assert calls[-1][0] <= calls[-1][1] == len(LADDER)
    assert found.fitted.finite


def test_held_out_scores_prefer_the_mechanism_that_made_the_pattern() -> None:
    # Fits of 40 iterations are too short to tell self-masking from an ignorable mechanism on most seeds.
    fitter = FITTER._replace(batch_size=300, n_fold_iterations=160)
    found = chosen(np.random.default_rng(0), views(family="selfmask", n=900), fitter)
    assert found.families == ["selfmask"] * P
    by_name = {row.candidate: row for row in found.table}
    assert by_name["raw mcar"].gain < -2 * by_name["raw mcar"].standard_error


def test_every_row_is_scored_by_a_fit_without_it() -> None:
    folds = Folds(np.random.default_rng(0), views(), FITTER)
    judged = folds.judged(Candidate("raw", "mcar"), ["mcar"] * P)
    held = np.concatenate([rows for rows, _ in judged.models])
    np.testing.assert_array_equal(np.sort(held), np.arange(N))
    # Another value of a row leaves alone the rows that were held out with it.
    other = views()
    other[0].rows.x[5] = 9.0
    moved = Folds(np.random.default_rng(0), other, FITTER).judged(Candidate("raw", "mcar"), ["mcar"] * P)
    same = next(rows for rows, _ in judged.models if 5 in rows)
    same = same[same != 5]
    np.testing.assert_allclose(moved.log_prob[same], judged.log_prob[same], atol=1e-4)


def test_a_named_selection_is_tried_with_both_signs() -> None:
    found = named(np.random.default_rng(0), views(), FITTER, ["selection"] * P, "selection")
    assert {row.candidate for row in found.table} == {"raw selection-", "raw selection+"}
    assert found.sign in (-1.0, 1.0)


def test_one_named_candidate_needs_no_comparison() -> None:
    found = named(np.random.default_rng(0), views(), FITTER, ["mcar"] * P, "mcar")
    assert found.table == []
    assert found.refused == ""


def test_few_rows_are_not_compared() -> None:
    found = chosen(np.random.default_rng(0), views(n=FEWEST_ROWS - 1), FITTER)
    assert found.families == ["selfmask"] * P
    assert "fewer than 30 rows" in found.refused
    assert found.fitted.model.size == 1


def test_few_rows_have_as_many_components_as_were_fixed() -> None:
    given = np.random.default_rng(0), views(n=FEWEST_ROWS - 1), FITTER._replace(components=2)
    assert chosen(*given).fitted.model.size == 2
    assert named(*given, ["mcar"] * P, "mcar").fitted.model.size == 2
    assert named(*given, ["selection"] * P, "selection").fitted.model.size == 1


def test_names_tell_scale_family_sign_and_number_of_components() -> None:
    assert Candidate("raw", "selection", -1.0).name == "raw selection-"
    assert Candidate("yeo-johnson", "mcar", components=4).name == "yeo-johnson mcar, 4 components"


# How many components

SHORT = FITTER._replace(n_iterations=30, n_fold_iterations=20)


def clumps(n: int = 450, n_clumps: int = 3, seed: int = 0) -> View:
    """Rows around centres far apart, a tenth of the cells missing by chance, and noise of a fifth."""
    rng = np.random.default_rng(seed)
    centre = np.array([[0, 0, 0, 0], [2, -2, 2, 0], [-2, 0, 2, 2]])[:n_clumps]
    x = centre[rng.integers(n_clumps, size=n)] + 0.2 * rng.standard_normal((n, P))
    observed = rng.random(x.shape) < 0.9
    rows = Rows(np.where(observed, x, 0).astype(np.float32), observed, np.ones(n, np.float32))
    return View("raw", rows, np.zeros(n), np.zeros(P))


def folds_of(view: View, **changes: Any) -> Folds:
    return Folds(np.random.default_rng(0), [view], SHORT._replace(**{"z_dim": 1, "components": 0, **changes}))


@pytest.mark.parametrize("n_clumps", [2, 3])
def test_a_table_of_clumps_has_several_components(n_clumps: int) -> None:
    assert folds_of(clumps(n_clumps=n_clumps)).n_components() >= n_clumps


@pytest.mark.parametrize("seed", range(3))
def test_a_table_of_one_component_has_one(seed: int) -> None:
    """Two standard errors: with one seed in forty or so it would not."""
    view = views(seed=seed)[0]
    assert folds_of(view, z_dim=2).n_components() == 1


def test_rows_of_clumps_are_told_better_by_several_components() -> None:
    folds = folds_of(clumps())
    one, several = (
        folds.judged(Candidate("raw", "mcar", components=k), ["mcar"] * P).log_prob for k in (1, 4)
    )
    gain = several - one
    assert gain.mean() > 5 * gain.std() / np.sqrt(len(gain))


def test_a_fixed_number_of_components_is_kept() -> None:
    assert folds_of(clumps(), components=1).n_components() == 1
    assert folds_of(views()[0], components=5).n_components() == 5


def test_few_rows_have_one_component() -> None:
    """A component must have so many rows; the ladder begins at two."""
    assert folds_of(clumps(n=2 * ROWS_EACH - 1)).n_components() == 1


def test_the_number_is_that_of_the_ladder_by_the_errors_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Mean errors by hand, and noise that no difference of them can be blamed on."""
    asked: list[int] = []

    def found(errors: dict[int, float]) -> int:
        asked.clear()

        def scripted(self: Folds, view: View, n_components: int) -> Any:
            asked.append(n_components)
            return errors.get(n_components, 9.0) + 0.01 * np.roll(NOISE, n_components)

        monkeypatch.setattr(Folds, "_errors", scripted)
        return folds_of(views(n=N)[0]).n_components()

    assert found({1: 5, 2: 4, 4: 3, 8: 3.5}) == 4
    assert asked == [1, 2, 4, 8]  # eight have failed for certain
    assert found({1: 5, 2: 5.0001, 4: 4, 8: 4.0001}) == 4
    assert asked == [1, 2, 4, 8]  # 300 rows carry no sixteen
    assert found({1: 5, 2: 4.9999, 4: 5, 8: 5}) == 1
    assert found({1: 5, 2: 5, 4: 5, 8: 4}) == 1
    assert asked == [1, 2, 4]  # twice no better


def test_a_cell_hidden_from_a_row_is_told_without_it() -> None:
    """Errors are those of components found without the row, and of cells that are not looked at."""
    view = clumps()
    errors = folds_of(view)._errors(view, 4)
    x = view.rows.x.copy()
    assert (errors[~view.rows.observed.any(axis=1)] == 0).all()
    x[7] += 3.0
    moved = folds_of(view)._errors(view._replace(rows=view.rows._replace(x=x)), 4)
    others = folds_of(view).fold == folds_of(view).fold[7]
    others[7] = False
    np.testing.assert_allclose(moved[others], errors[others], rtol=2e-3, atol=1e-4)


def test_a_selection_has_one_component_and_the_others_as_many_as_were_found() -> None:
    found = chosen(np.random.default_rng(0), [clumps(240)], SHORT._replace(components=2))
    names = {row.candidate for row in found.table}
    assert {"raw mcar, 2 components", "raw selfmask, 2 components", "raw selection-"} <= names
    assert found.fitted.model.size == 2
    assert found.fitted.z.shape == (240, 2, 2)


def test_a_named_selection_has_one_component() -> None:
    found = named(
        np.random.default_rng(0), [clumps(90)], SHORT._replace(components=2), ["selection"] * P, "s"
    )
    assert found.fitted.model.size == 1
