"""Every family's affine probits against its definition: quadrature over missing cells, and observed ones."""

import jax
import numpy as np
import pytest
from scipy import special

from factors import COMPONENTS, FAMILIES, LIMIT, MIXTURES, case_of, log_joint, mixed_of
from missbgm.bgm.factor import SCALE_FLOOR, Assumed, Prior, probits
from missbgm.bgm.joint import log_marginal

Z = np.random.default_rng(5).standard_normal((2, 7))


@pytest.mark.parametrize("family", FAMILIES)
def test_a_missing_cells_term_is_the_integral_over_its_value(family):
    case = case_of(family)
    given = probits(case.model, case.assumed)
    probit = np.asarray(given.missing_constant)[:, None] + np.asarray(given.missing_weight) @ Z
    np.testing.assert_allclose(special.ndtr(probit), case.integrated(Z), atol=3e-6)


@pytest.mark.parametrize("family", FAMILIES)
def test_an_observed_cells_term_is_its_definition(family):
    case = case_of(family)
    given = probits(case.model, case.assumed)
    x = LIMIT + np.random.default_rng(1).standard_normal((4, 7))
    probit = (
        np.asarray(given.observed_constant)[:, None]
        + np.asarray(given.observed_slope)[:, None] * x
        + np.asarray(given.observed_weight) @ Z
    )
    expected = case.chance_observed(x, Z)
    # A known limit is never contradicted by an observed cell, so that its probability need not be looked up.
    expected = np.ones_like(x) if family in ("below", "above") else expected
    np.testing.assert_allclose(special.ndtr(probit), expected, atol=3e-6)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_correlation_gives_the_missing_cells_mean(family):
    case = case_of(family)
    given = probits(case.model, case.assumed)
    probit = np.asarray(given.missing_constant)[:, None] + np.asarray(given.missing_weight) @ Z
    hazard = np.exp(-0.5 * probit**2 - 0.5 * np.log(2 * np.pi) - special.log_ndtr(probit))
    mean = case.mean(Z) - case.scale[:, None] * np.asarray(given.correlation)[:, None] * hazard
    np.testing.assert_allclose(mean, case.integrated(Z, 1) / case.integrated(Z), atol=2e-5)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_marginal_density_adds_these_terms(family):
    case = case_of(family)
    z, x, observed = case.simulate(np.random.default_rng(2), 12)
    given = probits(case.model, case.assumed)
    found = log_marginal(
        case.model,
        given,
        case.assumed.masked,
        z.astype(np.float32),
        np.where(observed, x, 0).astype(np.float32),
        observed,
    )
    np.testing.assert_allclose(found.log_prob, log_joint(case, z, x, observed), atol=2e-4, rtol=1e-5)


def test_columns_without_a_missing_cell_have_no_pattern_unless_it_is_certain():
    assumed = Assumed.of(["selfmask", "below", "mcar"], np.array([0, 0, 1]))
    np.testing.assert_array_equal(assumed.masked, [0, 1, 1])


def test_families_are_told_apart_by_numbers_alone():
    assumed = Assumed.of(list(FAMILIES), np.ones(6), np.arange(6.0))
    np.testing.assert_array_equal(assumed.coupled, [0, 1, 0, 1, 0, 0])
    np.testing.assert_array_equal(assumed.own, [0, 0, 1, 0, 0, 0])
    np.testing.assert_array_equal(assumed.residual, [0, 0, 0, 1, 0, 0])
    np.testing.assert_array_equal(assumed.side, [0, 0, 0, 0, 1, -1])
    np.testing.assert_array_equal(assumed.limit, np.arange(6.0))


@pytest.mark.parametrize(("family", "n_components"), MIXTURES)
def test_a_mixture_is_its_components(family, n_components):
    mixed = mixed_of(family, n_components)
    assert mixed.model.size == n_components
    np.testing.assert_allclose(np.exp(mixed.model.log_share), mixed.share, rtol=1e-6)
    for k, case in enumerate(mixed.parts):
        for found in (mixed.model.part(k), jax.tree.map(lambda a, k=k: a[k], mixed.model.parts)):
            jax.tree.map(np.testing.assert_array_equal, found, case.model)


def test_the_only_component_has_every_row():
    np.testing.assert_array_equal(mixed_of("mcar").model.log_share, [0.0])


@pytest.mark.parametrize("n_components", COMPONENTS)
def test_the_penalty_is_minus_the_log_of_the_normal_priors(n_components):
    model, prior = mixed_of("selection", n_components).model, Prior.of(1)
    gradient = jax.grad(prior.penalty)(model)
    for name in ("weight", "coupling", "deviation", "shared"):
        expected = getattr(prior, name) * getattr(model, name)
        np.testing.assert_allclose(getattr(gradient, name), expected, rtol=1e-6)
    assert not np.any(gradient.bias)
    assert not np.any(gradient.log_scale)


def test_the_penalty_of_several_components_has_priors_of_biases_noise_and_shares():
    """The noise's prior is so many cells of a known variance, as it were, and the shares' so many rows."""
    mixed, prior = mixed_of("selection", 2), Prior.of(2)
    model, gradient = mixed.model, jax.grad(prior.penalty)(mixed.model)
    np.testing.assert_allclose(gradient.bias, prior.bias * model.bias, rtol=1e-6)
    scale = np.stack([case.scale for case in mixed.parts])
    slope = prior.cells * (1 / scale - prior.variance / scale**3)  # of minus the log density in the scale
    np.testing.assert_allclose(gradient.log_scale, slope * (scale - SCALE_FLOOR), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(gradient.share, prior.rows * (2 * mixed.share - 1), rtol=1e-5)
