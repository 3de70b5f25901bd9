"""The patterns that heads are named by: each declared once, as the keys that it looks at.

Five of them are those of `head_scores`; what they look at is declared in analysis/pattern_kinds.py.

A pattern says for every query which keys it means. The score of a row is the attention that goes
there, 0 to 1, and rows count that have such a key; bag of words compares the whole row instead.
What is known of a text is in marks.py; what is added up over documents, in pattern_sums.py.

Sources: Vig 2019, "Deconstructing BERT" (parts 1 and 2); Clark et al. 2019, section 3; Olsson et
al. 2022; Wang et al. 2022.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from minibert.analysis.pattern_kinds import KINDS
from minibert.errors import AttentionError
from minibert.quantities import Bool
from minibert.survey.marks import Marks, Queries

__all__ = ["BAG_OF_WORDS", "PATTERNS", "Pattern", "pattern_of"]

Cells = Bool[Tensor, "query key"]
Texts = Literal["corpus", "repeated"]
Baseline = Literal["uniform", "moved", "drawn"]


@dataclass(frozen=True)
class Pattern:
    """What one kind of head looks at.

    words      "heads that look at ..."
    source     who described it
    cells      the keys that each of the queries looks at
    texts      what a model is measured on: the corpus, or random sequences that come twice
    baseline   what is no evidence for the pattern:
               uniform  a head that looks at all keys alike, on the same rows
               moved    the same head at the same offsets, some places further on in the same
                        sentences, where the words are others
               drawn    a row whose weights are drawn at random, all weights equally likely
    """

    name: str
    words: str
    source: str
    cells: Callable[[Marks, Queries], Cells]
    texts: Texts = "corpus"
    baseline: Baseline = "uniform"

    @property
    def label(self) -> str:
        """The name as a person writes it."""
        return self.name.replace("_", " ")


def _at_offset(offset: int) -> Callable[[Marks, Queries], Cells]:
    return lambda marks, queries: _plain_rows(marks, queries) & (marks.offsets(queries) == offset)


def _first(marks: Marks, queries: Queries) -> Cells:
    key = torch.arange(len(marks))
    # The first token cannot look anywhere else in a causal model.
    return _plain_rows(marks, queries) & (key[queries, None] > 0) & (key == 0)


def _delimiter(marks: Marks, queries: Queries) -> Cells:
    return ~marks.delimiter[queries, None] & marks.delimiter


def _bag_of_words(marks: Marks, queries: Queries) -> Cells:
    same = marks.sentence[queries, None] == marks.sentence
    cells = _plain_rows(marks, queries) & marks.plain & same & marks.allowed(queries)
    # Of one word there is only one way to look at it.
    return cells & (cells.sum(1, keepdim=True) > 1)


def _same_word(marks: Marks, queries: Queries) -> Cells:
    alike = marks.spelling[queries, None] == marks.spelling
    other = marks.word[queries, None] != marks.word
    return _between_words(marks, queries) & alike & other


def _same_word_other_sentence(marks: Marks, queries: Queries) -> Cells:
    other = marks.sentence[queries, None] != marks.sentence
    return _same_word(marks, queries) & other


def _predictive(marks: Marks, queries: Queries) -> Cells:
    of_one_word = marks.word[queries, None] == marks.word
    return _between_words(marks, queries) & of_one_word & (marks.offsets(queries) != 0)


def _behind_occurrence(behind: int) -> Callable[[Marks, Queries], Cells]:
    def cells(marks: Marks, queries: Queries) -> Cells:
        token = marks.token
        before = torch.cat([token.new_full((behind,), -1), token[: len(token) - behind]])
        return _earlier(marks, queries) & (token[queries, None] == before)

    return cells


def _plain_rows(marks: Marks, queries: Queries) -> Bool[Tensor, "query 1"]:
    return marks.plain[queries, None]


def _earlier(marks: Marks, queries: Queries) -> Cells:
    return _plain_rows(marks, queries) & marks.plain & (marks.offsets(queries) < 0)


def _between_words(marks: Marks, queries: Queries) -> Cells:
    cells = _plain_rows(marks, queries) & marks.plain
    if marks.causal:
        # Where heads of a causal model look that look at nothing: Vig and Belinkov 2019.
        cells = cells & (torch.arange(len(marks)) > 0)
    return cells


def _known(name: str) -> Pattern:
    """One of the five of analysis/pattern_kinds.py."""
    kind = KINDS[name]
    if kind.behind is not None:
        return Pattern(
            name, kind.words, kind.source, _behind_occurrence(kind.behind), texts="repeated"
        )
    cells = _delimiter if kind.offset is None else _at_offset(kind.offset)
    return Pattern(name, kind.words, kind.source, cells)


_VIG_1, _VIG_2 = "Vig 2019, Deconstructing BERT, part 1", "Vig 2019, Deconstructing BERT, part 2"
_CLARK = "Clark et al. 2019, section 3"
BAG_OF_WORDS = "bag_of_words"

_ALL = (
    _known("next"),
    _known("previous"),
    Pattern("first", "the first token", f"{_CLARK}.2; Vig and Belinkov 2019, section 4", _first),
    _known("delimiter"),
    Pattern(
        BAG_OF_WORDS,
        "all words of the sentence alike",
        _VIG_2,
        _bag_of_words,
        baseline="drawn",
    ),
    Pattern("same_word", "the same word elsewhere", _VIG_1, _same_word, baseline="moved"),
    Pattern(
        "same_word_other_sentence",
        "the same word in the other sentence",
        _VIG_1,
        _same_word_other_sentence,
        baseline="moved",
    ),
    Pattern(
        "predictive",
        "the other pieces of the word, which predict this one",
        _VIG_1,
        _predictive,
        baseline="moved",
    ),
    _known("induction"),
    _known("duplicate"),
)
PATTERNS = {pattern.name: pattern for pattern in _ALL}


def pattern_of(name: str) -> Pattern:
    """The pattern of that name; AttentionError for a name that is none."""
    found = PATTERNS.get(name)
    if found is None:
        raise AttentionError(
            f"{name!r:.80} is no pattern of heads; there are {', '.join(PATTERNS)}."
        )
    return found
