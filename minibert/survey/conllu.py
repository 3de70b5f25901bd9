"""Dependency trees from CoNLL-U files, one sentence at a time.

Source: https://universaldependencies.org/format.html. What breaks its rules is an error that names
the file and the line, because a shifted column would give wrong results silently.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from minibert.errors import SurveyError
from minibert.untrusted import lines_of, open_regular

#: A line's number in its file, from 1 on, and its bytes without the line end.
Line = tuple[int, bytes]

# The longest line of English EWT has 700 bytes, its longest sentence 160 lines.
LONGEST_LINE, _MOST_LINES = 2**20, 2**16
_COLUMNS = ["ID", "FORM", "LEMMA", "UPOS", "XPOS", "FEATS", "HEAD", "DEPREL", "DEPS", "MISC"]
_WITH_SPACES = {"FORM", "LEMMA", "MISC"}
_WORD = re.compile(r"[1-9]\d{0,8}")
_RANGE = re.compile(r"([1-9]\d{0,8})-([1-9]\d{0,8})")
_EMPTY_NODE = re.compile(r"(0|[1-9]\d{0,8})\.([1-9]\d{0,8})")
_COMMENT = re.compile(r"#\s*(newdoc id|newdoc|sent_id|text)\s*(?:=\s*(.*?))?\s*")


@dataclass(frozen=True)
class Sentence:
    """One sentence of a treebank. The tuples have one entry for each syntactic word.

    id           from "# sent_id"; else the number of the sentence in its file, from 1 on
    text         from "# text"; else the tokens, put together as `space_after` says
    words        the forms: "did", "n't" where the text has the one token "didn't"
    heads        the place of each word's head in `words`, from 0 on, and -1 for a root; () where
                 the file has no trees
    relations    from each word's head to it: "nsubj", "obl:agent"; () where the file has no trees
    upos         the universal part of speech: "NOUN"; "_" where the file leaves it out
    space_after  whether a space follows the word in the text; none does within a token
    document     from "# newdoc id"; the number of the document in its file, from 1 on, where it
                 has no id; None before the first "# newdoc"
    """

    id: str
    text: str
    words: tuple[str, ...]
    heads: tuple[int, ...]
    relations: tuple[str, ...]
    upos: tuple[str, ...]
    space_after: tuple[bool, ...]
    document: str | None


def read_sentences(path: str | Path) -> Iterator[Sentence]:
    """The sentences of a CoNLL-U file, in order, read as they are asked for.

    Empty nodes (8.1) are left out: they stand for no word of the text. Raises SurveyError, with
    the line's number, for a file that is not CoNLL-U, is cut off, or has no sentence.
    """
    reader = TreebankReader(path)
    with open_regular(Path(path), SurveyError) as file:
        for block in blocks(enumerate(lines_of(file, LONGEST_LINE), start=1), path):
            yield reader.sentence(block)
    if not reader.n_sentences:
        raise SurveyError(f"{path}: the file has no sentence; expected CoNLL-U.")


def blocks(lines: Iterable[Line], where: object) -> Iterator[list[Line]]:
    """The lines of each sentence, without the empty line behind it.

    Raises SurveyError where the last sentence has no empty line behind it, after giving its lines'
    number: a file that was cut off looks like that.
    """
    block: list[Line] = []
    for number, line in lines:
        if line:
            block.append((number, line))
            if len(block) > _MOST_LINES:
                raise SurveyError(
                    f"{where}, line {number}: no empty line within {_MOST_LINES} lines; expected "
                    "one after each sentence of CoNLL-U."
                )
        elif block:
            yield block
            block = []
    if block:
        raise SurveyError(
            f"{where}, line {block[-1][0]}: the file ends within a sentence; expected an empty "
            "line after it. The file may be cut off; if it is whole, add an empty line at its end."
        )


class TreebankReader:
    """Turns the lines of a file's sentences, given in order, into `Sentence`s."""

    def __init__(self, where: object) -> None:
        self.where = where
        self.n_sentences = 0
        self._document: str | None = None
        self._n_documents = 0

    def sentence(self, block: list[Line]) -> Sentence:
        """The sentence; SurveyError for lines that are not CoNLL-U. May be called again then."""
        self.n_sentences += 1
        lines = [(number, self._text(number, line)) for number, line in block]
        comments = {}
        while lines and lines[0][1].startswith("#"):
            number, line = lines.pop(0)
            if match := _COMMENT.fullmatch(line):
                comments[match[1]] = (number, match[2] or "")
        if "newdoc" in comments or "newdoc id" in comments:
            self._n_documents += 1
            self._document = comments.get("newdoc id", (0, ""))[1] or str(self._n_documents)
        parts = _Parts(self.where)
        for number, line in lines:
            parts.add(number, line)
        parts.finish(block[-1][0])
        number, text = comments.get("text", (0, parts.text.strip()))
        # Spaces may be of another kind there (EWT has no-break spaces), and none is at its end.
        if text.split() != parts.text.split():
            raise SurveyError(
                f"{self.where}, line {number}: # text is {text!r:.200}, but the tokens below give "
                f"{parts.text.strip()!r:.200}; expected the same."
            )
        return Sentence(
            id=comments.get("sent_id", (0, ""))[1] or str(self.n_sentences),
            text=text,
            words=tuple(parts.words),
            heads=tuple(parts.heads),
            relations=tuple(parts.relations),
            upos=tuple(parts.upos),
            space_after=tuple(parts.space_after),
            document=self._document,
        )

    def _text(self, number: int, line: bytes) -> str:
        if len(line) > LONGEST_LINE:
            raise SurveyError(
                f"{self.where}, line {number}: more than {LONGEST_LINE} bytes; no line of CoNLL-U "
                "is as long."
            )
        if number == 1:
            line = line.removeprefix(b"\xef\xbb\xbf")
        try:
            return line.decode()
        except UnicodeDecodeError as error:
            raise SurveyError(
                f"{self.where}, line {number}: byte {error.start} is not UTF-8, which CoNLL-U "
                "must be; convert the file (iconv -f latin1 -t utf-8, for instance)."
            ) from None


