"""Summaries of draws, cell by cell: point estimates and equal-tailed intervals."""

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

Draws = NDArray[np.floating]  # draws by cells
CHUNK = 4_096  # cells whose draws are sorted at a time


def chunks(n_cells: int) -> Iterator[slice]:
    return (slice(start, min(start + CHUNK, n_cells)) for start in range(0, n_cells, CHUNK))


def by_chunk(draws: Draws, summary: Callable[[Draws], NDArray[np.float64]]) -> NDArray[np.float64]:
    """Apply a summary of (draws, cells) to a few cells at a time and join the answers along cells."""
    parts = [summary(draws[:, part].astype(np.float64)) for part in chunks(draws.shape[1])]
    return np.concatenate(parts, axis=-1) if parts else summary(np.zeros((1, 0)))


def interval(draws: Draws, alpha: float) -> NDArray[np.float64]:
    """Lower and upper ends of the equal-tailed 1 - alpha intervals, ``(2, cells)``."""
    return by_chunk(draws, lambda d: np.quantile(d, [alpha / 2, 1 - alpha / 2], axis=0))


def median(draws: Draws) -> NDArray[np.float64]:
    return by_chunk(draws, lambda d: np.median(d, axis=0))


def half_sample_mode(draws: Draws) -> NDArray[np.float64]:
    """Mode of continuous draws by repeatedly keeping the densest half (Bickel & Fruehwirth, 2006)."""

    def of(chunk: Draws) -> NDArray[np.float64]:
        kept = np.sort(chunk, axis=0)
        while len(kept) > 2:
            half = -(-len(kept) // 2)
            width = kept[half - 1 :] - kept[: len(kept) - half + 1]
            start = np.argmin(width, axis=0)
            kept = np.take_along_axis(kept, start + np.arange(half)[:, None], axis=0)
        return kept.mean(axis=0)

    return by_chunk(draws, of)


def commonest(draws: Draws) -> NDArray[np.float64]:
    """The most frequent class of each cell, the lowest of those that tie."""

    def of(chunk: Draws) -> NDArray[np.float64]:
        classes = np.unique(chunk)
        counts = np.stack([(chunk == k).sum(axis=0) for k in classes] or [np.zeros(chunk.shape[1])])
        return classes[counts.argmax(axis=0)] if len(classes) else np.zeros(chunk.shape[1])

    return by_chunk(draws, of)
