"""Randomness that belongs to a row: it depends on one key and the row's own number, not on its company."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from missbgm.types import Numbers, RandomKey, RowKeys

HALF_GRID = 2.0**-24


class Seeds(NamedTuple):
    """Where a row's randomness comes from: one key, the row's own number and the chain's."""

    key: RandomKey
    numbers: Numbers
    chain: Numbers

    def row_keys(self) -> RowKeys:
        chain = jax.random.fold_in(self.key, self.chain)
        return jax.vmap(lambda number: jax.random.fold_in(chain, number))(self.numbers)


@jax.jit
def row_keys(seeds: Seeds) -> RowKeys:
    """The rows' keys, for programs that take them made."""
    return seeds.row_keys()


def row_uniform(keys: RowKeys, n: int) -> Array:
    """Uniforms in (0, 1), ``(n, rows)``; a row's numbers depend on its own key alone.

    JAX's are multiples of 2^-23 from zero on; moved by half of that they lie symmetric about 1/2, and no
    normal made of them is farther out than 5.3.
    """
    return jax.vmap(lambda key: jax.random.uniform(key, (n,)), out_axes=-1)(keys) + HALF_GRID


def row_integers(keys: RowKeys, n: int) -> Array:
    """Random 32-bit integers, ``(n, rows)``: where a row's `lattice` begins."""
    return jax.vmap(lambda key: jax.random.bits(key, (n,)), out_axes=-1)(keys)


def lattice(shifts: Array, number: Numbers) -> Array:
    """The point of this number in a lattice sequence for every row, uniform in (0, 1), shaped like `shifts`.

    Each point is uniform, as the shift is; together they are spread more evenly than independent ones, and
    cost an addition where those cost a cipher. Generators are powers of the root of x^(n + 1) = x + 1
    (Roberts, 2018).
    """
    n = len(shifts)
    root = 1.5
    for _ in range(60):
        root = (1 + root) ** (1 / (n + 1))
    steps = np.array([round(root**-k * 2**32) for k in range(1, n + 1)], np.uint32)
    place = shifts + jnp.uint32(number) * steps[:, None]
    return (place >> 9).astype(jnp.float32) * 2.0**-23 + HALF_GRID


def as_normal(uniform: Array) -> Array:
    """Standard normals from uniforms."""
    return jax.scipy.special.ndtri(uniform)


def folded(keys: RowKeys, number: Numbers) -> RowKeys:
    """Further keys of the same rows, one set for each number."""
    return jax.vmap(lambda key: jax.random.fold_in(key, number))(keys)
