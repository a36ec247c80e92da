"""The curve P(missing | value) that a mechanism implies for one column, with a band from the refits."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, softmax

from missbgm.bgm.factor import Assumed, Mixture, probits
from missbgm.table.array import Values
from missbgm.table.codec import Codec

GRID = 101  # values of a card
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
        A grid of the column's values, somewhat beyond those observed.
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
        for k in range(0, len(self.value), (len(self.value) - 1) // 10):
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
    margin = MARGIN * (observed.max() - observed.min())
    value = np.linspace(observed.min() - margin, observed.max() + margin, GRID)
    coded = codec.encode_values(value, place)
    curves = [chance_missing(model, assumed, place, coded) for model in (estimate, *refits)]
    band = np.array(curves[1:]) if refits else np.full((1, GRID), np.nan)
    return MechanismCard(
        column, mechanism, value, curves[0], band.min(axis=0), band.max(axis=0), len(curves) - 1
    )


def chance_missing(
    model: Mixture, assumed: Assumed, place: int, x: NDArray[np.float64]
) -> NDArray[np.float64]:
    """P(missing | a column's coded value), what else a row may hold integrated out in closed form."""
    if not assumed.masked[place]:
        return np.zeros_like(x)
    side = float(assumed.side[place])
    if side:
        return (side * (assumed.limit[place] - x) > 0).astype(np.float64)
    chances, log_weights = zip(*(_under(model, k, assumed, place, x) for k in range(model.size)), strict=True)
    return np.asarray((softmax(np.array(log_weights), axis=0) * np.array(chances)).sum(axis=0))


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
