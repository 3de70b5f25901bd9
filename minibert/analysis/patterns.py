"""The patterns that attention heads are known by, and how far each head follows them.

A score is the share of attention, 0 to 1, that goes where the pattern says: previous, next and
delimiter on text, duplicate and induction on random sequences that come twice. Random tokens have
no grammar and no meaning, so whoever predicts the second half must have looked the first half up.

KINDS                     the five patterns, each declared once
repeated_ids, draws_for   random sequences that say everything twice
head_scores               a model is run, and the mean taken over sentences
pattern_scores            the same for patterns of one's own
shared_dimensions         whether the queries of a head use the same few dimensions

Clark et al. divide the scores of neighbours by the number of all rows; here rows without such a
neighbour do not count. Of delimiters this is the mass from other tokens of their code. Rows of
delimiters are left out: heads that look at [SEP] from everywhere spend over 90 % of [SEP]'s own
attention on [SEP], which says nothing about other tokens. TransformerLens' head detector marks the
same cells of repeated sequences; ARENA takes the mean of the whole diagonal, which has one row of
the first half as well.
"""

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

from minibert.analysis.arguments import (
    check_callable,
    check_model,
    check_trace,
    listed,
    whole_number,
)
from minibert.analysis.rows import wide
from minibert.errors import TokenizationError, TraceError
from minibert.model import Input, Model
from minibert.quantities import Bool, Float, Int
from minibert.result import Result, sourced
from minibert.text.tokenizer import Tokenizer
from minibert.text.tokens import Tokens
from minibert.trace.read import Trace
from minibert.trace.statistics import masses_of

Pattern = Callable[[Tokens], Tensor]

LENGTH, DRAWS = 50, 100
# Numbers that one forward pass may hold: 128 MiB in float32.
_NUMBERS = 2**25
# Heads that a printed table names for each pattern.
_SHOWN = 3
# Far below the noise of a hundred sequences, and short enough to read in a log.
_DECIMALS = 6
_VIG, _CLARK = "Vig 2019, Deconstructing BERT, part 1", "Clark et al. 2019, section 3"


@dataclass(frozen=True)
class PatternKind:
    """What one kind of head looks at: the key of each query.

    words    "heads that look at ..."
    source   who described it
    offset   the key stands so far behind the query
    behind   the key stands so far behind an earlier occurrence of the query's token; measured on
             sequences that come twice

    Without offset and behind the keys are the delimiters.
    """

    name: str
    words: str
    source: str
    offset: int | None = None
    behind: int | None = None


_ALL = (
    PatternKind("previous", "the previous token", f"{_VIG}; {_CLARK}.1", offset=-1),
    PatternKind("next", "the next token", f"{_VIG}; {_CLARK}.1", offset=1),
    PatternKind(
        "duplicate",
        "an earlier occurrence of this token",
        "Wang et al. 2022, section 3",
        behind=0,
    ),
    PatternKind(
        "induction",
        "the token behind an earlier occurrence of this one",
        "Olsson et al. 2022, prefix matching",
        behind=1,
    ),
    PatternKind("delimiter", "delimiters ([SEP])", f"{_VIG}; {_CLARK}.2"),
)
KINDS = {kind.name: kind for kind in _ALL}
PATTERNS = tuple(KINDS)


def mean_of_rows(values: Tensor, rows: Tensor | None) -> Tensor:
    """The mean of one number a row over the rows that count; nan where none does."""
    if rows is None:
        return values.mean(-1)
    # Not a product with the mask: what stands in rows that do not count must not matter.
    return torch.where(rows, values, 0).sum(-1) / rows.sum(-1)


@runtime_checkable
class Vocabulary(Protocol):
    """What is asked of a config here."""

    @property
    def vocab_size(self) -> int:
        """The ids that there are."""

    @property
    def n_positions(self) -> int:
        """Tokens that the model sees at once."""

    @property
    def causal(self) -> bool:
        """Whether a token sees no key behind it."""

    @property
    def pad_id(self) -> int | None:
        """The id of padding."""


@runtime_checkable
class ReadsIds(Protocol):
    """What is asked of a model here."""

    @property
    def name(self) -> str:
        """For messages."""

    @property
    def config(self) -> Vocabulary:
        """Its sizes."""

    @property
    def tokenizer(self) -> Tokenizer | None:
        """None: it reads no text."""


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


