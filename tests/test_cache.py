"""The compilation cache: where it is, how it is switched off, and that it is used."""

import os
import subprocess
import sys
from pathlib import Path

import jax
import pytest

from missbgm.cache import VARIABLE, cache_folder, enable_cache

FOLDER = "jax_compilation_cache_dir"
SECONDS = "jax_persistent_cache_min_compile_time_secs"


@pytest.fixture
def environment(monkeypatch):
    """An environment that says nothing about caches."""
    for name in (VARIABLE, "XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


@pytest.fixture
def fresh_jax():
    """JAX with no cache chosen, as it was afterwards."""
    before = {name: jax.config.values[name] for name in (FOLDER, SECONDS)}
    jax.config.update(FOLDER, None)
    yield
    for name, value in before.items():
        jax.config.update(name, value)


def test_the_folder_that_is_named_is_taken(environment, tmp_path):
    environment.setenv(VARIABLE, str(tmp_path / "mine"))
    environment.setenv("XDG_CACHE_HOME", str(tmp_path / "other"))
    assert cache_folder() == tmp_path / "mine"


@pytest.mark.parametrize("word", ["off", "OFF", "0", "no", "False"])
def test_a_word_switches_it_off(environment, word):
    environment.setenv(VARIABLE, word)
    assert cache_folder() is None


@pytest.mark.parametrize("name", ["XDG_CACHE_HOME", "LOCALAPPDATA"])
@pytest.mark.parametrize("chosen", [None, ""], ids=["unset", "empty"])
def test_the_systems_cache_folder_is_the_default(environment, tmp_path, name, chosen):
    if chosen is not None:
        environment.setenv(VARIABLE, chosen)
    environment.setenv(name, str(tmp_path))
    assert cache_folder() == tmp_path / "missbgm" / "compiled"


def test_the_home_folder_comes_last(environment, tmp_path):
    environment.setattr(Path, "home", lambda: tmp_path)
    assert cache_folder() == tmp_path / ".cache" / "missbgm" / "compiled"


def test_asking_makes_no_folder(environment, tmp_path):
    environment.setenv(VARIABLE, str(tmp_path / "mine"))
    cache_folder()
    assert not (tmp_path / "mine").exists()


def test_jax_is_told_the_folder_and_to_keep_quick_programs_too(environment, fresh_jax, tmp_path):
    environment.setenv(VARIABLE, str(tmp_path))
    enable_cache()
    assert jax.config.values[FOLDER] == str(tmp_path)
    assert jax.config.values[SECONDS] == 0.1


def test_a_cache_that_the_user_has_chosen_is_left_alone(environment, fresh_jax, tmp_path):
    jax.config.update(FOLDER, str(tmp_path / "users"))
    jax.config.update(SECONDS, 3.0)
    environment.setenv(VARIABLE, str(tmp_path / "ours"))
    enable_cache()
    assert jax.config.values[FOLDER] == str(tmp_path / "users")
    assert jax.config.values[SECONDS] == 3.0


def test_switched_off_jax_is_told_nothing(environment, fresh_jax):
    environment.setenv(VARIABLE, "off")
    enable_cache()
    assert jax.config.values[FOLDER] is None


def test_a_program_compiled_once_is_read_back_by_a_later_process(tmp_path):
    code = """if True:
        import sys
        import jax
        from missbgm.cache import enable_cache
        enable_cache()
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
        hits = []
        jax.monitoring.register_event_listener(lambda event, **_: hits.append(event))
        jax.jit(lambda x: x * 2 + 1)(3.0).block_until_ready()
        print(hits.count("/jax/compilation_cache/cache_hits"))
        """
    environment = os.environ | {VARIABLE: str(tmp_path)}
    said = [
        subprocess.run(
            [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
        ).stdout
        for _ in range(2)
    ]
    assert said[0] == "0\n"
    assert int(said[1]) > 0


def test_importing_the_package_chooses_no_cache(tmp_path):
    code = "import jax, missbgm.models, missbgm.cache; print(jax.config.values['jax_compilation_cache_dir'])"
    environment = {name: value for name, value in os.environ.items() if name != "JAX_COMPILATION_CACHE_DIR"}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=environment | {VARIABLE: str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "None\n"
    assert not any(tmp_path.iterdir())
