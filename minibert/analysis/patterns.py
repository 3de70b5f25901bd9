"""The five patterns that attention heads are known by, and how far each head follows them.

A score is the share of attention, 0 to 1, that goes where the pattern says: previous, next and
delimiter on text, duplicate and induction on random sequences that come twice.

The patterns are declared in pattern_kinds.py; the scores of one matrix are in matrix_scores.py, the
random sequences in repeated.py, the result in scores.py; here a model is run, and the mean taken
over sentences.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from minibert.analysis.arguments import check_model, listed, whole_number
from minibert.analysis.matrix_scores import (
    delimiter_score,
    duplicate_score,
    induction_score,
    mean_of_rows,
    next_score,
    previous_score,
)
from minibert.analysis.pattern_kinds import KINDS
from minibert.analysis.repeated import Halves, ReadsIds, draws_for, find_halves, repeated_ids
from minibert.analysis.scores import PATTERNS, HeadScores
from minibert.errors import TokenizationError
from minibert.quantities import Bool, Float, Int
from minibert.text.tokens import Tokens
from minibert.trace.statistics import masses_of

if TYPE_CHECKING:
    from minibert.model import Model
    from minibert.text.tokenizer import Tokenizer
    from minibert.trace.read import Trace

__all__ = [
    "PATTERNS",
    "HeadScores",
    "chosen_delimiters",
    "delimiter_ids",
    "delimiter_score",
    "duplicate_score",
    "head_scores",
    "induction_score",
    "next_score",
    "previous_score",
    "repeated_ids",
]

# Numbers that one forward pass may hold: 128 MiB in float32.
_NUMBERS = 2**25


def head_scores(
    model: "Model",
    tokens: Any,
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
    marks = delimiter_ids(model, delimiters)
    means = {name: _Mean() for name in PATTERNS}
    with torch.no_grad():
        for part in (part for text in texts for part in text.parts(model)):
            patterns = _text_patterns(part, marks, causal=model.config.causal)
            _measure(model, part, patterns, means)
        for part in repeats.parts(model):
            _measure(model, part, _repeat_patterns(part, halves), means)
    size = (model.config.n_layers, model.config.n_heads)
    return HeadScores(**{name: mean.value(size) for name, mean in means.items()})


@dataclass(frozen=True, eq=False)
class _Sentences:
    """A batch as far as the scores need it."""

    ids: Int[Tensor, "batch position"]
    real: Bool[Tensor, "batch position"]
    segments: Int[Tensor, "batch position"]
    special: Bool[Tensor, "batch position"]

    def parts(self, model: "Model") -> Iterator["_Sentences"]:
        """The same in pieces that one forward pass has memory for, cut to their longest."""
        config, (B, N) = model.config, self.ids.shape
        # What a trace keeps of a layer: eight vectors or so a position.
        numbers = config.n_layers * N * 8 * config.d_model
        size = max(1, _NUMBERS // numbers)
        for rows in (slice(first, first + size) for first in range(0, B, size)):
            columns = slice(int(self.real[rows].sum(1).max()))
            yield _Sentences(
                ids=self.ids[rows, columns],
                real=self.real[rows, columns],
                segments=self.segments[rows, columns],
                special=self.special[rows, columns],
            )


class _Pattern(NamedTuple):
    """The rows that count for a pattern, and the keys it looks at, by offset or by position."""

    rows: Bool[Tensor, "batch position"]
    offset: int | None = None
    keys: Bool[Tensor, "batch position"] | None = None


class _Mean:
    """A running mean over sentences, of those that a score applies to."""

    def __init__(self) -> None:
        self.total: Tensor | float = 0.0
        self.count = 0

    def add(
        self, scores: Float[Tensor, "layer batch head"], applies: Bool[Tensor, " batch"]
    ) -> None:
        self.total = self.total + scores[:, applies].cpu().double().sum(1)
        self.count += int(applies.sum())

    def value(self, size: tuple[int, int]) -> Float[Tensor, "layer head"]:
        if not self.count:
            return torch.full(size, torch.nan)
        return torch.as_tensor(self.total / self.count, dtype=torch.float32)


def _measure(
    model: "Model", part: _Sentences, patterns: dict[str, _Pattern], means: dict[str, _Mean]
) -> None:
    """Add what each sentence of this part scores to the means."""
    tokens = Tokens.from_ids(part.ids, mask=part.real, segments=part.segments)
    # The last layer's attention is all that is wanted of it: no MLP, no logits.
    trace = model.trace(tokens, until=model.config.n_layers - 1)
    scores: dict[str, list[Tensor]] = {name: [] for name in patterns}
    for layer in range(len(trace)):
        masses = _masses(trace, layer, patterns)
        for name, (rows, _, _) in patterns.items():
            scores[name].append(mean_of_rows(masses[name], rows[:, None]))
    for name, (rows, _, _) in patterns.items():
        means[name].add(torch.stack(scores[name]), rows.any(1))


def _masses(
    trace: "Trace", layer: int, patterns: dict[str, _Pattern]
) -> dict[str, Float[Tensor, "batch head position"]]:
    """What each row of a layer spends on the keys of each pattern."""
    offsets = [one.offset for one in patterns.values() if one.offset is not None]
    marks = [one.keys for one in patterns.values() if one.keys is not None]
    near, marked = masses_of(trace, layer, offsets, marks[0] if marks else None)
    names = [name for name, one in patterns.items() if one.offset is not None]
    found = dict(zip(names, near.unbind(-1), strict=True))
    if marked is not None:
        found["delimiter"] = marked
    return found


def _text_patterns(part: _Sentences, marks: Tensor, *, causal: bool) -> dict[str, _Pattern]:
    delimiters = torch.isin(part.ids, marks) & part.real
    plain = part.real & ~part.special & ~delimiters
    preceded = plain.clone()
    preceded[:, 0] = False
    followed = plain.clone()
    followed[:, -1] = False
    followed[:, :-1] &= part.real[:, 1:]
    seen = delimiters.cumsum(1) > 0 if causal else delimiters.any(1, keepdim=True)
    others = part.real & ~delimiters & seen
    patterns = {
        "previous": _Pattern(preceded, offset=KINDS["previous"].offset),
        "next": _Pattern(followed, offset=KINDS["next"].offset),
        "delimiter": _Pattern(others, keys=delimiters),
    }
    if causal:
        del patterns["next"]
    return patterns


def _repeat_patterns(part: _Sentences, halves: Halves) -> dict[str, _Pattern]:
    start, length = halves
    position = torch.arange(part.real.shape[1], device=part.real.device)
    second = (position >= start + length) & (position < start + 2 * length)
    rows = part.real & second
    return {
        name: _Pattern(rows, offset=kind.offset_in(length))
        for name, kind in KINDS.items()
        if kind.behind is not None
    }


def _as_list(tokens: Any) -> list[Any]:
    """One entry for each thing that the model can read at once."""
    several = isinstance(tokens, Sequence) and any(isinstance(each, Tokens) for each in tokens)
    if several and not all(isinstance(each, Tokens) for each in tokens):
        raise TokenizationError("A list of Tokens holds Tokens only; this one holds other things.")
    return list(tokens) if several else [tokens]


def _sentences(model: "Model", text: Any) -> _Sentences:
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


def delimiter_ids(model: "Model", chosen: Collection[int] | None) -> Int[Tensor, " id"]:
    """The same as a tensor beside the weights."""
    return _table(model, chosen_delimiters(model, chosen))


def chosen_delimiters(model: ReadsIds, chosen: Collection[int] | None) -> list[int]:
    """The ids of delimiters; none where neither the caller nor a tokenizer names one."""
    tokenizer: Tokenizer | None = model.tokenizer
    if chosen is None and tokenizer is not None:
        chosen = [i for i in (tokenizer.sep_id, tokenizer.eos_id) if i is not None][:1]
    none = () if chosen is None else chosen
    ids = listed(none, "delimiters", TokenizationError, "token ids, as [102]")
    most = model.config.vocab_size - 1
    return [
        whole_number(f"delimiters of {model.name}: id", i, TokenizationError, least=0, most=most)
        for i in ids
    ]


def _table(model: "Model", ids: Collection[int]) -> Int[Tensor, " id"]:
    return torch.tensor([*ids], dtype=torch.int64, device=model.body.word.weight.device)
