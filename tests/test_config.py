"""Settings: the paper's defaults, what is refused and how it is said, and round trips."""

import subprocess
import sys
from dataclasses import FrozenInstanceError, fields, replace
from fractions import Fraction
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from missbgm.config import (
    Collapse,
    Config,
    EarlyStopping,
    EgmInit,
    Posterior,
    Rule,
    Settings,
    as_config,
    describe,
)
from missbgm.errors import ConfigError

CONFIGS = Path(__file__).parents[1] / "configs"

PAPER = {
    "z_dim": 5,
    "epochs": 200,
    "batch_size": 16,
    "beta": 0.01,
    "g_units": (120, 120, 120, 120, 120),
    "missingness_units": (64, 64),
    "lr_theta": 0.005,
    "lr_phi": 0.005,
    "lr_z": 0.002,
    "lr_x": 0.002,
    "n_inner_steps": 3,
    "use_bnn": False,
    "kl_weight": 5e-5,
    "test_epochs": 30,
    "egm_init.enabled": True,
    "egm_init.n_iter": 1500,
    "egm_init.e_units": (120, 120, 120, 120, 120),
    "egm_init.dz_units": (64, 32, 8),
    "egm_init.dx_units": (64, 32, 8),
    "posterior.alpha": 0.05,
    "posterior.n_mcmc": 1000,
    "posterior.burn_in": 1000,
    "posterior.step_size": 0.1,
}
OURS = {
    "weight_decay": 1e-4,
    "average_iterates": True,
    "standardize": True,
    "n_neighbors": 5,
    "egm_init.lr": 0.002,
    "early_stopping.patience": 0,
    "early_stopping.tolerance": 1e-4,
    "posterior.n_leapfrog": 5,
    "posterior.target_accept": 0.75,
    "posterior.n_chains": 1,
    "posterior.thin": 1,
    "posterior.x_kernel": "autoregressive",
    "posterior.dtype": "float32",
    "posterior.n_weight_draws": 10,
    "engine": "alternate",
    "missingness": "auto",
    "collapse.transform": "auto",
    "collapse.components": 0,
    "collapse.n_iter": 400,
    "collapse.n_fold_iter": 160,
    "collapse.batch_size": 500,
    "collapse.lr": 0.03,
    "collapse.n_proposals": 80,
    "collapse.n_refits": 5,
}


def nested(name: str, value: object) -> dict:
    section, _, leaf = name.rpartition(".")
    return {section: {leaf: value}} if section else {leaf: value}


def read(config: Config, name: str) -> object:
    section, _, leaf = name.rpartition(".")
    return getattr(getattr(config, section) if section else config, leaf)


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "settings.yaml"
    path.write_text(text, encoding="utf-8")
    return path


# Defaults


@pytest.mark.parametrize(("name", "default"), (PAPER | OURS).items())
def test_defaults_are_the_papers_and_ours(name, default):
    value = read(Config(), name)
    assert value == default
    assert type(value) is type(default)


def test_describe_lists_every_setting_once_with_its_default_and_a_sentence():
    rows = describe()
    assert {row.name: row.default for row in rows} == PAPER | OURS
    assert len(rows) == len(PAPER | OURS)
    assert all(row.doc.endswith(".") and "\n" not in row.doc and row.expected for row in rows)


def test_describe_says_what_is_accepted():
    expected = {row.name: row.expected for row in describe()}
    assert expected["z_dim"] == "an integer of at least 1"
    assert expected["beta"] == "a finite number of at least 0"
    assert expected["posterior.alpha"] == "a number above 0 and below 1"
    assert expected["use_bnn"] == "true or false"


def test_a_mechanism_may_be_named_for_each_column():
    given = {"income": "selfmask", 3: "below(0.5)", "age": "ignorable"}
    config = Config.from_dict({"missingness": given})
    assert dict(config.missingness) == {"income": "selfmask", "3": "below(0.5)", "age": "ignorable"}
    assert Config.from_dict(config.to_dict()) == config


@pytest.mark.parametrize(
    "wrong",
    ["below(1)", "mnar", 3, {}, {"a": "auto"}, {"a": "network"}, {"a": "below(x)"}, {"a": "above(inf)"}],
)
def test_a_mechanism_that_is_none_is_refused_with_the_list(wrong):
    with pytest.raises(ConfigError, match=r"missingness must be one of 'auto', 'network', .* or a mapping"):
        Config(missingness=wrong)


