"""Which mechanism to assume: held-out log p(x_obs, r) over a ladder, and a guard on the riskiest rung.

No rule can establish how cells went missing. This one prefers self-masking unless an ignorable mechanism
tells held-out rows better by two standard errors, and lets a selection on residuals replace that only where
observed cells agree with it in absolute terms (`guard`).
"""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from missbgm.bgm.factor import probits
from missbgm.fit import guard
from missbgm.fit.analysis import Rows
from missbgm.fit.folds import Candidate, Fitted, Fitter, Folds, Judged, View
from missbgm.types import Rng

LADDER = (("mcar", 0.0), ("ignorable", 0.0), ("selfmask", 0.0), ("selection", -1.0), ("selection", 1.0))
FEWEST_ROWS = 30  # below which held-out rows can compare nothing
TIED = "in every column with missing cells some value is too common to judge the shape by"
TOO_FEW = f"fewer than {FEWEST_ROWS} rows cannot compare mechanisms"

OnCandidate = Callable[[int, int], None]


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
    table: list[Row]  # empty if nothing was compared
    refused: str  # why a selection on residuals was refused; empty if it was not
    fitted: Fitted  # to all rows


def chosen(
    rng: Rng,
    views: Sequence[View],
    fitter: Fitter,
    ladder: Sequence[tuple[str, float]] = LADDER,
    say: OnCandidate | None = None,
) -> Choice:
    """Score the ladder on every scale and choose by the rule of this module."""
    x, observed = (np.asarray(part) for part in (views[0].rows.x, views[0].rows.observed))
    n, p = x.shape
    if n < FEWEST_ROWS:
        return _unjudged(rng, views, fitter, ["selfmask"] * p)
    selectable = _selectable(views[0].rows)
    eligible = selectable & guard.untied(x, observed)
    selecting = any(sign for _, sign in ladder)
    rungs = [(_selection_name(eligible, selectable) if sign else name, sign) for name, sign in ladder]
    rungs = [rung for rung in rungs if eligible.any() or not rung[1]]
    folds = Folds(rng, views, fitter, _counted(say, len(views) * len(rungs)))
    judged = {
        candidate: folds.judged(
            candidate, _families(eligible) if candidate.selects else [candidate.family] * p
        )
        for candidate in _candidates(folds, rungs)
    }
    plain = _plain_choice(judged)
    if not selecting or not eligible.any():
        tied = selecting and selectable.any()
        return _settled(folds, judged, plain, [plain.family] * p, TIED if tied else "")
    verdict = _selection(folds, judged, eligible, observed)
    table = {**judged, verdict.candidate: verdict.judged}
    if not verdict.accepted:
        return _settled(folds, table, plain, [plain.family] * p, verdict.reason)
    return _settled(folds, table, verdict.candidate, _families(verdict.columns), fitted=verdict.fitted)


def named(
    rng: Rng,
    views: Sequence[View],
    fitter: Fitter,
    families: Sequence[str],
    label: str,
    say: OnCandidate | None = None,
) -> Choice:
    """Take the named mechanisms; held-out rows decide on the scale and on a selection's sign only."""
    rungs = [(label, sign) for sign in ((-1.0, 1.0) if "selection" in families else (0.0,))]
    if len(views[0].rows.x) < FEWEST_ROWS:
        return _unjudged(rng, views, fitter, families, *rungs[0])
    folds = Folds(rng, views, fitter, _counted(say, len(views) * len(rungs)))
    candidates = _candidates(folds, rungs)
    if len(candidates) == 1:
        fitted = folds.whole(candidates[0], families)
        return Choice(candidates[0].transform, list(families), candidates[0].sign, [], "", fitted)
    judged = {candidate: folds.judged(candidate, families) for candidate in candidates}
    return _settled(folds, judged, _best(judged, lambda candidate: True), list(families))


def _candidates(folds: Folds, rungs: Iterable[tuple[str, float]]) -> list[Candidate]:
    """The rungs on every scale, with as many components as tell held-out rows best.

    A selection has one: the shape of residuals identifies it, and several components have any shape.
    """
    several, scales = folds.n_components(), folds.scales()
    return [Candidate(scale, *rung, 1 if rung[1] else several) for scale in scales for rung in rungs]


def _counted(say: OnCandidate | None, total: int) -> Callable[[int], None] | None:
    return (lambda done: say(min(done, total), total)) if say else None


def _unjudged(
    rng: Rng,
    views: Sequence[View],
    fitter: Fitter,
    families: Sequence[str],
    label: str = "selfmask",
    sign: float = 0.0,
) -> Choice:
    """What is assumed without a comparison; one component, unless another number is fixed."""
    candidate = Candidate(views[0].transform, label, sign, 1 if sign else max(1, fitter.components))
    fitted = Folds(rng, views, fitter).whole(candidate, families)
    few = len(views[0].rows.x) < FEWEST_ROWS
    return Choice(candidate.transform, list(families), sign, [], TOO_FEW if few else "", fitted)


def _settled(
    folds: Folds,
    judged: dict[Candidate, Judged],
    best: Candidate,
    families: list[str],
    refused: str = "",
    fitted: Fitted | None = None,
) -> Choice:
    fitted = fitted or folds.whole(best, families)
    table = _tabulated(judged, best, bool(refused))
    return Choice(best.transform, families, best.sign, table, refused, fitted)


def _selectable(rows: Rows) -> NDArray[np.bool_]:
    """Continuous columns with missing cells."""
    continuous = np.arange(rows.x.shape[1]) < rows.n_continuous
    return continuous & ~np.asarray(rows.observed).all(axis=0)


