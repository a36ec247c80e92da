"""The joint density of a latent row, a completed row and its observation pattern.

This is the only place where its terms are added; fitting, point estimation and sampling call it.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple, Self

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array

from missbgm.bgm.classes import Block, Cells, Pattern, at_latent
from missbgm.bgm.factor import Factor, Probits
from missbgm.bgm.likelihood import LOG_2PI, Columns, Parameters
from missbgm.bgm.missingness import Mechanism, Network
from missbgm.bgm.networks import Generator, Moments, along_rows, draw_weights, mean_weights
from missbgm.bgm.normal import hazard, log_cdf
from missbgm.types import Latent, Numbers, Observed, PerRow, RandomKey, Rng, Row, Tree


class Terms(NamedTuple):
    """Named parts of the log joint density, each one number a row."""

    prior: PerRow
    data: PerRow
    missingness: PerRow

    def tempered(self, beta: Tree) -> PerRow:
        """log pi(z) + log p(x | z) + beta log p(r | x)."""
        return self.prior + self.data + beta * self.missingness


class Model(eqx.Module):
    """Everything believed: how rows come about and how cells go missing."""

    columns: Columns
    generator: Generator
    mechanism: Mechanism
    moments: Moments

    @classmethod
    def create(
        cls,
        rng: Rng,
        columns: Columns,
        *,
        z_dim: int,
        g_units: Sequence[int],
        missingness_units: Sequence[int],
        uncertain: bool,
    ) -> Self:
        generator = Generator.create(rng, z_dim, g_units, columns.n_outputs, uncertain=uncertain)
        mechanism = Network.create(
            rng, columns.n_features, missingness_units, columns.n_columns, uncertain=uncertain
        )
        return cls(columns, generator, mechanism, Moments.standard(z_dim))

    def parameters(self, z: Latent) -> Parameters:
        """What the generator says about a row's columns."""
        return self.columns.read(self.generator(z, self.moments))

    def drawn(self, key: RandomKey) -> "Model":
        """The model with uncertain weights replaced by one draw of them."""
        return draw_weights(self, key)

    def at_mean(self) -> "Model":
        """The model with uncertain weights replaced by their mean."""
        return mean_weights(self)


def log_prior(z: Latent) -> PerRow:
    return -0.5 * (jnp.sum(z**2, axis=0) + len(z) * LOG_2PI)


def log_missingness(model: Model, x: Row, observed: Observed, key: RandomKey | None = None) -> PerRow:
    return model.mechanism.log_prob(model.columns.features(x), observed, key)


def log_latent(model: Model, z: Latent, x: Row) -> tuple[PerRow, Parameters]:
    """log p(z | x) up to a constant, and the parameters it was computed from."""
    parameters = model.parameters(z)
    return log_prior(z) + model.columns.log_prob(parameters, x), parameters


def log_missing(model: Model, parameters: Parameters, x: Row, observed: Observed, beta: Tree) -> PerRow:
    """log p(x_mis | x_obs, r, z) up to a constant, tempered; `parameters` stand for z."""
    return model.columns.log_prob(parameters, x) + beta * log_missingness(model, x, observed)


def log_terms(model: Model, z: Latent, x: Row, observed: Observed) -> Terms:
    """Every term of the log joint density of a row."""
    data = model.columns.log_prob(model.parameters(z), x)
    return Terms(log_prior(z), data, log_missingness(model, x, observed))


def log_classes(
    model: Model,
    parameters: Parameters,
    x: Row,
    observed: Observed,
    beta: Tree,
    block: int,
    column: Array | int,
) -> Array:
    """log p(x_j = k | everything else), up to a constant, for each class k of one discrete column.

    `block` says which block of columns holds it and `column` its place there.
    """
    kind = model.columns.blocks[block]
    position = kind.start + column

    def with_class(k: Array) -> PerRow:
        row = jax.lax.dynamic_update_index_in_dim(x, jnp.broadcast_to(k, x.shape[1:]), position, 0)
        return beta * log_missingness(model, row, observed)

    classes = jnp.arange(kind.n_classes, dtype=x.dtype)
    log_probs = jnp.take(parameters[block].log_probs, column, axis=1)
    return log_probs + jax.vmap(with_class)(classes)


def update_classes(
    model: Model,
    parameters: Parameters,
    x: Row,
    observed: Observed,
    beta: Tree,
    choose: Callable[[Array, Array], Array],
) -> Row:
    """Visit every discrete column and give its missing cells the class chosen from their conditional.

    ``choose(log_weights, position)`` answers one class for each row: the mode, or a draw.
    """
    for block, kind in model.columns.discrete:

        def visit(column: Array, x: Row, block: int = block, start: int = kind.start) -> Row:
            log_weights = log_classes(model, parameters, x, observed, beta, block, column)
            chosen = choose(log_weights, start + column).astype(x.dtype)
            kept = jnp.where(observed[start + column], x[start + column], chosen)
            return jax.lax.dynamic_update_index_in_dim(x, kept, start + column, 0)

        x = jax.lax.fori_loop(0, kind.size, visit, x)
    return x


class Marginal(NamedTuple):
    """log p(x_obs, r, z) of rows under one component, and what its derivatives in z are made of."""

    log_prob: PerRow
    residual: Array  # standardised, 0 where a cell is missing
    hazard: Array  # derivative of a cell's log probability in its probit
    probit: Array
    classes: tuple[Cells, ...]  # what is known of the cells of every block of discrete columns


def log_marginal(
    model: Factor, given: Probits, masked: Numbers, z: Latent, x: Row, observed: Observed
) -> Marginal:
    """The joint density with the missing cells integrated out, exactly, at latent rows z.

    An observed cell adds its normal density and the probability that it is observed, a missing one the
    probability that it is missing whatever its value; discrete columns come after the continuous ones.
    """
    classes = tuple(
        at_latent(block, pattern, masked[part], z, x[part], observed[part])
        for block, pattern, part in zip(model.discrete, given.classes, model.discrete_columns, strict=True)
    )
    if classes:
        continuous = slice(0, model.n_continuous)
        x, observed, masked = x[continuous], observed[continuous], masked[continuous]
    scale = along_rows(model.scale, x)
    residual = jnp.where(observed, (x - model.weight @ z - along_rows(model.bias, x)) / scale, 0.0)
    probit = jnp.where(
        observed,
        along_rows(given.observed_constant, x)
        + along_rows(given.observed_slope, x) * x
        + given.observed_weight @ z,
        along_rows(given.missing_constant, x) + given.missing_weight @ z,
    )
    pattern = log_cdf(probit)
    masked = along_rows(masked, x)
    density = -0.5 * residual**2 - jnp.where(observed, jnp.log(scale) + 0.5 * LOG_2PI, 0.0)
    log_prob = log_prior(z) + jnp.sum(density + masked * pattern, axis=0)
    for cells in classes:
        log_prob = log_prob + jnp.sum(cells.evidence, axis=0)
    return Marginal(log_prob, residual, masked * hazard(probit), probit, classes)


def discrete_parts(model: Factor, given: Probits, at: Marginal) -> list[tuple[Cells, Block, Pattern, slice]]:
    """What is known of each block of discrete columns, its parameters, and which columns it has."""
    return list(zip(at.classes, model.discrete, given.classes, model.discrete_columns, strict=True))
