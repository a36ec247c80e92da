"""Every family's affine probits against its definition: quadrature over missing cells, and observed ones."""

import jax
import numpy as np
import pytest
from scipy import special

from factors import FAMILIES, LIMIT, case_of, log_joint
from missbgm.bgm.factor import Assumed, Prior, probits
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


def test_the_penalty_is_minus_the_log_of_the_normal_priors():
    case, prior = case_of("selection"), Prior()
    gradient = jax.grad(prior.penalty)(case.model)
    np.testing.assert_allclose(gradient.weight, prior.weight * case.model.weight, rtol=1e-6)
    np.testing.assert_allclose(gradient.coupling, prior.coupling * case.model.coupling, rtol=1e-6)
    np.testing.assert_allclose(gradient.deviation, prior.deviation * case.model.deviation, rtol=1e-6)
    np.testing.assert_allclose(gradient.shared, prior.shared * case.model.shared, rtol=1e-6)
    assert not np.any(gradient.bias)
