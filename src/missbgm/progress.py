"""A progress bar on standard error: off when it is not a terminal or when told to be quiet."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Update = Callable[..., None]


def _ignore(done: int, of: int, note: str = "") -> None:
    """Report nothing."""


@contextmanager
def progress(title: str, verbose: int) -> Iterator[Update]:
    """Yield a function that moves the bar to so many steps done of all, with a note beside it."""
    if not verbose or not sys.stderr.isatty():
        yield _ignore
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
    )
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(title, total=None, note="")

        def update(done: int, of: int, note: str = "") -> None:
            bar.update(task, completed=done, total=of, note=note)

        yield update
