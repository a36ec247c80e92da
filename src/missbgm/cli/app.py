"""The command line. Nothing heavy is imported until a command runs, so that help is quick."""

import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cyclopts import App, CycloptsError

from missbgm import __version__
from missbgm.cli.options import ImputeOptions, SimulateOptions
from missbgm.errors import MissBGMError, MissBGMWarning

FAILED, USAGE = 1, 2

app = App(
    name="missbgm",
    version=__version__,
    help="Fill the missing cells of a table of numbers, and say how sure one can be of each.",
)


@app.command
def impute(table: Path, /, *, options: ImputeOptions) -> None:
    """Fill the missing cells of a CSV file.

    Parameters
    ----------
    table
        Numbers separated by comma, semicolon, tab or bar, with or without a header; - for standard input.
    """
    from missbgm.cli.impute import run

    with _notices(options.quiet) as say:
        run(table, options, say)


@app.command
def simulate(*, options: SimulateOptions) -> None:
    """Write a table of the synthetic benchmark: Gaussian columns, with holes where values are large."""
    from missbgm.cli.simulate import run

    with _notices(options.quiet) as say:
        run(options, say)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and answer its exit code: 0, 1 when it failed, 2 when it was not called rightly."""
    tokens = sys.argv[1:] if arguments is None else list(arguments)
    try:
        app(tokens, exit_on_error=False, print_error=False, result_action="return_value")
    except CycloptsError as error:
        _print(f"error: {error} See missbgm --help.")
        return USAGE
    except (MissBGMError, OSError) as error:
        _print(f"error: {_explain(error)}")
        return FAILED
    return 0


@contextmanager
def _notices(quiet: bool) -> Iterator[Callable[[str], None]]:
    """Yield a function that prints a notice; warnings are printed as notices too."""

    def say(text: str) -> None:
        if not quiet:
            _print(text)

    def show(message: Warning | str, *_: Any, **__: Any) -> None:
        say(f"warning: {message}")

    with warnings.catch_warnings():
        warnings.simplefilter("always", MissBGMWarning)
        warnings.showwarning = show
        yield say


def _explain(error: BaseException) -> str:
    if isinstance(error, OSError) and error.strerror and error.filename:
        return f"{error.filename}: {error.strerror}"
    return str(error)


def _print(text: str) -> None:
    """Print one line on standard error, whatever lines the text was cut into."""
    print(" ".join(text.split()), file=sys.stderr)
