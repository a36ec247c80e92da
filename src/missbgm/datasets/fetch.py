"""Public tables of the paper: from a local folder, the cache or the network, always the same values."""

import difflib
import hashlib
import os
import sys
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray

from missbgm.errors import ConfigError, DataUnavailableError

FloatArray = NDArray[np.float64]
Folder = str | os.PathLike[str]

FOLDER_VARIABLE = "MISSBGM_DATA"
TIMEOUT_SECONDS = 30


@dataclass(frozen=True, eq=False)
class Dataset:
    """A complete table of numbers.

    Attributes
    ----------
    name : str
    x : float64 array, shape (n, p)
        Features only: identifiers, targets and rows with holes of their own are left out.
    columns : tuple of str
    source : str
        Citation and where the values come from.
    """

    name: str
    x: FloatArray
    columns: tuple[str, ...]
    source: str


@dataclass(frozen=True)
class Recipe:
    """How a raw file becomes a table of features.

    `columns` are the names of the features, separated by spaces. They begin at column `first` of the file,
    and one column follows them, the target.
    """

    file: str
    first: int
    columns: str
    checksum: str
    source: str
    url: str | None


RECIPES = {
    "wine": Recipe(
        file="wine.csv",
        first=0,
        columns="alcohol malic_acid ash alcalinity_of_ash magnesium total_phenols flavanoids "
        "nonflavanoid_phenols proanthocyanins color_intensity hue "
        "od280/od315_of_diluted_wines proline",
        checksum="26ddbe122407c330eb571929541181ca0c42a6da6883ea02ca1904c1c6b3317e",
        source="Wine, UCI 109, https://doi.org/10.24432/C5PC7J",
        url=None,
    ),
    "breast": Recipe(
        file="breast_wisconsin_original.csv",
        first=1,
        columns="clump_thickness cell_size cell_shape marginal_adhesion epithelial_size "
        "bare_nuclei bland_chromatin normal_nucleoli mitoses",
        checksum="a0a69f1bee520c5111bb2c01d49d04f9b11d6c248afc9fd722a8dc4c1daa744c",
        source="Breast Cancer Wisconsin (Original), UCI 15, https://doi.org/10.24432/C5HP4Z",
        url="https://raw.githubusercontent.com/pfnet-research/TabCSDI/"
        "309d3c3c9f7a2b55e5d9a9054494cc7d1b2e86d9/data_breast/breast-cancer-wisconsin.data",
    ),
    "concrete": Recipe(
        file="concrete.csv",
        first=0,
        columns="cement slag fly_ash water superplasticizer coarse_aggregate fine_aggregate age",
        checksum="dd53c382c4bb308338f860f3f824dcbd99587a03d425e386faa750f0f9d72eb4",
        source="Concrete Compressive Strength, UCI 165, https://doi.org/10.24432/C5PK67",
        url="https://raw.githubusercontent.com/hengruizhang98/DiffPuter/"
        "2fa55373655b9e910146d94820fc1012da0dfd75/baselines/GRAPE/uci/raw_data/concrete/data/data.txt",
    ),
}


def load_dataset(name: str, *, folder: Folder | None = None) -> Dataset:
    """Load a table of the paper's benchmark, not standardised, with the paper's rows and columns.

    Looked for in `folder`, in the folder that the environment variable ``MISSBGM_DATA`` names, in
    scikit-learn (wine only), in the cache, and on the network. The values are compared with a checksum, so
    they do not depend on where they were found.

    Parameters
    ----------
    name : {'wine', 'breast', 'concrete', 'gisette_like'}
    folder : path, optional
        Folder with `wine.csv`, `breast_wisconsin_original.csv`, `concrete.csv` or `digits_4_9.npz`.

    Raises
    ------
    ConfigError
        No such name.
    DataUnavailableError
        Found nowhere, or found with other values than expected.

    Examples
    --------
    >>> load_dataset("wine").x.shape
    (178, 13)
    """
    if name == "gisette_like":
        from missbgm.datasets.gisette import gisette_like

        return gisette_like(folder)
    recipe = _recipe(name)
    path = local_file(recipe.file, folder)
    if path is not None:
        x = _checked(recipe, parse_features(path.read_bytes(), recipe), path)
    elif recipe.url is None:
        x = _checked(recipe, _bundled_wine(), "scikit-learn's load_wine")
    else:
        x = _cached(name, recipe, recipe.url)
    return Dataset(name, x, tuple(recipe.columns.split()), recipe.source)


