"""The persistent compilation cache: programs compiled once are read back by later processes."""

import os
from pathlib import Path

import jax

VARIABLE = "MISSBGM_CACHE"


def cache_folder() -> Path | None:
    """Where compiled programs are kept, or None when the cache is switched off.

    ``MISSBGM_CACHE`` names another folder, or switches it off with ``off``. The folder is safe to delete.
    """
    chosen = os.environ.get(VARIABLE, "")
    if chosen.lower() in ("off", "0", "no", "false"):
        return None
    if chosen:
        return Path(chosen)
    base = os.environ.get("XDG_CACHE_HOME") or os.environ.get("LOCALAPPDATA") or Path.home() / ".cache"
    return Path(base) / "missbgm" / "compiled"


def enable_cache() -> None:
    """Let JAX keep compiled programs on disk, unless the user has chosen a cache of their own."""
    folder = cache_folder()
    if folder is None or jax.config.values["jax_compilation_cache_dir"]:
        return
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)
