"""What the pages show is what the package says."""

import contextlib
import io
import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
NUMBER = re.compile(r"-?\d+\.\d+")


def test_the_page_of_settings_is_up_to_date() -> None:
    made = runpy.run_path(str(ROOT / "docs" / "guide" / "make_settings.py"))
    assert (ROOT / "docs" / "guide" / "settings.md").read_text(encoding="utf-8") == made["page"]()


def test_the_example_of_the_readme_prints_what_it_shows() -> None:
    """Words to the letter; figures within 0.15, for they differ a little between machines."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    code, shown = re.search(r"```python\n(.*?)```\n\n```text\n(.*?)```", readme, re.DOTALL).groups()
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(compile(code, "README.md", "exec"), {})
    assert NUMBER.sub("#", printed.getvalue()) == NUMBER.sub("#", shown)
    found, expected = (list(map(float, NUMBER.findall(text))) for text in (printed.getvalue(), shown))
    assert found == pytest.approx(expected, abs=0.15)
