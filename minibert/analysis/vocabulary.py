"""The ids and names of tokens, and the head that has a logit for each of them."""

import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from minibert.errors import TokenizationError, TraceError
from minibert.layers.heads import VocabularyHead
from minibert.quantities import Int
from minibert.text.tokenizer import Tokenizer
from minibert.trace.run import TracedModel

__all__ = [
    "known_tokens",
    "to_single_token",
    "token_id",
    "token_ids",
    "token_name",
    "vocabulary_head",
]

Token = int | str


def vocabulary_head(model: TracedModel) -> VocabularyHead:
    """The head with one logit a vocabulary entry at each position.

    Raises TraceError for a model without one.
    """
    head = model.head
    if not isinstance(head, VocabularyHead):
        raise TraceError(
            f"{model.name} has no logits of tokens: its task is {model.config.task!r}. Expected a "
            'model with a vocabulary head: task "causal-lm", "masked-lm" or "pre-training" '
            "(ELECTRA's pre-training has none)."
        )
    return head


def token_id(model: TracedModel, token: Any) -> int:
    """The id of a token, given as its id or as text that is one token (" Paris", "##s", "[SEP]").

    Raises TokenizationError for an id outside the vocabulary, for text that is no token or more
    than one, and for text where the model has no tokenizer.
    """
    if isinstance(token, str):
        return token_id(model, to_single_token(model, token))
    size = model.config.vocab_size
    # A bool counts as a number to Python; True for token 1 is a mistake.
    number = None if isinstance(token, bool) else _whole_number(token)
    if number is None:
        raise TokenizationError(
            f"{token!r} is no token; expected an id from 0 to {size - 1}, or the token as text."
        )
    if not 0 <= number < size:
        raise TokenizationError(
            f"Token id {number} is outside the vocabulary of {model.name}: "
            f"expected 0 to {size - 1}."
        )
    return number


def to_single_token(model: TracedModel | Tokenizer, text: str) -> int:
    """The id of a text that is one token, such as " Paris" or "##s", of a model or a tokenizer.

    Raises TokenizationError for text that is several tokens, which it names, or none, and for a
    model without a tokenizer.

    >>> import minibert
    >>> to_single_token(minibert.load("tiny-gpt2"), " the")
    263
    """
    if not isinstance(text, str):
        raise TokenizationError(f"{text!r:.80} is no text; expected one token, such as ' Paris'.")
    name = "this tokenizer" if isinstance(model, Tokenizer) else model.name
    tokenizer: Tokenizer | None = model if isinstance(model, Tokenizer) else model.tokenizer
    if tokenizer is None:
        raise TokenizationError(
            f"{name} has no tokenizer, so the token {text!r} has no id; give the id itself."
        )
    pieces = tokenizer.encode(text)
    if len(pieces) == 1 and pieces[0] != tokenizer.unk_id:
        return int(pieces[0])
    # A piece of a word, as "##s", is an entry of its own that no text begins with.
    entries = (i for i in range(tokenizer.vocab_size) if tokenizer.raw(i) == text)
    found = next(entries, None)
    if found is not None:
        return found
    if len(pieces) > 1:
        names = ", ".join(repr(tokenizer.string(piece)) for piece in pieces)
        raise TokenizationError(
            f"{text!r} is {len(pieces)} tokens of {name}: {names}. Give one of them."
        )
    raise TokenizationError(
        f"{text!r} is no token of {name}; give a token of its vocabulary, or an id."
    )


def token_ids(model: TracedModel, tokens: Any, count: int) -> Int[Tensor, " sentence"]:
    """One id a sentence, from one token for all of them or a sequence of one for each.

    Raises TokenizationError as `token_id`, and where there are not as many tokens as sentences.
    """
    several = not isinstance(tokens, str) and (
        tokens.dim() > 0 if isinstance(tokens, Tensor) else isinstance(tokens, Sequence)
    )
    chosen = list(tokens) if several else [tokens] * count
    if len(chosen) != count:
        raise TokenizationError(
            f"There are {len(chosen)} tokens for {count} sentences; expected one for each, or a "
            "single one for all."
        )
    ids = [token_id(model, token) for token in chosen]
    return torch.tensor(ids, dtype=torch.int64, device=model.body.word.weight.device)


def token_name(model: TracedModel, token: int) -> str:
    """The token as a person reads it; its id where the model has no tokenizer."""
    return str(token) if model.tokenizer is None else model.tokenizer.string(token)


def known_tokens(model: TracedModel) -> int:
    """Vocabulary entries with a token behind them: a padded vocabulary has more logits."""
    size, tokenizer = model.config.vocab_size, model.tokenizer
    return size if tokenizer is None else min(size, tokenizer.vocab_size)


def _whole_number(token: Any) -> int | None:
    try:
        return operator.index(token)
    except TypeError:
        return None
