"""What a kernel prints is shown for some lines and then counted; the bar is for a terminal."""

import io
import sys

import pytest

from minibert.bench.worker_process import Printed, progress


def test_some_lines_are_shown_at_once_and_the_rest_is_counted(capsys):
    printed = Printed("kernel.py")
    for number in range(1000):
        printed.feed(f"line {number}\n")
    printed.feed("no end of line")
    printed.say_the_rest()
    printed.say_the_rest()
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines() == [
        "kernel.py prints: line 0",
        "kernel.py prints: line 1",
        "kernel.py prints: line 2",
        "note: kernel.py printed 998 more lines.",
    ]


def test_nothing_is_said_where_nothing_is_left_out(capsys):
    printed = Printed("kernel.py")
    printed.feed("one\ntw")
    printed.feed("o")
    printed.say_the_rest()
    assert capsys.readouterr().err == "kernel.py prints: one\nkernel.py prints: two\n"


def test_a_line_without_an_end_and_escape_codes_stay_harmless(capsys):
    printed = Printed("kernel.py")
    for _ in range(10_000):
        printed.feed("x" * 1000)
    assert len(printed._open) < 1000
    printed.feed("\n\x1b[2Jgone\n")
    err = capsys.readouterr().err
    assert len(err) < 400
    assert "\x1b" not in err
    assert "gone" in err


class Screen(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize(("stream", "drawn"), [(Screen, True), (io.StringIO, False)])
def test_the_bar_is_drawn_on_a_terminal_and_nowhere_else(monkeypatch, stream, drawn):
    screen = stream()
    monkeypatch.setattr(sys, "stderr", screen)
    with progress("case") as watch:
        for done in range(5):
            watch(done, 5, f"lengths, {done}")
    assert bool(screen.getvalue()) == drawn
    if drawn:
        assert "lengths, 4" in screen.getvalue()
        assert "4/5" in screen.getvalue()
        # It leaves no line behind.
        assert not screen.getvalue().rpartition("\r")[2].strip()
