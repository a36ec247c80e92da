"""Files written whole or not at all: checked before the work, moved into place after it."""

import os
import shutil
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from missbgm.errors import ConfigError

Writer = Callable[[BinaryIO], None]

STREAM = Path("-")  # standard input or output


def named(path: Path, stream: str = "standard output") -> str:
    """A file's name for the eye."""
    return stream if path == STREAM else str(path)


def check_outputs(outputs: Iterable[Path], inputs: Iterable[Path] = ()) -> None:
    """Refuse outputs that cannot be written, that are one file twice, or that would overwrite an input."""
    accepted: list[Path] = []
    for path in outputs:
        if any(_same(path, other) for other in accepted):
            raise ConfigError(f"two outputs would go to {path}; give each a file of its own.")
        if path != STREAM:
            if any(_same(path, other) for other in inputs):
                raise ConfigError(f"{path} is an input and would be overwritten; choose another output.")
            _check_writable(path)
        accepted.append(path)


def write_outputs(writers: Mapping[Path, Writer]) -> None:
    """Write every file beside its place, then move them all; a failure leaves what was there untouched."""
    special = {path: write for path, write in writers.items() if not _is_replaceable(path)}
    written: dict[Path, Path] = {}
    try:
        for path, write in writers.items():
            if path not in special:
                place = path.resolve()
                written[place] = place.with_name(f".missbgm-{os.getpid()}-{len(written)}.tmp")
                _write_beside(written[place], place, write)
        for place, temporary in written.items():
            temporary.replace(place)
    finally:
        for temporary in written.values():
            temporary.unlink(missing_ok=True)
    for path, write in special.items():
        _write_through(path, write)


def _same(path: Path, other: Path) -> bool:
    if STREAM in (path, other):
        return path == other
    with suppress(OSError):
        return path.samefile(other)
    return path.resolve() == other.resolve()


def _is_replaceable(path: Path) -> bool:
    # A pipe or a device is written to; a file put in its place would take it away from everyone.
    return path != STREAM and (path.is_file() or not path.exists())


def _check_writable(path: Path) -> None:
    folder = path.resolve().parent
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a folder; expected the name of a file to write.")
    if not folder.is_dir():
        raise FileNotFoundError(f"cannot write {path}: there is no folder {folder}; create it first.")
    if not os.access(path if path.exists() else folder, os.W_OK) or not os.access(folder, os.W_OK):
        raise PermissionError(f"cannot write {path}: no permission; choose another file or folder.")


def _write_beside(temporary: Path, place: Path, write: Writer) -> None:
    with temporary.open("wb") as file:
        write(file)
    if place.exists():
        shutil.copymode(place, temporary)


def _write_through(path: Path, write: Writer) -> None:
    if path != STREAM:
        with path.open("wb") as file:
            write(file)
        return
    try:
        write(sys.stdout.buffer)
        sys.stdout.buffer.flush()
    except BrokenPipeError:
        # Whoever was reading has left: Python must not try to write the rest once more when it ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise
