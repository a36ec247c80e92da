"""What is compiled once serves every table of its shape: nothing is traced again."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import jax.monitoring
import numpy as np
import pytest
from numpy.typing import NDArray

from missbgm import MissBGM
from missbgm.config import Collapse, Config, EarlyStopping, EgmInit, Posterior

pytestmark = pytest.mark.filterwarnings("ignore:The chains did not mix well")

Array = NDArray[Any]
TRACED = "/jax/core/compile/jaxpr_trace_duration"
CONFIG = Config(
    z_dim=2,
    epochs=2,
    g_units=(4,),
    missingness_units=(3,),
    egm_init=EgmInit(n_iter=3, e_units=(4,), dz_units=(3,), dx_units=(3,)),
    posterior=Posterior(n_mcmc=15, burn_in=5),
    n_inner_steps=1,
    test_epochs=1,
)


def table(n: int = 24, seed: int = 0) -> Array:
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((n, 1)) + rng.standard_normal((n, 3))
    missing = rng.random(x.shape) < 0.2
    missing[0], missing[1] = False, [True, False, False]
    return np.where(missing, np.nan, x)


def use(config: Config, data: Array, seed: int = 0) -> MissBGM:
    """Everything that the face does with a table and with another of its shape."""
    model = MissBGM(config, random_seed=seed).fit(data)
    model.predict(data)
    model.impute(data + 1)
    return model


@pytest.fixture
def traces() -> Iterator[list[str]]:
    """Names of the functions that JAX traces from here on, the package's and its own."""
    names: list[str] = []

    def listen(event: str, _: float, **given: Any) -> None:
        if event == TRACED:
            names.append(str(given.get("fun_name")))

    jax.monitoring.register_event_duration_secs_listener(listen)
    yield names
    jax.monitoring.unregister_event_duration_listener(listen)


@pytest.fixture(scope="module", autouse=True)
def compiled() -> MissBGM:
    return use(CONFIG, table())


def test_another_shape_is_traced_and_so_the_count_can_be_trusted(traces: list[str]) -> None:
    # Of the latent row: every program of the package has a shape of its own then.
    use(replace(CONFIG, z_dim=1), table())
    for name in ("play", "epoch", "complete", "refine", "sweeps"):
        assert name in traces


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({}, id="the same settings"),
        pytest.param({"epochs": 7, "test_epochs": 3}, id="other numbers of epochs"),
        pytest.param(
            {"lr_theta": 0.01, "lr_phi": 0.002, "lr_z": 0.003, "lr_x": 0.004}, id="other learning rates"
        ),
        pytest.param({"egm_init": replace(CONFIG.egm_init, lr=0.01)}, id="another rate of the warm start"),
        pytest.param({"beta": 0.5, "weight_decay": 0.1}, id="other weights of terms"),
        pytest.param({"early_stopping": EarlyStopping(patience=1)}, id="early stopping"),
        pytest.param({"n_neighbors": 2, "standardize": False}, id="another first fill"),
        pytest.param(
            {"posterior": replace(CONFIG.posterior, n_mcmc=20, burn_in=3, step_size=0.3, n_chains=2, thin=2)},
            id="other draws",
        ),
    ],
)
def test_settings_that_are_numbers_trace_nothing(traces: list[str], change: dict[str, Any]) -> None:
    use(replace(CONFIG, **change), table())
    assert traces == []


def test_other_values_patterns_and_seeds_trace_nothing(traces: list[str]) -> None:
    for seed in (1, 2):
        use(CONFIG, 100 * table(seed=seed), seed=seed)
    assert traces == []


def test_predicting_and_imputing_again_trace_nothing(traces: list[str], compiled: MissBGM) -> None:
    for n in (1, 10, 60):  # any number of rows within a block
        compiled.predict(table(60, seed=3)[1 : n + 1])
        compiled.impute(table(60, seed=4)[1 : n + 1])
    assert traces == []


def test_longer_tables_share_the_sampler(traces: list[str], compiled: MissBGM) -> None:
    compiled.predict(table(700, seed=3))  # half of the rows miss a cell
    assert set(traces) >= {"refine", "complete", "sweeps"}  # full blocks, for the first time
    traces.clear()
    compiled.predict(table(2_000, seed=4))
    compiled.impute(table(700, seed=5))
    assert traces == []


# The engine with integrated missing cells

COLLAPSE = Config(
    engine="collapse",
    z_dim=2,
    posterior=Posterior(n_mcmc=20),
    collapse=Collapse(n_iter=30, n_fold_iter=20, n_proposals=12, n_refits=2),
)


@pytest.fixture(scope="module")
def collapsed() -> MissBGM:
    return use(COLLAPSE, table(60))


@pytest.mark.parametrize(
    ("z_dim", "components", "counts"),
    [
        pytest.param(3, 1, {"analysed": 1, "estimate": 1}, id="one component"),
        # Two are tried and refused.
        pytest.param(4, 0, {"analysed": 2, "told": 2, "estimate": 1}, id="held-out rows choose"),
    ],
)
def test_one_compiled_program_serves_the_ladder_its_folds_the_fit_and_its_refits(
    traces: list[str], z_dim: int, components: int, counts: dict[str, int]
) -> None:
    config = replace(COLLAPSE, z_dim=z_dim, collapse=replace(COLLAPSE.collapse, components=components))
    model = use(config, table(60))
    assert len(model._fit.choice.table) >= 10
    for name, count in {"moments": 1, **counts}.items():
        assert traces.count(name) == count
    assert traces.count("propose") == 2  # as many proposals for scores as for draws would be one


def test_a_selection_beside_several_components_is_one_program_more(traces: list[str]) -> None:
    config = replace(COLLAPSE, z_dim=5, collapse=replace(COLLAPSE.collapse, components=2))
    model = use(config, table(60))
    assert model._fit.choice.fitted.model.size == 2
    assert traces.count("estimate") == traces.count("analysed") == 2
    assert traces.count("moments") == 1
    assert traces.count("propose") == 3


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({}, id="the same settings"),
        pytest.param({"missingness": "selection"}, id="another mechanism"),
        pytest.param({"missingness": {"1": "below(-9)", "2": "mcar"}}, id="a mechanism for each column"),
        pytest.param({"collapse": replace(COLLAPSE.collapse, lr=0.01, n_fold_iter=11)}, id="other rates"),
        pytest.param({"collapse": replace(COLLAPSE.collapse, n_refits=0, transform="raw")}, id="no refits"),
    ],
)
def test_what_is_assumed_traces_nothing(
    collapsed: MissBGM, traces: list[str], change: dict[str, Any]
) -> None:
    use(replace(COLLAPSE, **change), table(60, seed=3))
    # How many draws each model makes is a shape.
    assert set(traces) <= {"resample", "fill"}


def test_drawing_again_for_any_rows_traces_nothing(collapsed: MissBGM, traces: list[str]) -> None:
    for n in (3, 40, 60):
        collapsed.predict(table(60, seed=4)[:n])
        collapsed.impute(table(60, seed=5)[:n])
    assert traces == []
