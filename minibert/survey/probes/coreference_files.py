"""Gold coreference from files: LitBank's books (CoNLL-2012) and GAP's ambiguous pronouns (TSV).

LitBank: Bamman et al. 2020, https://arxiv.org/abs/1912.01140. GAP: Webster et al. 2018,
https://arxiv.org/abs/1810.05201.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from minibert.errors import SurveyError
from minibert.survey.probes.coreference import Choice, Passage
from minibert.survey.probes.mentions import PRONOUNS, Mention, baselines, head_place
from minibert.survey.probes.word_attention import tokens_of_words
from minibert.untrusted import lines_of, open_regular

if TYPE_CHECKING:
    from minibert.model import Model

__all__ = ["Book", "cut_book", "read_book", "read_gap"]

_LONGEST_LINE = 2**20
_MARK = re.compile(r"(\()?(\d+)(\))?")
_WORD = re.compile(r"\w+|[^\w\s]")
_GAP_COLUMNS = "ID Text Pronoun Pronoun-offset A A-offset A-coref B B-offset B-coref URL"


@dataclass(frozen=True)
class Book:
    """A text with its gold mentions, in order; of those that begin together the longest first.

    sentences   the place of the first word of each
    """

    id: str
    words: tuple[str, ...]
    sentences: tuple[int, ...]
    mentions: tuple[Mention, ...]


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """The number and text of each line; SurveyError for what is no line of UTF-8 text."""
    with open_regular(path, SurveyError) as file:
        for number, line in enumerate(lines_of(file, _LONGEST_LINE), start=1):
            if len(line) > _LONGEST_LINE:
                raise SurveyError(f"{path}, line {number}: more than {_LONGEST_LINE} bytes.")
            try:
                yield number, line.decode()
            except UnicodeDecodeError as error:
                raise SurveyError(
                    f"{path}, line {number}: byte {error.start} is not UTF-8; convert the file."
                ) from None


def read_book(path: str | Path) -> Book:
    """A book of LitBank's folder coref/conll.

    Raises SurveyError, with the line's number, for another form of file and for a mention that
    does not end.
    """
    path = Path(path)
    words: list[str] = []
    sentences = [0]
    open_marks: dict[str, list[int]] = {}
    spans: list[tuple[int, int, str]] = []
    for number, line in _lines(path):
        if line.startswith("#"):
            continue
        if not line.strip():
            if sentences[-1] < len(words):
                sentences.append(len(words))
            continue
        columns = line.split("\t")
        if len(columns) < 5:
            raise SurveyError(
                f"{path}, line {number}: {len(columns)} columns; expected those of CoNLL-2012, "
                "with tabs between them, the word in the fourth and coreference in the last."
            )
        spans += _ended(columns[-1].strip(), len(words), open_marks, f"{path}, line {number}")
        words.append(columns[3])
    left = [entity for entity, places in open_marks.items() if places]
    if left or not words:
        what = f"the mention of entity {left[0]} does not end" if left else "there is no word"
        raise SurveyError(f"{path}: {what}; expected a whole file of LitBank's coref/conll.")
    spans.sort(key=lambda span: (span[0], -span[1]))
    mentions = tuple(Mention.of(words, *span) for span in spans)
    starts = sentences if sentences[-1] < len(words) else sentences[:-1]
    return Book(path.stem, tuple(words), tuple(starts), mentions)


def _ended(
    marks: str, place: int, open_marks: dict[str, list[int]], where: str
) -> list[tuple[int, int, str]]:
    """The mentions that end at a word: first place, last place, entity."""
    spans = []
    for mark in marks.split("|") if marks not in ("", "_", "-", "*") else ():
        match = _MARK.fullmatch(mark)
        if match is None or not (match[1] or match[3]):
            raise SurveyError(f"{where}: {mark!r:.80} is no mark of a mention such as (3 or 3).")
        entity = match[2]
        if match[1]:
            open_marks.setdefault(entity, []).append(place)
        if match[3]:
            if not open_marks.get(entity):
                raise SurveyError(f"{where}: a mention of entity {entity} ends before it begins.")
            spans.append((open_marks[entity].pop(), place, entity))
    return spans


def cut_book(model: "Model", book: Book, longest: int) -> list[Passage]:
    """The book in passages of at most `longest` tokens, cut between sentences where possible.

    The choices are the mentions that stand for something mentioned before in their passage; the
    candidates are the mentions before, but for those with the same head word's place.
    """
    n_special = len(model.tokenizer("a").ids[0]) - 1 if model.tokenizer is not None else 0
    sizes = tokens_of_words(model, book)
    ends, used = [0], n_special
    for place, size in enumerate(sizes):
        while used + size > longest and place > ends[-1]:
            near = [start for start in book.sentences if ends[-1] < start <= place]
            ends.append(near[-1] if near else place)
            used = n_special + sum(sizes[ends[-1] : place])
        used += size
    ends.append(len(book.words))
    return [_passage(book, first, end) for first, end in pairwise(ends)]


def _passage(book: Book, first: int, end: int) -> Passage:
    mentions = [one for one in book.mentions if first <= one.first and one.last < end]
    choices = []
    for number, mention in enumerate(mentions):
        earlier = [one for one in mentions[:number] if one.head != mention.head]
        right = tuple(one.entity == mention.entity for one in earlier)
        if any(right):
            choices.append(
                Choice(
                    kind=mention.kind,
                    word=mention.head - first,
                    candidates=tuple(one.head - first for one in earlier),
                    right=right,
                    picks=baselines(mention, earlier),
                )
            )
    return Passage(f"{book.id}, words {first} to {end - 1}", book.words[first:end], tuple(choices))


def read_gap(path: str | Path) -> Iterator[Passage]:
    """The passages of a GAP file, each with one choice between the names A and B.

    The kind is the pronoun's gender. Passages where neither name is right have no choice.
    Raises SurveyError, with the line's number, for another form of file.
    """
    path = Path(path)
    for number, line in _lines(path):
        columns = line.split("\t")
        if number == 1:
            if columns != _GAP_COLUMNS.split():
                raise SurveyError(f"{path}: expected GAP's columns, {_GAP_COLUMNS}.")
            continue
        try:
            yield _gap_passage(columns)
        except (ValueError, IndexError) as error:
            raise SurveyError(
                f"{path}, line {number}: expected GAP's eleven columns, with each name at its "
                f"place in the text ({error})."
            ) from None


def _gap_passage(columns: Sequence[str]) -> Passage:
    name, text, pronoun, at, *rest, _ = columns
    names = [(rest[0], int(rest[1]), rest[2]), (rest[3], int(rest[4]), rest[5])]
    found = list(_WORD.finditer(text))
    word, _ = _place(found, pronoun, int(at))
    spans = [_place(found, one, start) for one, start, _ in names]
    words = tuple(match[0] for match in found)
    candidates = tuple(first + head_place(words[first : last + 1]) for first, last in spans)
    if any(answer.upper() not in ("TRUE", "FALSE") for _, _, answer in names):
        raise ValueError("whether a name is right is neither TRUE nor FALSE")
    right = tuple(answer.upper() == "TRUE" for _, _, answer in names)
    nearest = min(range(2), key=lambda one: abs(candidates[one] - word))
    earlier = min(range(2), key=lambda one: candidates[one])
    gender = PRONOUNS[pronoun.lower()].gender if pronoun.lower() in PRONOUNS else None
    choice = Choice(
        kind=gender or "other",
        word=word,
        candidates=candidates,
        right=right,
        picks={"nearest": nearest, "first": earlier},
    )
    return Passage(name, words, (choice,) if any(right) else ())


def _place(words: Sequence[re.Match[str]], name: str, start: int) -> tuple[int, int]:
    """The places of the first and last word of a name that stands at this character."""
    inside = [
        place
        for place, match in enumerate(words)
        if match.start() < start + len(name) and match.end() > start
    ]
    return inside[0], inside[-1]
