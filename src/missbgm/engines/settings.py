"""Settings that contradict one another are refused, with the reason."""

from missbgm.config import Config
from missbgm.errors import ConfigError

OWN = ("auto", "network")


def check_agreement(config: Config) -> None:
    """Raise `ConfigError` if some settings make no sense together."""
    for holds, reason in (_alternate if config.engine == "alternate" else _collapse)(config):
        if holds:
            raise ConfigError(reason)


def _alternate(config: Config) -> list[tuple[bool, str]]:
    return [
        (
            config.missingness not in OWN,
            f"missingness: {_named(config)} needs the missing cells integrated out, and engine: alternate "
            "knows the paper's network only; set engine to collapse, or missingness to network.",
        )
    ]


def _collapse(config: Config) -> list[tuple[bool, str]]:
    return [
        (
            config.missingness == "network",
            "missingness: network looks at whole completed rows, whose missing cells engine: collapse "
            "integrates out; set engine to alternate, or missingness to auto.",
        ),
        (
            config.use_bnn,
            "use_bnn is about networks, and engine: collapse has none; its draws carry the uncertainty of "
            "parameters by collapse.n_refits. Set use_bnn to false, or engine to alternate.",
        ),
        (
            not config.standardize,
            "engine: collapse works on standardised columns, on which its priors are meant; set standardize "
            "to true, or engine to alternate.",
        ),
    ]


def _named(config: Config) -> str:
    if isinstance(config.missingness, str):
        return config.missingness
    return ", ".join(f"{column}: {name}" for column, name in config.missingness)