class Halves(NamedTuple):
    """Where the sequence stands that comes twice: position `start`, and `length` later again."""

    start: int
    length: int


def find_halves(ids: Int[Tensor, "draws position"]) -> Halves:
    """The halves of what `repeated_ids` made, whatever was put around them.

    Raises TokenizationError for ids that are not one sequence twice, the same way in every row.
    """
    width = ids.shape[1]
    for first, last in ((0, 0), (1, 1), (1, 0), (0, 1)):
        length, odd = divmod(width - first - last, 2)
        middle = first + length
        if odd or length < 2:
            continue
        if torch.equal(ids[:, first:middle], ids[:, middle : middle + length]):
            return Halves(first, length)
    raise TokenizationError(
        f"repeated has shape {tuple(ids.shape)} and is no sequence followed by itself, with at "
        "most one token before and one behind; make it with repeated_ids."
    )


def draws_for(model: Model, *, length: int = LENGTH) -> Int[Tensor, "draws position"]:
    """The repeated sequences that a model is measured on when nobody gives any.

    100 draws of 2 x `length` tokens without special ones, between [CLS] and [SEP] where a model
    that is not causal has them. Raises TokenizationError where its positions or vocabulary are
    too few.
    """
    check_model(model)
    return draws_of(model, length=length)


