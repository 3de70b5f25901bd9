"""The patterns that attention heads are known by, and how far each head follows them.

A pattern says for every query which keys it means; it is declared once, in `PATTERNS`. The score of
a row is the attention that goes there, 0 to 1, and rows count that have such a key; bag of words
compares the whole row instead. `Marks` is what is known of the tokens of one text: which are alike,
of one word, of one sentence.

repeated_ids, draws_for   random sequences that say everything twice
head_scores               five patterns, the mean over sentences; `minibert.survey.patterns` has
                          all, with intervals, baselines and examples
shared_dimensions         whether the queries of a head use the same few dimensions

Duplicate and induction are measured on random sequences that come twice. Random tokens have no
grammar and no meaning, so a model that predicts the second half must have looked the first half up.
Clark et al. divide the scores of neighbours by the number of all rows; here rows without such a
neighbour do not count. Of delimiters this is the mass from other tokens of their code. Rows of
delimiters are left out: heads that look at [SEP] from everywhere spend over 90 % of [SEP]'s own
attention on [SEP], which says nothing about other tokens. TransformerLens' head detector marks the
same cells of repeated sequences; ARENA takes the mean of the whole diagonal, which has one row of
the first half as well.

Sources: Vig 2019, "Deconstructing BERT" (parts 1 and 2); Clark et al. 2019, section 3; Olsson et
al. 2022; Wang et al. 2022.
"""

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import itemgetter
from typing import Any, Literal

import torch
from torch import Tensor

from minibert.analysis.arguments import check_model, check_trace, listed
from minibert.analysis.rows import wide
from minibert.errors import (
    AttentionError,
    TokenizationError,
    TraceError,
    did_you_mean,
    whole_number,
)
from minibert.model import Input, Model
from minibert.quantities import Bool, Float, Int
from minibert.result import Result, sourced
from minibert.text.tokenizer import Tokenizer
from minibert.text.tokens import Tokens
from minibert.trace.read import Trace

LENGTH, DRAWS = 50, 100
# Numbers that one forward pass may keep: 128 MiB in float32.
_KEPT = 2**25
# Numbers of attention that are read at once: 16 MiB in float32.
NUMBERS = 2**22
# Heads that a printed table names for each pattern.
_SHOWN = 3
# Far below the noise of a hundred sequences, and short enough to read in a log.
_DECIMALS = 6

Queries = slice | Tensor
"""Some positions of a text, as an index."""

Seen = tuple[int, int] | Tensor | None
"""How many keys before and after its own position a query sees, or True for those that it sees,
(query, key); None: no limit."""

# How vocabularies write the space before a word: byte-level BPE, decoded, and SentencePiece.
_SPACES = ("Ġ", " ", "▁")
_CONTINUES = "##"


