"""Lattices of rows: every point uniform, together more even than independent ones, and a row's own."""

import jax
import numpy as np
import pytest
from scipy import stats

from missbgm.randomness import Seeds, lattice, row_integers, row_keys


def shifts(n_rows, n=3, seed=0):
    keys = row_keys(Seeds(jax.random.key(seed), np.arange(n_rows, dtype=np.uint32), np.uint32(0)))
    return row_integers(keys, n)


@pytest.mark.parametrize("number", [0, 1, 79])
def test_every_point_is_uniform_over_rows(number):
    """False alarms: 1e-4 over coordinates."""
    points = np.asarray(lattice(shifts(4_000), number), float)
    assert ((points > 0) & (points < 1)).all()
    for coordinate in points:
        assert stats.kstest(coordinate, "uniform").pvalue > 1e-4 / 3


def test_points_of_a_row_are_more_even_than_independent_ones():
    points = np.stack([np.asarray(lattice(shifts(50), number), float) for number in range(100)])
    independent = np.sqrt(1 / 12 / 100)
    assert (points.mean(axis=0) - 0.5).std() < independent / 2
    counts = np.stack([np.histogram(points[:, k, row], 10, (0, 1))[0] for k in range(3) for row in range(50)])
    assert counts.var() < 9 / 2  # the variance of independent ones is 9


def test_a_row_has_its_own_sequence():
    together, alone = shifts(10), shifts(3)
    np.testing.assert_array_equal(together[:, :3], alone)
    assert len(np.unique(np.asarray(together))) == together.size
