"""Which mechanism to assume: held-out log p(x_obs, r) over a ladder of candidates, and a guard on the riskiest.

No rule can establish how cells went missing. This one prefers self-masking unless an ignorable mechanism tells
held-out rows better by two standard errors, and lets a selection on residuals replace that only where observed
cells agree with it in absolute terms (`guard`).
"""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from missbgm.bgm.factor import Assumed, Factor, Prior, probits
from missbgm.fit import guard
from missbgm.fit.collapse import Rows, Start, analysed, batches, begun, estimate, leading_directions
from missbgm.fit.laplace import Proposed, in_blocks
from missbgm.types import Rng, new_key

Floats = NDArray[np.float64]

N_FOLDS = 3
N_FOLD_ITERATIONS = 160
N_ITERATIONS = 300
N_PROPOSALS = 50  # of each held-out row
N_UNIFORMS = 4  # draws of each observed cell's uniform


class View(NamedTuple):
    """The table on one scale: coded rows, and the log Jacobian of the coding for each row."""

    transform: str
    rows: Rows
    log_jacobian: Floats


class Candidate(NamedTuple):
    """A mechanism for the masked columns on one scale; `sign` tells two starts of a selection apart."""

    transform: str
    family: str
    sign: float = 0.0

    @property
    def name(self) -> str:
        """Scale, family and start in a few words."""
        return f"{self.transform} {self.family}" + {1.0: "+", -1.0: "-"}.get(self.sign, "")

    @property
    def selects(self) -> bool:
        return self.family == "selection"


LADDER = (("mcar", 0.0), ("ignorable", 0.0), ("selfmask", 0.0), ("selection", -1.0), ("selection", 1.0))


class Fitted(NamedTuple):
    """Parameters, what was assumed in finding them, and the objective on the way."""

    model: Factor
    assumed: Assumed
    losses: Floats


class Fitter(NamedTuple):
    """Everything that fits share: dimension of the latent row, prior, learning rate, and size of a batch."""

    z_dim: int
    prior: Prior
    rate: float
    batch_size: int

    def started(self, rng: Rng, rows: Rows, usable: NDArray[np.intp]) -> Start:
        """Factor analysis of the usable rows."""
        weight = np.zeros(len(rows.x), np.float32)
        weight[usable] = np.asarray(rows.weight)[usable]
        rows = rows._replace(weight=weight)
        return analysed(rows, leading_directions(rows, self.z_dim, rng), np.int32(60))

    def fitted(
        self,
        rng: Rng,
        rows: Rows,
        usable: NDArray[np.intp],
        start: Start,
        families: Sequence[str],
        sign: float,
        n_iterations: int,
        limits: Floats | None = None,
    ) -> Fitted:
        """Find parameters under a mechanism for each column."""
        observed = np.asarray(rows.observed)
        assumed = Assumed.of(list(families), ~observed.all(axis=0), limits)
        first = begun(start, assumed, observed[usable].mean(axis=0), sign)
        order = batches(rng, usable, n_iterations, self.batch_size)
        rate = np.float32(self.rate)
        model, _, losses = estimate(new_key(rng), first, start.z, rows, order, assumed, self.prior, rate)
        return Fitted(model, assumed, np.asarray(losses, np.float64))


class Judged(NamedTuple):
    """Held-out log density of every row, and what is needed to look at its observed cells."""

    log_prob: Floats
    models: list[tuple[NDArray[np.intp], Fitted]]