def test_a_config_is_immutable_and_hashable():
    with pytest.raises(FrozenInstanceError):
        Config().z_dim = 3
    assert hash(Config(g_units=[8])) == hash(Config(g_units=(8,)))


def test_importing_config_does_not_import_yaml():
    code = "import sys, missbgm.config; sys.exit('yaml' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


# Round trips


def in_range(rule: Rule) -> st.SearchStrategy:
    limits = rule.limits
    low = limits.get("at_least", limits.get("above"))
    integers = st.integers(min_value=int(low or 0), max_value=10**12)
    floats = st.floats(
        min_value=low,
        max_value=limits.get("below"),
        exclude_min="above" in limits,
        exclude_max="below" in limits,
        allow_nan=False,
        allow_infinity=False,
    )
    by_kind = {
        bool: st.booleans(),
        int: integers,
        float: floats,
        tuple: st.lists(integers, max_size=4).map(tuple),
        str: st.sampled_from(rule.choices or ("",)),
        dict: st.sampled_from(rule.choices)
        | st.dictionaries(
            st.text(max_size=3),
            st.sampled_from(["mcar", "selfmask", "below(1.5)", "above(-2e3)"]),
            min_size=1,
        ),
    }
    return by_kind[rule.kind] if rule.kind in by_kind else any_settings(rule.kind)


def any_settings(section: type[Settings]) -> st.SearchStrategy:
    values = {item.name: in_range(item.metadata["rule"]) for item in fields(section)}
    return st.fixed_dictionaries({}, optional=values).map(lambda given: section(**given))


@settings(max_examples=40, deadline=None)
@given(any_settings(Config))
def test_any_settings_in_range_round_trip(tmp_path_factory, config):
    path = tmp_path_factory.getbasetemp() / "round_trip.yaml"
    path.write_text(config.to_yaml(), encoding="utf-8")
    assert Config.from_dict(config.to_dict()) == config
    assert Config.from_yaml(path) == config


def test_to_dict_is_plain_and_nested():
    plain = Config(g_units=(8, 4), posterior=Posterior(alpha=0.1)).to_dict()
    assert plain["g_units"] == [8, 4]
    assert plain["egm_init"]["dz_units"] == [64, 32, 8]
    assert plain["posterior"]["alpha"] == 0.1
    assert list(plain["early_stopping"]) == ["patience", "tolerance"]


# The files in configs/

OVERRIDES = {
    "MNAR_oracle": Config(epochs=50, lr_z=0.01, lr_x=0.02),
    "wine": Config(lr_z=0.03, lr_x=0.03, g_units=(120,) * 3, egm_init=EgmInit(e_units=(120,) * 3)),
    "breast": Config(lr_z=0.01, lr_x=0.02),
    "concrete": Config(lr_z=0.01, lr_x=0.02),
    "gisette": Config(z_dim=10, lr_z=0.01, lr_x=0.02, egm_init=EgmInit(n_iter=5000)),
}


def test_every_config_file_is_known_to_this_test():
    assert {path.stem for path in CONFIGS.glob("*.yaml")} == set(OVERRIDES)


@pytest.mark.parametrize("name", OVERRIDES)
def test_config_files_load_to_what_they_override(name):
    assert Config.from_yaml(CONFIGS / f"{name}.yaml") == OVERRIDES[name]


# What is accepted


def test_as_config_takes_every_form(tmp_path):
    config = Config(z_dim=3)
    path = write(tmp_path, "z_dim: 3\n")
    assert as_config(None) == Config()
    assert as_config(config) is config
    assert as_config({"z_dim": 3}) == as_config(MappingProxyType({"z_dim": 3})) == config
    assert as_config(path) == as_config(str(path)) == config


@pytest.mark.parametrize("params", [3, ["z_dim"], b"wine.yaml"])
def test_as_config_refuses_anything_else(params):
    with pytest.raises(
        ConfigError, match="params must be a mapping, a Config, the path of a YAML file or None"
    ):
        as_config(params)


def test_sections_are_mappings_instances_or_nothing():
    expected = Config(posterior=Posterior(n_mcmc=7))
    assert Config.from_dict({"posterior": {"n_mcmc": 7}}) == expected
    assert Config.from_dict({"posterior": Posterior(n_mcmc=7)}) == expected
    assert Config.from_dict({"posterior": None}) == Config()


@pytest.mark.parametrize("value", [1, np.int64(1), np.float32(1), np.array(1.0), Fraction(1)])
def test_numbers_of_any_make_become_plain_floats(value):
    beta = Config(beta=value).beta
    assert beta == 1.0
    assert type(beta) is float


