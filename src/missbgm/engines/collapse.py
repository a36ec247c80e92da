"""The engine with integrated missing cells: a mechanism is chosen or taken, fitted and drawn from."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from missbgm.bgm.factor import Mixture
from missbgm.engines.base import Fitted, Task
from missbgm.engines.mechanisms import Named, label
from missbgm.errors import ConfigError
from missbgm.fit.analysis import Rows
from missbgm.fit.choose import LADDER, Choice, chosen, named
from missbgm.fit.features import codes_of
from missbgm.fit.folds import Fitter, View
from missbgm.progress import progress
from missbgm.sample.imputed import Amounts, draw_collapsed, log_prob, mean_of_draws
from missbgm.summary.assumed import told
from missbgm.summary.card import MechanismCard, card_of
from missbgm.summary.draws import Draws
from missbgm.table.array import Observations, Values
from missbgm.table.codec import Codec
from missbgm.table.power import Power
from missbgm.types import RandomKey, Rng, new_key

FITTING, REFITTING, DRAWING = 1, 2, 3  # tell seeds apart
# Draws behind a posterior mean on a transformed scale, where no formula gives it: fewer where cells are many.
BENT_DRAWS, BENT_CELLS = (50, 400), 10**9
DIVERGED = (
    "the fit stopped being finite, and its answer cannot be used; lower collapse.lr, and look for columns "
    "with extreme values."
)
NO_COLUMN = "no column varies, so there is nothing to assume: missing cells get their column's one value."


@dataclass(frozen=True)
class CollapseFit(Fitted):
    """A mixture and a mechanism, estimated and refitted; the point estimate is the posterior mean."""

    named: Named
    choice: Choice | None  # None when every column is constant and there is nothing to model
    refits: tuple[Mixture, ...]

    def completed(self) -> Values:
        return self.impute(self.task.table)

    def impute(self, table: Observations) -> Values:
        if self.choice is None or not self._streams:
            draws = self._drawn(table, self._models(), BENT_DRAWS[1] if self._needs_draws else 0)
            return draws.filled(draws.point("mean"))
        self.named.check(self.codec, table, self.task.names)
        codes, observed = self.codec.encode(table)
        n_draws = int(np.clip(BENT_CELLS // max((~observed).sum(), 1), *BENT_DRAWS))
        amounts = Amounts(n_draws, self.task.config.collapse.n_proposals, "float32")
        given = self._models(), self.choice.fitted.assumed, codes, observed, amounts
        means = mean_of_draws(self._key(), *given, self._decode)
        completed = self.codec.decode_table(np.zeros_like(codes), table)
        row, place = np.nonzero(~observed)
        completed[row, self.codec.order[place]] = means
        return completed

    @property
    def _needs_draws(self) -> bool:
        """Whether some point estimate is a function of draws: of bent values, or of classes."""
        return self.choice is not None and (self.codec.bends or self._has_classes)

    @property
    def _streams(self) -> bool:
        """Whether means of draws will do, so that none has to be kept: classes ask for their commonest."""
        return self._needs_draws and not self._has_classes

    @property
    def _has_classes(self) -> bool:
        return self.codec.n_continuous < len(self.codec.order)

    def draw(self, table: Observations, verbose: int) -> Draws:
        with progress("drawing", verbose) as update:
            return self._drawn(table, self._models(), self.task.config.posterior.n_mcmc, update)

    def log_prob(self, table: Observations) -> Values:
        self.named.check(self.codec, table, self.task.names)
        codes, observed = self.codec.encode(table)
        if self.choice is None:
            return np.zeros(len(codes))
        fitted, settings = self.choice.fitted, self.task.config.collapse
        found = log_prob(self._key(), fitted.model, fitted.assumed, codes, observed, settings.n_proposals)
        return found + self.codec.log_jacobian(table)

    def summary(self) -> str:
        if self.choice is None:
            return NO_COLUMN
        masked = np.flatnonzero(self.choice.fitted.assumed.masked).tolist()
        automatic = self.task.config.missingness == "auto"
        mechanisms = {self._label(place): self._mechanism(place) for place in masked}
        return told(self.choice, mechanisms, automatic, len(self.refits))

    def mechanism_card(self, column: int) -> MechanismCard:
        place = np.flatnonzero(self.codec.order == column)
        if self.choice is None or not len(place) or not self.choice.fitted.assumed.masked[place[0]]:
            raise ConfigError(
                f"{label(column, self.task.names)} has no missing cell or only one value, so no mechanism "
                "was assumed for it."
            )
        at, table, fitted = int(place[0]), self.task.table, self.choice.fitted
        observed = table.values[table.observed[:, column], column]
        names = self._label(at), self._mechanism(at)
        return card_of(*names, at, self.codec, observed, (fitted.model, self.refits), fitted.assumed)

    def _decode(self, codes: NDArray[np.floating], places: NDArray[np.intp]) -> Values:
        return self.codec.decode(codes, self.codec.order[places])

    def _models(self) -> tuple[Mixture, ...]:
        """What answers are spread over: the refits, or the one fit."""
        return self.refits or ((self.choice.fitted.model,) if self.choice else ())

    def _drawn(
        self,
        table: Observations,
        models: tuple[Mixture, ...],
        n_draws: int,
        say: Callable[[int, int], None] | None = None,
    ) -> Draws:
        self.named.check(self.codec, table, self.task.names)
        codes, observed = self.codec.encode(table)
        config = self.task.config
        amounts = Amounts(n_draws, config.collapse.n_proposals, config.posterior.dtype)
        assumed = self.choice.fitted.assumed if self.choice else None
        sampled = draw_collapsed(self._key(), models, assumed, codes, observed, amounts, say)
        return Draws(table, self.codec, sampled)

    def _key(self) -> RandomKey:
        return new_key(np.random.default_rng((self.task.seed, DRAWING)))

    def _label(self, place: int) -> str:
        return label(int(self.codec.order[place]), self.task.names)

    def _mechanism(self, place: int) -> str:
        return self.named.name(place, self.choice.families[place]) if self.choice else ""


def fit(task: Task) -> CollapseFit:
    """Choose or take a mechanism, fit it, and refit it under random weights of the rows."""
    config = task.config
    codec = Codec.learn(task.table, task.kinds)
    mechanisms = Named.read(config.missingness, codec, task.table, task.names)
    codec = codec.bounded(task.table, [int(codec.order[place]) for place in mechanisms.limits])
    if not len(codec.order):
        return CollapseFit(task, codec, {}, {}, "finished", (), mechanisms, None, ())
    codecs = _codecs(codec, task, mechanisms)
    views = [_view(name, scale, task.table, mechanisms) for name, scale in codecs.items()]
    fitter = _fitter(task)
    choice = _choice(np.random.default_rng((task.seed, FITTING)), views, fitter, mechanisms, task)
    rows = next(view.rows for view in views if view.transform == choice.transform)
    refits = _refits(np.random.default_rng((task.seed, REFITTING)), rows, fitter, choice, task)
    finite = choice.fitted.finite
    return CollapseFit(
        task,
        codecs[choice.transform],
        {"objective": choice.fitted.losses},
        {},
        "finished" if finite else "diverged",
        () if finite else (DIVERGED,),
        mechanisms,
        choice,
        refits,
    )


def _codecs(codec: Codec, task: Task, mechanisms: Named) -> dict[str, Codec]:
    """The codec of every scale that is to be tried; without a continuous column there is one."""
    wanted = task.config.collapse.transform if codec.n_continuous else "raw"
    found = {"raw": codec} if wanted != "yeo-johnson" else {}
    if wanted != "raw":
        codes, observed = codec.encode(task.table)
        head = slice(0, codec.n_continuous)
        power = Power.learn(codes[:, head], observed[:, head], np.random.default_rng((task.seed, FITTING)))
        for place, limit in mechanisms.limits.items():
            power = power.reaching(place, float(codec.encode_values(np.array([limit]), place)[0]))
        found["yeo-johnson"] = replace(codec, power=power)
    return found


def _view(name: str, codec: Codec, table: Observations, mechanisms: Named) -> View:
    codes, observed = codec.encode(table)
    limits = np.zeros(len(codec.order))
    for place, limit in mechanisms.limits.items():
        limits[place] = codec.encode_values(np.array([limit]), place)[0]
    classes = codes_of(codec.kinds, codec.n_classes, codes, observed)
    rows = Rows(codes, observed, np.ones(len(codes), np.float32), classes)
    return View(name, rows, codec.log_jacobian(table), limits, codec.power)


def _fitter(task: Task) -> Fitter:
    config, settings = task.config, task.config.collapse
    size = min(-(-2 * len(task.table.values) // 3), settings.batch_size)
    return Fitter(config.z_dim, settings.components, settings.lr, size, settings.n_iter, settings.n_fold_iter)


def _choice(rng: Rng, views: list[View], fitter: Fitter, mechanisms: Named, task: Task) -> Choice:
    setting = task.config.missingness
    with progress("choosing", task.verbose) as update:
        if setting == "auto":
            ladder = LADDER if not task.table.observed.all() else LADDER[:1]
            return chosen(rng, views, fitter, ladder, update)
        title = setting if isinstance(setting, str) else "as named"
        return named(rng, views, fitter, mechanisms.families, title, update)


def _refits(rng: Rng, rows: Rows, fitter: Fitter, choice: Choice, task: Task) -> tuple[Mixture, ...]:
    n_refits = task.config.collapse.n_refits
    found: list[Mixture] = []
    with progress("refitting", task.verbose) as update:
        for number in range(n_refits):
            refit = fitter.refitted(rng, rows, choice.fitted)
            found.append(refit.model if refit.finite else choice.fitted.model)
            update(number + 1, n_refits)
    return tuple(found)
