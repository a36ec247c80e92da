"""What every benchmark shares: a result is a row that says what it is and where it comes from."""

import datetime
import json
import os
import platform
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"

Row = dict[str, Any]


def cpu_seconds() -> float:
    """CPU time of all threads of this process so far."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def peak_mb() -> float:
    """The most memory that this process has held so far."""
    unit = 2**20 if sys.platform == "darwin" else 2**10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit


def provenance() -> Row:
    """Version, commit, machine and date; a row without them cannot be compared with another."""
    import jax

    import missbgm

    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "version": missbgm.__version__,
        "commit": commit.stdout.strip(),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "python": platform.python_version(),
        "jax": jax.__version__,
    }


def append(name: str, row: Row) -> None:
    """Print a row and add it to a file of results."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    line = json.dumps(row)
    print(line, flush=True)
    with (RESULTS / name).open("a") as file:
        file.write(line + "\n")


def read(name: str) -> list[Row]:
    """Rows of a file of results; none when there is no such file."""
    path = RESULTS / name
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
