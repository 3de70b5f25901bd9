"""Text for a terminal: nothing disturbs it, columns line up, numbers keep their digits."""

import io
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minibert.terminal import (
    Terminal,
    bar,
    cell_width,
    cut,
    encodable,
    number,
    printable,
    signed_bar,
    visible,
)


@given(st.text(alphabet=st.characters(exclude_categories=())))
def test_visible_text_holds_nothing_that_moves_or_hides_text(text):
    written = visible(text).removesuffix("\u200e")
    assert not {unicodedata.category(c) for c in written} & {"Cc", "Cf", "Cs", "Zl", "Zp"}
    assert " " not in written


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("the", "the"),
        (" the", "␣the"),
        ("a\nb", r"a\nb"),
        ("\x1b[2J", r"\x1b[2J"),
        ("\u202ecba", r"\u202ecba"),
        ("\u200b", r"\u200b"),
        ("\ud800", r"\ud800"),
        ("\U000e0041", r"\U000e0041"),
        ("日本", "日本"),
        ("שלום", "שלום\u200e"),
    ],
)
def test_a_token_is_written_as(text, written):
    assert visible(text) == written


@given(st.text(alphabet=st.characters(exclude_categories=())))
def test_printable_text_keeps_its_lines_and_steers_no_terminal(text):
    written = printable(text)
    unsafe = {c for c in written if unicodedata.category(c) in ("Cc", "Cf", "Cs", "Zl", "Zp")}
    assert unsafe <= {"\n", "\t", "\u200d"}
    assert written.count("\n") == text.count("\n")
    assert printable(written) == written
    ordinary = "naïve 日本 שלום 👩\u200d🚀\n\tend"
    assert printable(ordinary) == ordinary


@pytest.mark.parametrize(
    ("text", "columns"),
    [("abc", 3), ("日本", 4), ("e\u0301", 1), ("\x1b[1mab\x1b[0m", 2), ("😀", 2)],
)
def test_the_width_is_counted_in_columns(text, columns):
    assert cell_width(text) == columns


@given(st.text(alphabet="ab日本e\u0301😀"), st.integers(1, 9))
def test_a_cut_text_fits_and_says_that_it_was_cut(text, width):
    short = cut(text, width)
    assert cell_width(short) <= width
    assert short == text or (short.endswith("…") and text.startswith(short[:-1]))


@given(st.floats(-1e300, 1e300) | st.floats(-2e5, 2e5) | st.floats(-1e-3, 1e-3))
def test_a_number_is_right_to_its_printed_digits(value):
    written = number(value)
    mantissa, _, exponent = written.partition("e")
    last_digit = 10.0 ** (int(exponent or 0) - len(mantissa.partition(".")[2]))
    assert abs(float(written) - value) <= 0.5 * last_digit * (1 + 1e-9)


def test_only_zero_is_written_as_zero():
    assert [number(x) for x in (0.0, -0.0, 1e-30, -4e-5)] == ["0", "0", "1.0e-30", "-4.0e-05"]
    assert [number(x) for x in (float("nan"), float("inf"))] == ["nan", "inf"]


@pytest.mark.parametrize(
    ("share", "whole", "signed"),
    [
        (1.0, "████", "  │██"),
        (0.25, "█", "  │▌"),
        (1 / 32, "▏", "  │"),
        (0.0, "", "  │"),
        (7.0, "████", "  │██"),
        (-0.75, "", "▐█│"),
        (-1.0, "", "██│"),
    ],
)
def test_a_bar_fills_its_share_and_a_signed_one_grows_from_its_middle(share, whole, signed):
    assert bar(share, 4) == whole
    assert signed_bar(share, 2) == signed


def test_columns_line_up_whatever_stands_in_them():
    rows = [["a", "1"], ["日本", "23"], ["e\u0301", "\x1b[1m4\x1b[0m"]]
    lines = Terminal().table(["", "n"], rows, "<>")
    assert lines == ["         n", "  a      1", "  日本  23", "  e\u0301      \x1b[1m4\x1b[0m"]


def test_colours_need_a_terminal_and_no_objection(monkeypatch):
    class Screen(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "131")
    assert Terminal.of(Screen()) == Terminal(131, colour=True)
    assert Terminal.of(io.StringIO()) == Terminal(131, colour=False)
    monkeypatch.setenv("TERM", "dumb")
    assert not Terminal.of(Screen()).colour
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "1")
    assert not Terminal.of(Screen()).colour


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp437", "utf-8", None])
def test_every_output_can_show_every_text(encoding):
    text = "1/√32 · ‖x‖ … █▌│ 日本 שלום"
    shown = encodable(text, encoding)
    assert shown.encode(encoding or "utf-8")
    assert (shown == text) == (encoding in ("utf-8", None))
    assert encodable("plain", encoding) == "plain"
