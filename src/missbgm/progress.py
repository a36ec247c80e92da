"""A progress bar on standard error: off when it is not a terminal or when told to be quiet."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Update = Callable[[int, str], None]


@contextmanager
def progress(title: str, total: int, verbose: int) -> Iterator[Update]:
    """Yield a function that moves the bar to a number of steps done, with a note beside it."""
    if not verbose or not sys.stderr.isatty():
        yield lambda done, note="": None
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
        task = bar.add_task(title, total=total, note="")
        yield lambda done, note="": bar.update(task, completed=done, note=note)
