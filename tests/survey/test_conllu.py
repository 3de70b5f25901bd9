"""CoNLL-U: the rules of the format, and the real treebank."""

import re
from pathlib import Path

import pytest

from minibert.errors import SurveyError
from minibert.survey.conllu import Sentence, read_sentences
from tests.data import data_path

# Made for this test: a token of two words, an empty node, and a document.
EXAMPLE = """\
# newdoc id = letters-1
# sent_id = letters-1-3
# text = She didn't see 2 000 cats, and I dogs.
1\tShe\tshe\tPRON\t_\t_\t4\tnsubj\t_\t_
2-3\tdidn't\t_\t_\t_\t_\t_\t_\t_\t_
2\tdid\tdo\tAUX\t_\t_\t4\taux\t_\t_
3\tn't\tnot\tPART\t_\t_\t4\tadvmod\t_\t_
4\tsee\tsee\tVERB\t_\t_\t0\troot\t_\t_
5\t2 000\t2000\tNUM\t_\t_\t6\tnummod\t_\t_
6\tcats\tcat\tNOUN\t_\t_\t4\tobj\t_\tSpaceAfter=No
7\t,\t,\tPUNCT\t_\t_\t9\tpunct\t_\t_
8\tand\tand\tCCONJ\t_\t_\t9\tcc\t_\t_
9\tI\tI\tPRON\t_\t_\t4\tconj\t_\t_
9.1\tsaw\tsee\tVERB\t_\t_\t_\t_\t4:conj\t_
10\tdogs\tdog\tNOUN\t_\t_\t9\torphan\t_\tGloss=x|SpaceAfter=No
11\t.\t.\tPUNCT\t_\t_\t4\tpunct\t_\t_

1\tYes\tyes\tINTJ\t_\t_\t_\t_\t_\t_

"""


def read(folder: Path, text: str | bytes) -> list[Sentence]:
    path = folder / "example.conllu"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return list(read_sentences(path))


def test_words_trees_and_spaces_are_read_as_the_format_says(tmp_path: Path) -> None:
    first, second = read(tmp_path, EXAMPLE)
    relations = "nsubj aux advmod root nummod obj punct cc conj orphan punct"
    assert " ".join(first.relations) == relations
    assert " ".join(first.upos) == "PRON AUX PART VERB NUM NOUN PUNCT CCONJ PRON NOUN PUNCT"
    assert first == Sentence(
        id="letters-1-3",
        text="She didn't see 2 000 cats, and I dogs.",
        words=("She", "did", "n't", "see", "2 000", "cats", ",", "and", "I", "dogs", "."),
        heads=(3, 3, 3, -1, 5, 3, 8, 8, 3, 8, 3),
        relations=first.relations,
        upos=first.upos,
        space_after=tuple(w not in ("did", "cats", "dogs") for w in first.words),
        document="letters-1",
    )
    assert second == Sentence("2", "Yes", ("Yes",), (), (), ("INTJ",), (True,), "letters-1")
    from_windows = b"\xef\xbb\xbf" + EXAMPLE.encode().replace(b"\n", b"\r\n")
    assert read(tmp_path, from_windows) == [first, second]


@pytest.mark.parametrize(
    ("before", "after", "line", "expected"),
    [
        ("9\tI\t", "9\t", 13, "ten columns"),
        ("9\tI\t", "9\t\t", 13, "FORM is ''"),
        ("1\tShe\tshe\tPRON", "1\tShe\tshe\tPRO N", 4, "without spaces"),
        ("5\t2 000", "6\t2 000", 9, "ID 5, found 6"),
        ("5\t2 000", "x\t2 000", 9, "an ID such as"),
        ("2-3\t", "1-3\t", 5, "a token from 2 up, found 1-3"),
        ("2-3\t", "2-2\t", 5, "a token from 2 up"),
        ("2-3\t", "2-12\t", 16, "expected word 12"),
        ("9.1\t", "9.2\t", 14, "empty node 9.1"),
        (
            "saw\tsee\tVERB\t_\t_\t_\t_",
            "saw\tsee\tVERB\t_\t_\t4\tconj",
            14,
            "no word, found 4 conj",
        ),
        ("5\t2 000\t2000\tNUM\t_\t_\t6", "5\t2 000\t2000\tNUM\t_\t_\t5", 9, "another word, or 0"),
        (
            "5\t2 000\t2000\tNUM\t_\t_\t6",
            "5\t2 000\t2000\tNUM\t_\t_\t12",
            9,
            "at most 11, found 12",
        ),
        ("6\tcats\tcat\tNOUN\t_\t_\t4", "6\tcats\tcat\tNOUN\t_\t_\t5", 9, "in a circle"),
        (
            "5\t2 000\t2000\tNUM\t_\t_\t6",
            "5\t2 000\t2000\tNUM\t_\t_\t_",
            9,
            "every word or for none",
        ),
        ("0\troot", "0\tconj", 8, "root for HEAD 0"),
        ("nummod", "_", 9, "HEAD and DEPREL or neither"),
        ("see 2 000", "sees 2 000", 3, "expected the same"),
        ("1\tYes", "2\tYes", 18, "ID 1, found 2"),
        ("# newdoc", "# a comment\n\n# newdoc", 1, "at least one word"),
        (
            "1\tYes\tyes\tINTJ\t_\t_\t_\t_\t_\t_\n\n",
            "1\tYes\tyes\tINTJ\t_\t_\t_\t_\t_\t_",
            18,
            "cut off",
        ),
    ],
)
def test_what_breaks_the_format_is_named_with_its_line(
    tmp_path: Path, before: str, after: str, line: int, expected: str
) -> None:
    assert EXAMPLE.count(before) == 1
    place = re.escape(f"example.conllu, line {line}: ")
    with pytest.raises(SurveyError, match=f"{place}.*{re.escape(expected)}"):
        read(tmp_path, EXAMPLE.replace(before, after))


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (EXAMPLE.replace("cats", "käts").encode("latin-1"), "line 3: byte .* is not UTF-8"),
        (b"# text = x" + b"x" * 2**21 + b"\n1\tx\n\n", "line 1: more than 1048576 bytes"),
        (b"", "no sentence"),
        (b"# a comment\n" * 2**17, "line 65537: no empty line"),
    ],
)
def test_what_cannot_be_a_treebank_is_refused(
    tmp_path: Path, content: bytes, expected: str
) -> None:
    with pytest.raises(SurveyError, match=expected):
        read(tmp_path, content)


@pytest.mark.parametrize("part", ["dev", "test"])
def test_a_real_treebank_is_read_whole(part: str) -> None:
    path = data_path("text", "ud-english-ewt", f"en_ewt-ud-{part}.conllu")
    lines = path.read_text(encoding="utf-8").splitlines()
    rows = [line.split("\t") for line in lines if line.split("\t")[0].isdigit()]
    sentences = list(read_sentences(path))
    assert [w for s in sentences for w in s.words] == [row[1] for row in rows]
    assert [r for s in sentences for r in s.relations] == [row[7] for row in rows]
    assert [h + 1 for s in sentences for h in s.heads] == [int(row[6]) for row in rows]
    texts = [line.removeprefix("# text = ") for line in lines if line.startswith("# text = ")]
    assert [s.text for s in sentences] == texts
    documents = [line for line in lines if line.startswith("# newdoc")]
    assert len({s.document for s in sentences}) == len(documents)
