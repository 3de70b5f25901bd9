"""Text for a terminal: safe characters, columns that line up, bars, a little colour.

It imports nothing heavy, so that `minibert --help` is fast.
"""

import errno
import math
import os
import re
import shutil
import sys
import unicodedata
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from minibert.errors import MinibertError

_ESCAPE = re.compile(r"\x1b\[[0-9;]*m")
_STYLES = {"bold": "1", "dim": "2", "positive": "34", "negative": "33", "chosen": "1;36"}
_EIGHTHS = " ▏▎▍▌▋▊▉█"
# Controls, format characters (these can change the writing direction), surrogates, private and
# unassigned characters, line and paragraph separators.
_UNSAFE = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
# Far longer than any text that a model reads at once.
_MOST_INPUT = 2**26
_SHORT_ESCAPES = {"\n": "\\n", "\t": "\\t", "\r": "\\r"}
_LEFT_TO_RIGHT_MARK = "\u200e"
_ASCII = str.maketrans(
    dict(zip("▏▎▍▌▋▊▉█▐│−×·‖…–␣", "  #######|-x*|.-_", strict=True)) | {"√": "sqrt ", "Σ": "sum "}
)


@runtime_checkable
class Stream(Protocol):
    """Something that is written to, such as standard output."""

    def isatty(self) -> bool:
        """True where the output is a terminal."""


@dataclass(frozen=True)
class Terminal:
    """How wide a line may be, and whether it may have colours."""

    width: int = 80
    colour: bool = False

    @classmethod
    def of(cls, stream: Stream) -> "Terminal":
        """The terminal that a stream writes to; 80 columns without colour where there is none.

        Never less than 80 columns: a narrower terminal wraps the lines. NO_COLOR and TERM=dumb turn
        colours off (https://no-color.org).
        """
        plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
        width = shutil.get_terminal_size((80, 24)).columns
        return cls(max(80, width), stream.isatty() and not plain)

    def paint(self, text: str, style: str) -> str:
        """The text in a style: bold, dim, positive, negative, chosen."""
        return f"\x1b[{_STYLES[style]}m{text}\x1b[0m" if self.colour and text else text

    def table(
        self, header: Sequence[str], rows: Sequence[Sequence[str]], align: str, indent: int = 2
    ) -> list[str]:
        """A table as lines; `align` has < (left) or > (right) for each column."""
        widths = [max(map(cell_width, column)) for column in zip(header, *rows, strict=True)]
        lines = []
        for row in (header, *rows):
            cells = (_pad(*cell) for cell in zip(row, widths, align, strict=True))
            lines.append((" " * indent + "  ".join(cells)).rstrip())
        return [self.paint(lines[0], "dim"), *lines[1:]] if any(header) else lines[1:]

    def wrapped(self, pieces: Sequence[str], indent: int = 2) -> list[str]:
        """The pieces in reading order, two spaces between them, on as many lines as they need."""
        lines, used = [""], self.width
        for piece in pieces:
            size = cell_width(piece)
            if used + 2 + size > self.width:
                lines.append(" " * indent + piece)
                used = indent + size
            else:
                lines[-1] += "  " + piece
                used += 2 + size
        return lines[1:]


def visible(text: str, *, space: str = "␣") -> str:
    """The text with every character that is invisible, or would move others, written out.

    A space becomes `space`, a newline \\n, U+202E \\u202e. After letters that are
    written from right to left there is a mark, so that later numbers stay in their column.
    """
    written = "".join(space if c == " " else _written(c) for c in text)
    leftward = any(unicodedata.bidirectional(c) in ("R", "AL", "AN") for c in written)
    return written + _LEFT_TO_RIGHT_MARK if leftward else written


def printable(text: str) -> str:
    """The text with every character that would control the terminal written out.

    Spaces, line breaks and tabs stay, and so does the character that joins emoji.
    """
    return "".join(c if c in "\n\t\u200d" else _written(c) for c in text)


def _written(character: str) -> str:
    if unicodedata.category(character) not in _UNSAFE:
        return character
    code = ord(character)
    form = (
        f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}" if code < 65536 else f"\\U{code:08x}"
    )
    return _SHORT_ESCAPES.get(character, form)


