"""The progress bar: only where someone looks at it."""

import io
import sys

import pytest

from missbgm.progress import progress


class Screen(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def look(monkeypatch):
    """Start to look at standard error; pytest puts its own in place between a fixture and its test."""
    for name, value in {"TERM": "xterm", "COLUMNS": "120", "FORCE_COLOR": "1"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("NO_COLOR", raising=False)

    def at(stream):
        monkeypatch.setattr(sys, "stderr", stream)
        return stream

    return at


def test_a_terminal_sees_title_steps_and_note(look):
    screen = look(Screen())
    with progress("fitting", 1) as update:
        update(3, 7, "objective 1.5")
    seen = screen.getvalue()
    assert "fitting" in seen
    assert "3/7" in seen
    assert "objective 1.5" in seen


def test_a_note_may_be_left_out(look):
    screen = look(Screen())
    with progress("drawing", 1) as update:
        update(7, 7)
    assert "7/7" in screen.getvalue()


@pytest.mark.parametrize(("stream", "verbose"), [(Screen(), 0), (io.StringIO(), 1), (io.StringIO(), 0)])
def test_nothing_is_shown_when_quiet_or_without_a_terminal(look, stream, verbose):
    look(stream)
    with progress("fitting", verbose) as update:
        update(3, 7)
        update(4, 7, "objective 1.5")
    assert stream.getvalue() == ""


def test_errors_go_through_and_the_cursor_is_shown_again(look):
    screen = look(Screen())
    with pytest.raises(ZeroDivisionError), progress("fitting", 1):
        raise ZeroDivisionError
    assert screen.getvalue().rindex("\x1b[?25h") > screen.getvalue().rindex("\x1b[?25l")
