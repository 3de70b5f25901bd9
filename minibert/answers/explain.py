"""One row of attention as a calculation: every number between a query and its z.

explain_text.py prints it in a terminal.
"""

import operator
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from torch import Tensor

from minibert.answers.model import AnsweringModel
from minibert.errors import TraceError
from minibert.kernels.eager import soft_capped
from minibert.quantities import Bool, Float
from minibert.terminal import visible
from minibert.text.tokens import Tokens
from minibert.trace.places import check_index
from minibert.trace.read import Trace

__all__ = ["Explanation", "explain", "find_token", "token_note", "trace_of_head"]


@dataclass(frozen=True, eq=False)
class Explanation:
    """How one head computes z from one query.

    The tensors are the model's own numbers, in its dtype. The properties are the steps between
    them, computed from them in float64. They agree with the next tensor up to the accuracy of the
    model's dtype (1e-6 of the largest term in float32).
    """

    model_name: str
    n_layers: int
    n_heads: int
    layer: int
    head: int
    tokens: tuple[str, ...]
    query_position: int
    key_position: int
    chosen: bool
    """False where no key was asked for, so the most attended one is shown."""
    query: Float[Tensor, " d_head"]
    key: Float[Tensor, " d_head"]
    product: Float[Tensor, " d_head"]
    """query · key, element by element; their sum is the dot product."""
    scale: float
    """The factor on the dot product, 1/sqrt(d_head) in most models."""
    scores: Float[Tensor, " key"]
    """The scaled dot product with every key, before soft cap and mask."""
    mask: Bool[Tensor, " key"]
    """True where attention is allowed."""
    probs: Float[Tensor, " key"]
    value: Float[Tensor, "key d_head"]
    z: Float[Tensor, " d_head"]
    n_kv_heads: int = 0
    """Key-value heads of the layer; 0: as many as heads."""
    soft_cap: float | None = None
    """Scores go through cap · tanh(score / cap) in front of the mask."""
    query_unrotated: Float[Tensor, " d_head"] | None = None
    """The query before it was turned by its position, in a rotary model; so the key."""
    key_unrotated: Float[Tensor, " d_head"] | None = None

    @property
    def kv_head(self) -> int:
        """The key-value head that this head reads."""
        return self.head * (self.n_kv_heads or self.n_heads) // self.n_heads

    @property
    def dot(self) -> float:
        """query·key, the sum of the products."""
        return self.product.double().sum().item()

    @property
    def score(self) -> float:
        """The score of the chosen key."""
        return self.scores[self.key_position].item()

    @property
    def largest(self) -> float:
        """The largest capped score that is allowed, which the softmax subtracts."""
        return self.capped[self.mask].max().item()

    @property
    def capped(self) -> Float[Tensor, " key"]:
        """The scores behind the soft cap; the scores themselves where there is none."""
        return soft_capped(self.scores, self.soft_cap)

    @property
    def exponentials(self) -> Float[Tensor, " key"]:
        """exp(capped score − largest), 0 where masked."""
        return (self.capped.double() - self.largest).exp() * self.mask

    @property
    def total(self) -> float:
        """The sum of the exponentials, which the softmax divides by."""
        return self.exponentials.sum().item()

    @property
    def contributions(self) -> Float[Tensor, "key d_head"]:
        """probs · value of each key; their sum is z."""
        return self.probs.double()[:, None] * self.value.double()

    def to_dict(self) -> dict[str, Any]:
        """The same as plain lists and numbers, not rounded."""
        return {
            "model": self.model_name,
            "layer": self.layer,
            "head": self.head,
            "kv_head": self.kv_head,
            "tokens": list(self.tokens),
            "query_position": self.query_position,
            "key_position": self.key_position,
            "query": self.query.tolist(),
            "key": self.key.tolist(),
            "product": self.product.tolist(),
            "dot": self.dot,
            "scale": self.scale,
            "soft_cap": self.soft_cap,
            "score": self.score,
            "scores": self.scores.tolist(),
            "mask": self.mask.tolist(),
            "largest": self.largest,
            "exponentials": self.exponentials.tolist(),
            "total": self.total,
            "probs": self.probs.tolist(),
            "value": self.value.tolist(),
            "contributions": self.contributions.tolist(),
            "z": self.z.tolist(),
            **{
                name: vector.tolist()
                for name in ("query_unrotated", "key_unrotated")
                if (vector := getattr(self, name)) is not None
            },
        }


def explain(
    trace: Trace,
    *,
    layer: int,
    head: int,
    query: int | str,
    key: int | str | None = None,
    sentence: int = 0,
) -> Explanation:
    """The calculation of one row of attention: `query` of a head, and its key in detail.

    `query` and `key` are each a position or a token; without `key` the most attended key is used.
    Numbers count from 0, negative ones from the end. Raises TraceError for a layer, head or
    sentence that does not exist, and for a token that the sentence does not have or has more than
    once.
    """
    if not -len(trace.tokens) <= sentence < len(trace.tokens):
        raise TraceError(f"There is no sentence {sentence}; the trace has {len(trace.tokens)}.")
    sentence %= len(trace.tokens)
    row = find_token(trace.tokens, query, what="query", sentence=sentence)
    column = None if key is None else find_token(trace.tokens, key, what="key", sentence=sentence)
    here = trace[layer, head]
    # Padding is left out: its scores are masked and its probs are 0.
    real = slice(trace.tokens.lengths[sentence])
    probs = here.probs[sentence, row, real]
    looked_at = int(probs.argmax()) if column is None else column
    config = trace.config
    rotary = config.rotary is not None
    return Explanation(
        model_name=trace.model_name,
        n_layers=config.n_layers,
        n_heads=config.n_heads,
        layer=here.layer,
        head=head % config.n_heads,
        tokens=trace.tokens.strings[sentence],
        query_position=row,
        key_position=looked_at,
        chosen=column is not None,
        query=here.query[sentence, row],
        key=here.key[sentence, looked_at],
        product=here.product(row)[sentence, looked_at],
        scale=config.attention_scale(here.layer),
        scores=here.scores[sentence, row, real],
        mask=here.mask[sentence, 0, row, real],
        probs=probs,
        value=here.value[sentence, real],
        z=here.z[sentence, row],
        n_kv_heads=config.n_kv_heads,
        soft_cap=config.attention_soft_cap,
        query_unrotated=here.query_unrotated[sentence, row] if rotary else None,
        key_unrotated=here.key_unrotated[sentence, looked_at] if rotary else None,
    )


