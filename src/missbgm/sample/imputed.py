"""Draws of missing cells from collapsed models: blocks of rows, each row drawn in the way that suits it.

Latent rows come from weighted proposals where enough of them are effective, and from HMC where they are not.
Draws are spread over several models, so that they carry the uncertainty of the parameters.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple, Self

import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

from missbgm.bgm.factor import Assumed, Factor, Mixture
from missbgm.fit.laplace import BLOCK, Mode, propose
from missbgm.randomness import Seeds, row_keys
from missbgm.sample.check import Weighing, rhat
from missbgm.sample.collapsed import Weighted, chain, fill, fill_classes, moments, resample
from missbgm.sample.posterior import Sampled
from missbgm.types import Observed, RandomKey, Row, RowKeys

POOR = 0.1  # the share of effective proposals below which a row is drawn by HMC
N_BURN = 150
CHAINS = 32  # rows whose chains run together
CELLS = 1_024  # cells drawn together


class Amounts(NamedTuple):
    """How many draws of cells, of latent rows, and in what precision they are kept."""

    n_draws: int
    n_proposals: int
    dtype: str


class Latents(NamedTuple):
    """Weighted latent rows of a block, and how they came about."""

    weighted: Weighted
    share: NDArray[np.float64]  # effective, of the proposals
    rhat: list[float]  # of the rows that were drawn by HMC, the worst of their components


def latents(
    keys: RowKeys, model: Mixture, assumed: Assumed, x: Row, observed: Observed, n_real: int, n_proposals: int
) -> Latents:
    """Weighted latent rows of a block; poor weights give way to chains of equal weights.

    A component's probability stays what the proposals made of it: chains move under one component.
    """
    proposed = propose(keys, model, assumed, x, observed, n_proposals=n_proposals)
    share = np.asarray(proposed.effective_share, np.float64)[:n_real]
    z, log_weight, found = proposed.z, proposed.log_weight, []
    poor = np.flatnonzero(~(share >= POOR))
    for start in range(0, len(poor), CHAINS):
        chosen = poor[start : start + CHAINS]
        several = np.resize(chosen, CHAINS)
        given = keys[several], x[:, several], observed[:, several]
        worst = np.zeros(len(chosen))
        for component in range(model.size):
            mode = Mode(*(part[component][..., several] for part in proposed.mode))
            drawn = _chained(*given, model.part(component), assumed, mode, n_proposals)[:, :, : len(chosen)]
            by_row = [_worst_rhat(row) for row in np.moveaxis(np.asarray(drawn, np.float64), 2, 0)]
            worst = np.maximum(worst, by_row)
            z = z.at[component, :, :, chosen].set(jnp.moveaxis(drawn, 2, 0))
        evidence = proposed.log_evidence[:, None, chosen]
        log_weight = log_weight.at[:, :, chosen].set(
            jnp.broadcast_to(evidence, log_weight[:, :, chosen].shape)
        )
        found += worst.tolist()
    return Latents(Weighted(z, log_weight), share, found)


def _chained(
    keys: RowKeys, x: Row, observed: Observed, part: Factor, assumed: Assumed, mode: Mode, n_draws: int
) -> Array:
    return chain(keys, part, assumed, mode, x, observed, n_burn=N_BURN, n_draws=n_draws)


def _worst_rhat(path: NDArray[np.float64]) -> float:
    """The largest R-hat of the latent coordinates of one row's chain, ``(draws, d)``."""
    return max(rhat(coordinate[None]) for coordinate in path.T)


def draw_collapsed(
    key: RandomKey,
    models: Sequence[Mixture],
    assumed: Assumed | None,
    x: NDArray[np.float32],
    observed: NDArray[np.bool_],
    amounts: Amounts,
    say: Callable[[int, int], None] | None = None,
) -> Sampled:
    """Draw the missing cells of a coded table, rows first.

    A row's draws depend on the key, the models, its cells and its number alone. Rows with no missing cell
    cost nothing, and there is no model when no column varies. The moments are those of all draws that could
    be made at the latent rows.
    """
    incomplete = np.flatnonzero(~observed.all(axis=1))
    gathered = _Gathered.empty(amounts, (~observed[incomplete]).sum(axis=1))
    if assumed is None:
        return gathered.sampled(1)
    turns = spread(amounts.n_draws, len(models))
    for turn, start, block, latent in _visited(key, models, assumed, x, observed, amounts, say):
        gathered.add(start, block, latent, moments(models[turn], assumed, latent.weighted))
        drawn = _filled(block, models[turn], assumed, latent, len(turns[turn]))
        gathered.keep(start, turns[turn], drawn)
    return gathered.sampled(len(models))


