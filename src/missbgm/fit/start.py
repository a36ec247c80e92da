"""Simple completions to start from: neighbours for the table that is fitted, the model's own for new rows."""

from typing import NamedTuple, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

from missbgm.bgm.joint import Model
from missbgm.types import Latent, Observed, Rng, Row

Table = NDArray[np.float32]
Pattern = NDArray[np.bool_]
Indices = NDArray[np.intp]

MEMORY_CELLS = 4_000_000  # the largest temporary array, in cells
MAX_DONORS = 5_000  # beyond it donors are a subsample, so that the cost is linear in rows
RIDGE = 1.0
N_ROUNDS = 10


class Donors(NamedTuple):
    """Rows that neighbours are looked for in; missing cells hold zero."""

    values: Table
    observed: Pattern

    def taken(self, rows: Indices) -> "Donors":
        return Donors(self.values[rows], self.observed[rows])


def neighbours_fill(table: Table, observed: Pattern, n_neighbors: int, rng: Rng) -> Table:
    """Fill each missing cell with the mean of its column over the nearest rows that observe it.

    The distance of two rows is over the columns that both observe, scaled up to all columns. A cell with
    no neighbour (a row that shares no column with any other) gets its column's mean, and a column with no
    observed cell gets zero.

    Parameters
    ----------
    table
        Rows by columns; what missing cells hold does not matter.
    observed
        Which cells of it are observed.
    n_neighbors
        How many neighbours are averaged.
    rng
        Chooses which rows may be donors when there are more than `MAX_DONORS`.
    """
    everyone = Donors(np.where(observed, table, 0).astype(np.float32), observed)
    means = everyone.values.sum(0) / np.maximum(observed.sum(0), 1)
    filled = np.where(observed, table, means).astype(np.float32)
    chosen = np.arange(len(table))
    if len(chosen) > MAX_DONORS:
        chosen = np.sort(rng.choice(chosen, MAX_DONORS, replace=False))
    donors = everyone.taken(chosen)
    incomplete = np.flatnonzero(~observed.all(1))
    chunk = max(1, MEMORY_CELLS // max(len(chosen), 1))
    for start in range(0, len(incomplete), chunk):
        rows = incomplete[start : start + chunk]
        part = everyone.taken(rows)
        distance = _distances(part, donors)
        distance[rows[:, None] == chosen[None, :]] = np.inf
        filled[rows] = _filled(filled[rows], part.observed, distance, donors, n_neighbors)
    return filled


def _distances(rows: Donors, donors: Donors) -> Table:
    """Mean squared differences over shared columns, as matrix products; infinite where none is shared."""
    seen_a, seen_b = rows.observed.astype(np.float32), donors.observed.astype(np.float32)
    squares = (
        (rows.values**2) @ seen_b.T + seen_a @ (donors.values**2).T - 2 * (rows.values @ donors.values.T)
    )
    shared = seen_a @ seen_b.T
    return np.where(shared > 0, np.maximum(squares, 0) / np.maximum(shared, 1), np.inf).astype(np.float32)


def _filled(rows: Table, observed: Pattern, distance: Table, donors: Donors, k: int) -> Table:
    """Rows with missing cells filled, from the nearest donors first and from all where those are too few."""
    near = min(8 * k, distance.shape[1])
    nearest = np.argpartition(distance, near - 1, axis=1)[:, :near]
    order = np.take_along_axis(distance, nearest, 1).argsort(axis=1, kind="stable")
    nearest = np.take_along_axis(nearest, order, 1)
    result = rows.copy()
    chunk = max(1, MEMORY_CELLS // (near * rows.shape[1]))
    for start in range(0, len(rows), chunk):
        part = slice(start, start + chunk)
        total, count = _sums(nearest[part], distance[part], donors, k)
        short = start + np.flatnonzero((~observed[part] & (count < k)).any(1))
        result[part] = np.where(~observed[part] & (count > 0), total / np.maximum(count, 1), rows[part])
        for i in short if near < distance.shape[1] else []:
            total, count = _sums(distance[i : i + 1].argsort(kind="stable"), distance[i : i + 1], donors, k)
            result[i] = np.where(~observed[i] & (count[0] > 0), total[0] / np.maximum(count[0], 1), rows[i])
    return result


def _sums(nearest: Indices, distance: Table, donors: Donors, k: int) -> tuple[Table, NDArray[np.int64]]:
    """Sum and number of the first `k` usable donors, for every cell."""
    reachable = np.isfinite(np.take_along_axis(distance, nearest, 1))
    usable = donors.observed[nearest] & reachable[:, :, None]
    taken = usable & (np.cumsum(usable, axis=1) <= k)
    return np.einsum("rnp,rnp->rp", donors.values[nearest], taken, dtype=np.float32), taken.sum(1)


class Inverse(eqx.Module):
    """A linear guess at the latent row of a completed one: ridge regression over the fitted rows."""

    weight: Array
    features_mean: Array
    latent_mean: Array

    @classmethod
    def learn(cls, z: NDArray[np.float32], features: Table) -> Self:
        means = features.mean(0), z.mean(0)
        f, target = features - means[0], z - means[1]
        n, q = f.shape
        if q <= n:
            weight = np.linalg.solve(f.T @ f + RIDGE * np.eye(q, dtype=f.dtype), f.T @ target)
        else:
            weight = f.T @ np.linalg.solve(f @ f.T + RIDGE * np.eye(n, dtype=f.dtype), target)
        return cls(jnp.asarray(weight.T), jnp.asarray(means[0]), jnp.asarray(means[1]))

    def __call__(self, features: Array) -> Latent:
        return self.weight @ (features.T - self.features_mean).T + self.latent_mean[:, None]


@jax.jit
def complete(model: Model, inverse: Inverse, x: Row, observed: Observed) -> tuple[Latent, Row]:
    """Latent rows and completion of a block of new rows, by going back and forth a few times."""

    def back_and_forth(_: int, given: tuple[Latent, Row]) -> tuple[Latent, Row]:
        z, x = given
        x = jnp.where(observed, x, model.columns.mode(model.parameters(z)))
        return inverse(model.columns.features(x)), x

    start = jnp.zeros((inverse.weight.shape[0], x.shape[1]), x.dtype)
    return jax.lax.fori_loop(0, N_ROUNDS, back_and_forth, (start, x))