class Folds:
    """Fits that leave a third of the rows out, and scores of those rows."""

    def __init__(self, rng: Rng, views: Sequence[View], fitter: Fitter) -> None:
        self.views = {view.transform: view for view in views}
        self.fitter, self.seed = fitter, int(rng.integers(2**63))
        n = len(views[0].rows.x)
        self.fold = np.random.default_rng(self.seed).permutation(n) % N_FOLDS
        self._starts: dict[tuple[str, int], Start] = {}

    def judged(self, candidate: Candidate, families: Sequence[str]) -> Judged:
        """Score every row by the model that was fitted without it."""
        view = self.views[candidate.transform]
        log_prob, models = np.zeros(len(self.fold)), []
        for number in range(N_FOLDS):
            held = np.flatnonzero(self.fold == number)
            fitted = self._fitted(view, candidate, families, number)
            models.append((held, fitted))
            for place, proposed in self._proposed(view, held, fitted):
                log_prob[place] = np.asarray(proposed.log_prob)[: len(place)]
        return Judged(log_prob + view.log_jacobian, models)

    def uniforms(self, candidate: Candidate, judged: Judged) -> Floats:
        """Uniforms of every cell under the model that was fitted without its row: draws, rows, columns."""
        view = self.views[candidate.transform]
        x = np.asarray(view.rows.x)
        u = np.zeros((N_UNIFORMS, *x.shape))
        for held, fitted in judged.models:
            for place, proposed in self._proposed(view, held, fitted):
                u[:, place] = _uniforms(self._rng(place[0]), fitted, proposed, x[place])
        return u

    def whole(self, candidate: Candidate, families: Sequence[str]) -> Fitted:
        """Fit all rows, with more iterations."""
        rows = self.views[candidate.transform].rows
        usable = np.arange(len(self.fold))
        rng = self._rng(N_FOLDS)
        start = self.fitter.started(rng, rows, usable)
        return self.fitter.fitted(rng, rows, usable, start, families, candidate.sign, N_ITERATIONS)

    def _rng(self, *numbers: int) -> Rng:
        return np.random.default_rng((self.seed, *map(int, numbers)))

    def _fitted(self, view: View, candidate: Candidate, families: Sequence[str], number: int) -> Fitted:
        usable = np.flatnonzero(self.fold != number)
        key = (view.transform, number)
        if key not in self._starts:
            self._starts[key] = self.fitter.started(self._rng(number), view.rows, usable)
        rng, start = self._rng(number, 1), self._starts[key]
        return self.fitter.fitted(rng, view.rows, usable, start, families, candidate.sign, N_FOLD_ITERATIONS)

    def _proposed(
        self, view: View, held: NDArray[np.intp], fitted: Fitted
    ) -> Iterable[tuple[NDArray[np.intp], Proposed]]:
        key = new_key(self._rng(2))
        rows = view.rows
        return in_blocks(key, rows.x, rows.observed, held, fitted.model, fitted.assumed, N_PROPOSALS)


def _uniforms(rng: Rng, fitted: Fitted, proposed: Proposed, x: Floats) -> Floats:
    model = fitted.model
    given = probits(model, fitted.assumed)
    n = len(x)
    log_weight = np.asarray(proposed.log_weight, np.float64)[:, :n]
    weight = np.exp(log_weight - log_weight.max(axis=0))
    reached = np.cumsum(weight / weight.sum(axis=0), axis=0)
    z = np.asarray(proposed.z, np.float64)[:, :, :n]
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


class Row(NamedTuple):
    """One line of the table of candidates."""

    candidate: str
    log_prob: float  # held out, mean over rows
    gain: float  # over the chosen one, mean over rows
    standard_error: float  # of that gain
    verdict: str


class Choice(NamedTuple):
    """What is assumed, what it was compared with, and what was refused and why."""

    transform: str
    families: list[str]  # of every column in the model's order
    sign: float
    table: list[Row]
    refused: str  # why a selection on residuals was refused; empty if it was not
    fitted: Fitted  # to all rows

    @property
    def selecting(self) -> int:
        """Number of columns that are taken to be selected on residuals."""
        return self.families.count("selection")


def chosen(
    rng: Rng,
    views: Sequence[View],
    fitter: Fitter,
    ladder: Iterable[tuple[str, float]] = LADDER,
    say: Callable[[int, int], None] | None = None,
) -> Choice:
    """Score the ladder on every scale and choose by the rule of this module."""
    folds = Folds(rng, views, fitter)
    rows = views[0].rows
    p = np.asarray(rows.x).shape[1]
    candidates = [Candidate(view.transform, *rung) for view in views for rung in ladder]
    judged: dict[Candidate, Judged] = {}
    for number, candidate in enumerate(candidates):
        judged[candidate] = folds.judged(candidate, [candidate.family] * p)
        if say:
            say(number + 1, len(candidates))
    plain = _plain_choice(judged)
    verdict = _selection(folds, judged, rows)
    families, best = [plain.family] * p, plain
    if verdict.accepted:
        best = verdict.candidate
        families = ["selection" if chosen else "selfmask" for chosen in verdict.columns]
        judged[best] = verdict.judged
    fitted = verdict.fitted or folds.whole(best, families)
    table = _tabulated(judged, best, verdict)
    return Choice(best.transform, families, best.sign, table, verdict.reason, fitted)


