"""Every setting of the package: its default (written here and nowhere else), its range and its meaning."""

from __future__ import annotations

import math
import operator
import re
import reprlib
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields
from difflib import SequenceMatcher
from numbers import Integral, Real
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self

from missbgm.errors import ConfigError

ENGINES = ("alternate", "collapse")
MECHANISMS = ("auto", "network", "mcar", "ignorable", "selfmask", "selection")
LIMITED = re.compile(r"(below|above)\(([^()]+)\)")

# How each limit is said, and when a number keeps it.
LIMITS: dict[str, tuple[str, Callable[[float, float], bool]]] = {
    "at_least": ("of at least", operator.ge),
    "above": ("above", operator.gt),
    "below": ("below", operator.lt),
}


@dataclass(frozen=True)
class Rule:
    """What one setting may be. Its kind is the type of its default; a tuple holds whole numbers."""

    kind: type
    doc: str
    choices: tuple[str, ...] = ()
    limits: Mapping[str, float] = field(default_factory=dict)

    def expected(self) -> str:
        """Say in words what is accepted."""
        if issubclass(self.kind, Settings):
            return f"a {self.kind.__name__} (from_dict and YAML: a mapping of its settings)"
        if self.kind is dict:
            names = ", ".join(repr(name) for name in self.choices)
            own = ", ".join(repr(name) for name in self.choices[2:])
            return f"one of {names}, or a mapping from columns to {own}, 'below(1.5)' or 'above(1.5)'"
        if self.kind is str:
            return "one of " + ", ".join(repr(choice) for choice in self.choices)
        number = "a number" if "below" in self.limits else "a finite number"
        nouns = {bool: "true or false", int: "an integer", float: number, tuple: "a list of integers"}
        limits = " and ".join(f"{LIMITS[name][0]} {limit:g}" for name, limit in self.limits.items())
        return f"{nouns[self.kind]} {limits}".rstrip() + (
            ", such as [64, 64] or []" if self.kind is tuple else ""
        )

    def check(self, value: object) -> Any:
        """Return the value in its plain type, or None, which no setting accepts, if it is refused."""
        value = _plain(value)
        if self.kind is tuple:
            return self._units(value)
        if self.kind is dict:
            return self._mechanisms(value)
        if self.kind in (int, float):
            return self._number(value, self.kind)
        chosen = self.kind is not str or value in self.choices
        return value if isinstance(value, self.kind) and chosen else None

    def parse(self, value: object) -> Any:
        """Turn what a mapping or a YAML file holds into what the constructor takes."""
        if issubclass(self.kind, Settings) and (value is None or isinstance(value, Mapping)):
            return self.kind.from_dict(value or {})
        if self.kind is float and isinstance(value, str):
            # YAML 1.1 reads 5e-5, without a dot, as text.
            with suppress(ValueError):
                return float(value)
        return value

    def _units(self, value: object) -> tuple[int, ...] | None:
        if not isinstance(value, list | tuple):
            return None
        units = tuple(self._number(_plain(item), int) for item in value)
        return None if None in units else units

    def _mechanisms(self, value: object) -> str | tuple[tuple[str, str], ...] | None:
        """A name, or pairs of a column and a name; a tuple, so that settings stay hashable."""
        if isinstance(value, str):
            return value if value in self.choices else None
        with suppress(TypeError, ValueError):
            pairs = dict(value)  # type: ignore[call-overload]
            if pairs and all(self._named(name) for name in pairs.values()):
                return tuple((str(column), str(name)) for column, name in pairs.items())
        return None

    def _named(self, name: object) -> bool:
        if name in self.choices[2:]:
            return True
        found = LIMITED.fullmatch(str(name))
        with suppress(ValueError):
            return found is not None and math.isfinite(float(found[2]))
        return False

    def _number(self, value: object, kind: type) -> Any:
        # bool is an int to Python, but a switch to whoever writes a setting.
        if isinstance(value, bool) or not isinstance(value, Integral if kind is int else Real):
            return None
        with suppress(OverflowError):
            number = kind(value)
            kept = all(LIMITS[name][1](number, limit) for name, limit in self.limits.items())
            return number if kept and math.isfinite(number) else None
        return None


