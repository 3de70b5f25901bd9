"""Languages: a file each, which says all that the code says.

tests/front_end/translated.test.js compares the pages' script with it, and
tests/browser/test_languages.py looks at German pages.
"""

import pytest

from minibert.errors import MinibertError
from minibert.languages import LANGUAGES, strings
from minibert.viz import document, live
from minibert.viz.stored import stored_live


def test_what_python_says_of_a_page_is_translated():
    texts = strings("de", "page")
    assert {document._OFF, live._IN_8_BITS, live._ANSWERS} <= texts.keys()


def test_another_language_is_refused_with_those_there_are():
    with pytest.raises(MinibertError, match=r"no language 'dee' \(did you mean 'de'\?\).*en, de"):
        strings("dee", "page")


def test_a_page_has_the_texts_of_its_language_alone():
    english, german = (stored_live("tiny-bert", language).html for language in LANGUAGES)
    assert 'id="minibert-strings"' not in english
    assert '<html lang="de">' in german
    assert "Diese Seite zeichnet ihre Bilder mit JavaScript" in german
