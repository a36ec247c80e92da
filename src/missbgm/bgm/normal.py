"""The standard normal's tail functions, in single precision and cheap to differentiate."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

HALF_LOG_2PI = 0.5 * float(np.log(2 * np.pi))
ROOT_HALF = float(np.sqrt(0.5))
TAIL = -4.0  # below it an asymptotic series is exact to single precision
FAR_TAIL = -6.0  # below it the truncated normal is drawn by its Rayleigh-like tail


@jax.custom_jvp
def log_cdf(q: Array) -> Array:
    """log Phi(q)."""
    near, far = jnp.maximum(q, TAIL), jnp.minimum(q, TAIL)
    inverse = 1 / (far * far)
    series = jnp.log1p(-inverse * (1 - 3 * inverse * (1 - 5 * inverse)))
    tail = -0.5 * far * far - HALF_LOG_2PI - jnp.log(-far) + series
    return jnp.where(q > TAIL, jnp.log(0.5 * jax.lax.erfc(-ROOT_HALF * near)), tail)


def hazard(q: Array, log_probability: Array) -> Array:
    """phi(q) / Phi(q), the derivative of `log_cdf`, from its value."""
    return jnp.exp(-0.5 * q * q - HALF_LOG_2PI - log_probability)


@log_cdf.defjvp
def _log_cdf_jvp(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    (q,), (tangent,) = primals, tangents
    value = log_cdf(q)
    return value, hazard(q, value) * tangent


def below(q: Array, uniform: Array) -> Array:
    """A standard normal given that it is below `q`, as the quantile of a uniform in (0, 1)."""
    near = jax.scipy.special.ndtri(uniform * jax.scipy.special.ndtr(jnp.maximum(q, FAR_TAIL)))
    far = -jnp.sqrt(jnp.minimum(q, FAR_TAIL) ** 2 - 2 * jnp.log(uniform))
    return jnp.minimum(jnp.where(q > FAR_TAIL, near, far), q)
