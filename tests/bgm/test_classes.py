"""Every discrete kind's law, missing-cell term, derivatives and information against their definitions."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special

from discrete import CASES, LAWS, N_CLASSES, case_of
from missbgm.bgm.classes import Ordinal, at_latent
from missbgm.bgm.factor import Prior, probits
from missbgm.bgm.joint import log_marginal
from missbgm.fit.laplace import evaluated

KINDS = pytest.mark.parametrize("kind", list(LAWS))
EVERY = pytest.mark.parametrize(("kind", "family"), CASES)
Z = np.random.default_rng(5).standard_normal((2, 7)).astype(np.float32)


# Families are data: one program a kind serves them all.
@jax.jit
def marginal(part, assumed, z, x, observed):
    return log_marginal(part, probits(part, assumed), assumed.masked, z, x, observed).log_prob


@jax.jit
def total(part, assumed, z, x, observed):
    return jnp.sum(marginal(part, assumed, z, x, observed))


@jax.jit
def gradient_of(part, assumed, z, x, observed):
    return evaluated(part, probits(part, assumed), assumed.masked, z, x, observed).gradient


slopes_of = jax.jit(jax.grad(total))
information_of = jax.jit(lambda block, cells: block.information(cells))


def rows_of(case, n=12, seed=2):
    """Latent rows to look at, and simulated rows with 0 in missing cells; columns first."""
    rng = np.random.default_rng(seed)
    _, x, observed = case.simulate(rng, n)
    z = rng.standard_normal((case.model.weight.shape[2], n)).astype(np.float32)
    return z, np.where(observed, x, 0).astype(np.float32), observed


@jax.jit
def known(part, assumed, masked, z, x, observed):
    return at_latent(part.discrete[0], probits(part, assumed).classes[0], masked, z, x[2:], observed[2:])


def cells_of(case, z, x, observed, masked=1.0):
    return known(case.part, case.assumed, np.full(2, masked, np.float32), z, x, observed)


@KINDS
def test_the_law_of_a_kind_is_its_definition(kind):
    """Against scipy, and 0 for classes that a column does not have."""
    case = case_of(kind, "mcar")
    block = case.part.discrete[0]
    found = np.exp(block.log_prob(block.predictor(Z), case.codes.dead))
    np.testing.assert_allclose(found.sum(axis=1), 1, rtol=1e-5)
    for j in range(2):
        n = N_CLASSES[kind][j]
        np.testing.assert_allclose(found[j, :n], case.chances(j, Z.astype(float)), rtol=2e-4, atol=1e-6)
        assert not found[j, n:].any()


@KINDS
@pytest.mark.parametrize("far", [-12.0, 12.0])
def test_laws_stay_finite_far_out(kind, far):
    block = case_of(kind, "mcar").part.discrete[0]
    codes = case_of(kind, "mcar").codes
    predictor = np.full((2, block.constant.shape[1], 3), far, np.float32)

    @jax.jit
    @jax.value_and_grad
    def told(predictor):
        return jnp.sum(jnp.where(codes.dead[:, :, None] > 0, 0, block.log_prob(predictor, codes.dead)))

    value, slope = told(predictor)
    assert np.isfinite(value)
    assert np.isfinite(slope).all()


def test_ordinal_classes_far_in_a_tail_keep_their_log_probability():
    """Differences of normal probabilities that both round to 1, or to 0, on either side."""
    block, dead = (
        Ordinal(*(np.zeros(s, np.float32) for s in ((1, 1, 1), (1, 1), (1, 1), (1, 0)))),
        np.zeros((1, 3)),
    )
    predictor = np.float32([[[-9.0, 9.0]]])
    found = np.asarray(block.log_prob(predictor, dead))[0]
    cut = 1.01
    expected = [
        special.log_ndtr(cut - 9) + np.log1p(-np.exp(special.log_ndtr(-9) - special.log_ndtr(cut - 9)))
    ]
    mirrored = special.log_ndtr(-9) + np.log1p(-np.exp(special.log_ndtr(-9 - cut) - special.log_ndtr(-9)))
    np.testing.assert_allclose(found[1], [mirrored, *expected], rtol=1e-4)


@EVERY
def test_a_missing_cells_term_is_the_sum_over_its_classes(kind, family):
    case = case_of(kind, family)
    found = cells_of(case, Z, np.zeros((4, 7), np.float32), np.zeros((4, 7), bool))
    for j in range(2):
        expected = case.missing(j, Z.astype(float))
        np.testing.assert_allclose(found.evidence[j], np.log(expected.sum(axis=0)), rtol=1e-4, atol=1e-4)
        posterior = expected / expected.sum(axis=0)
        np.testing.assert_allclose(found.posterior[j, : len(posterior)], posterior, rtol=1e-3, atol=1e-6)


@KINDS
def test_a_missing_cell_without_a_pattern_says_nothing(kind):
    case = case_of(kind, "selfmask")
    found = cells_of(case, Z, np.zeros((4, 7), np.float32), np.zeros((4, 7), bool), masked=0.0)
    np.testing.assert_allclose(found.evidence, 0, atol=1e-5)


@EVERY
def test_the_joint_density_adds_every_columns_terms(kind, family):
    case = case_of(kind, family)
    z, x, observed = rows_of(case)
    found = marginal(case.part, case.assumed, z, x, observed)
    expected = case.log_joint(z.astype(float), x.astype(float), observed)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=3e-4)


@EVERY
def test_the_gradient_in_latent_rows_is_that_of_finite_differences(kind, family):
    """Central differences of the density by hand, in double precision."""
    case = case_of(kind, family)
    z, x, observed = rows_of(case)
    found = gradient_of(case.part, case.assumed, z, x, observed)
    for axis, step in enumerate(1e-4 * np.eye(2)):
        ahead, behind = (
            case.log_joint(z + sign * step[:, None], x.astype(float), observed) for sign in (1, -1)
        )
        np.testing.assert_allclose(found[axis], (ahead - behind) / 2e-4, rtol=1e-3, atol=2e-3)


@EVERY
def test_the_gradient_in_parameters_is_that_of_finite_differences(kind, family):
    case = case_of(kind, family)
    z, x, observed = rows_of(case, 30)
    rng = np.random.default_rng(3)
    with jax.enable_x64(True):
        part, assumed = jax.tree.map(lambda a: np.asarray(a, np.float64), (case.part, case.assumed))
        given = assumed, z.astype(np.float64), x.astype(np.float64), observed
        gradient = slopes_of(part, *given)
        for _ in range(4):
            u = jax.tree.map(lambda a: 1e-5 * rng.standard_normal(a.shape), part)
            ahead, behind = jax.tree.map(np.add, part, u), jax.tree.map(np.subtract, part, u)
            slope = (total(ahead, *given) - total(behind, *given)) / 2
            along = sum(np.sum(a * b) for a, b in zip(*map(jax.tree.leaves, (gradient, u)), strict=True))
            np.testing.assert_allclose(along, slope, rtol=1e-4, atol=1e-8)


@KINDS
def test_the_information_of_observed_cells_is_the_expected_one(kind):
    """Sum over classes of probability times the outer product of scores, by differences of the law."""
    case = case_of(kind, "mcar")
    x, observed = np.zeros((4, 7), np.float32), np.ones((4, 7), bool)
    found = np.asarray(information_of(case.part.discrete[0], cells_of(case, Z, x, observed)), float)
    expected, step = np.zeros((2, 2, 7)), 1e-5 * np.eye(2)
    for j in range(2):
        chance = case.chances(j, Z.astype(float))
        score = np.stack(
            [np.log(case.chances(j, Z + s[:, None])) - np.log(case.chances(j, Z - s[:, None])) for s in step]
        )
        score = score / 2e-5
        expected += np.einsum("kn,ikn,jkn->ijn", chance, score, score)
    np.testing.assert_allclose(found, expected, rtol=5e-3, atol=2e-4)


@EVERY
def test_the_information_of_any_cell_is_positive_semidefinite_and_no_more_than_if_observed(kind, family):
    case = case_of(kind, family)
    z, x, observed = rows_of(case, 40)
    z = 2 * z
    block = case.part.discrete[0]
    found, whole = (
        np.moveaxis(np.asarray(information_of(block, cells_of(case, z, x, seen)), float), -1, 0)
        for seen in (observed, np.ones_like(observed))
    )
    assert np.linalg.eigvalsh(found).min() > -1e-4
    assert np.linalg.eigvalsh(whole - found).min() > -1e-3


def test_the_information_of_a_missing_binary_cell_is_its_second_derivative():
    """One canonical predictor: exact wherever it is not negative, and 0 there."""
    case = case_of("bernoulli", "selfmask", d=1)
    z = np.linspace(-2, 2, 9)[None].astype(np.float32)
    cells = cells_of(case, z, np.zeros((4, 9), np.float32), np.zeros((4, 9), bool))
    found = np.asarray(information_of(case.part.discrete[0], cells))[0, 0]

    def told(j, move):
        return np.log(case.missing(j, z.astype(float) + move).sum(axis=0))

    second = [(2 * told(j, 0) - told(j, 1e-3) - told(j, -1e-3)) / 1e-6 for j in range(2)]
    np.testing.assert_allclose(found, np.maximum(second, 0).sum(axis=0), rtol=1e-3, atol=1e-3)


@KINDS
def test_the_penalty_pulls_slopes_constants_and_effects_to_zero(kind):
    model = case_of(kind, "mcar").model
    gradient = jax.grad(Prior.of(1).penalty)(model).discrete[0]
    block = model.discrete[0]
    np.testing.assert_allclose(gradient.slope, 0.5 * block.slope, rtol=1e-5)
    np.testing.assert_allclose(gradient.effect, block.effect, rtol=1e-5)
    assert (np.sign(gradient.constant) == np.sign(block.constant)).all()
