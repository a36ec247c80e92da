"""Inverse factors of many small matrices against NumPy, spelt out and by the library."""

import numpy as np
import pytest

from missbgm.bgm.cholesky import UNROLLED, inverse_factor, times, transposed_times


@pytest.mark.parametrize("d", [1, 2, 5, UNROLLED, UNROLLED + 1])
def test_the_inverse_factor_inverts(d):
    rng = np.random.default_rng(d)
    roots = rng.standard_normal((7, d, d))
    matrices = roots @ roots.transpose(0, 2, 1) + np.eye(d)
    inverse = np.asarray(inverse_factor(np.moveaxis(matrices, 0, -1).astype(np.float32)))
    expected = np.linalg.inv(np.linalg.cholesky(matrices))
    np.testing.assert_allclose(np.moveaxis(inverse, -1, 0), expected, atol=2e-4)
    vectors = rng.standard_normal((d, 7)).astype(np.float32)
    np.testing.assert_allclose(times(inverse, vectors), np.einsum("ijn,jn->in", inverse, vectors), atol=1e-5)
    np.testing.assert_allclose(
        transposed_times(inverse, vectors), np.einsum("jin,jn->in", inverse, vectors), atol=1e-5
    )


def test_a_matrix_that_rounding_made_indefinite_gives_finite_numbers():
    matrix = np.array([[1.0, 1.0], [1.0, 1.0 - 1e-7]], np.float32)[:, :, None]
    assert np.isfinite(inverse_factor(matrix)).all()