def _families(selecting: NDArray[np.bool_]) -> list[str]:
    return ["selection" if chosen else "selfmask" for chosen in selecting]


def _gain(a: Judged, b: Judged) -> tuple[float, float]:
    """Mean difference of held-out log densities over rows, and its standard error."""
    difference = a.log_prob - b.log_prob
    return float(difference.mean()), float(difference.std() / np.sqrt(len(difference)))


def _best(judged: dict[Candidate, Judged], among: Callable[[Candidate], bool]) -> Candidate:
    return max(filter(among, judged), key=lambda c: judged[c].log_prob.mean())


def _plain_choice(judged: dict[Candidate, Judged]) -> Candidate:
    """Self-masking, unless an ignorable mechanism is better by two standard errors."""
    top = _best(judged, lambda c: not c.selects)
    own = top._replace(family="selfmask")
    if own not in judged or top == own:
        return top
    gain, error = _gain(judged[top], judged[own])
    return top if gain > guard.NEEDED_GAIN * error else own


class _Verdict(NamedTuple):
    candidate: Candidate
    columns: NDArray[np.bool_]
    judged: Judged
    reason: str = ""  # why it is refused
    fitted: Fitted | None = None

    @property
    def accepted(self) -> bool:
        return not self.reason


def _selection_name(eligible: NDArray[np.bool_], selectable: NDArray[np.bool_]) -> str:
    """What a selection on residuals is called where columns that cannot carry one are self-masked."""
    return "selection" if (eligible == selectable).all() else f"selection of {eligible.sum()} columns"


def _selection(
    folds: Folds,
    judged: dict[Candidate, Judged],
    eligible: NDArray[np.bool_],
    observed: NDArray[np.bool_],
) -> _Verdict:
    """Whether, on which scale and for which columns a selection on residuals is accepted."""
    best = _best(judged, lambda c: c.selects)
    verdict = _Verdict(best, eligible, judged[best])
    rival = judged[_best(judged, lambda c: not c.selects)]
    reason, failing = _objection(folds, verdict, rival, observed)
    if not reason and failing.any() and (failing != verdict.columns).any():
        verdict = _mixed(folds, judged, verdict.columns & ~failing)
        reason, failing = _objection(folds, verdict, rival, observed)
    if not reason and failing.any():
        reason = f"observed cells of {failing.sum()} columns disagree with it"
    return verdict._replace(reason=reason) if reason else _sharp(folds, verdict)


def _mixed(folds: Folds, judged: dict[Candidate, Judged], eligible: NDArray[np.bool_]) -> _Verdict:
    """The best selection on residuals of the eligible columns, the others masked by their own values."""
    label = f"selection of {eligible.sum()} columns"
    tried = {c: c._replace(family=label) for c in judged if c.selects}
    scored = {mixed: folds.judged(mixed, _families(eligible)) for mixed in tried.values()}
    best = _best(scored, lambda c: True)
    return _Verdict(best, eligible, scored[best])


def _objection(
    folds: Folds, verdict: _Verdict, rival: Judged, observed: NDArray[np.bool_]
) -> tuple[str, NDArray[np.bool_]]:
    """What speaks against a selection on residuals, and in which columns observed cells disagree."""
    failing = np.zeros_like(verdict.columns)
    gain, error = _gain(verdict.judged, rival)
    if gain <= guard.NEEDED_GAIN * error:
        told = f"gain {gain:.3f}, standard error {error:.3f}"
        return f"held-out rows are told no better with it: {told}", failing
    columns = np.flatnonzero(verdict.columns)
    u = folds.uniforms(verdict.candidate, verdict.judged)
    fit = guard.agreement(u, observed[folds.rows], columns)
    if fit.noise > guard.WORST_FIT**2:
        return "there are too few observed cells to check their shape", failing
    if fit.distance > guard.WORST_FIT:
        return (
            f"observed cells disagree with it: distance {fit.distance:.4f}, limit {guard.WORST_FIT}",
            failing,
        )
    failing[columns[fit.worst > guard.WORST_COLUMN]] = True
    return "", failing


def _sharp(folds: Folds, verdict: _Verdict) -> _Verdict:
    """The verdict with its fit to all rows, refused if the cut came out soft."""
    fitted = folds.whole(verdict.candidate, _families(verdict.columns))
    slope = _slope(fitted, verdict.columns)
    if slope >= guard.SOFTEST:
        return verdict._replace(fitted=fitted)
    told = f"slope {slope:.1f}, at least {guard.SOFTEST:g}"
    return verdict._replace(reason=f"the cut is too soft to be told from skewed residuals: {told}")


def _slope(fitted: Fitted, columns: NDArray[np.bool_]) -> float:
    """Median steepness of the cut over some columns."""
    correlation = np.asarray(probits(fitted.model.part(0), fitted.assumed).correlation, np.float64)
    rho = np.abs(correlation[columns[: len(correlation)]])
    return float(np.median(rho / np.sqrt(1 - rho**2)))


def _tabulated(judged: dict[Candidate, Judged], best: Candidate, refused: bool) -> list[Row]:
    def line(candidate: Candidate) -> Row:
        gain, error = _gain(judged[candidate], judged[best])
        said = "assumed" if candidate == best else "compared"
        if candidate.selects and refused:
            said = "refused"
        return Row(candidate.name, float(judged[candidate].log_prob.mean()), gain, error, said)

    return sorted(map(line, judged), key=lambda row: -row.log_prob)