@dataclass(frozen=True, eq=False)
class Marks:
    """One text as far as patterns need it; equal numbers of `token` mean "the same".

    token       tokens of the vocabulary
    raw         the tokens as their vocabulary writes them
    words       which word of its text each token belongs to, where that is known
    plain       True for tokens that are neither special nor delimiters
    delimiter   True for [SEP] and what stands for it
    strings     the tokens as a person reads them
    causal      whether a query sees only itself and what stands before it
    seen        which of these keys a query sees
    """

    token: Int[Tensor, " position"]
    raw: tuple[str, ...]
    words: tuple[int | None, ...]
    plain: Bool[Tensor, " position"]
    delimiter: Bool[Tensor, " position"]
    strings: tuple[str, ...]
    causal: bool
    seen: Seen = None

    def __len__(self) -> int:
        """The number of tokens."""
        return len(self.strings)

    @classmethod
    def of_tokens(
        cls,
        tokens: Tokens,
        delimiters: Collection[int],
        tokenizer: Tokenizer | None = None,
        *,
        causal: bool,
    ) -> "Marks":
        """The marks of a batch of one sentence; `delimiters` are ids.

        Tokens that the tokenizer knows as special are, whether or not these tokens say so.
        """
        ids = tokens.ids[0].cpu()
        special = [] if tokenizer is None else list(tokenizer.structural_ids)
        ends, hidden = (torch.tensor(list(i), dtype=ids.dtype) for i in (delimiters, special))
        delimiter = torch.isin(ids, ends)
        structure = torch.tensor(tokens.special[0]) | torch.isin(ids, hidden) | delimiter
        [raw], [words], [strings] = tokens.raw, tokens.words, tokens.strings
        return cls(ids, raw, words, ~structure, delimiter, strings, causal)

    @cached_property
    def sentence(self) -> Int[Tensor, " position"]:
        """Delimiters before each token."""
        return self.delimiter.cumsum(0) - self.delimiter.long()

    @cached_property
    def word(self) -> Int[Tensor, " position"]:
        """A number for each occurrence of a word: all its pieces have one; -1: special."""
        if all(word is None for word in self.words):
            return _words_of(self.raw, self.plain)
        # Words are counted within their own text; a pair has two.
        places = list(zip(self.sentence.tolist(), self.words, strict=True))
        return numbered(
            None if not plain else place if place[1] is not None else (index, None)
            for index, (place, plain) in enumerate(zip(places, self.plain, strict=True))
        )

    @cached_property
    def spelling(self) -> Int[Tensor, " position"]:
        """A number for words that are written alike, whatever their case; -1: special."""
        numbers, spelled = self.word.tolist(), dict[int, str]()
        for number, string in zip(numbers, self.strings, strict=True):
            spelled[number] = spelled.get(number, "") + string.lstrip("".join(_SPACES))
        return numbered(None if n < 0 else spelled[n].casefold() for n in numbers)

    def offsets(self, queries: Queries) -> Int[Tensor, "query key"]:
        """key - query."""
        position = torch.arange(len(self))
        return position - position[queries, None]

    def allowed(self, queries: Queries) -> Bool[Tensor, "query key"]:
        """True where a query sees a key."""
        offsets = self.offsets(queries)
        allowed = offsets <= 0 if self.causal else torch.ones_like(offsets, dtype=torch.bool)
        if self.seen is None:
            return allowed
        if isinstance(self.seen, Tensor):
            return allowed & self.seen[queries]
        before, after = self.seen
        return allowed & (offsets >= -before) & (offsets <= after)


def numbered(values: object) -> Int[Tensor, " position"]:
    """Equal numbers for equal values, in the order of first sight; -1 for None."""
    seen: dict[object, int] = {None: -1}
    return torch.tensor([seen.setdefault(value, len(seen) - 1) for value in values])  # type: ignore[attr-defined]


def _words_of(raw: Sequence[str], plain: Tensor) -> Int[Tensor, " position"]:
    """The words that the vocabulary's own strings show."""
    spaced = any(string.startswith(_SPACES) for string in raw)
    words: list[int] = []
    number, before = -1, ""
    for string, hidden in zip(raw, (~plain).tolist(), strict=True):
        goes_on = string.startswith(_CONTINUES)
        if spaced:
            # Python takes the sign Ġ for a letter.
            begins = string.startswith(_SPACES)
            goes_on = not begins and before[-1:].isalnum() and string[:1].isalnum()
        number += not hidden and not (goes_on and before)
        words.append(-1 if hidden else number)
        before = "" if hidden else string
    return torch.tensor(words)


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
    baseline   what one would see without the pattern:
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


_VIG_1, _VIG_2 = "Vig 2019, Deconstructing BERT, part 1", "Vig 2019, Deconstructing BERT, part 2"
_CLARK = "Clark et al. 2019, section 3"
BAG_OF_WORDS = "bag_of_words"

