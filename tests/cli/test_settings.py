"""Settings from a file with assignments over them, and which differ from the defaults."""

import pytest

from missbgm.cli.settings import changed, read_settings
from missbgm.config import Config, EarlyStopping, EgmInit, Posterior
from missbgm.errors import ConfigError


@pytest.fixture
def path(tmp_path):
    file = tmp_path / "settings.yaml"
    file.write_text("epochs: 7\nposterior:\n  n_mcmc: 30\n  burn_in: 20\n", encoding="utf-8")
    return file


def test_without_a_file_or_assignments_settings_are_the_defaults():
    assert read_settings(None, []) == Config()


def test_a_file_is_read(path):
    assert read_settings(path, []) == Config(epochs=7, posterior=Posterior(n_mcmc=30, burn_in=20))


def test_assignments_go_over_the_file_and_leave_the_rest(path):
    config = read_settings(path, ["posterior.n_mcmc=40", "z_dim=2"])
    assert config == Config(epochs=7, z_dim=2, posterior=Posterior(n_mcmc=40, burn_in=20))


def test_the_last_assignment_of_a_name_counts():
    assert read_settings(None, ["epochs=1", "epochs=2"]).epochs == 2


@pytest.mark.parametrize(
    ("assignment", "expected"),
    [
        ("epochs=3", Config(epochs=3)),
        (" epochs = 3 ", Config(epochs=3)),
        ("use_bnn=true", Config(use_bnn=True)),
        ("use_bnn=no", Config(use_bnn=False)),
        ("kl_weight=1e-3", Config(kl_weight=1e-3)),
        ("g_units=[8, 4]", Config(g_units=(8, 4))),
        ("g_units=[]", Config(g_units=())),
        ("posterior.x_kernel=hmc", Config(posterior=Posterior(x_kernel="hmc"))),
        ("posterior.dtype='float16'", Config(posterior=Posterior(dtype="float16"))),
        ("egm_init.enabled=false", Config(egm_init=EgmInit(enabled=False))),
        ("early_stopping={patience: 3}", Config(early_stopping=EarlyStopping(patience=3))),
    ],
)
def test_values_are_read_as_yaml(assignment, expected):
    assert read_settings(None, [assignment]) == expected


def test_a_section_is_merged_and_not_replaced(path):
    config = read_settings(path, ["posterior={thin: 2}"])
    assert config.posterior == Posterior(n_mcmc=30, burn_in=20, thin=2)


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("posterior.nmcmc=3", "unknown setting 'posterior.nmcmc'; did you mean 'posterior.n_mcmc'?"),
        ("epoch=3", "unknown setting 'epoch'; did you mean 'epochs'?"),
        ("epochs=many", "epochs must be an integer of at least 0, got 'many'"),
        ("epochs=", "epochs must be an integer of at least 0, got None"),
        ("epochs.x=3", "epochs must be an integer of at least 0, got {'x': 3}"),
        ("posterior.alpha=2", "posterior.alpha must be a number above 0 and below 1, got 2"),
        ("g_units=[1", "--set g_units=[1: '[1' is not valid YAML; quote it or mend it."),
    ],
)
def test_a_wrong_assignment_is_explained(assignment, message):
    with pytest.raises(ConfigError) as error:
        read_settings(None, [assignment])
    assert str(error.value) == message


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"cannot read the settings in .*none\.yaml: No such file"):
        read_settings(tmp_path / "none.yaml", [])


def test_nothing_differs_from_the_defaults_by_default():
    assert changed(Config()) == {}


def test_what_differs_is_listed_by_dotted_name_with_its_default():
    config = Config(epochs=3, g_units=[8], posterior=Posterior(alpha=0.1), egm_init=EgmInit(enabled=False))
    assert changed(config) == {
        "epochs": (3, 200),
        "g_units": ([8], [120] * 5),
        "egm_init.enabled": (False, True),
        "posterior.alpha": (0.1, 0.05),
    }


def test_what_differs_can_be_assigned_again():
    config = Config(epochs=3, g_units=[8, 2], posterior=Posterior(alpha=0.1, x_kernel="hmc"), lr_x=1e-7)
    assignments = [f"{name}={now}" for name, (now, _) in changed(config).items()]
    assert read_settings(None, assignments) == config


def test_mechanisms_by_column_are_one_setting():
    config = read_settings(
        None, ["engine=collapse", "missingness={income: selfmask}", "missingness.age=mcar"]
    )
    assert dict(config.missingness) == {"income": "selfmask", "age": "mcar"}
    assert changed(config) == {
        "engine": ("collapse", "alternate"),
        "missingness": ({"income": "selfmask", "age": "mcar"}, "auto"),
    }
