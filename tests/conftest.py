"""What every test shares: a folder of its own for compiled programs, set before JAX compiles anything."""

import os
import shutil
import tempfile

import pytest

VARIABLE = "MISSBGM_CACHE"
WORKER = "PYTEST_XDIST_WORKER"
COMPILED = pytest.StashKey[str]()


def pytest_configure(config: pytest.Config) -> None:
    # Workers start after this and inherit the folder, so that one compiles for the other.
    if WORKER not in os.environ:
        config.stash[COMPILED] = os.environ[VARIABLE] = tempfile.mkdtemp(prefix="missbgm-compiled-")


def pytest_unconfigure(config: pytest.Config) -> None:
    if COMPILED in config.stash:
        shutil.rmtree(config.stash[COMPILED], ignore_errors=True)
