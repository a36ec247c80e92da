"""The mechanism: `scipy.stats.bernoulli` at the network's logits."""

import jax
import numpy as np
from scipy import special, stats

from missbgm.bgm.missingness import Network

N = 30


def test_log_prob_is_scipys() -> None:
    rng = np.random.default_rng(0)
    mechanism = Network.create(rng, 4, (3,), 5, uncertain=False)
    features = 3 * rng.standard_normal((4, N)).astype(np.float32)
    observed = rng.random((5, N)) < 0.5
    logits = np.asarray(mechanism.logits(features), np.float64)
    expected = stats.bernoulli.logpmf(observed, special.expit(logits)).sum(axis=0)
    np.testing.assert_allclose(mechanism.log_prob(features, observed), expected, rtol=1e-5, atol=1e-5)
    one = mechanism.log_prob(features[:, 0], observed[:, 0])
    np.testing.assert_allclose(one, expected[0], rtol=1e-5, atol=1e-5)


def test_patterns_of_a_row_have_total_probability_one() -> None:
    rng = np.random.default_rng(1)
    mechanism = Network.create(rng, 3, (2,), 4, uncertain=False)
    features = np.repeat(rng.standard_normal((3, 1)).astype(np.float32), 16, axis=1)
    patterns = np.arange(16) >> np.arange(4)[:, None] & 1 == 1
    np.testing.assert_allclose(np.exp(mechanism.log_prob(features, patterns)).sum(), 1, rtol=1e-5)


def test_a_key_perturbs_uncertain_weights_only() -> None:
    features, observed = np.ones((2, 3), np.float32), np.ones((2, 3), bool)
    key = jax.random.key(0)
    for uncertain in (False, True):
        mechanism = Network.create(np.random.default_rng(2), 2, (), 2, uncertain=uncertain)
        centre, moved = mechanism.log_prob(features, observed), mechanism.log_prob(features, observed, key)
        assert bool((centre != moved).all()) is uncertain