def _gain(a: Judged, b: Judged) -> tuple[float, float]:
    """Mean difference of held-out log densities over rows, and its standard error."""
    difference = a.log_prob - b.log_prob
    return float(difference.mean()), float(difference.std() / np.sqrt(len(difference)))


def _best(judged: dict[Candidate, Judged], among: Callable[[Candidate], bool]) -> Candidate:
    return max(filter(among, judged), key=lambda c: judged[c].log_prob.mean())


def _plain_choice(judged: dict[Candidate, Judged]) -> Candidate:
    """Self-masking, unless an ignorable mechanism is better by two standard errors."""
    top = _best(judged, lambda c: not c.selects)
    own = Candidate(top.transform, "selfmask")
    if own not in judged or top == own:
        return top
    gain, error = _gain(judged[top], judged[own])
    return top if gain > guard.NEEDED_GAIN * error else own


class _Verdict(NamedTuple):
    accepted: bool
    reason: str
    candidate: Candidate
    columns: NDArray[np.bool_]
    judged: Judged
    fitted: Fitted | None = None


def _selection(folds: Folds, judged: dict[Candidate, Judged], rows: Rows) -> _Verdict:
    """Whether, on which scale and for which columns a selection on residuals is accepted."""
    observed, x = np.asarray(rows.observed), np.asarray(rows.x)
    masked = ~observed.all(axis=0)
    eligible = masked & guard.untied(x, observed)
    best = _best(judged, lambda c: c.selects)
    rival = judged[_best(judged, lambda c: not c.selects)]

    def refused(reason: str) -> _Verdict:
        return _Verdict(False, reason, best, eligible, judged[best])

    if not eligible.any():
        return refused("in every column with missing cells some value is too common to judge the shape by")
    for last in (False, True):
        whole = bool((eligible == masked).all())
        best, found = (best, judged[best]) if whole else _mixed(folds, judged, eligible)
        gain, error = _gain(found, rival)
        if gain <= guard.NEEDED_GAIN * error:
            return refused(
                f"held-out rows are told no better than without it: gain {gain:.3f}, standard error {error:.3f}"
            )
        columns = np.flatnonzero(eligible)
        fit = guard.agreement(folds.uniforms(best, found), observed, columns)
        if fit.noise > guard.WORST_FIT**2:
            return refused("there are too few observed cells to check their shape")
        if fit.distance > guard.WORST_FIT:
            return refused(
                f"observed cells disagree with it: distance {fit.distance:.4f}, at most {guard.WORST_FIT}"
            )
        failing = columns[fit.worst > guard.WORST_COLUMN]
        if not len(failing):
            break
        eligible = eligible.copy()
        eligible[failing] = False
        if last or not eligible.any():
            return refused(f"observed cells of {len(failing)} columns disagree with it")
    fitted = folds.whole(best, ["selection" if chosen else "selfmask" for chosen in eligible])
    slope = _slope(fitted, eligible)
    if slope < guard.SOFTEST:
        return refused(
            f"the cut is too soft to be told from skewed residuals: slope {slope:.1f}, at least {guard.SOFTEST:g}"
        )
    return _Verdict(True, "", best, eligible, found, fitted)


def _mixed(
    folds: Folds, judged: dict[Candidate, Judged], eligible: NDArray[np.bool_]
) -> tuple[Candidate, Judged]:
    """The best selection on residuals of the eligible columns, the others masked by their own values."""
    families = ["selection" if chosen else "selfmask" for chosen in eligible]
    tried = {c: folds.judged(c, families) for c in judged if c.selects}
    best = _best(tried, lambda c: True)
    return best, tried[best]


def _slope(fitted: Fitted, columns: NDArray[np.bool_]) -> float:
    """Median steepness of the cut over some columns."""
    correlation = probits(fitted.model, fitted.assumed).correlation
    rho = np.abs(np.asarray(correlation, np.float64)[columns])
    return float(np.median(rho / np.sqrt(1 - rho**2)))


def _tabulated(judged: dict[Candidate, Judged], best: Candidate, verdict: _Verdict) -> list[Row]:
    def line(candidate: Candidate) -> Row:
        gain, error = _gain(judged[candidate], judged[best])
        said = "assumed" if candidate == best else "compared"
        if candidate.selects and not verdict.accepted:
            said = "refused"
        return Row(candidate.name, float(judged[candidate].log_prob.mean()), gain, error, said)

    return sorted(map(line, judged), key=lambda row: -row.log_prob)