def cell_width(text: str) -> int:
    """The columns that a text takes: two for wide characters, none for combining ones."""
    return sum(map(_columns, _ESCAPE.sub("", text)))


def _columns(character: str) -> int:
    if character == _LEFT_TO_RIGHT_MARK or unicodedata.category(character) in ("Mn", "Me"):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def cut(text: str, width: int) -> str:
    """The text, or as much of it as fits, followed by "…". For text without colours."""
    if cell_width(text) <= width:
        return text
    kept = ""
    for character in text:
        if cell_width(kept + character) > width - 1:
            break
        kept += character
    marked = _LEFT_TO_RIGHT_MARK if text.endswith(_LEFT_TO_RIGHT_MARK) else ""
    return kept + marked + "…"


def _pad(text: str, width: int, side: str) -> str:
    space = " " * (width - cell_width(text))
    return text + space if side == "<" else space + text


def number(value: float) -> str:
    """The number with four decimals; in exponent form where it is very small or very large."""
    if value == 0:
        return "0"
    if not math.isfinite(value):
        return str(value)
    if abs(value) >= 1e5:
        return f"{value:.4e}"
    return f"{value:.4f}" if abs(value) >= 5e-5 else f"{value:.1e}"


def bar(share: float, width: int) -> str:
    """A bar that fills `share` (0 to 1) of `width` columns, in steps of an eighth of a column."""
    eighths = round(min(max(share, 0.0), 1.0) * width * 8) if math.isfinite(share) else 0
    full, rest = divmod(eighths, 8)
    return "█" * full + (_EIGHTHS[rest] if rest else "")


def signed_bar(share: float, half: int) -> str:
    """A bar from the middle of 2 x `half` + 1 columns: to the left below 0, else to the right."""
    halves = round(min(abs(share), 1.0) * half * 2) if math.isfinite(share) else 0
    full, rest = divmod(halves, 2)
    if share < 0:
        return ("▐" * rest + "█" * full).rjust(half) + "│"
    return " " * half + "│" + "█" * full + "▌" * rest


def encodable(text: str, encoding: str | None) -> str:
    """The text in characters that this encoding has: √ becomes sqrt where there is no √."""
    encoding = encoding or "utf-8"
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        return text.translate(_ASCII).encode(encoding, "backslashreplace").decode(encoding)
    return text


def standard_input() -> str:
    """All of standard input, without the last newline.

    Raises MinibertError where it is closed, too long, or not UTF-8.
    """
    try:
        content = sys.stdin.buffer.read(_MOST_INPUT + 1)
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise MinibertError(f"Standard input is not UTF-8 text ({error}).") from error
    except OSError as error:
        raise MinibertError(
            f"Standard input cannot be read ({error.strerror}); pipe a text into it, or give one."
        ) from error
    if len(content) > _MOST_INPUT:
        raise MinibertError(f"Standard input is longer than {_MOST_INPUT} bytes; shorten the text.")
    return text.removesuffix("\n").removesuffix("\r")


class OutputError(OSError):
    """Standard output cannot be written to; an OSError of anything else is not one."""

    @property
    def closed(self) -> bool:
        """True where what read the output has ended."""
        return self.errno == errno.EPIPE


@contextmanager
def to_output() -> Iterator[None]:
    """Turn an OSError of what is written to standard output inside into an OutputError."""
    try:
        yield
    except OSError as error:
        raise OutputError(error.errno, error.strerror or str(error)) from error


def say(*lines: str) -> None:
    """Write lines to standard output, at once: what reads them may be waiting."""
    text = encodable("\n".join(lines), sys.stdout.encoding)
    with to_output():
        print(text, flush=True)


def note(kind: str, message: str) -> None:
    """Write a note or warning to standard error; standard output has only the answer."""
    print(encodable(f"{kind}: {message}", sys.stderr.encoding), file=sys.stderr)


def abandon_output() -> None:
    """Discard the buffered output, which would fail again when Python closes standard output."""
    with suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def warning_line(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    line: str | None = None,
) -> str:
    """A warning on one line; it replaces `warnings.formatwarning`."""
    return f"warning: {message}\n"
