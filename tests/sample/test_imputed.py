"""Draws over blocks of rows and several models: what is kept, whom it depends on, how a row is drawn."""

import equinox as eqx
import jax
import numpy as np
import pytest
from scipy import stats

from factors import COMPONENTS, mixed_of
from missbgm.sample import imputed
from missbgm.sample.imputed import Amounts, draw_collapsed, log_prob, spread

AMOUNTS = Amounts(n_draws=24, n_proposals=40, dtype="float32")
KEY = jax.random.key(3)


def table(n=40, family="selection", seed=0, n_components=1):
    mixed = mixed_of(family, n_components)
    return mixed, *mixed.coded(n, seed)


def draw(mixed, x, observed, amounts=AMOUNTS, models=None):
    return draw_collapsed(KEY, models or (mixed.model,), mixed.assumed, x, observed, amounts)


@pytest.mark.parametrize("n_components", COMPONENTS)
def test_moments_are_those_of_very_many_draws(n_components):
    """False alarms: 1e-4 over all cells, by the mean of independent draws."""
    mixed, x, observed = table(n_components=n_components)
    found = draw(mixed, x, observed, Amounts(1_500, 400, "float32"))
    draws = found.values[0].astype(float)
    z = (draws.mean(axis=0) - found.mean) / (found.sd / np.sqrt(len(draws)))
    assert np.abs(z).max() < stats.norm.isf(1e-4 / 2 / len(z))
    np.testing.assert_allclose(draws.std(axis=0), found.sd, rtol=0.15)


def test_the_same_key_gives_the_same_draws():
    mixed, x, observed = table()
    np.testing.assert_array_equal(draw(mixed, x, observed).values, draw(mixed, x, observed).values)


@pytest.mark.parametrize("n_components", COMPONENTS)
def test_a_rows_draws_do_not_depend_on_its_company(n_components):
    mixed, x, observed = table(n_components=n_components)
    row = np.flatnonzero(~observed.all(axis=1))[3]
    other, seen = np.zeros_like(x), np.ones_like(observed)
    other[row], seen[row] = x[row], observed[row]
    alone = draw(mixed, other, seen).values[0]
    together = draw(mixed, x, observed).values[0]
    cells = np.repeat(np.arange(len(x)), (~observed).sum(axis=1)) == row
    np.testing.assert_allclose(together[:, cells], alone, atol=1e-5)


def test_each_model_makes_as_many_draws_and_no_regular_choice_sees_one_only():
    turns = spread(1_000, 5)
    np.testing.assert_array_equal(np.sort(np.concatenate(turns)), np.arange(1_000))
    assert [len(turn) for turn in turns] == [200] * 5
    of = np.zeros(1_000, int)
    for number, turn in enumerate(turns):
        of[turn] = number
    assert len(set(of[np.arange(1, 21) * 50 - 1])) == 5
    assert len(set(of[:10])) > 2
    assert [len(turn) for turn in spread(3, 5)] == [1, 1, 1, 0, 0]


def test_draws_are_made_by_their_own_model():
    mixed, x, observed = table()
    moved = eqx.tree_at(lambda m: m.bias, mixed.model, mixed.model.bias + 100)
    observed[:] = False
    found = draw(mixed, x, observed, models=(mixed.model, moved))
    high = found.values[0].mean(axis=1) > 50
    np.testing.assert_array_equal(np.flatnonzero(high), spread(24, 2)[1])
    assert found.mean.mean() == pytest.approx(50, abs=3)


@pytest.mark.parametrize("n_components", COMPONENTS)
def test_cells_drawn_a_few_at_a_time_are_the_same(n_components, monkeypatch):
    mixed, x, observed = table(n_components=n_components)
    whole = draw(mixed, x, observed).values
    monkeypatch.setattr(imputed, "CELLS", 7)
    np.testing.assert_allclose(draw(mixed, x, observed).values, whole, atol=1e-5)


@pytest.mark.parametrize("n_components", COMPONENTS)
def test_rows_with_poor_weights_are_drawn_by_hmc_and_have_the_same_law(n_components, monkeypatch):
    """False alarms: 1e-4 over cells, chains against weighted proposals."""
    mixed, x, observed = table(4, n_components=n_components)
    x, observed = np.tile(x, (60, 1)), np.tile(observed, (60, 1))
    weighted = draw(mixed, x, observed)
    monkeypatch.setattr(imputed, "POOR", 2.0)
    chains = draw(mixed, x, observed)
    assert weighted.check.n_hmc == 0
    assert chains.check.n_hmc == (~observed.all(axis=1)).sum()
    assert "drawn by HMC" in chains.check.verdict
    assert not chains.check.doubtful
    # One draw of each copy of a cell: independent ones.
    a, b = (found.values[0, 0].reshape(60, -1).astype(float) for found in (weighted, chains))
    p = [stats.ks_2samp(a[:, j], b[:, j]).pvalue for j in range(a.shape[1])]
    assert min(p) > 1e-4 / len(p)


def test_complete_rows_cost_nothing_and_a_complete_table_gives_nothing():
    mixed, x, _ = table()
    found = draw(mixed, x, np.ones(x.shape, bool))
    assert found.values.shape == (1, 24, 0)
    assert found.check.verdict == "Nothing to check: no missing cell was drawn."


def test_precision_is_what_was_asked_for():
    mixed, x, observed = table()
    assert draw(mixed, x, observed, AMOUNTS._replace(dtype="float16")).values.dtype == np.float16


def test_log_probabilities_of_rows_do_not_depend_on_their_company():
    mixed, x, observed = table(300)
    whole = log_prob(KEY, mixed.model, mixed.assumed, x, observed, 40)
    assert whole.shape == (300,)
    some = log_prob(KEY, mixed.model, mixed.assumed, x[:5], observed[:5], 40)
    np.testing.assert_allclose(some, whole[:5], atol=1e-5)
