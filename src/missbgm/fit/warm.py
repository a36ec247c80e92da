"""The warm start: a model, latent rows and a completed table for Algorithm 1 to begin with."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

from missbgm.bgm.joint import Model
from missbgm.bgm.likelihood import Columns
from missbgm.config import Config
from missbgm.fit.egm import pretrain
from missbgm.fit.start import Pattern, Table, neighbours_fill
from missbgm.types import Numbers, Rng


class Warm(NamedTuple):
    model: Model
    z: Numbers
    x: Table
    history: dict[str, NDArray[np.float32]]
    finite: bool


@jax.jit
def to_features(columns: Columns, x: Array) -> Array:
    return columns.features(x.T).T


@jax.jit
def _to_codes(columns: Columns, features: Array) -> Array:
    return columns.from_features(features.T).T


@jax.jit
def _seen_features(columns: Columns, observed: Array) -> Array:
    return columns.observed_features(observed.T).T


def fill(columns: Columns, codes: Table, observed: Pattern, config: Config, rng: Rng) -> tuple[Table, Table]:
    """Complete a coded table from neighbours; answer the codes and the features they came from."""
    features = np.asarray(to_features(columns, codes))
    seen = np.asarray(_seen_features(columns, observed))
    features = neighbours_fill(features, seen, config.n_neighbors, rng)
    completed = np.where(observed, codes, np.asarray(_to_codes(columns, features)))
    return completed, features


def warm_start(rng: Rng, columns: Columns, codes: Table, observed: Pattern, config: Config) -> Warm:
    """Fill from neighbours, then pretrain; when that comes to nothing finite, start from the prior."""
    x, features = fill(columns, codes, observed, config, rng)
    model = Model.create(
        rng,
        columns,
        z_dim=config.z_dim,
        g_units=config.g_units,
        missingness_units=config.missingness_units,
        uncertain=config.use_bnn,
    )
    if config.egm_init.enabled:
        pretrained, z, losses = pretrain(rng, model, jnp.asarray(features), config)
        history = {name: np.asarray(loss) for name, loss in losses._asdict().items()}
        if np.isfinite(np.asarray(z)).all() and all(np.isfinite(h).all() for h in history.values()):
            return Warm(pretrained, z, x, history, True)
    prior_rows = rng.standard_normal((len(x), config.z_dim), dtype=np.float32)
    return Warm(model, prior_rows, x, {}, not config.egm_init.enabled)
