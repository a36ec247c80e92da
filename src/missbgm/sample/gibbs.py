"""The paper's sweep: latent rows given completed rows, then missing cells given latent rows."""

from typing import NamedTuple, Self

import jax
import jax.numpy as jnp
from jax import Array

from missbgm.bgm.joint import (
    Model,
    Terms,
    log_latent,
    log_missing,
    log_missingness,
    log_prior,
    update_classes,
)
from missbgm.bgm.likelihood import Parameters
from missbgm.compiling import IN_ONE_PIECE, compiled
from missbgm.randomness import Seeds, as_normal, row_uniform
from missbgm.sample.hmc import StepSize, acceptance_of, chosen, transition
from missbgm.types import Latent, Numbers, Observed, PerRow, Row, RowKeys


class Kernels(NamedTuple):
    """Settings that shape the compiled sweep."""

    n_leapfrog: int
    x_kernel: str
    target_accept: float


class Chains(NamedTuple):
    """One chain a row."""

    z: Latent
    x: Row
    z_step: StepSize
    x_step: StepSize

    @classmethod
    def start(cls, z: Latent, x: Row, step_size: float) -> Self:
        steps = StepSize.start(step_size, z.shape[1])
        return cls(z, x, steps, steps)

    def adapting_anew(self) -> "Chains":
        """The same rows, for another density: what was a good step size need not be one there."""
        return self._replace(z_step=self.z_step.restarted(), x_step=self.x_step.restarted())


class Adaptation(NamedTuple):
    """Sweeps from number `first` up to `end` adapt step sizes."""

    first: Numbers
    end: Numbers


class Trace(NamedTuple):
    """What a sweep leaves behind."""

    x: Row
    terms: Terms
    z_acceptance: PerRow
    x_acceptance: PerRow


def autoregressive(
    noise: Row,
    uniform: PerRow,
    model: Model,
    parameters: Parameters,
    x: Row,
    observed: Observed,
    beta: Array,
    step: PerRow,
) -> tuple[Row, PerRow]:
    """Move missing continuous cells along their Gaussian conditional, judged by the mechanism alone.

    With step 1 the proposal is an independent draw from p(x | z); smaller steps stay nearer to where the
    chain is (Neal, 1998). It keeps p(x | z) whatever the step, so only the mechanism's ratio is left.
    """
    step = jnp.minimum(step, 1.0)
    proposal = x
    for i, block in model.columns.continuous:
        mean, variance = parameters[i]
        cells = block.columns
        moved = mean + jnp.sqrt(1 - step**2) * (x[cells] - mean) + step * jnp.sqrt(variance) * noise[cells]
        proposal = proposal.at[cells].set(jnp.where(observed[cells], x[cells], moved))
    ratio = log_missingness(model, proposal, observed) - log_missingness(model, x, observed)
    acceptance = acceptance_of(beta * ratio)
    return chosen(uniform < acceptance, proposal, x), acceptance


def hamiltonian(
    noise: Row,
    uniform: PerRow,
    model: Model,
    parameters: Parameters,
    x: Row,
    observed: Observed,
    beta: Array,
    step: PerRow,
    n_leapfrog: int,
) -> tuple[Row, PerRow]:
    """The paper's HMC move of the missing continuous cells; `parameters` are computed once for all of it."""
    free = jnp.zeros(x.shape, x.dtype)
    for _, block in model.columns.continuous:
        free = free.at[block.columns].set(jnp.where(observed[block.columns], 0.0, 1.0))

    def density(x: Row) -> tuple[PerRow, None]:
        return log_missing(model, parameters, x, observed, beta), None

    point, acceptance = transition(noise, uniform, density, x, step, n_leapfrog, free)
    return point.position, acceptance


def sweep(
    model: Model,
    chains: Chains,
    observed: Observed,
    row_keys: RowKeys,
    number: Array,
    adaptation: Adaptation,
    beta: Array,
    kernels: Kernels,
) -> tuple[Chains, Trace]:
    """One sweep of every row; step sizes are frozen when their adaptation has ended."""
    adapting, age = number < adaptation.end, number - adaptation.first
    keys = jax.vmap(lambda key: jax.random.fold_in(key, number))(row_keys)
    d, p = len(chains.z), len(chains.x)
    uniform = row_uniform(keys, d + p + 2)
    noise = as_normal(uniform[: d + p])
    point, z_acceptance = transition(
        noise[:d],
        uniform[-1],
        lambda z: log_latent(model, z, chains.x),
        chains.z,
        chains.z_step.used(adapting),
        kernels.n_leapfrog,
    )
    parameters, x, x_acceptance = point.extra, chains.x, jnp.ones(len(row_keys))
    if model.columns.continuous:
        given = (noise[d:], uniform[-2], model, parameters, x, observed, beta, chains.x_step.used(adapting))
        if kernels.x_kernel == "autoregressive":
            x, x_acceptance = autoregressive(*given)
        else:
            x, x_acceptance = hamiltonian(*given, kernels.n_leapfrog)

    def draw(log_weights: Array, position: Array) -> Array:
        drawn = jax.vmap(lambda key, w: jax.random.categorical(jax.random.fold_in(key, position), w))
        return drawn(keys, log_weights.T)

    x = update_classes(model, parameters, x, observed, beta, draw)
    target = kernels.target_accept
    z_step = chosen(adapting, chains.z_step.adapted(z_acceptance, age, target), chains.z_step)
    x_step = chosen(adapting, chains.x_step.adapted(x_acceptance, age, target), chains.x_step)
    terms = Terms(
        log_prior(point.position),
        model.columns.log_prob(parameters, x),
        log_missingness(model, x, observed),
    )
    return Chains(point.position, x, z_step, x_step), Trace(x, terms, z_acceptance, x_acceptance)


@compiled(IN_ONE_PIECE, static_argnames=("length", "kernels"))
def sweeps(
    model: Model,
    chains: Chains,
    observed: Observed,
    seeds: Seeds,
    first: Array,
    adaptation: Adaptation,
    beta: Array,
    *,
    length: int,
    kernels: Kernels,
) -> tuple[Chains, Trace]:
    """`length` sweeps from number `first`, with the trace of each."""
    row_keys = seeds.row_keys()

    def step(chains: Chains, number: Array) -> tuple[Chains, Trace]:
        return sweep(model, chains, observed, row_keys, number, adaptation, beta, kernels)

    return jax.lax.scan(step, chains, first + jnp.arange(length, dtype=first.dtype))
