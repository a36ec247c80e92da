"""Draws of the missing cells of one table; completed tables on demand."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from missbgm.errors import ConfigError
from missbgm.sample.posterior import Sampled
from missbgm.summary import cells
from missbgm.table.array import Observations, Values
from missbgm.table.codec import Codec

Point = Literal["mean", "median", "mode"]
POINTS: tuple[Point, ...] = ("mean", "median", "mode")


@dataclass(frozen=True)
class Draws:
    """What was drawn for the missing cells of a table.

    Cells are in row-major order of the table, as ``np.argwhere`` lists them. Only their draws are kept.

    Attributes
    ----------
    table
        The table with its missing cells.
    codec
        How draws are decoded.
    sampled
        The sampler's answer: coded draws, streaming moments, and the check of the chains.
    """

    table: Observations
    codec: Codec
    sampled: Sampled

    @property
    def n_draws(self) -> int:
        """Number of draws, those of all chains together."""
        return self.sampled.values.shape[0] * self.sampled.values.shape[1]

    @property
    def index(self) -> NDArray[np.intp]:
        """Row and column of every missing cell."""
        return np.argwhere(~self.table.observed)

    @property
    def values(self) -> Values:
        """Every draw of every missing cell, decoded: draws by cells. As large as the draws themselves."""
        return self._decoded(self._coded())

    def complete(self, draw: int) -> Values:
        """The completed table of one draw, counted from 0 through the chains in turn."""
        if not -self.n_draws <= draw < self.n_draws:
            raise ConfigError(f"draw must be from 0 to {self.n_draws - 1}, got {draw}")
        return self.filled(self._decoded(self._coded()[draw]))

    def sd(self) -> Values:
        """Posterior standard deviation of every missing cell, from every sweep after burn-in.

        That of classes, and of columns on a bent scale, is one of the draws.
        """
        if self.codec.bends:
            return self._over_decoded(lambda values: values.std(axis=0))
        found = self._placed(self.sampled.sd) * self.codec.scale[self.index[:, 1]]
        classes = self._discrete_cells()
        if classes.any():
            drawn = self.codec.decode(self._coded()[:, classes], self._drawn_columns()[classes])
            found[self._positions()[classes]] = drawn.std(axis=0)
        return found

    def point(self, kind: Point = "mean") -> Values:
        """Posterior mean, median or mode of every missing cell; for classes always the most probable one."""
        if kind not in POINTS:
            raise ConfigError(f"point must be one of {', '.join(POINTS)}, got {kind!r}")
        classes = self._discrete_cells()
        if kind == "mean" and self.codec.bends:
            found = self._over_decoded(lambda values: values.mean(axis=0))
            if classes.any():
                found[self._positions()[classes]] = self._commonest(classes)
            return found
        summaries = {"median": cells.median, "mode": cells.half_sample_mode}
        coded = self.sampled.mean if kind == "mean" else summaries[kind](self._coded())
        if classes.any():
            coded = coded.copy()
            coded[classes] = cells.commonest(self._coded()[:, classes])
        return self._decoded(coded)

    def interval(self, alpha: float = 0.05) -> Values:
        """Equal-tailed intervals of level 1 - alpha: cells by (lower, upper)."""
        if not 0 < alpha < 1:
            raise ConfigError(f"alpha must be between 0 and 1, got {alpha}")
        return self._decoded(cells.interval(self._coded(), alpha)).T

    def filled(self, missing: Values) -> Values:
        """The table with a value for each missing cell."""
        completed = self.table.values.copy()
        completed[~self.table.observed] = missing
        return completed

    def _over_decoded(self, summary: Callable[[Values], Values]) -> Values:
        """A summary of decoded draws, cell by cell: on a bent scale means do not commute with codes."""
        columns, coded = self._drawn_columns(), self._coded()
        parts = [summary(self.codec.decode(coded[:, c], columns[c])) for c in cells.chunks(coded.shape[1])]
        drawn = np.concatenate(parts) if parts else np.zeros(0)
        placed = self.codec.location[self.index[:, 1]]
        placed[self._positions()] = drawn
        return placed

    def _commonest(self, classes: NDArray[np.bool_]) -> Values:
        """The most frequent class of discrete cells, decoded."""
        commonest = cells.commonest(self._coded()[:, classes])
        return self.codec.decode(commonest, self._drawn_columns()[classes])

    def _coded(self) -> NDArray[np.floating]:
        return self.sampled.values.reshape(self.n_draws, -1)

    def _positions(self) -> NDArray[np.intp]:
        """Place among all missing cells of each drawn one; the sampler goes by the codec's order."""
        place = np.full(self.table.observed.shape, -1)
        place[~self.table.observed] = np.arange(int((~self.table.observed).sum()))
        place = place[:, self.codec.order]
        return place[place >= 0]

    def _drawn_columns(self) -> NDArray[np.intp]:
        missing = ~self.table.observed[:, self.codec.order]
        return self.codec.order[np.nonzero(missing)[1]]

    def _discrete_cells(self) -> NDArray[np.bool_]:
        return np.isin(self._drawn_columns(), list(self.codec.levels))

    def _placed(self, drawn: NDArray[np.floating]) -> Values:
        """Numbers of drawn cells put in the table's order, 0 for cells of constant columns."""
        placed = np.zeros((*drawn.shape[:-1], int((~self.table.observed).sum())))
        placed[..., self._positions()] = drawn
        return placed

    def _decoded(self, coded: NDArray[np.floating]) -> Values:
        return self.codec.decode(self._placed(coded), self.index[:, 1])
