"""What pages and the course say in other languages: one file for each, as de.json for German.

A file has two tables, `page` and `course`. A key is the English text, in which {0}, {1} … stand for
what is put in. The script of a page marks no text: viz/build.js looks its texts up here.
"""

import json
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
