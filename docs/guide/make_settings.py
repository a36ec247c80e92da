"""Write the page of settings from the package's own descriptions: `python docs/guide/make_settings.py`."""

from pathlib import Path

from missbgm.config import describe

PAGE = Path(__file__).with_name("settings.md")
HEAD = """# Settings

A mapping, a `Config` or a YAML file names what differs from these defaults. Sections nest: `posterior.alpha`
is `{"posterior": {"alpha": 0.1}}`. An unknown name or a value out of range is an error that says what is
meant or accepted.

| setting | default | accepted | meaning |
| --- | --- | --- | --- |
"""


def page() -> str:
    """The page's text."""
    rows = [f"| `{s.name}` | `{_plain(s.default)}` | {s.expected} | {s.doc} |" for s in describe()]
    return HEAD + "\n".join(rows) + "\n"


def _plain(default: object) -> object:
    return list(default) if isinstance(default, tuple) else default


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
