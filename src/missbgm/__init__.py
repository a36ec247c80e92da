"""Missingness-aware imputation by Bayesian generative modelling.

Public names load on first use, so that importing the package costs next to nothing.
"""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

_HOMES = {
    "Config": "missbgm.config",
    "Draws": "missbgm.summary.draws",
    "MissBGM": "missbgm.models",
    "MissBGMError": "missbgm.errors",
    "MissBGMWarning": "missbgm.errors",
    "ampute_mnar": "missbgm.datasets",
    "load_dataset": "missbgm.datasets",
    "simulate_mnar_oracle_data": "missbgm.datasets",
}

__all__ = sorted([*_HOMES, "__version__"])


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'missbgm' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return __all__
