"""Stochastic EM: gradients, start, what a fit recovers, weights of rows, and how many iterations run."""

import equinox as eqx
import jax
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree
from scipy import stats

from factors import MIXTURES, log_joint, mixed_of
from missbgm.bgm.factor import Assumed, Prior
from missbgm.fit.analysis import Rows
from missbgm.fit.collapse import batches, begun, objective
from missbgm.fit.folds import Fitter, View

FITTER = Fitter(2, 1, 0.03, 200, 300, 50)


def view_of(mixed, n, seed=0):
    x, observed = mixed.coded(n, seed)
    return View("raw", Rows(x, observed, np.ones(n, np.float32)), np.zeros(n), np.full(mixed.p, 0.4))


def given_of(mixed, n, seed=1):
    """Latent rows of every component, how much each counts, and rows, features first; then their weights."""
    rng = np.random.default_rng(seed)
    x, observed = mixed.coded(n, seed)
    share = rng.dirichlet(np.ones(mixed.size), n).T
    z = rng.standard_normal((mixed.size, mixed.parts[0].weight.shape[1], n))
    return z, share, x.T, observed.T, rng.exponential(size=n)


@pytest.mark.parametrize(("family", "n_components"), MIXTURES)
def test_the_objectives_gradient_is_that_of_finite_differences(family, n_components):
    mixed, prior = mixed_of(family, n_components), Prior.of(n_components)
    with jax.enable_x64(True):
        model, assumed = jax.tree.map(lambda a: np.asarray(a, np.float64), (mixed.model, mixed.assumed))
        z, share, x, observed, weight = given_of(mixed, 30)

        def value(flat):
            given = z, share, x.astype(np.float64), observed, weight
            return objective(unravel(flat), assumed, prior, *given, 30.0)

        flat, unravel = ravel_pytree(model)
        gradient = jax.jit(jax.grad(value))(flat)
        direction = np.random.default_rng(3).standard_normal((6, len(flat)))
        step = 1e-4
        compiled = jax.jit(value)
        for u in direction:
            slope = (compiled(flat + step * u) - compiled(flat - step * u)) / (2 * step)
            np.testing.assert_allclose(gradient @ u, slope, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("n_components", [1, 2])
def test_the_objective_is_the_mean_log_density_by_hand(n_components):
    mixed = mixed_of("selection", n_components)
    z, share, x, observed, weight = given_of(mixed, 12)
    each = [
        log_joint(case, z[k], x.astype(float), observed) + np.log(mixed.share[k])
        for k, case in enumerate(mixed.parts)
    ]
    prior = Prior.of(n_components)
    expected = -(weight * share * np.array(each)).sum() / weight.sum() + prior.penalty(mixed.model) / 12
    singles = [np.asarray(a, np.float32) for a in (z, share, x)]
    found = objective(mixed.model, mixed.assumed, prior, *singles, observed, weight, 12.0)
    assert float(found) == pytest.approx(float(expected), abs=1e-4)


def test_the_start_of_a_selection_has_its_sign_and_undoes_the_truncation():
    mixed = mixed_of("selection")
    view = view_of(mixed, 500)
    start = FITTER.started(np.random.default_rng(1), view.rows, np.arange(500), 1)
    rate = np.asarray(view.rows.observed).mean(axis=0)
    for sign in (-1.0, 1.0):
        first = begun(start, mixed.assumed, rate, sign)
        assert np.sign(first.shared[1]) == sign
        assert (np.sign(np.asarray(start.bias) - first.bias) == sign).all()
        assert (np.asarray(first.part(0).scale) >= np.sqrt(np.asarray(start.variance[0])) - 0.05).all()


def test_every_component_begins_where_analysis_left_it():
    mixed = mixed_of("selfmask", 2)
    view = view_of(mixed, 500)
    start = FITTER.started(np.random.default_rng(1), view.rows, np.arange(500), 2)
    rate = np.asarray(view.rows.observed).mean(axis=0)
    first = begun(start, mixed.assumed, rate)
    for found, expected in (
        (first.share, start.share),
        (first.weight, start.weight),
        (first.bias, start.bias),
    ):
        np.testing.assert_array_equal(found, expected)
    np.testing.assert_allclose(first.parts.scale**2, start.variance, rtol=1e-4)
    np.testing.assert_allclose(stats.norm.cdf(first.intercept), rate, atol=1e-5)
    assert start.z.shape == (500, 2, 2)


@pytest.mark.parametrize(("family", "sign"), [("ignorable", 0.0), ("selfmask", 0.0), ("selection", 1.0)])
def test_a_fit_comes_near_the_law_that_made_the_rows(family, sign):
    mixed = mixed_of(family, p=8)
    case, view = mixed.parts[0], view_of(mixed, 3_000)
    everyone = np.arange(3_000)
    fitter = FITTER._replace(batch_size=500)
    start = fitter.started(np.random.default_rng(1), view.rows, everyone, 1)
    fitted = fitter.fitted(np.random.default_rng(2), view, everyone, start, [family] * 8, sign, 300)
    assert fitted.finite
    found = fitted.model.part(0)
    weight = np.asarray(found.weight, float)
    np.testing.assert_allclose(found.bias, case.bias, atol=0.15)
    np.testing.assert_allclose(np.asarray(found.scale), case.scale, atol=0.1)
    np.testing.assert_allclose(weight @ weight.T, case.weight @ case.weight.T, atol=0.3)
    if sign == 0 and family == "selfmask":
        assert float(found.shared[0]) == pytest.approx(1.2, abs=0.25)
    assert fitted.losses[-50:].mean() < fitted.losses[:10].mean()


@pytest.mark.parametrize("family", ["mcar", "selfmask"])
def test_a_fit_of_two_components_comes_near_both(family):
    """Shares, biases and noise of two components that hardly touch, as exact as those of one."""
    mixed = apart(mixed_of(family, 2, p=8))
    view, everyone = view_of(mixed, 3_000), np.arange(3_000)
    fitter = FITTER._replace(batch_size=500)
    start = fitter.started(np.random.default_rng(1), view.rows, everyone, 2)
    fitted = fitter.fitted(np.random.default_rng(2), view, everyone, start, [family] * 8, 0.0, 300)
    assert fitted.finite
    found = fitted.model
    order = np.argsort(np.asarray(found.bias)[:, 0])
    np.testing.assert_allclose(np.exp(found.log_share)[order], mixed.share, atol=0.05)
    for k, case in zip(order, mixed.parts, strict=True):
        part = found.part(k)
        np.testing.assert_allclose(part.bias, case.bias, atol=0.25)
        np.testing.assert_allclose(np.asarray(part.scale), case.scale, atol=0.1)
    if family == "selfmask":
        assert float(found.shared[0]) == pytest.approx(1.2, abs=0.25)


def test_rows_without_weight_change_nothing():
    view = view_of(mixed_of("selfmask"), 300)
    usable = np.arange(200)
    other = view.rows.x.copy()
    other[200:] = 7.0
    for n_components in (1, 3):
        start = FITTER.started(np.random.default_rng(1), view.rows, usable, n_components)
        spoilt = FITTER.started(np.random.default_rng(1), view.rows._replace(x=other), usable, n_components)
        for name in ("share", "weight", "variance"):
            np.testing.assert_allclose(getattr(start, name), getattr(spoilt, name), atol=1e-5)


def test_refits_move_as_far_as_the_parameters_are_uncertain():
    """The standard error of a mean at n = 400, which 16 refits and six columns tell to a tenth or so."""
    mixed = mixed_of("mcar", p=6)
    case, view = mixed.parts[0], view_of(mixed, 400)
    everyone = np.arange(400)
    start = FITTER.started(np.random.default_rng(1), view.rows, everyone, 1)
    fitter = FITTER._replace(n_iterations=400)
    fitted = fitter.fitted(np.random.default_rng(2), view, everyone, start, ["mcar"] * 6, 0.0, 400)
    refits = [fitter.refitted(np.random.default_rng(k), view.rows, fitted).model.bias[0] for k in range(16)]
    sd = np.sqrt((case.weight**2).sum(axis=1) + case.scale**2)
    error = sd / np.sqrt(np.asarray(view.rows.observed).sum(axis=0))
    ratio = np.std(refits, axis=0, ddof=1) / error
    assert 0.7 < np.median(ratio) < 1.4


def test_refits_of_several_components_begin_afresh_and_keep_what_masks_a_cell():
    mixed = apart(mixed_of("selfmask", 2))
    view, everyone = view_of(mixed, 300), np.arange(300)
    start = FITTER.started(np.random.default_rng(1), view.rows, everyone, 2)
    fitted = FITTER.fitted(np.random.default_rng(2), view, everyone, start, ["selfmask"] * 4, 0.0, 200)
    one, again, other = (
        FITTER.refitted(np.random.default_rng(seed), view.rows, fitted).model for seed in (3, 3, 4)
    )
    jax.tree.map(np.testing.assert_array_equal, one, again)
    assert not np.array_equal(one.bias, other.bias)
    # A slope that began at 0 would not have come so far in a third of the iterations.
    for refit in (one, other):
        assert float(refit.shared[0]) == pytest.approx(float(fitted.model.shared[0]), rel=0.35)


def apart(mixed):
    """The same components, the second moved 5 up in every column."""
    first, second = mixed.parts
    bias = np.asarray(mixed.model.bias) + np.float32([[0], [5]])
    moved = second._replace(bias=second.bias + 5, model=eqx.tree_at(lambda m: m.bias, second.model, bias[1]))
    model = eqx.tree_at(lambda m: m.bias, mixed.model, bias)
    return mixed._replace(parts=(first, moved), model=model)


def test_batches_visit_usable_rows_only_and_evenly():
    usable = np.array([2, 5, 7, 11])
    found = batches(np.random.default_rng(0), usable, 20, 6)
    assert found.shape == (20, 6)
    counts = np.bincount(found.ravel(), minlength=12)
    np.testing.assert_array_equal(counts[usable], 30)
    assert counts.sum() == 120


@pytest.mark.parametrize("n_components", [1, 2])
def test_a_pattern_that_is_not_modelled_leaves_its_parameters_to_the_prior(n_components):
    mixed = mixed_of("selfmask", n_components)
    assumed = Assumed.of(["selfmask"] * 4, np.zeros(4))
    z, share, x, observed, _ = given_of(mixed, 20)
    given = [a.astype(np.float32) for a in (z, share, x)]
    prior = Prior.of(n_components)
    gradient = jax.grad(objective)(mixed.model, assumed, prior, *given, observed, np.ones(20), np.float32(20))
    assert not np.any(gradient.intercept)
