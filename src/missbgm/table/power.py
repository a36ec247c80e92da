"""Yeo-Johnson transformations of columns, fitted to their observed cells (Yeo & Johnson, 2000)."""

from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from missbgm.table.array import Pattern, Values

LEAST, GREATEST = -3.0, 5.0
N_HALVINGS = 40
GOLDEN = (np.sqrt(5) - 1) / 2
MOST_ROWS, MOST_CELLS, FEWEST_ROWS = 4_000, 4_000_000, 1_000  # that exponents are found from
BEYOND = 0.3  # of a column's observed range: how far outside of it a decoded draw may lie


class Power(NamedTuple):
    """An exponent for each column, and what standardises the transformed column.

    ``low`` and ``high`` bound what is decoded: the inverse of a bent scale can explode where nothing was
    seen.
    """

    exponent: Values
    mean: Values
    sd: Values
    low: Values
    high: Values

    @classmethod
    def learn(cls, x: NDArray[np.floating], observed: Pattern, rng: np.random.Generator) -> Self:
        """Most likely exponents for columns that are normal after transformation.

        Parameters
        ----------
        x
            Rows by columns; what missing cells hold does not matter.
        observed
            Which cells count.
        rng
            Chooses the rows that count in a long table.
        """
        values: Values = np.where(observed, x, 0.0).astype(np.float64)
        rows = np.arange(len(values))
        most = max(FEWEST_ROWS, min(MOST_ROWS, MOST_CELLS // values.shape[1]))
        if len(rows) > most:
            rows = rng.choice(rows, most, replace=False)
        exponent = _most_likely(values[rows], observed[rows])
        bent = transformed(values, exponent)
        mean, sd = _moments(bent, observed)
        low = np.where(observed, values, np.inf).min(axis=0)
        high = np.where(observed, values, -np.inf).max(axis=0)
        margin = BEYOND * (high - low)
        return cls(exponent, mean, np.where(sd > 0, sd, 1.0), low - margin, high + margin)

    def taken(self, place: int) -> "Power":
        """The transformation of one column."""
        return Power(*(part[place : place + 1] for part in self))

    def reaching(self, place: int, value: float) -> "Power":
        """The transformation with bounds that leave room on both sides of a value of one column."""
        margin = BEYOND * (self.high[place] - self.low[place])
        low, high = self.low.copy(), self.high.copy()
        low[place], high[place] = min(low[place], value - margin), max(high[place], value + margin)
        return self._replace(low=low, high=high)

    def encode(self, x: NDArray[np.floating]) -> Values:
        """Values to the transformed, standardised scale."""
        return (transformed(x.astype(np.float64), self.exponent) - self.mean) / self.sd

    def decode(self, codes: NDArray[np.floating], columns: NDArray[np.intp]) -> Values:
        """Codes of some columns, the last axis, back to values within their bounds."""
        bent = self.mean[columns] + self.sd[columns] * codes.astype(np.float64)
        return np.clip(restored(bent, self.exponent[columns]), self.low[columns], self.high[columns])

    def log_jacobian(self, x: NDArray[np.floating], observed: Pattern) -> Values:
        """Sum over the observed cells of each row of the log derivative of `encode`."""
        slope = (self.exponent - 1) * np.sign(x) * np.log1p(np.abs(x)) - np.log(self.sd)
        return np.where(observed, slope, 0.0).sum(axis=1)


def transformed(x: Values, exponent: Values) -> Values:
    """The Yeo-Johnson transformation, column by column."""
    power = np.where(x >= 0, exponent, 2 - exponent)
    size = np.log1p(np.abs(x))
    bent = np.where(np.abs(power) < 1e-8, size, np.expm1(power * size) / np.where(power == 0, 1, power))
    return np.where(x >= 0, bent, -bent)


def restored(y: Values, exponent: Values) -> Values:
    """The inverse of `transformed`; infinite beyond the end of a bounded scale."""
    power = np.where(y >= 0, exponent, 2 - exponent)
    size = np.abs(y)
    with np.errstate(divide="ignore", over="ignore"):
        inner = np.log1p(np.maximum(power * size, -1.0)) / np.where(power == 0, 1, power)
        value = np.expm1(np.where(np.abs(power) < 1e-8, size, inner))
    return np.where(y >= 0, value, -value)


def _moments(x: Values, observed: Pattern) -> tuple[Values, Values]:
    count = np.maximum(observed.sum(axis=0), 1)
    mean = np.where(observed, x, 0).sum(axis=0) / count
    return mean, np.sqrt(np.where(observed, (x - mean) ** 2, 0).sum(axis=0) / count)


def _most_likely(x: Values, observed: Pattern) -> Values:
    """Golden-section search of every column at once."""
    slope = np.where(observed, np.sign(x) * np.log1p(np.abs(x)), 0).sum(axis=0)
    count = observed.sum(axis=0)

    def log_likelihood(exponent: Values) -> Values:
        _, sd = _moments(transformed(x, exponent), observed)
        return (exponent - 1) * slope - count * np.log(np.maximum(sd, 1e-12))

    low, high = np.full(x.shape[1], LEAST), np.full(x.shape[1], GREATEST)
    inner, outer = high - GOLDEN * (high - low), low + GOLDEN * (high - low)
    at_inner, at_outer = log_likelihood(inner), log_likelihood(outer)
    for _ in range(N_HALVINGS):
        left = at_inner > at_outer
        low, high = np.where(left, low, inner), np.where(left, outer, high)
        kept, kept_value = np.where(left, inner, outer), np.where(left, at_inner, at_outer)
        fresh = np.where(left, high - GOLDEN * (high - low), low + GOLDEN * (high - low))
        value = log_likelihood(fresh)
        inner, outer = np.where(left, fresh, kept), np.where(left, kept, fresh)
        at_inner, at_outer = np.where(left, value, kept_value), np.where(left, kept_value, value)
    return (low + high) / 2
