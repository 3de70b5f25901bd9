"""Script and style of a page made small: blanks taken out, deflated, in printable characters.

text -> squeezed -> zlib -> 85 printable characters a digit -> static/data/packed.js in the browser

The sources stay as they are written; only what travels is small. Base 85 takes five characters
for four bytes, base64 takes 5.3.
"""

import base64
import re
import zlib

__all__ = ["packed_text", "squeezed_script", "squeezed_style"]

_TEXT = re.compile(r"""("[^"\n]*"|'[^'\n]*'|`[^`\n]*`)""")
_AROUND = re.compile(r" ?(=>|[{}()\[\]=,:;<>?*|&!]) ?")
# Between operands only: "a - -b" is not "a--b".
_BETWEEN = re.compile(r"(?<=[\w)\]]) ?([+\-/%]=?) ?(?=[\w(\[])")
# The next line can follow such a line at once, unless a comment may end it.
_OPEN_LINE = re.compile(r"^((?!.*//).*[{(\[,;])\n", re.MULTILINE)
_NO_DIVISION = re.compile(r"/(?! )|(?<! )/")
_STYLE_COMMENT = re.compile(r"/\*(?:(?!\*/)[\s\S])*\*/")
_STYLE_BLANKS = re.compile(r"\s*([{};,])\s*")
# Not in a page's HTML, nor in its attributes: four digits are written as others.
_SAFE = str.maketrans("<>&`", ",:./")


def squeezed_script(script: str) -> str:
    """The script without the blanks that mean nothing; line ends that may end a statement stay."""
    lines = "\n".join(_squeezed_line(line.strip()) for line in script.splitlines() if line.strip())
    return _OPEN_LINE.sub(r"\1", lines)


def _squeezed_line(line: str) -> str:
    # A quote in a quote, or perhaps a regular expression: left as it is.
    if "\\" in line or _NO_DIVISION.search(_TEXT.sub("", line)):
        return line
    parts = _TEXT.split(line)
    parts[::2] = [_BETWEEN.sub(r"\1", _AROUND.sub(r"\1", part)) for part in parts[::2]]
    return "".join(parts)


def squeezed_style(style: str) -> str:
    """The style without comments and without the blanks that mean nothing."""
    return _STYLE_BLANKS.sub(r"\1", _STYLE_COMMENT.sub("", style)).replace(": ", ":").strip()


def packed_text(text: str) -> str:
    """The text deflated, four bytes in five characters that mean nothing to HTML or JSON.

    The digits are those of RFC 1924, with four of them replaced.
    """
    return base64.b85encode(zlib.compress(text.encode(), 9)).decode("ascii").translate(_SAFE)
