"""Public tables: one set of values from every place, and no others. Nothing here uses the network."""

from collections.abc import Callable
from dataclasses import FrozenInstanceError, replace
from pathlib import Path
from urllib.error import URLError

import numpy as np
import pytest
from sklearn.preprocessing import StandardScaler

from missbgm.datasets import Dataset, fetch, gisette, gisette_like, load_dataset, standardize
from missbgm.errors import ConfigError, DataUnavailableError

# Two rows survive: the header goes, and so does the row with "?".
RAW = b"id,a,b,target\n7,1.5,2,0\n8,?,3,1\n\n9, 4.5, -1e-3, 1\n"
BARE = b"7 1.5 2 0\r\n8 ? 3 1\r\n9\t4.5  -1e-3 1"
VALUES = np.array([[1.5, 2], [4.5, -1e-3]])


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test sees the real cache, a local data folder or the network."""

    def refuse(url: str, timeout: float) -> None:
        raise URLError(f"no network in tests, within {timeout} s")

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv(fetch.FOLDER_VARIABLE, raising=False)
    monkeypatch.setattr("urllib.request.urlopen", refuse)


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> fetch.Recipe:
    recipe = fetch.Recipe("toy.csv", 1, "a b", fetch.checksum(VALUES), "made up", "https://example.org/toy")
    monkeypatch.setitem(fetch.RECIPES, "toy", recipe)
    return recipe


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[bytes], list[str]]:
    """Make every address answer with the given bytes; returns the addresses that were asked."""

    def install(content: bytes) -> list[str]:
        asked: list[str] = []
        (tmp_path / "served").write_bytes(content)

        def answer(url: str, timeout: float) -> object:
            asked.append(url)
            return (tmp_path / "served").open("rb")

        monkeypatch.setattr("urllib.request.urlopen", answer)
        return asked

    return install


def _folder(path: Path, content: bytes) -> Path:
    path.mkdir(parents=True)
    (path / "toy.csv").write_bytes(content)
    return path


def test_wine_from_scikit_learn_has_the_checksum_of_the_file() -> None:
    wine = load_dataset("wine")
    assert fetch.checksum(wine.x) == fetch.RECIPES["wine"].checksum
    assert wine.x.shape == (178, 13)
    assert wine.columns[0] == "alcohol"
    assert wine.columns[-1] == "proline"


def test_wine_from_scikit_learn_is_checked_like_any_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "_bundled_wine", lambda: VALUES)
    with pytest.raises(DataUnavailableError, match=r"load_wine .*wine\.csv"):
        load_dataset("wine")


def test_wine_written_out_and_read_back_passes(tmp_path: Path) -> None:
    x = load_dataset("wine").x
    rows = "\n".join(",".join(map(repr, [*row.tolist(), 0])) for row in x)
    (tmp_path / "wine.csv").write_text("header\n" + rows)
    np.testing.assert_array_equal(load_dataset("wine", folder=tmp_path).x, x)


def test_registry_has_the_shapes_of_the_paper() -> None:
    widths = {name: len(recipe.columns.split()) for name, recipe in fetch.RECIPES.items()}
    assert widths == {"wine": 13, "breast": 9, "concrete": 8}
    assert all(len(recipe.checksum) == 64 for recipe in fetch.RECIPES.values())


@pytest.mark.parametrize("content", [RAW, BARE, b"\xef\xbb\xbf" + RAW])
def test_local_folder_in_any_layout(tmp_path: Path, toy: fetch.Recipe, content: bytes) -> None:
    table = load_dataset("toy", folder=_folder(tmp_path / "data", content))
    np.testing.assert_array_equal(table.x, VALUES)
    assert table.x.dtype == np.float64
    assert table.x.flags.c_contiguous
    assert (table.name, table.columns, table.source) == ("toy", ("a", "b"), "made up")


def test_a_dataset_cannot_be_reassigned() -> None:
    with pytest.raises(FrozenInstanceError):
        Dataset("t", VALUES, ("a", "b"), "s").name = "u"


def test_environment_variable_after_the_argument(
    tmp_path: Path, toy: fetch.Recipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(fetch.FOLDER_VARIABLE, str(_folder(tmp_path / "env", RAW)))
    np.testing.assert_array_equal(load_dataset("toy").x, VALUES)
    np.testing.assert_array_equal(load_dataset("toy", folder=tmp_path / "nothing").x, VALUES)
    with pytest.raises(DataUnavailableError, match="argument"):
        load_dataset("toy", folder=_folder(tmp_path / "argument", b"7 1 1 1"))


def test_local_file_with_other_values_is_refused(tmp_path: Path, toy: fetch.Recipe) -> None:
    folder = _folder(tmp_path / "data", RAW.replace(b"4.5", b"4.6"))
    found = fetch.checksum(np.array([[1.5, 2], [4.6, -1e-3]]))
    with pytest.raises(DataUnavailableError) as caught:
        load_dataset("toy", folder=folder)
    for part in (str(folder / "toy.csv"), toy.checksum, found, "not used", "Delete"):
        assert part in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"<html>404</html>", b"7 1.5 2 0\n9 4.5 -1e-3", bytes(range(256))])
def test_rubbish_is_refused_in_the_same_words(tmp_path: Path, toy: fetch.Recipe, content: bytes) -> None:
    with pytest.raises(DataUnavailableError, match="expected checksum"):
        load_dataset("toy", folder=_folder(tmp_path / "data", content))


def test_checksum_tells_shape_and_values_apart() -> None:
    assert fetch.checksum(VALUES) == fetch.checksum(np.asfortranarray(VALUES))
    assert len({fetch.checksum(x) for x in (VALUES, VALUES.T, VALUES.reshape(1, 4), VALUES + 1)}) == 4


def test_download_is_cached_and_asked_for_once(toy: fetch.Recipe, serve: Callable) -> None:
    asked = serve(BARE)
    for _ in range(2):
        np.testing.assert_array_equal(load_dataset("toy").x, VALUES)
    assert asked == [toy.url]
    assert [path.name for path in fetch.cache_folder().iterdir()] == ["toy.csv"]
    assert (fetch.cache_folder() / "toy.csv").read_bytes() == BARE


def test_wrong_download_is_refused_and_not_cached(toy: fetch.Recipe, serve: Callable) -> None:
    serve(b"7 1 1 1\n")
    with pytest.raises(DataUnavailableError, match=r"https://example\.org/toy .*not used.*folder="):
        load_dataset("toy")
    assert not fetch.cache_folder().exists()


def test_spoilt_cache_is_refused(toy: fetch.Recipe, serve: Callable) -> None:
    asked = serve(BARE)
    _folder(fetch.cache_folder(), RAW[:-10])
    with pytest.raises(DataUnavailableError, match=r"cache.*toy\.csv.*not used.*Delete"):
        load_dataset("toy")
    assert asked == []


def test_interrupted_write_leaves_no_half_file(
    toy: fetch.Recipe, serve: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: Path, target: Path) -> None:
        raise OSError("disk full")

    serve(BARE)
    monkeypatch.setattr(Path, "replace", fail)
    np.testing.assert_array_equal(load_dataset("toy").x, VALUES)
    assert list(fetch.cache_folder().iterdir()) == []


def test_unusable_cache_folder_does_not_cost_the_data(
    tmp_path: Path, toy: fetch.Recipe, serve: Callable
) -> None:
    serve(BARE)
    (tmp_path / "cache").write_text("a file where the folder should be")
    np.testing.assert_array_equal(load_dataset("toy").x, VALUES)


@pytest.mark.parametrize("name", ["breast", "concrete"])
def test_unreachable_network_says_what_to_do(name: str) -> None:
    with pytest.raises(DataUnavailableError) as caught:
        load_dataset(name)
    recipe = fetch.RECIPES[name]
    for part in (name, str(recipe.url), recipe.file, "folder=", fetch.FOLDER_VARIABLE, "no network in tests"):
        assert part in str(caught.value)


def test_addresses_are_opened_for_real(
    tmp_path: Path, toy: fetch.Recipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    url = (_folder(tmp_path / "server", RAW) / "toy.csv").as_uri()
    monkeypatch.setitem(fetch.RECIPES, "toy", replace(toy, url=url))
    np.testing.assert_array_equal(load_dataset("toy", folder=tmp_path / "nothing").x, VALUES)
    monkeypatch.setitem(fetch.RECIPES, "toy", replace(toy, file="other.csv", url=url + ".gone"))
    with pytest.raises(DataUnavailableError, match="could not be fetched"):
        load_dataset("toy")


@pytest.mark.parametrize(
    ("asked", "meant"), [("wines", "wine"), ("Concrete", "concrete"), ("gisette", "gisette_like")]
)
def test_unknown_name_is_answered_with_the_nearest(asked: str, meant: str) -> None:
    with pytest.raises(ConfigError, match=f"did you mean '{meant}'"):
        load_dataset(asked)


@pytest.mark.parametrize(
    ("platform", "tail"), [("linux", ".cache"), ("darwin", "Library/Caches"), ("win32", "AppData/Local")]
)
def test_cache_folder_suits_the_platform(platform: str, tail: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.delenv("LOCALAPPDATA", raising=False)
    monkeypatch.setattr("sys.platform", platform)
    assert fetch.cache_folder() == Path.home() / tail / "missbgm" / "data"


def test_standardize_is_scikit_learns_scaler() -> None:
    x = np.random.default_rng(0).normal(5, [1, 100, 1e-3], (40, 3))
    x = np.column_stack([x, np.full(40, 0.1), np.zeros(40), np.full(40, 1e9)])
    np.testing.assert_allclose(standardize(x), StandardScaler().fit_transform(x), atol=1e-9)


@pytest.fixture
def digits(tmp_path: Path) -> Path:
    """Sixty small pictures of 30 pixels, of which the first three never change and the fourth hardly."""
    pixels = np.random.default_rng(1).integers(0, 256, (60, 30), dtype=np.uint8)
    pixels[pixels < 90] = 0
    pixels[:, :2], pixels[:, 2] = 0, 255
    np.savez(tmp_path / gisette.DIGITS_FILE, pixels=pixels)
    return tmp_path


def test_gisette_like_is_half_informative_half_probes(digits: Path) -> None:
    table = gisette_like(digits, n_rows=50, n_columns=80)
    with np.load(digits / gisette.DIGITS_FILE) as arrays:
        pixels = arrays["pixels"][:50].astype(float)
    assert table.x.shape == (50, 80)
    assert table.x.dtype == np.float64
    assert len(set(table.columns)) == 80
    assert (np.ptp(table.x, axis=0) > 0).all()
    informative = {}
    for name, column in zip(table.columns, table.x.T, strict=True):
        kind, *which = name.split("_")
        if kind != "probe":
            informative[name] = column
            np.testing.assert_array_equal(column, pixels[:, [int(i) for i in which]].prod(axis=1))
    probes = [
        column for name, column in zip(table.columns, table.x.T, strict=True) if name not in informative
    ]
    assert len(informative) == len(probes) == 40
    assert sum(name.startswith("pixel") for name in informative) == 20
    originals = sorted(map(tuple, np.sort(list(informative.values()), axis=1)))
    assert sorted(map(tuple, np.sort(probes, axis=1))) == originals
    assert not {c.tobytes() for c in probes} & {c.tobytes() for c in informative.values()}


def test_gisette_like_leaves_out_columns_that_are_nearly_all_zero(tmp_path: Path) -> None:
    pixels = np.random.default_rng(1).integers(1, 256, (200, 10), dtype=np.uint8)
    pixels[1:, :5] = 0
    np.savez(tmp_path / gisette.DIGITS_FILE, pixels=pixels)
    table = gisette_like(tmp_path, n_rows=200, n_columns=20)
    assert (np.count_nonzero(table.x, axis=0) == 200).all()


def test_gisette_like_is_decided_by_its_seed(digits: Path) -> None:
    first, again, other = (gisette_like(digits, 40, 21, seed=seed) for seed in (3, 3, 4))
    np.testing.assert_array_equal(first.x, again.x)
    assert first.columns == again.columns
    assert first.columns != other.columns
    assert sum(name.startswith("probe") for name in first.columns) == 10


def test_gisette_like_by_name_uses_the_defaults(digits: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(fetch.FOLDER_VARIABLE, str(digits))
    with pytest.raises(ConfigError, match=r"2 to 60 rows .* n_rows=13500 and n_columns=5000"):
        load_dataset("gisette_like")


def test_gisette_like_without_enough_pairs(digits: Path) -> None:
    with pytest.raises(ConfigError, match="1000 informative columns"):
        gisette_like(digits, n_rows=60, n_columns=2000)


def test_gisette_like_needs_the_digits(tmp_path: Path) -> None:
    with pytest.raises(DataUnavailableError, match=r"gisette_like.*digits_4_9\.npz.*folder="):
        load_dataset("gisette_like")
    np.save(tmp_path / "single.npy", VALUES)
    for content in (b"", b"not an npz", b"PK\x03\x04", (tmp_path / "single.npy").read_bytes()):
        (tmp_path / gisette.DIGITS_FILE).write_bytes(content)
        with pytest.raises(DataUnavailableError, match="must be an npz file"):
            gisette_like(tmp_path)
    for arrays in ({"other": VALUES}, {"pixels": VALUES}):
        np.savez(tmp_path / gisette.DIGITS_FILE, **arrays)
        with pytest.raises(DataUnavailableError, match="uint8 array 'pixels'"):
            gisette_like(tmp_path)