def standardize(x: ArrayLike) -> FloatArray:
    """Centre the columns of a complete table and divide them by their population standard deviation.

    A constant column is only centred, as by scikit-learn's `StandardScaler`.

    Examples
    --------
    >>> standardize([[1, 5], [3, 5]])
    array([[-1.,  0.],
           [ 1.,  0.]])
    """
    table = np.asarray(x, dtype=np.float64)
    mean, sd = table.mean(axis=0), table.std(axis=0)
    # The mean of equal numbers is rounded, so their standard deviation need not be exactly 0.
    constant = sd <= len(table) * np.finfo(np.float64).eps * np.abs(mean)
    centred = table - mean
    centred /= np.where(constant, 1.0, sd)
    return centred


def checksum(x: FloatArray) -> str:
    """SHA-256 over the shape (int64) and the values (float64, row by row), little-endian."""
    digest = hashlib.sha256(np.asarray(x.shape, dtype="<i8").tobytes())
    digest.update(np.ascontiguousarray(x, dtype="<f8").tobytes())
    return digest.hexdigest()


def cache_folder() -> Path:
    """Where fetched files are kept: the platform's folder for caches, or ``XDG_CACHE_HOME``."""
    if root := os.environ.get("XDG_CACHE_HOME"):
        base = Path(root)
    elif sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = Path.home() / ".cache"
    return base / "missbgm" / "data"


def parse_features(content: bytes, recipe: Recipe) -> FloatArray:
    """Read the feature columns of a raw file, separated by commas or white space, with or without header."""
    lines = content.decode("utf-8-sig", errors="replace").splitlines()
    width = recipe.first + len(recipe.columns.split()) + 1
    # Header, blank lines and rows with "?" all go the same way; the checksum notices whatever else is lost.
    rows = [row for row in map(_numbers, lines) if len(row) == width]
    return np.array(rows, dtype=np.float64).reshape(-1, width)[:, recipe.first : -1].copy()


def _numbers(line: str) -> list[float]:
    try:
        return [float(field) for field in line.replace(",", " ").split()]
    except ValueError:
        return []


def _recipe(name: str) -> Recipe:
    if name not in RECIPES:
        known = [*RECIPES, "gisette_like"]
        nearest = difflib.get_close_matches(str(name), known, n=1, cutoff=0)[0]
        raise ConfigError(
            f"no dataset is called {name!r}; did you mean {nearest!r}? Known: {', '.join(known)}."
        )
    return RECIPES[name]


def local_file(file: str, folder: Folder | None) -> Path | None:
    folders = [place for place in (folder, os.environ.get(FOLDER_VARIABLE)) if place]
    paths = (Path(place) / file for place in folders)
    return next((path for path in paths if path.is_file()), None)


def _checked(recipe: Recipe, x: FloatArray, origin: Path | str) -> FloatArray:
    if (found := checksum(x)) != recipe.checksum:
        raise DataUnavailableError(
            f"{origin} does not hold the expected values, and is not used: expected checksum "
            f"{recipe.checksum}, found {found} (features of shape {x.shape}). "
            + ("Delete or replace that file." if isinstance(origin, Path) else how_to_help(recipe.file))
        )
    return x


def _bundled_wine() -> FloatArray:
    # scikit-learn takes a second to import, and only this table needs it.
    from sklearn.datasets import load_wine

    return np.asarray(load_wine().data, dtype=np.float64)


def _cached(name: str, recipe: Recipe, url: str) -> FloatArray:
    path = cache_folder() / recipe.file
    if path.is_file():
        return _checked(recipe, parse_features(path.read_bytes(), recipe), path)
    content = _download(name, recipe.file, url)
    x = _checked(recipe, parse_features(content, recipe), url)
    # A folder that cannot be written to costs a download the next time, not the data now.
    with suppress(OSError):
        _write_whole(path, content)
    return x


def _download(name: str, file: str, url: str) -> bytes:
    from http.client import HTTPException
    from urllib.request import urlopen

    try:
        with urlopen(url, timeout=TIMEOUT_SECONDS) as response:  # noqa: S310 -- the address is a constant above
            content: bytes = response.read()
            return content
    except (OSError, HTTPException) as error:
        raise DataUnavailableError(
            f"dataset {name!r} is in no local folder and could not be fetched from {url} ({error}). "
            + how_to_help(file)
        ) from error


def how_to_help(file: str) -> str:
    return f"Put {file} into a folder and pass folder=..., or name that folder in {FOLDER_VARIABLE}."


def _write_whole(path: Path, content: bytes) -> None:
    """Write so that nobody ever sees half a file: elsewhere in the same folder, then moved over `path`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as scratch:
        part = Path(scratch) / path.name
        part.write_bytes(content)
        part.replace(path)