def draws_of(model: ReadsIds, *, length: int = LENGTH) -> Int[Tensor, "draws position"]:
    """The repeated sequences of `draws_for`, of whatever reads ids."""
    length = whole_number("length", length, TokenizationError, least=2)
    config, tokenizer = model.config, model.tokenizer
    vocab_size = config.vocab_size if tokenizer is None else tokenizer.vocab_size
    # RoBERTa counts positions around its padding id.
    special = {config.pad_id, *(() if tokenizer is None else tokenizer.special_ids)} - {None}
    first = last = None
    if tokenizer is not None and not config.causal:
        first, last = tokenizer.cls_id, tokenizer.sep_id
    around = (first is not None) + (last is not None)
    if 2 * length + around > config.n_positions:
        raise TokenizationError(
            f"{model.name} has {config.n_positions} positions, fewer than the repeated sequences "
            f"of 2 x {length} tokens (+ {around} around them) need; give shorter ones, "
            f"repeated=draws_for(model, length={(config.n_positions - around) // 2}) of a loaded "
            "model, or what repeated_ids makes."
        )
    return repeated_ids(
        min(vocab_size, config.vocab_size),
        length=length,
        draws=DRAWS,
        exclude=special,
        first=first,
        last=last,
    )


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

        Raises TraceError for a name that is no pattern here, and where nothing was measured.
        """
        if name not in self.patterns:
            there = ", ".join(self.patterns)
            raise TraceError(f"{name!r:.80} is no pattern of heads; there are {there}.")
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
    texts = [_sentences(model, part) for part in _as_list(tokens)]
    repeats = _sentences(model, draws_for(model) if repeated is None else repeated)
    halves = find_halves(repeats.ids)
    marks = _table(model, chosen_delimiters(model, delimiters))
    means = {name: _Mean() for name in PATTERNS}
    with torch.no_grad():
        for part in (part for text in texts for part in text.parts(model)):
            patterns = _text_patterns(part, marks, causal=model.config.causal)
            _measure(model, part, patterns, means)
        for part in repeats.parts(model):
            _measure(model, part, _repeat_patterns(part, halves), means)
    size = (model.config.n_layers, model.config.n_heads)
    return HeadScores.of({name: mean.value(size) for name, mean in means.items()})


@dataclass(frozen=True, eq=False)
class _Sentences:
    """A batch as far as the scores need it; each is (batch, position)."""

    ids: Int[Tensor, "batch position"]
    real: Bool[Tensor, "batch position"]
    segments: Int[Tensor, "batch position"]
    special: Bool[Tensor, "batch position"]

    def parts(self, model: Model) -> Iterator["_Sentences"]:
        """The same in pieces that one forward pass has memory for, cut to their longest."""
        config, (B, N) = model.config, self.ids.shape
        # What a trace keeps of a layer: eight vectors or so a position.
        size = max(1, _NUMBERS // (config.n_layers * N * 8 * config.d_model))
        for rows in (slice(first, first + size) for first in range(0, B, size)):
            columns = slice(int(self.real[rows].sum(1).max()))
            yield _Sentences(**{name: x[rows, columns] for name, x in vars(self).items()})


class _Pattern(NamedTuple):
    """The rows that count for a pattern, and the keys it looks at, by offset or by position."""

    rows: Bool[Tensor, "batch position"]
    offset: int | None = None
    keys: Bool[Tensor, "batch position"] | None = None


class _Mean:
    """A running mean over sentences, of those that a score applies to."""

    def __init__(self) -> None:
        self.total: Tensor | float = 0.0
        self.count, self.dtype = 0, torch.float32

    def add(
        self, scores: Float[Tensor, "layer batch head"], applies: Bool[Tensor, " batch"]
    ) -> None:
        self.total = self.total + scores[:, applies].cpu().double().sum(1)
        self.dtype = torch.promote_types(self.dtype, scores.dtype)
        self.count += int(applies.sum())

    def value(self, size: tuple[int, int]) -> Float[Tensor, "layer head"]:
        if not self.count:
            return torch.full(size, torch.nan)
        return torch.as_tensor(self.total / self.count, dtype=self.dtype)


def _measure(
    model: Model, part: _Sentences, patterns: dict[str, _Pattern], means: dict[str, _Mean]
) -> None:
    """Add what each sentence of this part scores to the means."""
    tokens = Tokens.from_ids(part.ids, mask=part.real, segments=part.segments)
    # The last layer's attention is all that is wanted of it: no MLP, no logits.
    trace = model.trace(tokens, until=model.config.n_layers - 1)
    near = {name: one.offset for name, one in patterns.items() if one.offset is not None}
    marks = next((one.keys for one in patterns.values() if one.keys is not None), None)
    scores: dict[str, list[Tensor]] = {name: [] for name in patterns}
    for layer in range(len(trace)):
        masses, marked = masses_of(trace, layer, list(near.values()), marks)
        found = dict(zip(near, masses.unbind(-1), strict=True))
        for name, (rows, offset, _) in patterns.items():
            mass = found[name] if offset is not None else marked
            assert mass is not None, "masses on marks are given where marks are"
            scores[name].append(mean_of_rows(mass, rows[:, None]))
    for name, (rows, _, _) in patterns.items():
        means[name].add(torch.stack(scores[name]), rows.any(1))


def _text_patterns(part: _Sentences, marks: Tensor, *, causal: bool) -> dict[str, _Pattern]:
    delimiters = torch.isin(part.ids, marks) & part.real
    plain = part.real & ~part.special & ~delimiters
    nothing = torch.zeros_like(plain[:, :1])
    preceded = torch.cat((nothing, plain[:, 1:]), 1)
    followed = torch.cat((plain[:, :-1] & part.real[:, 1:], nothing), 1)
    seen = delimiters.cumsum(1) > 0 if causal else delimiters.any(1, keepdim=True)
    others = part.real & ~delimiters & seen
    following = {} if causal else {"next": _Pattern(followed, offset=KINDS["next"].offset)}
    return {
        "previous": _Pattern(preceded, offset=KINDS["previous"].offset),
        **following,
        "delimiter": _Pattern(others, keys=delimiters),
    }


def _repeat_patterns(part: _Sentences, halves: Halves) -> dict[str, _Pattern]:
    start, length = halves
    position = torch.arange(part.real.shape[1], device=part.real.device)
    rows = part.real & (position >= start + length) & (position < start + 2 * length)
    repeating = {name: kind.behind for name, kind in KINDS.items() if kind.behind is not None}
    return {name: _Pattern(rows, offset=behind - length) for name, behind in repeating.items()}


def _as_list(tokens: Any) -> list[Input]:
    """One entry for each thing that the model can read at once."""
    if not isinstance(tokens, Sequence) or not any(isinstance(each, Tokens) for each in tokens):
        return [tokens]
    if not all(isinstance(each, Tokens) for each in tokens):
        raise TokenizationError("A list of Tokens holds Tokens only; this one holds other things.")
    return [*tokens]


def _sentences(model: Model, text: Input) -> _Sentences:
    inputs = model.inputs(text)
    ids = inputs.ids.long()
    real = torch.ones_like(ids, dtype=torch.bool) if inputs.mask is None else inputs.mask
    segments = torch.zeros_like(ids) if inputs.segments is None else inputs.segments
    special = torch.zeros_like(real)
    if model.tokenizer is not None:
        special |= torch.isin(ids, _table(model, model.tokenizer.structural_ids))
    for row, marks in enumerate(() if inputs.tokens is None else inputs.tokens.special):
        special[row, : len(marks)] |= torch.tensor(marks, device=ids.device)
    return _Sentences(ids, real, segments, special)


def chosen_delimiters(model: ReadsIds, chosen: Collection[int] | None) -> list[int]:
    """The ids of delimiters; none where neither the caller nor a tokenizer names one."""
    tokenizer = model.tokenizer
    if chosen is None and tokenizer is not None:
        chosen = [i for i in (tokenizer.sep_id, tokenizer.eos_id) if i is not None][:1]
    none = () if chosen is None else chosen
    ids = listed(none, "delimiters", TokenizationError, "token ids, as [102]")
    most = model.config.vocab_size - 1
    return [
        whole_number(f"delimiters of {model.name}: id", i, TokenizationError, least=0, most=most)
        for i in ids
    ]


def _table(model: Model, ids: Collection[int]) -> Int[Tensor, " id"]:
    return torch.tensor([*ids], dtype=torch.int64, device=model.body.word.weight.device)


@sourced
def pattern_scores(model: Model, text: Input, patterns: Mapping[str, Pattern]) -> HeadScores:
    """The score of every head on patterns of one's own: the mean over sentences.

    A pattern is a function of one sentence that says which keys each query should look at. A score
    is the share of attention that goes there, as the mean over the rows for which the pattern says
    something. TransformerLens' `detect_head` takes such patterns too, and divides by all of the
    attention instead.

    A pattern is called with the Tokens of one sentence, without padding, and returns a mask or
    weights from 0 to 1, (query, key). Only rows with a key count, and only sentences with a row.

    Raises TraceError for what is no pattern and for weights of another shape or out of range, and
    TokenizationError for input that the model cannot read.
    """
    check_model(model)
    if not isinstance(patterns, Mapping) or not patterns:
        raise TraceError('patterns: expected functions by name, as {"first": function}.')
    for name, pattern in patterns.items():
        check_callable(pattern, f"patterns[{name!r:.80}]", TraceError)
    tokens = model.inputs(text).as_tokens(model.tokenizer)
    # The last layer's attention is all that is wanted of it: no MLP, no logits.
    with torch.no_grad():
        trace = model.trace(tokens, until=model.config.n_layers - 1)
        scores = torch.stack(
            [_of_sentence(trace.text(row), patterns) for row in range(len(tokens))]
        )
    return HeadScores.of(dict(zip(patterns, scores.nanmean(0), strict=True)))


def _of_sentence(
    trace: Trace, patterns: Mapping[str, Pattern]
) -> Float[Tensor, "pattern layer head"]:
    N = trace.allowed.position
    found = [_weights(name, pattern, trace.tokens, N) for name, pattern in patterns.items()]
    weights = torch.stack(found).to(trace.embed.device)
    rows = weights.any(-1)[:, None]  # pattern 1 query
    layers = []
    for layer in trace:
        probs = wide(layer.probs)[0]
        mass = torch.einsum("hqk,nqk->nhq", probs, weights.to(probs))
        layers.append(mean_of_rows(mass, rows))
    return torch.stack(layers, 1)


def _weights(name: str, pattern: Pattern, tokens: Tokens, length: int) -> Float[Tensor, "q k"]:
    found = pattern(tokens)
    shape = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
    if shape != (length, length):
        raise TraceError(
            f"The pattern {name!r:.80} gave {shape} for {length} tokens; expected a tensor of "
            f"shape {(length, length)}, (query, key)."
        )
    weights = found.to(torch.promote_types(found.dtype, torch.float32))
    if not bool(((weights >= 0) & (weights <= 1)).all()):
        raise TraceError(f"The pattern {name!r:.80}: expected a mask, or weights from 0 to 1.")
    return weights


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

    Sentences of one token have no pair and do not count. Raises TraceError for what is no trace,
    for a `top` that is none of 1 to d_head, and where no sentence has two tokens.
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
