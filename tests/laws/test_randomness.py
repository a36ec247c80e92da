"""The sampler's own uniforms and normals, far out in their tails."""

import jax
import jax.numpy as jnp
import numpy as np

from missbgm.randomness import HALF_GRID, as_normal, row_uniform


def test_normals_stay_within_what_their_number_allows() -> None:
    """False alarms: none, for the grid of uniforms ends at 5.3; 16 million normals pass 4.9 surely."""
    farthest = jax.jit(lambda keys: jnp.max(jnp.abs(as_normal(row_uniform(keys, 4096)))))
    found = [float(farthest(jax.random.split(jax.random.key(seed), 1024))) for seed in range(2, 6)]
    assert 4.9 < np.max(found) < 5.4


def test_the_ends_of_the_grid_are_symmetric_and_finite() -> None:
    ends = as_normal(jnp.array([0.0, 1 - 2 * HALF_GRID], jnp.float32) + HALF_GRID)
    assert np.isfinite(ends).all()
    np.testing.assert_allclose(ends[0], -ends[1], rtol=1e-4)
