"""The curve P(missing | value) that a mechanism implies for one column, with a band from the refits."""

from collections.abc import Sequence
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, softmax

from missbgm.bgm.factor import Assumed, Mixture, probits
from missbgm.randomness import as_normal, lattice
from missbgm.table.array import Values
from missbgm.table.codec import Codec

GRID = 101  # values of a card
N_LATENT = 4_096  # points of a lattice
MARGIN = 0.25  # of the observed range, beyond its ends


@dataclass(frozen=True)
class MechanismCard:
    """What is assumed of one column's missing cells, as a curve.

    Attributes
    ----------
    column
        The column's name.
    mechanism
        The assumed mechanism's name.
    value
        A grid of the column's values, somewhat beyond those observed; the classes of a discrete column.
    probability
        P(missing | value) at the estimate, averaged over all else that a row may hold.
    lower, upper
        The least and the largest of the refits' curves; NaN without refits.
    n_refits
        How many refits the band comes from.
    """

    column: str
    mechanism: str
    value: Values
    probability: Values
    lower: Values
    upper: Values
    n_refits: int

    def __str__(self) -> str:
        band = f"band of {self.n_refits} refits" if self.n_refits else "no band: there were no refits"
        lines = [f"{self.column}: assumed {self.mechanism}; P(missing | value), {band}"]
        for k in range(0, len(self.value), max((len(self.value) - 1) // 10, 1)):
            ends = f"  [{self.lower[k]:.3f}, {self.upper[k]:.3f}]" if self.n_refits else ""
            lines.append(f"  {self.value[k]:>12.5g}  {self.probability[k]:.3f}{ends}")
        return "\n".join(lines)


def card_of(
    column: str,
    mechanism: str,
    place: int,
    codec: Codec,
    observed: Values,
    models: tuple[Mixture, Sequence[Mixture]],
    assumed: Assumed,
) -> MechanismCard:
    """The card of the column in one place of the model's order.

    Parameters
    ----------
    column, mechanism
        Names.
    place
        Where the model has the column.
    codec
        What codes its values.
    observed
        The column's observed values.
    models
        The estimate, and its refits.
    assumed
        The mechanism's numbers.
    """
    estimate, refits = models
    value = _grid(codec, place, observed)
    coded = codec.encode_values(value, place)
    curves = [chance_missing(model, assumed, place, coded) for model in (estimate, *refits)]
    band = np.array(curves[1:]) if refits else np.full((1, len(value)), np.nan)
    return MechanismCard(
        column, mechanism, value, curves[0], band.min(axis=0), band.max(axis=0), len(curves) - 1
    )


def _grid(codec: Codec, place: int, observed: Values) -> Values:
    levels = codec.levels.get(int(codec.order[place]))
    if levels is not None:
        # Counts are known up to a bound that may be far from all that was seen.
        return np.asarray(levels[levels <= observed.max()])
    margin = MARGIN * (observed.max() - observed.min())
    return np.linspace(observed.min() - margin, observed.max() + margin, GRID)


def chance_missing(
    model: Mixture, assumed: Assumed, place: int, x: NDArray[np.float64]
) -> NDArray[np.float64]:
    """P(missing | a column's coded value), what else a row may hold integrated out.

    That is in closed form for continuous columns, and over a lattice of latent rows for the others.
    """
    if not assumed.masked[place]:
        return np.zeros_like(x)
    side = float(assumed.side[place])
    if side:
        return (side * (assumed.limit[place] - x) > 0).astype(np.float64)
    if place >= model.weight.shape[1]:
        return _of_classes(model, assumed, place)[x.astype(np.intp)]
    chances, log_weights = zip(*(_under(model, k, assumed, place, x) for k in range(model.size)), strict=True)
    return np.asarray((softmax(np.array(log_weights), axis=0) * np.array(chances)).sum(axis=0))


def _of_classes(model: Mixture, assumed: Assumed, place: int) -> NDArray[np.float64]:
    """P(missing | class) of every class of a discrete column."""
    d, together, gone = model.weight.shape[2], 0.0, 0.0
    points = np.arange(N_LATENT, dtype=np.uint32)
    z = as_normal(lattice(jnp.zeros((d, N_LATENT), jnp.uint32), points))
    for k in range(model.size):
        part = model.part(k)
        given = probits(part, assumed)
        for block, pattern, columns in zip(part.discrete, given.classes, part.discrete_columns, strict=True):
            if columns.start <= place < columns.stop:
                log_prob = block.log_prob(block.predictor(z), pattern.dead)[place - columns.start]
                probit = pattern.constant[:, None] + pattern.weight @ z
                probit = probit[place - columns.start] + pattern.effect[place - columns.start][:, None]
                chance = np.exp(np.asarray(log_prob + model.log_share[k], np.float64))
                together = together + chance.sum(axis=1)
                gone = gone + (chance * ndtr(-np.asarray(probit, np.float64))).sum(axis=1)
    return np.asarray(gone / np.maximum(together, 1e-300))


def _under(
    model: Mixture, component: int, assumed: Assumed, place: int, x: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """P(missing | value) under one component, and the log weight of the component given the value."""
    part = model.part(component)
    given = probits(part, assumed)
    weight, slope, bias, scale, constant, own = (
        np.asarray(a[place], np.float64)
        for a in (
            given.observed_weight,
            part.weight,
            part.bias,
            part.scale,
            given.observed_constant,
            given.observed_slope,
        )
    )
    variance = slope @ slope + scale**2
    mean = np.multiply.outer(x - bias, slope) / variance
    spread = weight @ weight - (weight @ slope) ** 2 / variance
    chance = ndtr(-(constant + own * x + mean @ weight) / np.sqrt(1 + spread))
    log_weight = float(model.log_share[component]) - 0.5 * ((x - bias) ** 2 / variance + np.log(variance))
    return chance, log_weight
