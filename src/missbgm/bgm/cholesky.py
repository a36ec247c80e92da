"""Many small matrices at once, above all inverse Cholesky factors; the last axis runs over matrices."""

import jax
import jax.numpy as jnp
from jax import Array

UNROLLED = 10  # up to this size spelt out: batched LAPACK calls are slow on a CPU
TINY = 1e-6


def inverse_factor(matrices: Array) -> Array:
    """L^-1 with L L' = A for each positive definite A of ``(d, d, n)``; rounding cannot make it fail."""
    d = len(matrices)
    if d > UNROLLED:
        return _by_library(matrices)
    factor: list[list[Array]] = []
    for i in range(d):
        row: list[Array] = []
        for j in range(i):
            rest = sum((row[k] * factor[j][k] for k in range(j)), start=jnp.zeros(()))
            row.append((matrices[i, j] - rest) / factor[j][j])
        squares = sum((entry**2 for entry in row), start=jnp.zeros(()))
        row.append(jnp.sqrt(jnp.maximum(matrices[i, i] - squares, TINY)))
        factor.append(row)
    return _inverted(factor)


def _inverted(factor: list[list[Array]]) -> Array:
    d = len(factor)
    zero = jnp.zeros_like(factor[0][0])
    columns = []
    for j in range(d):
        column = [zero] * j + [1 / factor[j][j]]
        for i in range(j + 1, d):
            column.append(-sum(factor[i][k] * column[k] for k in range(j, i)) / factor[i][i])
        columns.append(jnp.stack(column))
    return jnp.stack(columns, axis=1)


def _by_library(matrices: Array) -> Array:
    d = len(matrices)
    factor = jnp.linalg.cholesky(jnp.moveaxis(matrices, -1, 0) + TINY * jnp.eye(d))
    eye = jnp.broadcast_to(jnp.eye(d), factor.shape)
    return jnp.moveaxis(jax.scipy.linalg.solve_triangular(factor, eye, lower=True), 0, -1)


def curvature(weight: Array, amounts: Array) -> Array:
    """Sum over columns of amount times w w', for each row: ``(d, d, rows)``."""
    d = weight.shape[1]
    outer = (weight[:, :, None] * weight[:, None, :]).reshape(len(weight), d * d)
    return (outer.T @ amounts).reshape(d, d, -1)


def times(matrices: Array, vectors: Array) -> Array:
    """A v for each matrix and vector."""
    return jnp.sum(matrices * vectors[None], axis=1)


def transposed_times(matrices: Array, vectors: Array) -> Array:
    """A' v for each matrix and vector."""
    return jnp.sum(matrices * vectors[:, None], axis=0)
