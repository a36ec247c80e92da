"""The paper's engine: neighbours fill, warm start, Algorithm 1, then HMC-within-Gibbs."""

from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from missbgm.bgm.joint import Model
from missbgm.bgm.likelihood import Columns
from missbgm.engines.base import Fitted, Task, rmse
from missbgm.errors import ConfigError
from missbgm.fit import alternate, loop, start
from missbgm.fit.warm import to_features, warm_start
from missbgm.progress import progress
from missbgm.sample import posterior
from missbgm.summary.card import MechanismCard
from missbgm.summary.draws import Draws
from missbgm.table.array import Observations, Pattern, Values
from missbgm.table.codec import Codec
from missbgm.types import Rng, new_key

DRAWING = 1  # tells the seed of draws from that of fitting
DIVERGED = (
    "training diverged: a loss stopped being finite. The last finite state is kept; lower lr_theta, lr_phi, "
    "lr_z or lr_x, and look for columns with extreme values."
)
UNSETTLED = "the warm start diverged and was skipped; lower egm_init.lr or set egm_init.enabled to false."


@dataclass(frozen=True)
class AlternateFit(Fitted):
    """Networks at fixed weights, and the modes of the fitted table's rows."""

    model: Model | None  # None when every column is constant and there is nothing to model
    z: NDArray[np.float32]
    x: NDArray[np.float32]
    inverse: start.Inverse | None

    def completed(self) -> Values:
        return self.codec.decode_table(self.x, self.task.table)

    def impute(self, table: Observations) -> Values:
        return self.codec.decode_table(self._rows(table).x, table)

    def draw(self, table: Observations, verbose: int) -> Draws:
        rows, config = self._rows(table), self.task.config
        key = new_key(np.random.default_rng((self.task.seed, DRAWING)))
        with progress("drawing", verbose) as update:
            sampled = posterior.draw_posterior(key, self.model, rows, config.posterior, config.beta, update)
        return Draws(table, self.codec, sampled)

    def log_prob(self, table: Observations) -> Values:
        raise ConfigError(
            "log p(x_obs, r) needs the missing cells integrated out; set engine to collapse for it."
        )

    def summary(self) -> str:
        return (
            f"Mechanism assumed: the paper's network with beta = {self.task.config.beta:g}; a tempered "
            "target (beta other than 1) is not a calibrated posterior."
        )

    def mechanism_card(self, column: int) -> MechanismCard:
        raise ConfigError(
            "the paper's network looks at whole rows, so that no curve of one column's values describes it; "
            "set engine to collapse for mechanism cards."
        )

    def _rows(self, table: Observations) -> posterior.Rows:
        """Modes of a table's rows: the fitted ones where it is the fitted table."""
        config = self.task.config
        numbers = np.arange(len(table.values), dtype=np.uint32)
        codes, observed = self.codec.encode(table)
        if self.model is None or self.inverse is None or table.same_as(self.task.table):
            return posterior.Rows(self.z, self.x, observed, numbers)
        rows = posterior.Rows(np.zeros((len(codes), config.z_dim), np.float32), codes, observed, numbers)
        return posterior.moved_to_mode(self.model, self.inverse, rows, config)


def fit(task: Task) -> AlternateFit:
    """Run the warm start and Algorithm 1 on a table."""
    config = task.config
    codec = Codec.learn(task.table, task.kinds, standardize=config.standardize)
    _check_kinds(codec)
    codes, observed = codec.encode(task.table)
    rng = np.random.default_rng(task.seed)
    if not len(codec.order):
        return AlternateFit(task, codec, {}, {}, "finished", (), None, codes, codes, None)
    warm = warm_start(rng, Columns.of_classes(codec.n_classes), codes, observed, config)
    trained = _trained(rng, alternate.start(warm.model, warm.z, warm.x), observed, codec, task)
    told = {UNSETTLED: not warm.finite, DIVERGED: trained.status == "diverged"}
    warnings = tuple(text for text, holds in told.items() if holds)
    model, z, x = trained.estimate.model, np.asarray(trained.estimate.z), np.asarray(trained.estimate.x)
    inverse = start.Inverse.learn(z, np.asarray(to_features(model.columns, x)))
    return AlternateFit(
        task, codec, trained.history, warm.history, trained.status, warnings, model, z, x, inverse
    )


def _check_kinds(codec: Codec) -> None:
    unknown = sorted({*codec.kinds} - {"gaussian", "bernoulli", "categorical"})
    if unknown:
        raise ConfigError(
            f"kinds names {', '.join(unknown)}, and the networks of engine: alternate have no heads for such "
            "laws; set engine to collapse, or name these columns gaussian or categorical."
        )


def _trained(rng: Rng, state: alternate.State, observed: Pattern, codec: Codec, task: Task) -> loop.Fitted:
    truth = task.truth
    with progress("fitting", task.verbose) as update:

        def on_epoch(number: int, estimate: loop.Estimate, terms: dict[str, float]) -> dict[str, float]:
            update(number + 1, task.config.epochs, f"objective {terms['objective']:.4f}")
            if truth is None:
                return {}
            completed = codec.decode_table(np.asarray(estimate.x), task.table)
            return {"rmse": rmse(completed, truth, task.table)}

        return loop.train(rng, state, jnp.asarray(observed), task.config, on_epoch)
