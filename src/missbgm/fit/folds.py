"""Fits of candidates, to all rows or to some, and how well they tell the rows that they did not see."""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import equinox as eqx
import jax
import numpy as np
from numpy.typing import NDArray
from scipy.stats import norm

from missbgm.bgm.factor import Assumed, Mixture, Prior, probits
from missbgm.fit import guard
from missbgm.fit.analysis import Rows, Start, analysed, centres, told
from missbgm.fit.collapse import batches, begun, estimate
from missbgm.fit.laplace import Proposed, in_blocks
from missbgm.table.power import Power
from missbgm.types import Numbers, Rng, new_key

Floats = NDArray[np.float64]

N_FOLDS, NO_FOLD = 3, -1
N_ANALYSED = 60  # iterations of EM
N_PROPOSALS = 50  # of each held-out row
MOST_COMPONENTS, ROWS_EACH = 32, 20  # of the ladder; fewer rows than that a component are too few
ENOUGH_ROWS, ENOUGH_CELLS = 1_000, 5_000_000  # to begin with and to judge by
QUANTILES = norm.ppf((np.arange(16) + 0.5) / 16)
HIDDEN, HIDING = 0.2, 10  # the share of held-out cells that is hidden, and what seeds it
N_UNIFORMS = 4  # draws of each observed cell's uniform
# Of the iterations and of the rate of a fit that begins afresh. Refits then spread as wide as fits nine times
# as long, within a fifth (measured at n = 400 and 2,000); half of this rate loses up to a third.
REFIT_SHARE, REFIT_RATE = 1 / 3, 2 / 3


class View(NamedTuple):
    """The table on one scale: coded rows, log Jacobian of the coding, known limits, and the way back.

    `power` is what bends the columns, or None.
    """

    transform: str
    rows: Rows
    log_jacobian: Floats
    limits: Floats
    power: Power | None = None

    def unbent(self, codes: Floats) -> Floats:
        """Codes of all columns, the last axis, on the scale that is not bent."""
        return codes if self.power is None else self.power.decode(codes, np.arange(codes.shape[-1]))


class Candidate(NamedTuple):
    """A mechanism for the masked columns on one scale; `sign` tells two starts of a selection apart."""

    transform: str
    family: str
    sign: float = 0.0
    components: int = 1

    @property
    def name(self) -> str:
        """Scale, family and start in a few words."""
        several = f", {self.components} components" if self.components > 1 else ""
        return f"{self.transform} {self.family}" + {1.0: "+", -1.0: "-"}.get(self.sign, "") + several

    @property
    def selects(self) -> bool:
        return self.sign != 0


class Fitted(NamedTuple):
    """Parameters, what was assumed in finding them, latent rows, and the objective on the way."""

    model: Mixture
    assumed: Assumed
    z: Numbers
    losses: Floats

    @property
    def finite(self) -> bool:
        """Whether nothing stopped being a number."""
        parts = (*jax.tree.leaves(self.model), self.losses)
        return all(bool(np.isfinite(np.asarray(part)).all()) for part in parts)


