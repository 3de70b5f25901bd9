"""The patterns that heads are named by: each declared once, as the keys that it looks at.

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


def _previous(marks: Marks, queries: Queries) -> Cells:
    return _plain_rows(marks, queries) & (marks.offsets(queries) == -1)


def _next(marks: Marks, queries: Queries) -> Cells:
    return _plain_rows(marks, queries) & (marks.offsets(queries) == 1)


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


def _induction(marks: Marks, queries: Queries) -> Cells:
    before = torch.cat([marks.token.new_full((1,), -1), marks.token[:-1]])
    follows = marks.token[queries, None] == before
    return _earlier(marks, queries) & follows


def _duplicate(marks: Marks, queries: Queries) -> Cells:
    return _earlier(marks, queries) & (marks.token[queries, None] == marks.token)


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


_VIG_1, _VIG_2 = "Vig 2019, Deconstructing BERT, part 1", "Vig 2019, Deconstructing BERT, part 2"
_CLARK = "Clark et al. 2019, section 3"
BAG_OF_WORDS = "bag_of_words"

_ALL = (
    Pattern("next", "the next token", f"{_VIG_1}; {_CLARK}.1", _next),
    Pattern("previous", "the previous token", f"{_VIG_1}; {_CLARK}.1", _previous),
    Pattern("first", "the first token", f"{_CLARK}.2; Vig and Belinkov 2019, section 4", _first),
    Pattern("delimiter", "delimiters ([SEP])", f"{_VIG_1}; {_CLARK}.2", _delimiter),
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
    Pattern(
        "induction",
        "the token behind an earlier occurrence of this one",
        "Olsson et al. 2022, prefix matching",
        _induction,
        texts="repeated",
    ),
    Pattern(
        "duplicate",
        "an earlier occurrence of this token",
        "Wang et al. 2022, section 3",
        _duplicate,
        texts="repeated",
    ),
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