_ALL = (
    Pattern("next", "the next token", f"{_VIG_1}; {_CLARK}.1", _at_offset(1)),
    Pattern("previous", "the previous token", f"{_VIG_1}; {_CLARK}.1", _at_offset(-1)),
    Pattern("first", "the first token", f"{_CLARK}.2; Vig and Belinkov 2019, section 4", _first),
    Pattern("delimiter", "delimiters ([SEP])", f"{_VIG_1}; {_CLARK}.2", _delimiter),
    Pattern(
        BAG_OF_WORDS, "all words of the sentence alike", _VIG_2, _bag_of_words, baseline="drawn"
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
        "the token after an earlier occurrence of this one",
        "Olsson et al. 2022, prefix matching",
        _behind_occurrence(1),
        texts="repeated",
    ),
    Pattern(
        "duplicate",
        "an earlier occurrence of this token",
        "Wang et al. 2022, section 3",
        _behind_occurrence(0),
        texts="repeated",
    ),
)
PATTERNS = {pattern.name: pattern for pattern in _ALL}
#: Those of `head_scores`.
SCORED = ("previous", "next", "duplicate", "induction", "delimiter")


def pattern_of(name: str) -> Pattern:
    """The pattern of that name; AttentionError for an unknown name."""
    found = PATTERNS.get(name)
    if found is None:
        raise AttentionError(
            f"{name!r:.80} is not a pattern of heads{did_you_mean(name, PATTERNS)}; there are "
            f"{', '.join(PATTERNS)}."
        )
    return found


def repeated_ids(
    vocab_size: int,
    *,
    length: int = LENGTH,
    draws: int = DRAWS,
    seed: int = 0,
    low: int = 0,
    exclude: Collection[int] = (),
    first: int | None = None,
    last: int | None = None,
) -> Int[Tensor, "draws position"]:
    """Sequences of `length` random ids, each followed by itself: first? x x last?

    Ids are drawn from low to vocab_size - 1 without those in `exclude`, all equally likely. The
    ids of one x differ from each other, so that each token of the second half has exactly one
    previous occurrence, whatever the size of the vocabulary. `first` and `last` are put around
    each sequence ([CLS] and [SEP], say). The same seed gives the same ids.

    Raises TokenizationError where fewer than `length` ids are left to draw from.

    Source: Olsson et al. 2022, "In-context Learning and Induction Heads", head activation
    evaluators; 2 x 50 tokens as in ARENA's exercises. Both draw with replacement: with a large
    vocabulary the ids of one x nearly always differ there as well.

    >>> repeated_ids(7, length=3, draws=1, first=0, low=1).tolist()
    [[0, 3, 6, 4, 3, 6, 4]]
    """
    least = {"vocab_size": 1, "length": 2, "draws": 1, "low": 0, "seed": 0}
    vocab_size, length, draws, low, seed = (
        whole_number(name, value, TokenizationError, least=least[name])
        for name, value in zip(least, (vocab_size, length, draws, low, seed), strict=True)
    )
    others = listed(exclude, "exclude", TokenizationError, "token ids, as [101, 102]")
    named = [("first", first), ("last", last), *(("exclude: id", i) for i in others)]
    barred = {
        whole_number(name, i, TokenizationError, least=0) for name, i in named if i is not None
    }
    usable = torch.tensor([i for i in range(low, vocab_size) if i not in barred])
    if len(usable) < length:
        raise TokenizationError(
            f"A sequence of length={length} needs as many different ids, and {len(usable)} can be "
            f"drawn: {low} to {vocab_size - 1} without special ones. Ask for a shorter length."
        )
    generator = torch.Generator().manual_seed(seed)
    halves = [
        usable[torch.randperm(len(usable), generator=generator)[:length]] for _ in range(draws)
    ]
    half = torch.stack(halves)
    ends = [None if i is None else half.new_full((draws, 1), i) for i in (first, last)]
    return torch.cat([part for part in (ends[0], half, half, ends[1]) if part is not None], dim=1)


def draws_for(model: Model, *, length: int = LENGTH) -> Int[Tensor, "draws position"]:
    """The repeated sequences that a model is measured on by default.

    100 draws of 2 x `length` tokens without special ones, between [CLS] and [SEP] where a model
    that is not causal has them. Raises TokenizationError where its positions or vocabulary are
    too few.
    """
    check_model(model)
    one = model.config
    return draws_of(
        model.name, model.tokenizer, one.causal, one.vocab_size, one.n_positions, one.pad_id, length
    )


