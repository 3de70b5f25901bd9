"""A batch as a model reads it, made of whatever a user gives, and the check that it can be read.

    model(input_ids=ids, attention_mask=mask)      model.trace(tokenizer(texts, padding=True))

A mapping by the names of transformers is taken wherever a text is, so a BatchEncoding is too
(docs/inputs.md). In the own form a sentence begins at position 0 and padding follows it;
sentences that are padded on the left are moved there, so that each gives what it gives alone.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from inspect import signature
from typing import Any, TypedDict

import torch
from torch import Tensor

from minibert.errors import TokenizationError, did_you_mean
from minibert.kernels.allowed_keys import AllowedKeys
from minibert.layers.config import Config
from minibert.quantities import Int, TokenIds, TokenMask
from minibert.text.tokens import Tokens, Vocabulary, beside, real_of, table_of
from minibert.text.words import is_text


def in_range(ids: TokenIds, size: int, what: str, where: str) -> TokenIds:
    """The ids, all of them from 0 to size - 1.

    Raises TokenizationError for any other, which calls it `what` and says that it is outside
    `where`. A compiled model raises it as well, without a break in its graph. An exported model
    has no minibert and raises RuntimeError.
    """
    if torch.compiler.is_exporting():
        inside = ((ids >= 0) & (ids < size)).all()
        torch._assert_async(inside, f"{what} outside {where}: expected 0 to {size - 1}.")
        return ids
    if torch.compiler.is_compiling():
        checked: Tensor = torch.ops.minibert.in_range(ids, size, what, where)
        return checked
    _check(ids, size, what, where)
    return ids


def _check(ids: Tensor, size: int, what: str, where: str) -> None:
    low, high = (int(bound) for bound in torch.aminmax(ids))
    if low < 0 or high >= size:
        wrong = low if low < 0 else high
        place = ", ".join(
            f"{axis} {n}"
            for axis, n in zip(
                ("row", "position"), (ids == wrong).nonzero()[0].tolist(), strict=False
            )
        )
        raise TokenizationError(
            f"{what} {wrong} is outside {where}: expected 0 to {size - 1}. It stands in {place}."
        )


@torch.library.custom_op("minibert::in_range", mutates_args=())
def _in_range(ids: Tensor, size: int, what: str, where: str) -> Tensor:
    """The check as one step of a compiled graph, which has to give a tensor of its own."""
    _check(ids, size, what, where)
    return ids.clone()


@_in_range.register_fake
def _(ids: Tensor, size: int, what: str, where: str) -> Tensor:
    return torch.empty_like(ids)


@dataclass(frozen=True)
class Inputs:
    """A batch as the body reads it. `tokens` is None where only ids were given."""

    ids: TokenIds
    mask: TokenMask | None
    segments: TokenIds | None
    tokens: Tokens | None = None

    @classmethod
    def of(cls, given: Tokens | TokenIds) -> "Inputs":
        """The batch of tokens, or of ids without padding."""
        if isinstance(given, Tokens):
            return cls(given.ids, given.mask, given.segments, given)
        return cls(given, None, None)

    def as_tokens(self, tokenizer: Vocabulary | None) -> Tokens:
        """These inputs with readable strings."""
        if self.tokens is not None:
            return self.tokens
        return Tokens.from_ids(
            self.ids, mask=self.mask, segments=self.segments, tokenizer=tokenizer
        )

    def packed(self, config: Config) -> AllowedKeys:
        """Which keys a query may attend to where the sentences share one row, without padding."""
        batch, position = self.ids.shape
        lengths = (position,) * batch if self.mask is None else tuple(self.mask.sum(1).tolist())
        return AllowedKeys(1, sum(lengths), self.ids.device, config.causal, packed=lengths)

    def checked(self, config: Config, name: str) -> "Inputs":
        """These inputs, once it is known that the model of that name and config can read them.

        Raises TokenizationError where it cannot.
        """
        ids, limit = self.ids, config.n_positions
        if ids.numel() == 0:
            raise TokenizationError("There are no token ids; expected at least one a sentence.")
        if ids.shape[1] > limit:
            raise TokenizationError(
                f"{ids.shape[1]} tokens are more than the {limit} positions of {name}; "
                "shorten the text, or tokenize it with truncate=True."
            )
        ids = in_range(ids, config.vocab_size, "Token id", f"the vocabulary of {name}")
        segments, count = self.segments, config.n_segments
        if segments is not None and count:
            segments = in_range(segments, count, "Segment", f"the {count} of {name}")
        return Inputs(ids, self.mask, segments, self.tokens)


class Named(TypedDict, total=False):
    """The inputs of a model by the names of transformers."""

    input_ids: object
    attention_mask: object
    token_type_ids: object


NAMES = tuple(Named.__annotations__)
# What a tokenizer says beside them about the text, and no model reads.
_BESIDE = frozenset(
    {
        "special_tokens_mask",
        "offset_mapping",
        "overflow_to_sample_mapping",
        "overflowing_tokens",
        "num_truncated_tokens",
        "length",
    }
)


def by_name(
    text: object, pair: object, named: Mapping[str, object], of: Callable[..., object]
) -> Any:
    """What a call is about: what was given first, or a mapping of what was given by name.

    Ids may come first and the rest by name; `of` is the function that was called. Raises
    TokenizationError for a name that is not an input, for text with names beside it, and where
    nothing is given.
    """
    if not named:
        if text is None:
            raise TokenizationError(f"No input: give a text, ids, or one of {', '.join(NAMES)}.")
        return text
    for name in named:
        if name not in NAMES:
            guess = did_you_mean(name, (*NAMES, *signature(of).parameters, "truncate"))
            cut = " To cut a text, give model.tokenize(text, truncate=True)."
            raise TokenizationError(
                f"{name}={guess} is neither an option here nor an input; "
                f"inputs by name are {', '.join(NAMES)}.{cut if 'trunc' in name + guess else ''}"
            )
    if text is None:
        return named
    if is_text(text) or pair is not None or isinstance(text, Tokens | Mapping):
        raise TokenizationError(
            f"{next(iter(named))}= goes with ids; a {type(text).__name__} has its own. Give the "
            "text alone, or input_ids=."
        )
    if "input_ids" in named:
        raise TokenizationError("Ids are given twice, first and as input_ids=; give them once.")
    return {"input_ids": text, **named}


def as_inputs(
    given: object, config: Config, tokenizer: Vocabulary | None, device: torch.device, name: str
) -> Inputs:
    """The batch of ids in any form, of Tokens, or of a mapping, on the device of the weights.

    Raises TokenizationError for what cannot be read.
    """
    if isinstance(given, Mapping):
        return _of_mapping(given, config, device, name).checked(config, name)
    if not isinstance(given, Tensor | Tokens) or (isinstance(given, Tensor) and given.dim() != 2):
        given = Tokens.from_ids(given, tokenizer=tokenizer)
    ids = given if isinstance(given, Tensor) else given.ids
    _check_ids(ids)
    return Inputs.of(given.to(device)).checked(config, name)


def _check_ids(ids: Tensor) -> None:
    if ids.device.type == "meta":
        raise TokenizationError("Token ids are on the meta device, where they have no values.")
    if ids.dtype not in (torch.int64, torch.int32):
        raise TokenizationError(f"Token ids are {ids.dtype}; expected whole numbers (int64).")


def _of_mapping(
    given: Mapping[str, object], config: Config, device: torch.device, name: str
) -> Inputs:
    unknown = [key for key in given if key not in NAMES and key not in _BESIDE]
    if unknown:
        raise TokenizationError(
            f"{unknown[0]!r:.80} is not an input of {name}{did_you_mean(unknown[0], NAMES)}; known "
            f"are {', '.join(NAMES)}. Leave it out."
        )
    found = {key: given[key] for key in NAMES if given.get(key) is not None}
    if "input_ids" not in found:
        raise TokenizationError(f"Expected input_ids, and found {', '.join(found) or 'nothing'}.")
    ids, real = table_of(found["input_ids"], "input_ids")
    ids = ids.to(device)
    _check_ids(ids)
    if "attention_mask" in found:
        real = real_of(found["attention_mask"], ids, real, "attention_mask")
    real = None if real is None or bool(real.all()) else real.to(device)
    columns = None if real is None else _columns(real)
    segments = _segments(found.get("token_type_ids"), ids, config, name)
    if columns is not None and real is not None:
        ids, real = ids.gather(1, columns), real.gather(1, columns)
        segments = None if segments is None else segments.gather(1, columns)
    return Inputs(ids, real, segments)


def _columns(real: TokenMask) -> Int[Tensor, "batch position"] | None:
    """Where each position of the own form comes from; None where all sentences begin at 0.

    Raises TokenizationError for a sentence without a token, and for one with padding in between.
    """
    position = torch.arange(real.shape[1], device=real.device)
    counts, first = real.sum(1), real.int().argmax(1)
    last = (position * real).argmax(1)
    for rows, what in (
        (counts == 0, "has no token: every value is 0"),
        (last - first + 1 != counts, "has padding between tokens"),
    ):
        if bool(rows.any()):
            raise TokenizationError(
                f"attention_mask row {int(rows.nonzero()[0])} {what}; expected the tokens of a "
                "sentence side by side, and padding before or after them."
            )
    return (position + first[:, None]) % real.shape[1] if bool(first.any()) else None


def _segments(values: object, ids: Tensor, config: Config, name: str) -> Tensor | None:
    if values is None:
        return None
    table = beside(values, ids, "token_type_ids")
    # There is nothing to choose without a table; transformers' GPT-2 adds rows of its vocabulary.
    if not config.n_segments and (config.family == "gpt2" or bool(table.any())):
        raise TokenizationError(f"token_type_ids: {name} has no segments. Leave it out.")
    return table if config.n_segments else None
