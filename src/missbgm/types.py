"""Names for the arrays and their dimensions.

Features come first and rows, if any, last: a function written for one row, ``(features,)``, takes a block
of rows, ``(features, rows)``, unchanged. ``d`` latent dimensions, ``p`` columns, ``q`` features (a
categorical column of K classes has K), ``o`` outputs of the generator.
"""

from typing import Any

import jax
import numpy as np
from jax import Array
from jaxtyping import Bool, Float, Key

Latent = Float[Array, "d *rows"]
Row = Float[Array, "p *rows"]
Features = Float[Array, "q *rows"]
Outputs = Float[Array, "o *rows"]
Observed = Bool[Array, "p *rows"]
PerRow = Float[Array, "*rows"]
Scalar = Float[Array, ""]
RandomKey = Key[Array, ""]
RowKeys = Key[Array, " rows"]
# Arrays that a compiled program takes from the host as well as from a device; no one type says so.
Numbers = Any
Rng = np.random.Generator
Tree = Any


def new_key(rng: Rng) -> RandomKey:
    """A key of JAX's from a generator of NumPy's, which needs no program compiled to move on."""
    return jax.random.key(rng.integers(2**63))