def mean_of_draws(
    key: RandomKey,
    models: Sequence[Mixture],
    assumed: Assumed,
    x: NDArray[np.float32],
    observed: NDArray[np.bool_],
    amounts: Amounts,
    decode: Callable[[NDArray[np.floating], NDArray[np.intp]], NDArray[np.float64]],
) -> NDArray[np.float64]:
    """Means of decoded draws of the missing cells, row by row; no more than a block's draws are ever held.

    ``decode(draws, columns)`` makes values of draws by cells.
    """
    incomplete = np.flatnonzero(~observed.all(axis=1))
    ends = np.concatenate([[0], np.cumsum((~observed[incomplete]).sum(axis=1))])
    total = np.zeros(ends[-1])
    n_draws = -(-amounts.n_draws // len(models))
    for turn, start, block, latent in _visited(key, models, assumed, x, observed, amounts, None):
        drawn = _filled(block, models[turn], assumed, latent, n_draws)
        cells = slice(ends[start], ends[start] + len(block.row))
        total[cells] += decode(drawn, block.column).sum(axis=0)
    return total / (n_draws * len(models))


def _visited(
    key: RandomKey,
    models: Sequence[Mixture],
    assumed: Assumed,
    x: NDArray[np.float32],
    observed: NDArray[np.bool_],
    amounts: Amounts,
    say: Callable[[int, int], None] | None,
) -> Iterator[tuple[int, int, "_Block", Latents]]:
    """Latent rows of all incomplete rows under every model: the model's number, the first row's, and both."""
    incomplete = np.flatnonzero(~observed.all(axis=1))
    starts = range(0, len(incomplete), BLOCK)
    for turn, model in enumerate(models):
        for number, start in enumerate(starts):
            place = incomplete[start : start + BLOCK]
            block = _block(key, turn, place, x, observed)
            parts = block.keys, model, assumed, block.x, block.observed
            yield turn, start, block, latents(*parts, len(place), amounts.n_proposals)
            if say:
                say(turn * len(starts) + number + 1, len(models) * len(starts))


def log_prob(
    key: RandomKey,
    model: Mixture,
    assumed: Assumed,
    x: NDArray[np.float32],
    observed: NDArray[np.bool_],
    n_proposals: int,
) -> NDArray[np.float64]:
    """log p(x_obs, r) of every row of a coded table, estimated by weighted proposals."""
    parts = []
    for start in range(0, len(x), BLOCK):
        place = np.arange(start, min(start + BLOCK, len(x)))
        block = _block(key, 0, place, x, observed)
        proposed = propose(block.keys, model, assumed, block.x, block.observed, n_proposals=n_proposals)
        parts.append(np.asarray(proposed.log_prob, np.float64)[: len(place)])
    return np.concatenate(parts)


def spread(n_draws: int, n_models: int) -> list[NDArray[np.intp]]:
    """Which draws come from which model: as many from each, in an order that no regular choice repeats."""
    order = np.random.default_rng(n_models).permutation(n_draws)
    return [np.sort(order[turn::n_models]) for turn in range(n_models)]


class _Block(NamedTuple):
    keys: RowKeys
    x: Array
    observed: Array
    row: NDArray[np.intp]  # of the missing cells
    column: NDArray[np.intp]

    def missing(self, cells: NDArray[np.floating]) -> NDArray[np.floating]:
        """Missing cells, row by row, of arrays whose last axes are columns and rows."""
        return cells[..., self.column, self.row]


class _Gathered(NamedTuple):
    """What all blocks leave behind; rows are those with missing cells."""

    values: NDArray[np.floating]
    mean: NDArray[np.float64]
    square: NDArray[np.float64]
    ends: NDArray[np.intp]  # of the rows' cells
    share: list[NDArray[np.float64]]
    rhat: list[float]

    @classmethod
    def empty(cls, amounts: Amounts, n_cells: NDArray[np.intp]) -> Self:
        ends = np.concatenate([[0], np.cumsum(n_cells)])
        values = np.empty((1, amounts.n_draws, ends[-1]), amounts.dtype)
        return cls(values, np.zeros(ends[-1]), np.zeros(ends[-1]), ends, [], [])

    def cells(self, start: int, n_rows: int) -> slice:
        return slice(self.ends[start], self.ends[start + n_rows])

    def add(self, start: int, block: _Block, latent: Latents, found: tuple[Row, Row]) -> None:
        cells = self.cells(start, len(latent.share))
        for total, part in zip((self.mean, self.square), found, strict=True):
            total[cells] += block.missing(np.asarray(part, np.float64))
        self.share.append(latent.share)
        self.rhat.extend(latent.rhat)

    def keep(self, start: int, draws: NDArray[np.intp], drawn: NDArray[np.floating]) -> None:
        first = self.ends[start]
        self.values[0, draws, first : first + drawn.shape[1]] = drawn

    def sampled(self, n_models: int) -> Sampled:
        mean, square = self.mean / n_models, self.square / n_models
        share = np.concatenate(self.share) if self.share else np.zeros(0)
        sd = np.sqrt(np.maximum(square - mean**2, 0))
        return Sampled(self.values, mean, sd, Weighing(share, POOR, self.rhat))


def _block(
    key: RandomKey, turn: int, place: NDArray[np.intp], x: NDArray[np.float32], observed: NDArray[np.bool_]
) -> _Block:
    filled = np.resize(place, BLOCK)
    keys = row_keys(Seeds(key, filled.astype(np.uint32), np.uint32(turn)))
    row, column = np.nonzero(~observed[place])
    return _Block(keys, jnp.asarray(x[filled].T), jnp.asarray(observed[filled].T), row, column)


def _filled(
    block: _Block, model: Mixture, assumed: Assumed, latent: Latents, n_draws: int
) -> NDArray[np.floating]:
    """Draws of a block's missing cells, so many cells at a time that one program serves any pattern."""
    n_cells = len(block.row)
    found = np.empty((n_draws, n_cells), np.float32)
    if not n_draws:
        return found
    rows = resample(block.keys, latent.weighted, n_draws=n_draws)
    for fills, columns in _fills(model):
        among = np.flatnonzero((columns.start <= block.column) & (block.column < columns.stop))
        for start in range(0, len(among), CELLS):
            chosen = among[start : start + CELLS]
            several = np.resize(chosen, CELLS)
            drawn = fills(block.keys, model, assumed, rows, block.row[several], block.column[several])
            found[:, chosen] = np.asarray(drawn)[:, : len(chosen)]
    return found


def _fills(model: Mixture) -> list[tuple[Callable[..., Array], slice]]:
    """What draws the cells of which columns: continuous ones, and each block of discrete ones."""
    part = model.part(0)
    classes = [partial(fill_classes, number=number) for number in range(len(part.discrete))]
    return list(zip([fill, *classes], [slice(0, part.n_continuous), *part.discrete_columns], strict=True))