def test_numpy_values_become_plain():
    config = Config(z_dim=np.int32(3), use_bnn=np.True_, g_units=np.array([8, 4]))
    assert (type(config.z_dim), type(config.use_bnn)) == (int, bool)
    assert config.g_units == (8, 4)
    assert Config(g_units=[np.int64(8)]).g_units == Config.from_dict({"g_units": [8]}).g_units == (8,)
    assert Config(g_units=[]).g_units == ()


@pytest.mark.parametrize("text", ["kl_weight: 5e-5", "kl_weight: 5e-05", "kl_weight: '0.00005'"])
def test_yaml_reads_floats_without_a_dot(tmp_path, text):
    assert Config.from_yaml(write(tmp_path, text)).kl_weight == 5e-5


def test_text_is_a_number_only_in_files_and_mappings():
    assert Config.from_dict({"posterior": {"alpha": "1e-1"}}).posterior.alpha == 0.1
    with pytest.raises(ConfigError, match=r"^beta must be a finite number of at least 0, got '0\.1'$"):
        Config(beta="0.1")


@pytest.mark.parametrize("text", ["", "# a comment\n", "---\n", "{}", "posterior:\n"])
def test_an_empty_yaml_file_is_the_defaults(tmp_path, text):
    assert Config.from_yaml(write(tmp_path, text)) == Config()


# What is refused

REFUSED = [
    ("z_dim", 0, "z_dim must be an integer of at least 1, got 0"),
    ("z_dim", 5.0, "z_dim must be an integer of at least 1, got 5.0"),
    ("z_dim", True, "z_dim must be an integer of at least 1, got True"),
    ("z_dim", np.True_, "z_dim must be an integer of at least 1, got True"),
    ("z_dim", "5", "z_dim must be an integer of at least 1, got '5'"),
    ("z_dim", 10**400, "z_dim must be an integer of at least 1, got 1000"),
    ("epochs", -1, "epochs must be an integer of at least 0, got -1"),
    ("beta", -0.1, "beta must be a finite number of at least 0, got -0.1"),
    ("beta", float("nan"), "beta must be a finite number of at least 0, got nan"),
    ("beta", "inf", "beta must be a finite number of at least 0, got inf"),
    ("beta", "much", "beta must be a finite number of at least 0, got 'much'"),
    ("beta", False, "beta must be a finite number of at least 0, got False"),
    ("beta", 10**400, "beta must be a finite number of at least 0, got 1000"),
    ("lr_z", np.float64(0), "lr_z must be a finite number above 0, got 0.0"),
    ("use_bnn", 1, "use_bnn must be true or false, got 1"),
    ("use_bnn", "no", "use_bnn must be true or false, got 'no'"),
    ("g_units", 64, "g_units must be a list of integers of at least 1, such as [64, 64] or [], got 64"),
    ("g_units", "64", "g_units must be a list of integers of at least 1, such as [64, 64] or [], got '64'"),
    (
        "g_units",
        [64, 0],
        "g_units must be a list of integers of at least 1, such as [64, 64] or [], got [64, 0]",
    ),
    ("egm_init.e_units", [8.5], "egm_init.e_units must be a list of integers of at least 1"),
    ("egm_init.n_iter", 0, "egm_init.n_iter must be an integer of at least 1, got 0"),
    ("early_stopping.patience", -1, "early_stopping.patience must be an integer of at least 0, got -1"),
    ("posterior.alpha", 0, "posterior.alpha must be a number above 0 and below 1, got 0"),
    ("posterior.alpha", 1, "posterior.alpha must be a number above 0 and below 1, got 1"),
    ("posterior.dtype", "float64", "posterior.dtype must be one of 'float32', 'float16', got 'float64'"),
    ("posterior.x_kernel", ["hmc"], "posterior.x_kernel must be one of 'autoregressive', 'hmc', got ['hmc']"),
    ("posterior", 5, "posterior must be a Posterior (from_dict and YAML: a mapping of its settings), got 5"),
    ("posterior", EgmInit(), "posterior must be a Posterior"),
]


@pytest.mark.parametrize(("name", "value", "message"), REFUSED)
def test_a_refused_value_is_named_with_what_is_accepted(name, value, message):
    with pytest.raises(ConfigError) as caught:
        Config.from_dict(nested(name, value))
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize("name", PAPER | OURS)
def test_no_setting_accepts_nothing(name):
    with pytest.raises(ConfigError, match=rf"^{name} must be .*, got None$"):
        Config.from_dict(nested(name, None))


