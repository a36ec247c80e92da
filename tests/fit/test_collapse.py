"""Stochastic EM: gradients, start, what a fit recovers, weights of rows, and how many iterations run."""

import jax
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

from factors import FAMILIES, case_of
from missbgm.bgm.factor import Assumed, Prior
from missbgm.fit.collapse import Rows, batches, begun, objective
from missbgm.fit.folds import Fitter, View

FITTER = Fitter(2, Prior(), 0.03, 200, 300, 50)


def view_of(case, n, seed=0):
    _, x, observed = case.simulate(np.random.default_rng(seed), n)
    rows = Rows(np.where(observed, x, 0).T.astype(np.float32), observed.T.copy(), np.ones(n, np.float32))
    return View("raw", rows, np.zeros(n), np.full(case.p, 0.4))


@pytest.mark.parametrize("family", FAMILIES)
def test_the_objectives_gradient_is_that_of_finite_differences(family):
    case = case_of(family)
    z, x, observed = case.simulate(np.random.default_rng(1), 30)
    x = np.where(observed, x, 0)
    weight = np.random.default_rng(2).exponential(size=30)
    with jax.enable_x64(True):
        model, assumed = jax.tree.map(lambda a: np.asarray(a, np.float64), (case.model, case.assumed))

        def value(flat):
            return objective(unravel(flat), assumed, Prior(), z, x, observed, weight, 30.0)

        flat, unravel = ravel_pytree(model)
        gradient = jax.jit(jax.grad(value))(flat)
        direction = np.random.default_rng(3).standard_normal((6, len(flat)))
        step = 1e-4
        compiled = jax.jit(value)
        for u in direction:
            slope = (compiled(flat + step * u) - compiled(flat - step * u)) / (2 * step)
            np.testing.assert_allclose(gradient @ u, slope, rtol=1e-5, atol=1e-6)


def test_factor_analysis_recovers_the_law_of_complete_rows():
    """At 4,000 rows an entry of the covariance is known to 0.05 or so."""
    case = case_of("mcar", p=6)
    view = view_of(case, 4_000)
    rows = view.rows._replace(
        x=case.simulate(np.random.default_rng(0), 4_000)[1].T.astype(np.float32),
        observed=np.ones((4_000, 6), bool),
    )
    start = FITTER.started(np.random.default_rng(1), rows, np.arange(4_000))
    found = np.asarray(start.weight) @ np.asarray(start.weight).T + np.diag(start.variance)
    expected = case.weight @ case.weight.T + np.diag(case.scale**2)
    np.testing.assert_allclose(found, expected, atol=0.12)
    np.testing.assert_allclose(start.bias, case.bias, atol=0.1)


def test_the_start_of_a_selection_has_its_sign_and_undoes_the_truncation():
    case = case_of("selection")
    view = view_of(case, 500)
    start = FITTER.started(np.random.default_rng(1), view.rows, np.arange(500))
    rate = np.asarray(view.rows.observed).mean(axis=0)
    for sign in (-1.0, 1.0):
        first = begun(start, case.assumed, rate, sign)
        assert np.sign(first.shared[1]) == sign
        assert (np.sign(np.asarray(start.bias) - first.bias) == sign).all()
        assert (np.asarray(first.scale) >= np.sqrt(np.asarray(start.variance)) - 0.05).all()


@pytest.mark.parametrize(("family", "sign"), [("ignorable", 0.0), ("selfmask", 0.0), ("selection", 1.0)])
def test_a_fit_comes_near_the_law_that_made_the_rows(family, sign):
    case = case_of(family, p=8)
    view = view_of(case, 3_000)
    everyone = np.arange(3_000)
    fitter = FITTER._replace(batch_size=500)
    start = fitter.started(np.random.default_rng(1), view.rows, everyone)
    fitted = fitter.fitted(np.random.default_rng(2), view, everyone, start, [family] * 8, sign, 300)
    assert fitted.finite
    found, weight = fitted.model, np.asarray(fitted.model.weight, float)
    np.testing.assert_allclose(found.bias, case.bias, atol=0.15)
    np.testing.assert_allclose(np.asarray(found.scale), case.scale, atol=0.1)
    np.testing.assert_allclose(weight @ weight.T, case.weight @ case.weight.T, atol=0.3)
    if sign == 0 and family == "selfmask":
        assert float(found.shared[0]) == pytest.approx(1.2, abs=0.25)
    assert fitted.losses[-50:].mean() < fitted.losses[:10].mean()


def test_rows_without_weight_change_nothing():
    case = case_of("selfmask")
    view = view_of(case, 300)
    usable = np.arange(200)
    start = FITTER.started(np.random.default_rng(1), view.rows, usable)
    other = view.rows.x.copy()
    other[200:] = 7.0
    spoilt = FITTER.started(np.random.default_rng(1), view.rows._replace(x=other), usable)
    np.testing.assert_allclose(start.weight, spoilt.weight, atol=1e-5)
    np.testing.assert_allclose(start.variance, spoilt.variance, atol=1e-5)


def test_refits_move_as_far_as_the_parameters_are_uncertain():
    """The standard error of a mean at n = 400, which 16 refits and six columns tell to a tenth or so."""
    case = case_of("mcar", p=6)
    view = view_of(case, 400)
    everyone = np.arange(400)
    start = FITTER.started(np.random.default_rng(1), view.rows, everyone)
    fitter = FITTER._replace(n_iterations=400)
    fitted = fitter.fitted(np.random.default_rng(2), view, everyone, start, ["mcar"] * 6, 0.0, 400)
    refits = [fitter.refitted(np.random.default_rng(k), view.rows, fitted).model.bias for k in range(16)]
    sd = np.sqrt((case.weight**2).sum(axis=1) + case.scale**2)
    error = sd / np.sqrt(np.asarray(view.rows.observed).sum(axis=0))
    ratio = np.std(refits, axis=0, ddof=1) / error
    assert 0.7 < np.median(ratio) < 1.4


def test_batches_visit_usable_rows_only_and_evenly():
    usable = np.array([2, 5, 7, 11])
    found = batches(np.random.default_rng(0), usable, 20, 6)
    assert found.shape == (20, 6)
    counts = np.bincount(found.ravel(), minlength=12)
    np.testing.assert_array_equal(counts[usable], 30)
    assert counts.sum() == 120


def test_a_pattern_that_is_not_modelled_leaves_its_parameters_to_the_prior():
    case = case_of("selfmask")
    assumed = Assumed.of(["selfmask"] * 4, np.zeros(4))
    z, x, observed = case.simulate(np.random.default_rng(1), 20)
    given = [a.astype(np.float32) for a in (z, np.where(observed, x, 0))]
    gradient = jax.grad(objective)(
        case.model, assumed, Prior(), *given, observed, np.ones(20), np.float32(20)
    )
    assert not np.any(gradient.intercept)