def draws_of(
    name: str,
    tokenizer: Tokenizer | None,
    causal: bool,
    vocab_size: int,
    n_positions: int,
    pad_id: int | None,
    length: int = LENGTH,
) -> Int[Tensor, "draws position"]:
    """Random repeated sequences for anything that reads ids, by its sizes."""
    length = whole_number("length", length, TokenizationError, least=2)
    # RoBERTa counts positions around its padding id.
    special = {pad_id, *(() if tokenizer is None else tokenizer.special_ids)} - {None}
    first = last = None
    if tokenizer is not None and not causal:
        first, last = tokenizer.cls_id, tokenizer.sep_id
    around = (first is not None) + (last is not None)
    if 2 * length + around > n_positions:
        raise TokenizationError(
            f"{name} has {n_positions} positions, fewer than the repeated sequences of 2 x "
            f"{length} tokens (+ {around} around them) need; give shorter ones, "
            f"repeated=draws_for(model, length={(n_positions - around) // 2}) of a loaded model, "
            "or what repeated_ids makes."
        )
    known = vocab_size if tokenizer is None else min(vocab_size, tokenizer.vocab_size)
    return repeated_ids(known, length=length, exclude=special, first=first, last=last)


def chosen_delimiters(
    name: str, tokenizer: Tokenizer | None, vocab_size: int, chosen: Collection[int] | None
) -> list[int]:
    """The ids of delimiters; none where neither the caller nor a tokenizer names one."""
    if chosen is None and tokenizer is not None:
        chosen = [i for i in (tokenizer.sep_id, tokenizer.eos_id) if i is not None][:1]
    none = () if chosen is None else chosen
    ids = listed(none, "delimiters", TokenizationError, "token ids, as [102]")
    what, most = f"delimiters of {name}: id", vocab_size - 1
    return [whole_number(what, i, TokenizationError, least=0, most=most) for i in ids]


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class HeadScores(Result[Tensor]):
    """The share of its attention, 0 to 1, that each head spends on each pattern.

    The axes are (layer, head, pattern); `scores["induction"]` and `scores.induction` are those of
    one pattern, (layer, head). A score is nan where it could not be measured: `next` in a causal
    model, which cannot look ahead, and what names no key in the texts, as `delimiter` on texts
    without one.
    """

    @classmethod
    def of(cls, scores: Mapping[str, Float[Tensor, "layer head"]]) -> "HeadScores":
        """The scores of patterns by their names."""
        names, unit = "layer head pattern", "share of attention"
        labels = {"pattern": tuple(scores)}
        values = torch.stack(list(scores.values()), -1)
        return cls(values, names, "Patterns of heads", unit, labels, limits=(0.0, 1.0))

    @property
    def patterns(self) -> tuple[str, ...]:
        """The names of the patterns."""
        return tuple(map(str, self.labels["pattern"]))

    def best(self, name: str) -> tuple[int, int, float]:
        """The layer and head that score highest on a pattern, counted from 0, and the score.

        Raises TraceError for a name that is not a pattern here, and where nothing was measured.
        """
        if name not in self.patterns:
            there = ", ".join(self.patterns)
            raise TraceError(
                f"{name!r:.80} is not a pattern of heads"
                f"{did_you_mean(name, self.patterns)}; there are {there}."
            )
        ranking = self._ranking(name)
        if not ranking:
            raise TraceError(
                f"No head has a score for {name!r}, which named no key in these texts: a causal "
                "model cannot look at the next token, and without delimiters in the texts there is "
                "no delimiter score."
            )
        return ranking[0]

    def by_pattern(self) -> dict[str, list[list[float | None]]]:
        """A list of layers of one number a head for each pattern, for JSON; None where nan.

        Rounded to six decimals.
        """
        return {
            name: [[_plain(score) for score in layer] for layer in self[name].tolist()]
            for name in self.patterns
        }

    def __getattr__(self, name: str) -> Tensor:
        # While a copy is made there are no labels yet.
        if name in self.__dict__.get("labels", {}).get("pattern", ()):
            return self[name]
        raise AttributeError(f"{type(self).__name__} has no {name!r}")

    def _ranking(self, name: str) -> list[tuple[int, int, float]]:
        heads = [
            (layer, head, score)
            for layer, row in enumerate(self[name].tolist())
            for head, score in enumerate(row)
            if not math.isnan(score)
        ]
        return sorted(heads, key=lambda entry: -entry[2])

    def __str__(self) -> str:
        lines = ["pattern    layer-head score, the highest first"]
        for name in self.patterns:
            best = self._ranking(name)[:_SHOWN]
            cells = (f"{f'{layer}-{head}':>5} {score:.2f}" for layer, head, score in best)
            lines.append(f"{name:<10}" + ("  ".join(cells) if best else "    - not measured"))
        return "\n".join(lines)