def test_every_door_has_the_same_check():
    message = "^z_dim must be an integer of at least 1, got 0$"
    for build in (
        lambda: Config(z_dim=0),
        lambda: replace(Config(), z_dim=0),
        lambda: as_config({"z_dim": 0}),
    ):
        with pytest.raises(ConfigError, match=message):
            build()
    with pytest.raises(ConfigError, match=r"^early_stopping\.tolerance must be"):
        EarlyStopping(tolerance=-1)


def test_a_long_value_is_shortened_in_the_message():
    with pytest.raises(ConfigError) as caught:
        Config(z_dim=np.zeros(10_000))
    assert len(str(caught.value)) < 200


# Unknown names

NEAREST = [
    ({"egm_init": {"n_iters": 1}}, "egm_init.n_iters", "egm_init.n_iter"),
    ({"zdim": 1}, "zdim", "z_dim"),
    ({"Beta": 1}, "Beta", "beta"),
    ({"n_mcmc": 1}, "n_mcmc", "posterior.n_mcmc"),
    ({"posterior_alpha": 1}, "posterior_alpha", "posterior.alpha"),
    ({"posterior": {"z_dim": 1}}, "posterior.z_dim", "z_dim"),
    ({"posterior": {"lr": 1}}, "posterior.lr", "egm_init.lr"),
    ({"egm_init": {"units": []}}, "egm_init.units", "egm_init.e_units"),
    ({"units": []}, "units", "g_units"),
    ({"egminit": {"n_iter": 1}}, "egminit", "egm_init"),
]


@pytest.mark.parametrize(("params", "written", "meant"), NEAREST)
def test_an_unknown_name_suggests_the_nearest(params, written, meant):
    with pytest.raises(ConfigError) as caught:
        as_config(params)
    assert str(caught.value) == f"unknown setting '{written}'; did you mean '{meant}'?"


@pytest.mark.parametrize("section", [Config, EgmInit, EarlyStopping, Posterior, Collapse])
def test_a_name_near_nothing_lists_the_names_at_its_level(section):
    with pytest.raises(ConfigError) as caught:
        section.from_dict({"qqq": 1})
    names = ", ".join(item.name for item in fields(section))
    assert str(caught.value) == f"unknown setting '{section.prefix}qqq'; valid names here: {names}"


def test_a_name_that_is_no_text_is_unknown():
    with pytest.raises(ConfigError, match="unknown setting '7'"):
        Config.from_dict({7: 1})


def test_a_dotted_name_is_shown_how_to_nest():
    with pytest.raises(ConfigError) as caught:
        Config.from_dict({"posterior.n_mcmc": 1})
    assert (
        str(caught.value) == "'posterior.n_mcmc' belongs in its section: write {'posterior': {'n_mcmc': ...}}"
    )


# Files


def test_a_missing_file_is_named_with_the_reason(tmp_path):
    with pytest.raises(ConfigError, match=r"cannot read the settings in .*none\.yaml: No such file"):
        as_config(tmp_path / "none.yaml")


@pytest.mark.parametrize("text", ["z_dim: [1", "a: b: c", "!!python/name:os.system x", "z_dim: 2024-99-99"])
def test_invalid_yaml_is_named_with_the_reason(tmp_path, text):
    with pytest.raises(ConfigError, match=r"settings\.yaml is not valid YAML: \S"):
        Config.from_yaml(write(tmp_path, text))


@pytest.mark.parametrize("text", ["- z_dim", "z_dim", "5", "[]", "false"])
def test_yaml_that_is_no_mapping_is_refused(tmp_path, text):
    with pytest.raises(
        ConfigError, match=r"settings\.yaml: settings must be a mapping of names to values, got"
    ):
        Config.from_yaml(write(tmp_path, text))


def test_a_file_that_is_no_text_is_refused(tmp_path):
    path = tmp_path / "settings.yaml"
    path.write_bytes(b"z_dim: \x80")
    with pytest.raises(ConfigError, match=r"settings\.yaml is not valid YAML: .*invalid start byte"):
        Config.from_yaml(path)


def test_a_refused_setting_in_a_file_is_named_with_the_file(tmp_path):
    with pytest.raises(
        ConfigError, match=r"settings\.yaml: unknown setting 'epoch'; did you mean 'epochs'\?"
    ):
        Config.from_yaml(write(tmp_path, "epoch: 3"))
