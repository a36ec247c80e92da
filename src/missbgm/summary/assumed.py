"""In plain words: which assumption an answer rests on, what it was compared with, and what was refused."""

from collections.abc import Mapping, Sequence

from missbgm.fit.choose import Choice

MEANING = {
    "mcar": "cells go missing by chance alone, at a rate of the column's own",
    "ignorable": "the chance depends on the row's latent variables, not on the cell's own value given them",
    "selfmask": "the chance depends on the cell's own value only",
    "selection": (
        "a cell is missing where its residual, what the rest of its row does not explain, crosses a "
        "threshold; only the assumed normal shape of residuals before masking identifies this"
    ),
}
SCALES = {
    "raw": "columns as they are, standardised",
    "yeo-johnson": "columns after a Yeo-Johnson transformation, standardised",
}
CAUTION = (
    "This is an assumption, not a finding: other mechanisms, ignorable ones among them, fit what was "
    "observed equally well and would fill the missing cells differently."
)
NOT_PROPER = (
    "collapse.n_refits = 0: all draws share one estimate of the parameters, so they leave its uncertainty "
    "out and are not proper multiple imputations."
)


def meaning(mechanism: str) -> str:
    """A mechanism in words."""
    kind, _, limit = mechanism.rstrip(")").partition("(")
    if limit:
        return f"cells are missing exactly where the value is {kind} {limit}"
    return MEANING[mechanism]


def told(choice: Choice, mechanisms: Mapping[str, str], automatic: bool, n_refits: int) -> str:
    """Everything to know about the assumption.

    Parameters
    ----------
    choice
        What was assumed and compared.
    mechanisms
        The mechanism of every column that has one, by the column's name.
    automatic
        Whether the mechanism was chosen by held-out rows rather than named by the user.
    n_refits
        How many refits the draws are spread over.
    """
    by = "chosen by held-out rows" if automatic else "as named in the settings"
    lines = [f"Assumed mechanism ({by}):", *_by_mechanism(mechanisms), CAUTION, ""]
    lines += [f"Scale: {SCALES[choice.transform]}.", *_density(choice.fitted.model.size), ""]
    if choice.table:
        lines += ["Candidates by log p(x_obs, r) of held-out rows, mean over rows:", *_table(choice), ""]
    if choice.refused:
        what = "A selection on residuals was refused: " if choice.table else "Nothing was compared: "
        lines += [f"{what}{choice.refused}.", ""]
    lines.append(
        f"Draws are spread over {n_refits} refits under random weights of the rows, so that they carry the "
        "uncertainty of the parameters, but not that of the assumption."
        if n_refits
        else NOT_PROPER
    )
    return "\n".join(lines)


def _density(n_components: int) -> list[str]:
    """Said of several components only, for one is the plain case."""
    return [f"Density: a mixture of {n_components} linear components."] if n_components > 1 else []


def _by_mechanism(mechanisms: Mapping[str, str]) -> list[str]:
    if not mechanisms:
        return ["- none: no cell is missing"]
    columns: dict[str, list[str]] = {}
    for column, mechanism in mechanisms.items():
        columns.setdefault(mechanism, []).append(column)
    return [f"- {name}, {_listed(which)}: {meaning(name)}." for name, which in columns.items()]


def _listed(names: Sequence[str], most: int = 6) -> str:
    shown = ", ".join(names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more columns"


def _table(choice: Choice) -> list[str]:
    width = max(len(row.candidate) for row in choice.table)
    head = f"  {'candidate':<{width}}  {'log p':>10}  {'difference':>10}  {'s.e.':>7}  verdict"
    return [head] + [
        f"  {row.candidate:<{width}}  {row.log_prob:>10.3f}  {row.gain:>10.3f}  {row.standard_error:>7.3f}  "
        f"{row.verdict}"
        for row in choice.table
    ]
