"""Fill the holes of a small real table; `make demo` runs this. It is the command line, called from Python."""

import csv
import sys
from pathlib import Path

from missbgm.cli.app import main

HERE = Path(__file__).resolve().parent
TABLE = HERE / "wine_holes.csv"
CONFIG = HERE.parent / "configs" / "wine.yaml"
# Fewer epochs than the paper's 200, and chains thinned: seconds instead of minutes, and the chains mix.
SETTINGS = ("epochs=50", "posterior.n_mcmc=500", "posterior.burn_in=500", "posterior.thin=8")
SHOWN_ROWS, SHOWN_COLUMNS = 5, 6


def run(folder: Path) -> int:
    """Fill the table, and write everything that `missbgm impute` can write into a folder."""
    folder.mkdir(exist_ok=True)
    arguments = ["impute", str(TABLE), "--config", str(CONFIG), "--output", str(folder / "completed.csv")]
    arguments += ["--cells", str(folder / "cells.csv"), "--draws", str(folder / "draws.csv")]
    arguments += ["--summary", str(folder / "summary.txt")]
    for setting in SETTINGS:
        arguments += ["--set", setting]
    return main(arguments)


def read(path: Path) -> list[list[str]]:
    """Read a CSV file's lines as lists of cells."""
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.reader(file))


def shown(cell: str, before: str) -> str:
    """A cell for the eye, filled ones rounded and marked."""
    return cell if before else f"[{float(cell):.4g}]"


def tell(folder: Path) -> None:
    """Print what came out."""
    before, after, cells = (read(p) for p in (TABLE, folder / "completed.csv", folder / "cells.csv"))
    print(
        f"\nFilled {len(cells) - 1} missing cells of {len(after) - 1} wines by {len(after[0])} measurements."
    )
    print("First rows and columns of the completed table, filled cells in brackets:\n")
    rows = [after[0]] + [list(map(shown, *pair)) for pair in zip(after[1:], before[1:], strict=True)]
    for row in rows[: SHOWN_ROWS + 1]:
        print("  " + "".join(f"{cell:>18}" for cell in row[:SHOWN_COLUMNS]))
    print("\nFirst filled cells, with 95 % posterior intervals:\n")
    for row, column, mean, _, lower, upper in cells[1 : SHOWN_ROWS + 1]:
        print(f"  row {row:>3}  {column:<22} {float(mean):9.4g}  [{float(lower):.4g}, {float(upper):.4g}]")
    print("\n" + (folder / "summary.txt").read_text(encoding="utf-8"))
    print(f"Files are in {folder}/: " + ", ".join(sorted(path.name for path in folder.iterdir())))


if __name__ == "__main__":
    demo_output = Path("demo-output")
    if code := run(demo_output):
        sys.exit(code)
    tell(demo_output)