def _plain(score: float) -> float | None:
    return None if math.isnan(score) else round(score, _DECIMALS)


@sourced
def head_scores(
    model: Model,
    tokens: Input | Sequence[Tokens],
    *,
    repeated: Int[Tensor, "draws position"] | None = None,
    delimiters: Collection[int] | None = None,
) -> HeadScores:
    """The five scores of every head: means over sentences of what each sentence scores.

    `tokens` is the text for previous, next and delimiter: Tokens, a list of Tokens, ids, or text.
    Padding never counts. Rows of special tokens do not count in previous and next, though such a
    neighbour does; a sentence in which no row counts is left out. `delimiters` are ids, by default
    the tokenizer's sep_id or, without one, its eos_id. In a causal model, only rows that have a
    delimiter before them count for that score, and next is nan.

    `repeated` is what `repeated_ids` gives, for duplicate and induction; by default 100 draws
    of 2 x 50 tokens without special ones, between [CLS] and [SEP] for a model that is not causal.

    Gradients are neither needed nor kept, and memory is bounded whatever the number of sentences.
    Raises TokenizationError for input that the model cannot read, and where the repeated sequences
    do not fit the model's positions or vocabulary.
    """
    check_model(model)
    repeats = draws_for(model) if repeated is None else repeated
    ends = chosen_delimiters(model.name, model.tokenizer, model.config.vocab_size, delimiters)
    found: dict[str, Tensor] = {}
    for texts, given in (("corpus", _as_list(tokens)), ("repeated", [repeats])):
        chosen = [PATTERNS[name] for name in SCORED if PATTERNS[name].texts == texts]
        scores = _scores(model, given, chosen, ends)
        found |= zip([one.name for one in chosen], scores, strict=True)
    return HeadScores.of({name: found[name] for name in SCORED})


def _scores(
    model: Model, given: Sequence[Input], patterns: Sequence[Pattern], delimiters: list[int]
) -> Float[Tensor, "pattern layer head"]:
    """The mean over sentences of the mean over rows; nan where no row of any sentence counts."""
    size = len(patterns), model.config.n_layers, model.config.n_heads
    total, sentences = torch.zeros(size, dtype=torch.float64), torch.zeros(size[0], 1, 1)
    dtype, causal = torch.float32, model.config.causal
    with torch.no_grad():
        for trace in _sentences(model, given):
            marks = Marks.of_tokens(trace.tokens, delimiters, model.tokenizer, causal=causal)
            means, dtype = _of_sentence(trace, marks, patterns), wide(trace.embed).dtype
            sentences += ~means[:, :1, :1].isnan()
            total += means.nan_to_num()
    return (total / sentences).to(dtype)