def setting(default: Any, doc: str, choices: tuple[str, ...] = (), **limits: float) -> Any:
    """Declare a setting by its default, a one-line explanation and what it may be (see `LIMITS`)."""
    return field(default=default, metadata={"rule": Rule(type(default), doc, choices, limits)})


def mechanism(default: str, doc: str) -> Any:
    """Declare the setting of assumed mechanisms: one name, or a name for each column."""
    return field(default=default, metadata={"rule": Rule(dict, doc, MECHANISMS)})


def section(kind: type[Settings]) -> dict[str, Rule]:
    """Make the metadata of a field that holds a group of settings."""
    return {"rule": Rule(kind, str(kind.__doc__))}


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What `Config` and its sections share: checks on construction, and conversion from and to a dict."""

    prefix: ClassVar[str] = ""

    def __post_init__(self) -> None:
        for name, rule in _rules(type(self)).items():
            checked = rule.check(getattr(self, name))
            if checked is None:
                got = reprlib.repr(_plain(getattr(self, name)))
                raise ConfigError(f"{self.prefix}{name} must be {rule.expected()}, got {got}")
            object.__setattr__(self, name, checked)

    @classmethod
    def from_dict(cls, mapping: Mapping[str, Any]) -> Self:
        """Build from a mapping that names only what differs from the defaults, or raise `ConfigError`.

        Parameters
        ----------
        mapping
            Settings by name, sections nested; None stands for a section's defaults, text may hold a float.
        """
        if not isinstance(mapping, Mapping):
            raise ConfigError(f"settings must be a mapping of names to values, got {reprlib.repr(mapping)}")
        rules = _rules(cls)
        for key in mapping:
            if key not in rules:
                raise ConfigError(_explain_unknown(cls.prefix, str(key), list(rules)))
        return cls(**{key: rules[key].parse(value) for key, value in mapping.items()})

    def to_dict(self) -> dict[str, Any]:
        """Return every setting in plain, nested dicts, with lists for tuples."""
        return asdict(self, dict_factory=_dict_with_lists)


@dataclass(frozen=True, kw_only=True)
class EgmInit(Settings):
    """Warm start of the networks by encoding-generative modelling; `describe` lists the settings."""

    prefix: ClassVar[str] = "egm_init."

    enabled: bool = setting(True, "Whether to warm-start the networks by EGM.")
    n_iter: int = setting(1500, "Number of minibatches of the warm start.", at_least=1)
    e_units: tuple[int, ...] = setting((120,) * 5, "Hidden widths of the encoder.", at_least=1)
    dz_units: tuple[int, ...] = setting((64, 32, 8), "Hidden widths of the latent critic.", at_least=1)
    dx_units: tuple[int, ...] = setting((64, 32, 8), "Hidden widths of the data critic.", at_least=1)
    lr: float = setting(0.002, "Learning rate of the warm start.", above=0)


@dataclass(frozen=True, kw_only=True)
class EarlyStopping(Settings):
    """When training ends before the last epoch; `describe` lists the settings."""

    prefix: ClassVar[str] = "early_stopping."

    patience: int = setting(0, "Epochs without improvement before training stops; 0 = never.", at_least=0)
    tolerance: float = setting(1e-4, "Smallest relative improvement that counts.", at_least=0)


@dataclass(frozen=True, kw_only=True)
class Posterior(Settings):
    """How posterior draws are made and summarised; `describe` lists the settings."""

    prefix: ClassVar[str] = "posterior."

    alpha: float = setting(0.05, "Significance level of posterior intervals.", above=0, below=1)
    n_mcmc: int = setting(1000, "Number of posterior draws kept after burn-in.", at_least=1)
    burn_in: int = setting(1000, "Number of warm-up sweeps before the first kept draw.", at_least=0)
    step_size: float = setting(0.1, "Initial step size of HMC.", above=0)
    n_leapfrog: int = setting(5, "Leapfrog steps per HMC proposal.", at_least=1)
    target_accept: float = setting(0.75, "Acceptance rate the step size adapts to.", above=0, below=1)
    n_chains: int = setting(1, "Number of chains per row.", at_least=1)
    thin: int = setting(1, "Sweeps per kept draw.", at_least=1)
    x_kernel: str = setting("autoregressive", "Proposal for missing cells.", ("autoregressive", "hmc"))
    dtype: str = setting("float32", "Precision in which draws are stored.", ("float32", "float16"))
    n_weight_draws: int = setting(10, "With use_bnn: redraws of the weights over the kept draws.", at_least=1)


@dataclass(frozen=True, kw_only=True)
class Collapse(Settings):
    """How the engine with integrated missing cells works; `describe` lists the settings."""

    prefix: ClassVar[str] = "collapse."

    transform: str = setting(
        "auto", "Scale of the columns; auto lets held-out rows choose.", ("auto", "raw", "yeo-johnson")
    )
    components: int = setting(0, "Linear components of the density; 0 lets held-out rows choose.", at_least=0)
    n_iter: int = setting(400, "Iterations of a fit.", at_least=10)
    n_fold_iter: int = setting(160, "Iterations of a fit that is only scored on held-out rows.", at_least=10)
    batch_size: int = setting(500, "Rows per iteration.", at_least=1)
    lr: float = setting(0.03, "First learning rate; it falls along a cosine.", above=0)
    n_proposals: int = setting(80, "Weighted proposals of each latent row.", at_least=10)
    n_refits: int = setting(
        5, "Refits under random row weights that the draws are spread over; 0 = none.", at_least=0
    )


@dataclass(frozen=True, kw_only=True)
class Config(Settings):
    """Every setting of a fit and of its draws; `describe` lists them.

    Construction checks types and ranges and raises `ConfigError`; instances are immutable and hashable, so
    change one with `dataclasses.replace`.
    """

    engine: str = setting("alternate", "How parameters are found and cells drawn.", ENGINES)
    missingness: str | tuple[tuple[str, str], ...] = mechanism(
        "auto", "Assumed mechanism; auto is the paper's network, or the choice of the engine collapse."
    )
    z_dim: int = setting(5, "Dimension of the latent row z.", at_least=1)
    epochs: int = setting(200, "Number of outer training epochs.", at_least=0)
    batch_size: int = setting(16, "Rows per minibatch.", at_least=1)
    beta: float = setting(0.01, "Weight on the missingness model when missing cells move.", at_least=0)
    g_units: tuple[int, ...] = setting((120,) * 5, "Hidden widths of the generator; [] = linear.", at_least=1)
    missingness_units: tuple[int, ...] = setting((64, 64), "Hidden widths of the mask network.", at_least=1)
    lr_theta: float = setting(0.005, "Learning rate of the generator, theta.", above=0)
    lr_phi: float = setting(0.005, "Learning rate of the missingness network, phi.", above=0)
    lr_z: float = setting(0.002, "Learning rate of the latent rows, z.", above=0)
    lr_x: float = setting(0.002, "Learning rate of the missing cells.", above=0)
    n_inner_steps: int = setting(3, "Updates of z and of the missing cells per minibatch.", at_least=1)
    use_bnn: bool = setting(False, "Whether the networks are Bayesian.")
    kl_weight: float = setting(5e-5, "With use_bnn: weight tau on the KL term of the weights.", at_least=0)
    test_epochs: int = setting(30, "Refinement epochs on new rows before sampling.", at_least=1)
    weight_decay: float = setting(1e-4, "Weight decay of both networks; unused with use_bnn.", at_least=0)
    average_iterates: bool = setting(True, "Whether the fit is an average over late epochs.")
    standardize: bool = setting(True, "Whether columns are scaled by their observed mean and sd inside.")
    n_neighbors: int = setting(5, "Neighbours in the first fill of missing cells.", at_least=1)
    egm_init: EgmInit = field(default_factory=EgmInit, metadata=section(EgmInit))
    early_stopping: EarlyStopping = field(default_factory=EarlyStopping, metadata=section(EarlyStopping))
    posterior: Posterior = field(default_factory=Posterior, metadata=section(Posterior))
    collapse: Collapse = field(default_factory=Collapse, metadata=section(Collapse))

    @classmethod
    def from_yaml(cls, path: str | Path) -> Self:
        """Build from a YAML file that names only what differs from the defaults; it may be empty."""
        content = _read_yaml(Path(path))
        try:
            return cls.from_dict({} if content is None else content)
        except ConfigError as error:
            raise ConfigError(f"{path}: {error}") from None

    def to_yaml(self) -> str:
        """Return every setting as YAML text that `from_yaml` reads back to an equal config."""
        import yaml

        return yaml.safe_dump(self.to_dict(), sort_keys=False)


class Described(NamedTuple):
    """One row of `describe`: the dotted name, the default, what is accepted and what it means."""

    name: str
    default: Any
    expected: str
    doc: str


def describe(group: type[Settings] = Config) -> list[Described]:
    """List every setting by its dotted name, in order of definition."""
    rows: list[Described] = []
    for item in fields(group):
        rule: Rule = item.metadata["rule"]
        if issubclass(rule.kind, Settings):
            rows += describe(rule.kind)
        else:
            rows.append(Described(group.prefix + item.name, item.default, rule.expected(), rule.doc))
    return rows


def as_config(params: Mapping[str, Any] | Config | str | Path | None) -> Config:
    """Turn whatever describes settings into a checked `Config`, or raise `ConfigError`.

    Parameters
    ----------
    params
        A config (returned as it is), a mapping of settings, the path of a YAML file, or None for defaults.
    """
    if params is None:
        return Config()
    if isinstance(params, Config):
        return params
    if isinstance(params, str | Path):
        return Config.from_yaml(params)
    if isinstance(params, Mapping):
        return Config.from_dict(params)
    got = reprlib.repr(params)
    raise ConfigError(f"params must be a mapping, a Config, the path of a YAML file or None, got {got}")


def _rules(group: type[Settings]) -> dict[str, Rule]:
    return {item.name: item.metadata["rule"] for item in fields(group)}


def _plain(value: Any) -> Any:
    # NumPy and JAX scalars and arrays have tolist: no need to import either to accept them.
    tolist = getattr(value, "tolist", None)
    return tolist() if callable(tolist) else value


def _dict_with_lists(items: list[tuple[str, Any]]) -> dict[str, Any]:
    return {name: _listed(value) for name, value in items}


def _listed(value: Any) -> Any:
    """Lists for tuples, and a mapping for pairs."""
    if not isinstance(value, tuple):
        return value
    return dict(value) if value and isinstance(value[0], tuple) else list(value)


def _read_yaml(path: Path) -> Any:
    import yaml

    try:
        return yaml.safe_load(path.read_bytes())
    except OSError as error:
        raise ConfigError(f"cannot read the settings in {path}: {error.strerror}") from error
    except (yaml.YAMLError, ValueError) as error:  # ValueError: an impossible date
        raise ConfigError(f"{path} is not valid YAML: {error}") from error


def _explain_unknown(prefix: str, key: str, valid: list[str]) -> str:
    names = list(dict.fromkeys(name for row in describe() for name in (row.name, row.name.split(".")[0])))
    if prefix + key in names:
        group, _, leaf = key.partition(".")
        return f"{key!r} belongs in its section: write {{{group!r}: {{{leaf!r}: ...}}}}"
    # Ties go to the section in which the name was written.
    nearest = max(names, key=lambda name: (_likeness(key, name), name.startswith(prefix)))
    if _likeness(key, nearest) >= 0.6:
        return f"unknown setting {prefix + key!r}; did you mean {nearest!r}?"
    return f"unknown setting {prefix + key!r}; valid names here: {', '.join(valid)}"


def _likeness(key: str, name: str) -> float:
    # Only the part that was written: a shared section would make any two of its settings look alike.
    candidates = (name, name.rpartition(".")[2])
    return max(SequenceMatcher(None, key.lower(), candidate).ratio() for candidate in candidates)