class Fitter(NamedTuple):
    """What all fits share: dimension of the latent row, rate, size of a batch, iterations.

    A fixed number of components, or 0 where held-out rows choose it.
    """

    z_dim: int
    components: int
    rate: float
    batch_size: int
    n_iterations: int
    n_fold_iterations: int

    def started(self, rng: Rng, rows: Rows, usable: NDArray[np.intp], n_components: int) -> Start:
        """Components of the usable rows, or of enough of them, the pattern ignored."""
        rows = rows.as_features()
        n, p = rows.x.shape
        weight = np.zeros(n, np.float32)
        weight[usable] = np.asarray(rows.weight)[usable]
        few, most = np.arange(n), enough_rows(p)
        if len(usable) > most:
            few = np.sort(rng.choice(usable, most, replace=False))
        taken = Rows(np.asarray(rows.x)[few], np.asarray(rows.observed)[few], weight[few])
        guess = rng.normal(size=(p, self.z_dim)).astype(np.float32)
        where = centres(rng, taken, np.flatnonzero(taken.weight), n_components)
        start = analysed(taken, guess, where, Prior.of(n_components), np.int32(N_ANALYSED))
        if len(few) == n:
            return start
        z = np.zeros((n, *start.z.shape[1:]), np.float32)
        z[few] = start.z
        return start._replace(z=z)

    def fitted(
        self,
        rng: Rng,
        view: View,
        usable: NDArray[np.intp],
        start: Start,
        families: Sequence[str],
        sign: float,
        n_iterations: int,
    ) -> Fitted:
        """Find parameters under a mechanism for each column."""
        observed = np.asarray(view.rows.observed)
        assumed = Assumed.of(list(families), ~observed.all(axis=0), view.limits, view.rows.classes)
        first = begun(start, assumed, observed[usable].mean(axis=0), sign)
        return self._run(rng, view.rows, usable, first, start.z, assumed, n_iterations, self.rate)

    def refitted(self, rng: Rng, rows: Rows, fitted: Fitted) -> Fitted:
        """Find parameters again under random weights of the rows (Rubin's Bayesian bootstrap).

        Several components are found afresh, for there are many ways to cut a table into them; what masks a
        cell goes on from where it was.
        """
        rows = rows._replace(weight=rng.exponential(size=len(rows.x)).astype(np.float32))
        n_iterations = max(10, round(REFIT_SHARE * self.n_iterations))
        everyone = np.arange(len(rows.x))
        first, z = fitted.model, fitted.z
        if first.size > 1:
            start = self.started(rng, rows, everyone, first.size)
            fresh, z = begun(start, fitted.assumed, np.asarray(rows.observed).mean(axis=0)), start.z
            first = _with_mechanism(fresh, first)
        rate = REFIT_RATE * self.rate
        return self._run(rng, rows, everyone, first, z, fitted.assumed, n_iterations, rate)

    def _run(
        self,
        rng: Rng,
        rows: Rows,
        usable: NDArray[np.intp],
        first: Mixture,
        z: object,
        assumed: Assumed,
        n_iterations: int,
        rate: float,
    ) -> Fitted:
        longest = max(self.n_iterations, self.n_fold_iterations)
        order = np.zeros((longest, self.batch_size), np.int32)
        order[:n_iterations] = batches(rng, usable, n_iterations, self.batch_size)
        state = estimate(
            new_key(rng),
            first,
            z,
            rows,
            order,
            np.int32(n_iterations),
            assumed,
            Prior.of(first.size),
            np.float32(rate),
        )
        losses = np.asarray(state.losses, np.float64)[:n_iterations]
        return Fitted(state.average, assumed, np.asarray(state.z), losses)