def _sentences(model: Model, given: Sequence[Input]) -> Iterator[Trace]:
    """A trace of each sentence, traced as many at a time as there is memory for."""
    config = model.config
    for tokens in (model.inputs(one).as_tokens(model.tokenizer) for one in given):
        # What a trace keeps of a layer: eight vectors or so a position.
        size = max(1, _KEPT // (config.n_layers * tokens.ids.shape[1] * 8 * config.d_model))
        for first in range(0, len(tokens), size):
            some = itemgetter(slice(first, first + size))
            part = tokens.each(some, some)
            # The last layer's attention is all that is wanted of it: no MLP, no logits.
            trace = model.trace(part, until=config.n_layers - 1)
            yield from (trace.text(row) for row in range(len(part)))


def _of_sentence(
    trace: Trace, marks: Marks, patterns: Sequence[Pattern]
) -> Float[Tensor, "pattern layer head"]:
    """The means over rows of one sentence, in float64; nan where none counts."""
    N, heads = trace.allowed.position, trace.config.n_heads
    step = max(1, NUMBERS // (N * heads))
    sums, count = torch.zeros((), dtype=torch.float64), torch.zeros(())
    for start in range(0, N, step):
        queries = slice(start, min(start + step, N))
        allowed = marks.allowed(queries)
        chosen = torch.stack([one.cells(marks, queries) & allowed for one in patterns])
        chosen = chosen.to(trace.embed.device)
        rows, layers = chosen.any(-1)[:, None], []  # pattern 1 query
        for layer in range(trace.config.n_layers):
            probs = wide(trace.at(layer, queries=queries).probs)[0]
            mass = torch.einsum("hqk,nqk->nhq", probs, chosen.to(probs))
            layers.append(mass.sum(-1, dtype=torch.float64).cpu())
        sums, count = sums + torch.stack(layers, 1), count + rows.sum(-1)[..., None].cpu()
    return sums / count


def _as_list(tokens: Any) -> list[Input]:
    """One entry for each thing that the model can read at once."""
    if not isinstance(tokens, Sequence) or not any(isinstance(each, Tokens) for each in tokens):
        return [tokens]
    if not all(isinstance(each, Tokens) for each in tokens):
        raise TokenizationError("Expected only Tokens in this list; it also holds other types.")
    return [*tokens]


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class SharedDimensions(Result[Tensor]):
    """How much of their largest products the queries of each head share, 0 to 1: (layer, head).

    It is the mean over pairs of queries of a sentence, and over sentences.

    chance  what queries would share that choose `top` dimensions at random
    """

    chance: float
    top: int


@sourced
def shared_dimensions(trace: Trace, *, top: int = 4) -> SharedDimensions:
    """The share of their `top` largest query·key products that two queries have in common.

    A score is a sum over d_head products query·key. Vig saw that a head which looks at delimiters
    has the same few large products for every query, and that a head which looks at the next word
    has not:

        shared = mean over pairs of queries of |largest(i) ∩ largest(j)| / top

    where largest(i) are the `top` dimensions of query i with the largest product with the key that
    it attends to most. Two queries that choose at random share top / d_head. Source: Vig 2019,
    "Deconstructing BERT, part 2", who shows it in pictures.

    Sentences of one token have no pair and do not count. Raises TraceError for what is not a trace,
    for a `top` outside 1 to d_head, and where no sentence has two tokens.
    """
    check_trace(trace)
    config = trace.config
    top = whole_number("top", top, TraceError, least=1, most=config.d_head)
    texts = [trace.text(row) for row in range(trace.allowed.batch)]
    several = [text for text in texts if text.allowed.position > 1]
    if not several:
        raise TraceError("No sentence has two tokens, so no two queries can be compared.")
    with torch.no_grad():
        shared = torch.stack([_shared(text, top) for text in several]).mean(0)
    chance = top / config.d_head
    title = f"the {top} largest products, {chance:.2f} by chance"
    names, unit, limits = "layer head", "share in common", (0.0, 1.0)
    return SharedDimensions(shared, names, title, unit, limits=limits, chance=chance, top=top)


def _shared(trace: Trace, top: int) -> Float[Tensor, "layer head"]:
    N, group = trace.allowed.position, trace.config.n_heads // trace.config.n_kv_heads
    layers = []
    for layer in trace:
        query = wide(layer.query)[0]
        key = wide(layer.key)[0].repeat_interleave(group, 0)
        looked_at = layer.probs[0].argmax(-1)[..., None].expand_as(query)
        product = query * key.gather(1, looked_at)
        # 1 where a dimension is among a query's largest.
        large = torch.zeros_like(product).scatter(-1, product.topk(top).indices, 1.0)
        common = large @ large.mT / top
        layers.append((common.sum((-2, -1)) - N) / (N * (N - 1)))
    return torch.stack(layers)