def trace_of_head(model: AnsweringModel, tokens: Tokens, *, layer: int, head: int) -> Trace:
    """A trace in which this head can be explained; the layers above it are not computed.

    The numbers are those of a whole trace, bit for bit. Raises TraceError for a layer or head
    that does not exist, before anything is computed.
    """
    config = model.config
    layer = check_index("layer", layer, config.n_layers)
    check_index("head", head, config.n_heads)
    # until=layer would compute this layer's attention by other formulas, with other rounding.
    return model.trace(tokens, until=layer + 1 if layer + 1 < config.n_layers else None)


def find_token(tokens: Tokens, wanted: int | str, *, what: str, sentence: int = 0) -> int:
    """The position of a token, given as a number or as the token itself.

    A whole number is a position. A token is compared with the string that a person reads and with
    the vocabulary's own string; first with its capital letters, then, if nothing is found,
    without. Raises TraceError when the token is missing or there more than once; the message calls
    it `what`.
    """
    strings, raw = tokens.strings[sentence], tokens.raw[sentence]
    position = _whole_number(wanted)
    if position is not None:
        if not -len(strings) <= position < len(strings):
            expected = f"0 to {len(strings) - 1}: {_listed(strings)}"
            written = token_note(tokens, wanted, what=what, sentence=sentence)
            note = f" {written[0].upper()}{written[1:]}" if written else ""
            raise TraceError(f"There is no {what} {position}; expected {expected}.{note}")
        return position % len(strings)
    name = str(wanted).strip()
    found = _matches(name, strings, raw) or _matches(name.casefold(), *_folded(strings, raw))
    if not found:
        if pieces := _pieces(tokens, name, sentence):
            listed = ", ".join(f"{p} {visible(strings[p].strip())}" for p in pieces)
            raise TraceError(
                f'The {what} "{visible(name)}" is not one token: the word is split into {listed}. '
                "Give one of these numbers instead."
            )
        raise TraceError(
            f'No token is "{visible(name)}" (the {what}); the tokens are {_listed(strings)}.'
        )
    if len(found) > 1:
        raise TraceError(
            f'{what} "{visible(name)}" is the token at positions {_comma(found)}; '
            "give one of these numbers instead."
        )
    return found[0]


def token_note(tokens: Tokens, wanted: int | str, *, what: str, sentence: int = 0) -> str:
    """A note where `wanted` is a position, and also a token at another position; otherwise ""."""
    position = _whole_number(wanted)
    if position is None or not isinstance(wanted, str):
        return ""
    strings = tokens.strings[sentence]
    found = _matches(wanted.strip(), strings, tokens.raw[sentence])
    if not found or position % len(strings) in found:
        return ""
    places = f"position {found[0]}" if len(found) == 1 else f"positions {_comma(found)}"
    return (
        f'{wanted.strip()} is taken as a position. The token "{visible(wanted.strip())}" is at '
        f"{places}: to choose it, give {' or '.join(map(str, found))} as the {what}."
    )


def _whole_number(wanted: int | str) -> int | None:
    try:
        return int(wanted) if isinstance(wanted, str) else operator.index(wanted)
    except ValueError:
        return None


def _matches(name: str, strings: tuple[str, ...], raw: tuple[str, ...]) -> list[int]:
    pairs = enumerate(zip(strings, raw, strict=True))
    return [position for position, pair in pairs if name in (pair[0].strip(), pair[1])]


def _pieces(tokens: Tokens, name: str, sentence: int) -> list[int]:
    """The positions of the first word that is `name` and has several tokens; [] without one."""
    words, strings = tokens.words[sentence], tokens.strings[sentence]
    segments = tokens.segments[sentence].tolist()
    for (_, word), group in groupby(range(len(words)), lambda p: (segments[p], words[p])):
        pieces = list(group)
        joined = "".join(strings[p] for p in pieces).strip()
        if word is not None and joined.casefold() == name.casefold():
            return pieces
    return []


def _comma(positions: list[int]) -> str:
    return ", ".join(map(str, positions))


def _folded(*columns: tuple[str, ...]) -> list[tuple[str, ...]]:
    return [tuple(map(str.casefold, column)) for column in columns]


def _listed(strings: tuple[str, ...], most: int = 40) -> str:
    shown = [f"{i} {visible(string.strip())}" for i, string in enumerate(strings[:most])]
    return ", ".join([*shown, f"and {len(strings) - most} more"] if len(strings) > most else shown)