def enough_rows(n_columns: int) -> int:
    """How many rows of a long or wide table begin a fit and judge it: more would tell little more."""
    return max(ENOUGH_ROWS, ENOUGH_CELLS // n_columns)


def _with_mechanism(model: Mixture, other: Mixture) -> Mixture:
    """The model with what masks a cell taken from another."""
    blocks = (
        eqx.tree_at(lambda b: b.effect, mine, theirs.effect)
        for mine, theirs in zip(model.discrete, other.discrete, strict=True)
    )
    of_data = model.share, model.weight, model.bias, model.log_scale, model.coupling
    return Mixture(*of_data, other.intercept, other.deviation, other.shared, tuple(blocks))


class Judged(NamedTuple):
    """Held-out log density of every judged row, and what is needed to look at its observed cells."""

    log_prob: Floats
    models: list[tuple[NDArray[np.intp], Fitted]]


class Folds:
    """Fits that leave a third of the judged rows out, and scores of those rows."""

    def __init__(
        self,
        rng: Rng,
        views: Sequence[View],
        fitter: Fitter,
        say: Callable[[int], None] | None = None,
    ) -> None:
        self.views = {view.transform: view for view in views}
        self.fitter, self.seed = fitter, int(rng.integers(2**63))
        n, p = views[0].rows.x.shape
        order = np.random.default_rng(self.seed).permutation(n)
        self.fold = np.where(order < enough_rows(p), order % N_FOLDS, NO_FOLD)
        self.rows = np.flatnonzero(self.fold != NO_FOLD)
        self._starts: dict[tuple[str, int, int, int], Start] = {}
        self._found: dict[tuple[str, int], Floats] = {}
        self._say, self._n_judged = say, 0

    def judged(self, candidate: Candidate, families: Sequence[str]) -> Judged:
        """Score every judged row by the model that was fitted without it."""
        view = self.views[candidate.transform]
        log_prob, models = view.log_jacobian.copy(), []
        for number in range(N_FOLDS):
            held = np.flatnonzero(self.fold == number)
            fitted = self._fitted(view, candidate, families, number)
            models.append((held, fitted))
            for place, proposed in self._proposed(view, held, fitted):
                log_prob[place] += np.asarray(proposed.log_prob)[: len(place)]
        self._n_judged += 1
        if self._say:
            self._say(self._n_judged)
        return Judged(log_prob[self.rows], models)

    def uniforms(self, candidate: Candidate, judged: Judged) -> Floats:
        """Uniforms of judged rows under the model fitted without them: draws, rows, continuous columns."""
        view = self.views[candidate.transform]
        x = np.asarray(view.rows.x)[:, : view.rows.n_continuous]
        u = np.zeros((N_UNIFORMS, len(self.rows), x.shape[1]))
        for held, fitted in judged.models:
            for place, proposed in self._proposed(view, held, fitted):
                drawn = _uniforms(self._rng(place[0]), fitted, proposed, x[place])
                u[:, np.searchsorted(self.rows, place)] = drawn
        return u

    def whole(self, candidate: Candidate, families: Sequence[str]) -> Fitted:
        """Fit all rows, with more iterations."""
        view = self.views[candidate.transform]
        usable = np.arange(len(self.fold))
        rng = self._rng(N_FOLDS)
        start = self.fitter.started(rng, view.rows, usable, candidate.components)
        n_iterations = self.fitter.n_iterations
        return self.fitter.fitted(rng, view, usable, start, families, candidate.sign, n_iterations)

    def _rng(self, *numbers: int) -> Rng:
        return np.random.default_rng((self.seed, *map(int, numbers)))

    def _fitted(self, view: View, candidate: Candidate, families: Sequence[str], number: int) -> Fitted:
        usable = np.flatnonzero(self.fold != number)
        rng, start = self._rng(number, 1), self._started(view, number, candidate.components)
        n_iterations = self.fitter.n_fold_iterations
        return self.fitter.fitted(rng, view, usable, start, families, candidate.sign, n_iterations)

    def _started(self, view: View, number: int, n_components: int, alone: bool = False) -> Start:
        """Components of the rows outside a fold; of continuous columns alone if so said."""
        rows = view.rows.continuous() if alone else view.rows
        key = (view.transform, number, n_components, len(rows.classes))
        if key not in self._starts:
            usable = np.flatnonzero(self.fold != number)
            self._starts[key] = self.fitter.started(self._rng(number), rows, usable, n_components)
        return self._starts[key]

    def n_components(self) -> int:
        """How many components tell cells hidden from held-out rows best, the pattern ignored.

        Errors are squared: densities would reward components that sit on values which many cells share. They
        are those of the last scale, for the number is that of the table. It doubles until it has failed
        twice, or once for certain, and several must beat one for certain. Continuous columns alone decide:
        laws of classes bend by themselves, and linear guesses of classes would ask for ever more components.
        """
        if self.fitter.components:
            return self.fitter.components
        if not next(iter(self.views.values())).rows.n_continuous:
            return 1
        view, most = self.views[self.scales()[-1]], min(MOST_COMPONENTS, len(self.rows) // ROWS_EACH)
        errors = {1: self._errors(view, 1)}
        best, tried = 1, 2
        while tried <= min(most, 4 * best):
            errors[tried] = self._errors(view, tried)
            gain = _standardised(errors[best] - errors[tried])
            best = tried if gain > 0 else best
            if gain < -guard.NEEDED_GAIN:
                break
            tried *= 2
        return best if _standardised(errors[1] - errors[best]) > guard.NEEDED_GAIN else 1

    def _errors(self, view: View, n_components: int) -> Floats:
        """Squared error over the cells hidden from each row, not bent, by the components found without it."""
        key = view.transform, n_components
        if key not in self._found:
            self._found[key] = self._squared(view, n_components)
        return self._found[key]

    def _squared(self, view: View, n_components: int) -> Floats:
        rows = view.rows.continuous()
        x, observed = (np.asarray(a)[self.rows] for a in (rows.x, rows.observed))
        hidden = observed & (self._rng(HIDING).random(x.shape) < HIDDEN)
        guess = np.zeros(x.shape)
        for number in range(N_FOLDS):
            found = told(self._started(view, number, n_components, alone=True), x, observed & ~hidden)
            held = self.fold[self.rows] == number
            mean, sd = np.asarray(found.mean)[held], np.sqrt(np.asarray(found.variance)[held])
            # A mean of equally likely values: on a bent scale the mean's code is not the codes' mean.
            values = [view.unbent((mean + sd * q).astype(np.float64)) for q in QUANTILES]
            guess[held] = np.mean(values, axis=0)
        return np.where(hidden, (view.unbent(x.astype(np.float64)) - guess) ** 2, 0).sum(axis=1)

    def scales(self) -> list[str]:
        """The scales worth comparing: the plain one, and a bent one that tells hidden cells no worse.

        A bent scale is never the only one: a cut bends what is observed, and only the plain one sees a cut.
        """
        plain, *bent = self.views.values()
        if not plain.rows.n_continuous:
            return [plain.transform]
        worse = {view.transform: self._errors(view, 1) - self._errors(plain, 1) for view in bent}
        kept = [name for name, gap in worse.items() if _standardised(gap) <= guard.NEEDED_GAIN]
        return [plain.transform, *kept]

    def _proposed(
        self, view: View, held: NDArray[np.intp], fitted: Fitted
    ) -> Iterable[tuple[NDArray[np.intp], Proposed]]:
        key = new_key(self._rng(2))
        rows = view.rows
        return in_blocks(key, rows.x, rows.observed, held, fitted.model, fitted.assumed, N_PROPOSALS)


def _standardised(gains: Floats) -> float:
    """A mean gain over rows in its standard errors."""
    error = float(gains.std()) / np.sqrt(len(gains))
    return float(gains.mean()) / error if error > 0 else 0.0


def _uniforms(rng: Rng, fitted: Fitted, proposed: Proposed, x: Floats) -> Floats:
    model = fitted.model.part(0)  # a selection has one component
    given = probits(model, fitted.assumed)
    n = len(x)
    log_weight = np.asarray(proposed.log_weight, np.float64)[0, :, :n]
    weight = np.exp(log_weight - log_weight.max(axis=0))
    reached = np.cumsum(weight / weight.sum(axis=0), axis=0)
    z = np.asarray(proposed.z, np.float64)[0, :, :, :n]
    scale, bias, slope = (np.asarray(a, np.float64) for a in (model.scale, model.bias, model.weight))
    constant, missing = (np.asarray(a, np.float64) for a in (given.missing_constant, given.missing_weight))
    correlation = np.asarray(given.correlation, np.float64)
    found = []
    for _ in range(N_UNIFORMS):
        index = np.minimum((reached < rng.random(n)).sum(axis=0), len(z) - 1)
        latent = z[index, :, np.arange(n)]
        residual = (x - latent @ slope.T - bias) / scale
        found.append(guard.uniforms(residual, -(latent @ missing.T + constant), correlation))
    return np.stack(found)
