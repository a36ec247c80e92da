"""Discrete columns as features of the analysis, and what fits begin with."""

import jax
import numpy as np
import pytest
from scipy import stats

from discrete import LAWS, N_CLASSES, case_of
from missbgm.bgm.factor import Assumed
from missbgm.fit.analysis import Rows
from missbgm.fit.collapse import begun
from missbgm.fit.features import codes_of, features, sources
from missbgm.fit.folds import Fitter, View
from missbgm.fit.laplace import in_blocks

FITTER = Fitter(2, 1, 0.03, 200, 300, 50)


def rows_of(kind, n=2_000, family="mcar", seed=0):
    case = case_of(kind, family)
    _, x, observed = case.simulate(np.random.default_rng(seed), n)
    x, observed = np.where(observed, x, 0).T.astype(np.float32), observed.T.copy()
    kinds, sizes = ["gaussian"] * 2 + [kind] * 2, [0, 0, *N_CLASSES[kind]]
    return case, Rows(x, observed, np.ones(n, np.float32), codes_of(kinds, sizes, x, observed))


@pytest.mark.parametrize("kind", LAWS)
def test_features_are_standardised_over_observed_cells(kind):
    _, rows = rows_of(kind)
    (codes,), whole = rows.classes, rows.as_features()
    place = sources(2, rows.classes)
    assert whole.x.shape[1] == len(place) == (12 if kind == "categorical" else 4)
    np.testing.assert_array_equal(np.unique(place), range(4))
    for feature, column in enumerate(place):
        seen = rows.observed[:, column]
        np.testing.assert_array_equal(whole.observed[:, feature], seen)
        values = whole.x[seen, feature]
        if column >= 2 and values.any():
            assert values.mean() == pytest.approx(0, abs=1e-4)
            assert values.std() == pytest.approx(1, abs=1e-3)
        elif column < 2:
            np.testing.assert_array_equal(values, rows.x[seen, column])
    np.testing.assert_allclose(codes.frequency.sum(axis=1), 1, rtol=1e-5)
    assert not codes.frequency[codes.dead > 0].any()


def test_a_continuous_table_is_its_own_features():
    rows = Rows(np.zeros((3, 2)), np.ones((3, 2), bool), np.ones(3))
    assert rows.as_features() is rows
    assert features(rows.x, 2, ()).shape == (3, 2)


@pytest.mark.parametrize("kind", LAWS)
def test_a_fit_begins_near_the_observed_frequencies(kind):
    """The law at its beginning, averaged over latent rows, and that of the table: within 0.1 a class."""
    _, rows = rows_of(kind)
    start = FITTER.started(np.random.default_rng(1), rows, np.arange(2_000), 1)
    assumed = Assumed.of(["mcar"] * 4, np.ones(4), None, rows.classes)
    first = begun(start, assumed, rows.observed.mean(axis=0))
    block = first.part(0).discrete[0]
    assert np.abs(block.slope).max() > 0.1
    z = np.random.default_rng(2).standard_normal((2, 2_000)).astype(np.float32)
    chance = np.exp(block.log_prob(block.predictor(z), rows.classes[0].dead)).mean(axis=2)
    np.testing.assert_allclose(chance, rows.classes[0].frequency, atol=0.1)


def fitted_to(kind, family, n=3_000):
    case, rows = rows_of(kind, n, family)
    view, everyone = View("raw", rows, np.zeros(n), np.zeros(4)), np.arange(n)
    fitter = FITTER._replace(batch_size=500)
    start = fitter.started(np.random.default_rng(1), rows, everyone, 1)
    fitted = fitter.fitted(np.random.default_rng(2), view, everyone, start, [family] * 4, 0.0, 300)
    assert fitted.finite
    return case, rows, fitted


@pytest.mark.slow
@pytest.mark.parametrize("kind", LAWS)
def test_a_fit_to_self_masked_classes_tells_rows_as_well_as_the_law_that_made_them(kind):
    """Parameters themselves are weakly told where the cell's own class masks it: within 0.02 a row."""
    case, rows, fitted = fitted_to(kind, "selfmask")
    told = []
    for model, assumed in ((fitted.model, fitted.assumed), (case.model, case.assumed)):
        blocks = in_blocks(jax.random.key(0), rows.x, rows.observed, np.arange(1_024), model, assumed, 100)
        told.append(np.concatenate([np.asarray(found.log_prob) for _, found in blocks]))
    gains = told[0] - told[1]
    assert np.mean(gains) > -0.02 - 4 * np.std(gains) / np.sqrt(len(gains))


@pytest.mark.parametrize("kind", LAWS)
def test_a_fit_comes_near_the_law_that_made_the_rows(kind):
    """Frequencies of classes, and how they move with the continuous columns."""
    case, rows, fitted = fitted_to(kind, "mcar")
    z = np.random.default_rng(2).standard_normal((2, 20_000)).astype(np.float32)
    block = fitted.model.part(0).discrete[0]
    chance = np.exp(block.log_prob(block.predictor(z), rows.classes[0].dead)).mean(axis=2)
    for j in range(2):
        expected = case.chances(j, z.astype(float)).mean(axis=1)
        np.testing.assert_allclose(chance[j, : len(expected)], expected, atol=0.05)
    slopes, truth = (np.asarray(m.discrete[0].slope[0], float) for m in (fitted.model, case.model))
    weights, known = (np.asarray(m.weight[0], float) for m in (fitted.model, case.model))
    found, expected = slopes @ weights.T, truth @ known.T
    if kind == "categorical":
        alive = 1 - case.codes.dead[:, :, None]
        found, expected = (
            (a - (a * alive).sum(axis=1, keepdims=True) / alive.sum(axis=1, keepdims=True)) * alive
            for a in (found, expected)
        )
    assert stats.pearsonr(found.ravel(), expected.ravel()).statistic > 0.9


def test_refits_keep_the_effects_of_classes():
    _, rows = rows_of("categorical", 400, "selfmask")
    view, everyone = View("raw", rows, np.zeros(400), np.zeros(4)), np.arange(400)
    for n_components in (1, 2):
        start = FITTER.started(np.random.default_rng(1), rows, everyone, n_components)
        fitted = FITTER.fitted(np.random.default_rng(2), view, everyone, start, ["selfmask"] * 4, 0.0, 200)
        refit = FITTER.refitted(np.random.default_rng(3), rows, fitted).model
        one, other = (np.asarray(m.discrete[0].effect).ravel() for m in (fitted.model, refit))
        assert one.any()
        assert stats.pearsonr(one, other).statistic > 0.5