class _Parts:
    """The words of one sentence while its lines are read."""

    def __init__(self, where: object) -> None:
        self.where = where
        self.text = ""
        self.words: list[str] = []
        self.heads: list[int] = []
        self.relations: list[str] = []
        self.upos: list[str] = []
        self.space_after: list[bool] = []
        self.numbers: list[int] = []
        # The last word of the token that is open, and whether a space follows it.
        self._token_end, self._token_space = 0, True
        self._empty_nodes = 0

    def add(self, number: int, line: str) -> None:
        """Take in a word, a token of several words, or an empty node."""
        columns = self._columns(number, line)
        name, n_words = columns["ID"], len(self.words)
        if _WORD.fullmatch(name):
            self._expect(int(name) == n_words + 1, number, f"ID {n_words + 1}", name)
            self._empty_nodes = 0
            self._add_word(number, columns)
        elif match := _RANGE.fullmatch(name):
            first, last = int(match[1]), int(match[2])
            right = first == n_words + 1 > self._token_end and last > first
            after = max(n_words, self._token_end) + 1
            self._expect(right, number, f"the words of a token from {after} up", name)
            self._expect_no_tree(number, columns)
            self._token_end, self._token_space = last, _space_after(columns)
            self.text += columns["FORM"] + " " * self._token_space
        elif match := _EMPTY_NODE.fullmatch(name):
            expected = f"{n_words}.{self._empty_nodes + 1}"
            self._expect(name == expected, number, f"empty node {expected}", name)
            self._expect_no_tree(number, columns)
            self._empty_nodes += 1
        else:
            self._expect(False, number, "an ID such as 8, 8-9 or 8.1", name)

    def _add_word(self, number: int, columns: dict[str, str]) -> None:
        place = len(self.words) + 1
        if place > self._token_end:
            space = _space_after(columns)
            self.text += columns["FORM"] + " " * space
        else:
            space = self._token_space and place == self._token_end
        self.words.append(columns["FORM"])
        self.upos.append(columns["UPOS"])
        self.space_after.append(space)
        self.numbers.append(number)
        head, relation = columns["HEAD"], columns["DEPREL"]
        has_tree = head != "_"
        same = place == 1 or has_tree == bool(self.heads)
        self._expect(same, number, "a HEAD for every word or for none", head)
        self._expect(has_tree == (relation != "_"), number, "HEAD and DEPREL or neither", relation)
        if has_tree:
            whole = head == "0" or (bool(_WORD.fullmatch(head)) and int(head) != place)
            self._expect(whole, number, "as HEAD the number of another word, or 0", head)
            root = relation.partition(":")[0] == "root"
            self._expect(root == (head == "0"), number, "root for HEAD 0 and there alone", relation)
            self.heads.append(int(head) - 1)
            self.relations.append(relation)

    def finish(self, number: int) -> None:
        """Check what can be known only at the end of the sentence."""
        n_words = len(self.words)
        self._expect(n_words > 0, number, "at least one word in a sentence", "none")
        self._expect(self._token_end <= n_words, number, f"word {self._token_end}", "the end")
        for head, line in zip(self.heads, self.numbers, strict=self.heads != []):
            self._expect(head < n_words, line, f"a HEAD of at most {n_words}", str(head + 1))
        # Words that are known to hang on a root; each walk ends at one of these.
        rooted = {-1}
        for start, line in enumerate(self.numbers[: len(self.heads)]):
            word = start
            walk: list[int] = []
            while word not in rooted and len(walk) <= n_words:
                walk.append(word)
                word = self.heads[word]
            self._expect(word in rooted, line, "a tree", "heads that lead around in a circle")
            rooted.update(walk)

    def _columns(self, number: int, line: str) -> dict[str, str]:
        values = line.split("\t")
        if len(values) != len(_COLUMNS):
            raise SurveyError(
                f"{self.where}, line {number}: expected ten columns with tabs between them, found "
                f"{len(values)}: {line!r:.80}."
            )
        columns = dict(zip(_COLUMNS, values, strict=True))
        for name, value in columns.items():
            spaced = name not in _WITH_SPACES and any(map(str.isspace, value))
            if not value.strip() or spaced:
                raise SurveyError(
                    f"{self.where}, line {number}: {name} is {value!r:.80}; expected a value "
                    f"{'without spaces' if spaced else '(an underscore where there is none)'}."
                )
        return columns

    def _expect_no_tree(self, number: int, columns: dict[str, str]) -> None:
        found = f"{columns['HEAD']} {columns['DEPREL']}"
        self._expect(found == "_ _", number, "_ as HEAD and DEPREL: this is no word", found)

    def _expect(self, right: bool, number: int, expected: str, found: str) -> None:
        if not right:
            raise SurveyError(f"{self.where}, line {number}: expected {expected}, found {found}.")


def _space_after(columns: dict[str, str]) -> bool:
    return "SpaceAfter=No" not in columns["MISC"].split("|")
