"""What pages and the course say in other languages: one file for each, as de.json for German.

A file has two tables, `page` and `course`. A key is the English text, in which {0}, {1} … stand for
what is put in. The script of a page marks no text: viz/build.js looks its texts up here.
"""

import json
import re
from collections.abc import Mapping
from functools import cache
from importlib.resources import files

from minibert.errors import MinibertError, did_you_mean

#: English, which the code itself is written in, and those that have a file.
LANGUAGES = ("en", "de")


@cache
def strings(language: str, part: str) -> dict[str, str]:
    """The texts of "page" or "course" by their English; nothing for English.

    Raises MinibertError for a language without a file.
    """
    if language not in LANGUAGES:
        raise MinibertError(
            f"There is no language {language!r:.80}{did_you_mean(language, LANGUAGES)}: expected "
            f"one of {', '.join(LANGUAGES)}."
        )
    if language == LANGUAGES[0]:
        return {}
    text = (files("minibert.languages") / f"{language}.json").read_text(encoding="utf-8")
    return dict(json.loads(text)[part])


def translated(text: str, texts: Mapping[str, str]) -> str:
    """The text in another language, with its lines and parts that `texts` has; else as it is.

    What is put in at {0}, {1} ... is looked up itself: a sentence may hold others.
    """
    if text in texts:
        return texts[text]
    for english, pattern in _patterns(tuple(texts)):
        if found := pattern.fullmatch(text):
            return texts[english].format(*(translated(part, texts) for part in found.groups()))
    lines = text.split("\n")
    return "\n".join(translated(line, texts) for line in lines) if len(lines) > 1 else text


@cache
def _patterns(texts: tuple[str, ...]) -> list[tuple[str, re.Pattern[str]]]:
    """The texts that something is put into, the longest first."""
    put_in = sorted((one for one in texts if "{0}" in one), key=len, reverse=True)
    return [(one, re.compile(re.sub(r"\\\{\d\\\}", "(.*?)", re.escape(one)))) for one in put_in]
