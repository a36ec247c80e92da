"""Curves P(missing | value) against their definition, latent rows integrated by simulation."""

import numpy as np
import pytest

from factors import MIXTURES, mixed_of
from missbgm.bgm.factor import Assumed
from missbgm.summary.card import card_of, chance_missing
from missbgm.table.array import observations
from missbgm.table.codec import Codec


@pytest.mark.parametrize(("family", "n_components"), MIXTURES)
def test_the_chance_is_that_of_the_definition_given_the_value(family, n_components):
    """By Bayes' rule over latent rows and components: weights are densities; the grid's error is 1e-5."""
    mixed = mixed_of(family, n_components)
    axis = np.linspace(-6, 6, 301)
    z = np.stack([a.ravel() for a in np.meshgrid(axis, axis)])
    prior = np.exp(-0.5 * (z**2).sum(axis=0))
    for value in (-1.5, 0.0, 0.7, 2.0):
        x, both = np.full((mixed.p, z.shape[1]), value), []
        for share, case in zip(mixed.share, mixed.parts, strict=True):
            residual = (x - case.mean(z)) / case.scale[:, None]
            weight = share * prior * np.exp(-0.5 * residual**2) / case.scale[:, None]
            both.append([(weight * case.chance_observed(x, z)).sum(axis=1), weight.sum(axis=1)])
        observed, total = np.sum(both, axis=0)
        expected = 1 - observed / total
        found = [chance_missing(mixed.model, mixed.assumed, j, np.array([value]))[0] for j in range(mixed.p)]
        np.testing.assert_allclose(found, expected, atol=2e-5)


def test_a_column_without_a_pattern_is_never_missing():
    mixed = mixed_of("selfmask")
    assumed = Assumed.of(["selfmask"] * 4, np.zeros(4))
    assert not chance_missing(mixed.model, assumed, 0, np.zeros(3)).any()


def test_a_card_is_in_the_columns_units_and_its_band_is_that_of_the_refits():
    case, low, high = (mixed_of("selfmask", strength=s) for s in (1.0, 0.5, 2.0))
    values = np.random.default_rng(0).normal(50, 4, (60, 4))
    codec = Codec.learn(observations(values))
    models = case.model, (low.model, high.model)
    card = card_of("weight", "selfmask", 1, codec, values[:, 1], models, case.assumed)
    assert card.value[0] < values[:, 1].min() < values[:, 1].max() < card.value[-1]
    coded = (card.value - values[:, 1].mean()) / values[:, 1].std()
    np.testing.assert_allclose(
        card.probability, chance_missing(case.model, case.assumed, 1, coded), atol=1e-9
    )
    curves = [chance_missing(c.model, case.assumed, 1, coded) for c in (low, high)]
    np.testing.assert_allclose(card.lower, np.min(curves, axis=0), atol=1e-9)
    np.testing.assert_allclose(card.upper, np.max(curves, axis=0), atol=1e-9)
    assert str(card).startswith("weight: assumed selfmask; P(missing | value), band of 2 refits")
