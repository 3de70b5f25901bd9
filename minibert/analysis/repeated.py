"""Random sequences that say everything twice: the text on which induction shows itself.

Random tokens have no grammar and no meaning, so whoever predicts the second half must have looked
the first half up.
"""

from collections.abc import Collection
from typing import TYPE_CHECKING, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

from minibert.analysis.arguments import check_model, listed, whole_number
from minibert.errors import TokenizationError
from minibert.quantities import Int

if TYPE_CHECKING:
    from minibert.model import Model
    from minibert.text.tokenizer import Tokenizer

__all__ = ["DRAWS", "LENGTH", "Halves", "draws_for", "draws_of", "find_halves", "repeated_ids"]

LENGTH, DRAWS = 50, 100


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
    def tokenizer(self) -> "Tokenizer | None":
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


def draws_for(model: "Model", *, length: int = LENGTH) -> Int[Tensor, "draws position"]:
    """The repeated sequences that a model is measured on when nobody gives any.

    100 draws of 2 x `length` tokens without special ones, between [CLS] and [SEP] where a model
    that is not causal has them. Raises TokenizationError where its positions or vocabulary are
    too few.
    """
    check_model(model)
    return draws_of(model, length=length)


def draws_of(model: ReadsIds, *, length: int = LENGTH) -> Int[Tensor, "draws position"]:
    """The same of whatever reads ids."""
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
