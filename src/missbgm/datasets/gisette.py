"""A stand-in for Gisette, made of the digits that Gisette was made of."""

from collections.abc import Iterator
from itertools import islice
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from missbgm.datasets.fetch import Dataset, Folder, how_to_help, local_file
from missbgm.errors import ConfigError, DataUnavailableError

DIGITS_FILE = "digits_4_9.npz"
# A column that is zero nearly everywhere is constant once a few of its cells are hidden.
LEAST_NONZERO = 0.01


def gisette_like(
    folder: Folder | None = None, n_rows: int = 13500, n_columns: int = 5000, seed: int = 0
) -> Dataset:
    """Build a table in the shape of Gisette from the fours and nines of MNIST (`digits_4_9.npz`).

    Half of the columns tell something of the digit: pixels that vary, and products of random pairs of such
    pixels. The other half are probes: copies of the first half, each with its rows shuffled. It is not
    Gisette, and should be called Gisette-like wherever it is used.

    Parameters
    ----------
    folder : path, optional
        Folder with `digits_4_9.npz`; by default the one that ``MISSBGM_DATA`` names.
    n_rows, n_columns : int
        Shape of the table; the digits are taken in the order of the file.
    seed : int
        Chooses pairs, shuffles probes and columns.
    """
    pixels = _digits(folder)
    if not 2 <= n_rows <= len(pixels) or n_columns < 2:
        raise ConfigError(
            f"expected 2 to {len(pixels)} rows and at least 2 columns; got n_rows={n_rows} and "
            f"n_columns={n_columns}."
        )
    rng = np.random.default_rng(seed)
    names, informative = _informative(pixels[:n_rows].T.astype(np.uint16), (n_columns + 1) // 2, rng)
    probes = rng.permuted(informative[: n_columns // 2], axis=1)
    names += [f"probe_{k}" for k in range(len(probes))]
    order = rng.permutation(n_columns)
    x = np.concatenate([informative, probes])[order].T.astype(np.float64, order="C")
    source = f"Gisette-like: MNIST fours and nines, seed {seed}; after Gisette, UCI 170"
    return Dataset("gisette_like", x, tuple(names[k] for k in order), source)


def _digits(folder: Folder | None) -> NDArray[np.uint8]:
    path = local_file(DIGITS_FILE, folder)
    if path is None:
        raise DataUnavailableError(
            f"dataset 'gisette_like' is built from {DIGITS_FILE}, which is in no local folder and cannot be "
            f"fetched. " + how_to_help(DIGITS_FILE)
        )
    expected = f"{path} must be an npz file with a uint8 array 'pixels' of shape (digits, pixels)"
    try:
        # Opened here, because NumPy leaves a file that is not an archive open.
        with path.open("rb") as file:
            pixels: NDArray[np.uint8] = np.load(file)["pixels"]
    except (OSError, ValueError, LookupError, EOFError, BadZipFile) as error:
        raise DataUnavailableError(f"{expected}; it could not be read ({error}).") from error
    if pixels.ndim != 2 or pixels.dtype != np.uint8:
        raise DataUnavailableError(f"{expected}; got {pixels.dtype} of shape {pixels.shape}.")
    return pixels


def _informative(
    pixels: NDArray[np.uint16], count: int, rng: np.random.Generator
) -> tuple[list[str], NDArray[np.uint16]]:
    """`count` columns, here one a row: at most half of them pixels, the others products of two pixels."""
    varying = np.flatnonzero([_varies(column) for column in pixels])
    single = rng.permutation(varying)[: (count + 1) // 2]
    pairs = list(islice(_varying_pairs(pixels, varying, rng), count - len(single)))
    if (found := len(single) + len(pairs)) < count:
        raise ConfigError(
            f"expected digits with {count} informative columns, got {found}; ask for fewer columns."
        )
    names = [f"pixel_{i}" for i in single] + [f"product_{i}_{j}" for i, j in pairs]
    return names, np.stack([*pixels[single], *(pixels[i] * pixels[j] for i, j in pairs)])


def _varying_pairs(
    pixels: NDArray[np.uint16], varying: NDArray[np.intp], rng: np.random.Generator
) -> Iterator[tuple[int, int]]:
    first, second = np.triu_indices(len(varying), k=1)
    for k in rng.permutation(len(first)):
        i, j = varying[first[k]], varying[second[k]]
        if _varies(pixels[i] * pixels[j]):
            yield i, j


def _varies(column: NDArray[np.uint16]) -> bool:
    return bool(column.min() < column.max() and np.count_nonzero(column) >= LEAST_NONZERO * column.size)
