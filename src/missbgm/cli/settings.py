"""Settings from a YAML file and from dotted names on the command line."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from missbgm.config import Config
from missbgm.errors import ConfigError


def read_settings(path: Path | None, overrides: Iterable[str]) -> Config:
    """The settings of a file (the defaults without one), with each ``name=value`` put over them."""
    settings = (Config.from_yaml(path) if path else Config()).to_dict()
    for override in overrides:
        name, _, value = override.partition("=")
        _merge(settings, _nested(name.strip().split("."), _parsed(override, value)))
    return Config.from_dict(settings)


def changed(config: Config) -> dict[str, tuple[Any, Any]]:
    """Settings that differ from their defaults, by dotted name: what they are and what the default is."""
    default = _flat(Config().to_dict())
    now = _flat(config.to_dict(), known=default)
    return {name: (value, default[name]) for name, value in now.items() if value != default[name]}


def _parsed(override: str, value: str) -> Any:
    import yaml

    try:
        return yaml.safe_load(value)
    except yaml.YAMLError:
        raise ConfigError(f"--set {override}: {value!r} is not valid YAML; quote it or mend it.") from None


def _nested(names: list[str], value: Any) -> dict[str, Any]:
    for name in reversed(names):
        value = {name: value}
    return dict(value)


def _merge(settings: dict[str, Any], other: dict[str, Any]) -> None:
    for name, value in other.items():
        if isinstance(value, dict) and isinstance(settings.get(name), dict):
            _merge(settings[name], value)
        else:
            settings[name] = value


def _flat(
    settings: dict[str, Any], prefix: str = "", known: Mapping[str, Any] = MappingProxyType({})
) -> dict[str, Any]:
    """Settings by dotted name; a mapping that is itself the value of a known setting stays whole."""
    flat: dict[str, Any] = {}
    for name, value in settings.items():
        nested = isinstance(value, dict) and prefix + name not in known
        flat |= _flat(value, f"{prefix}{name}.", known) if nested else {prefix + name: value}
    return flat
