"""A stack of a live model as pages read a trace: padding left out, tokens in words, sizes.

A page shows square matrices with the vectors that give them. So a stack that attends to itself has
one, cross-attention and single steps of a generation have none.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from minibert.attached.call import Call, repeated
from minibert.attached.stack import StackTrace
from minibert.errors import TraceError
from minibert.text.tokens import Tokens

__all__ = ["PageTrace", "page_trace"]


@dataclass(frozen=True)
class PageSizes:
    """What a page asks of a config."""

    n_layers: int
    n_heads: int
    d_head: int
    causal: bool
    scales: tuple[float, ...]

    def attention_scale(self, layer: int) -> float:
        """What the layer's dot products are multiplied by."""
        return self.scales[layer]


@dataclass(frozen=True)
class PageLayer:
    """One layer; real tokens stand in front, as many heads of key and value as of query."""

    call: Call
    real: tuple[Tensor, ...]

    @property
    def probs(self) -> Tensor:
        """(batch, head, query, key)."""
        rows = self._front(self.call.read("probs"), 2)
        return self._front(rows.transpose(2, 3), 2).transpose(2, 3)

    @property
    def query(self) -> Tensor:
        """(batch, head, position, d_head)."""
        return self._front(self.call.read("query"), 2)

    @property
    def key(self) -> Tensor:
        """(batch, head, position, d_head): what each head reads."""
        return self._front(repeated(self.call.read("key"), self.call.n_heads), 2)

    @property
    def value(self) -> Tensor:
        """(batch, head, position, d_head): what each head reads."""
        return self._front(repeated(self.call.read("value"), self.call.n_heads), 2)

    @property
    def z(self) -> Tensor:
        """(batch, head, position, d_head)."""
        return self._front(self.call.read("z"), 2)

    def _front(self, value: Tensor, axis: int) -> Tensor:
        """The positions of real tokens in front, and 0 behind them."""
        value = value.detach()
        found = torch.zeros_like(value)
        for sentence, real in enumerate(self.real):
            rows = value[sentence].index_select(axis - 1, real)
            found[sentence].narrow(axis - 1, 0, len(real)).copy_(rows)
        return found


@dataclass(frozen=True)
class PageTrace:
    """What `minibert.viz.view` reads of a trace; `trace[layer].probs` and so on."""

    model_name: str
    tokens: Tokens
    config: PageSizes
    layers: tuple[PageLayer, ...]

    def __len__(self) -> int:
        """Layers that can be read."""
        return len(self.layers)

    def __getitem__(self, layer: int) -> PageLayer:
        """One layer."""
        return self.layers[layer]


def page_trace(
    one: StackTrace, ids: Tensor | None = None, texts: Sequence[str] = (), tokenizer: Any = None
) -> PageTrace:
    """A stack as a page reads it, with the ids of its positions, where they are known, in words.

    Raises TraceError where there is no page of it: queries that are not the keys, or layers with
    different numbers of heads.
    """
    calls = [call for _, call in one.calls]
    first = calls[0]
    batch, heads, n, width = first.query.shape
    shapes = {(call.query.shape, call.key.shape[2]) for call in calls}
    if shapes != {(first.query.shape, n)}:
        raise TraceError(
            f"There is no page of {one!r}: it shows as many queries as keys, the same in every "
            "layer. Pages of cross-attention, of single steps of a generation and of layers with "
            "windows of their own are not drawn; read trace.stack(name)[layer].probs."
        )
    mask = first.real_queries
    real = tuple(
        torch.arange(n, device=first.query.device) if mask is None else mask[row].nonzero()[:, 0]
        for row in range(batch)
    )
    sizes = PageSizes(len(calls), heads, width, _causal(calls), tuple(map(_scale, calls)))
    layers = tuple(PageLayer(call, real) for call in calls)
    return PageTrace(one.model_name, _tokens(ids, n, real, texts, tokenizer), sizes, layers)


def _causal(calls: list[Call]) -> bool:
    """Whether no query of any layer sees a later key."""
    for call in calls:
        allowed = call.mask_rows().allowed
        if allowed is None or bool(allowed.expand(*allowed.shape[:2], *call.query.shape[2:3],
                                                  call.key.shape[2]).triu(1).any()):  # fmt: skip
            return call.query.shape[2] == 1
    return True


def _scale(call: Call) -> float:
    scale = call.scale
    return float(scale.flatten()[0]) if isinstance(scale, Tensor) else float(scale)


def _tokens(
    ids: Tensor | None,
    n_positions: int,
    real: tuple[Tensor, ...],
    texts: Sequence[str],
    tokenizer: Any,
) -> Tokens:
    """The tokens of the positions: words where they are known, else numbers."""
    longest = max(map(len, real))
    known = ids is not None and ids.shape == (len(real), n_positions)
    table = torch.zeros(len(real), longest, dtype=torch.long)
    mask = torch.zeros(len(real), longest, dtype=torch.bool)
    for sentence, rows in enumerate(real):
        given = ids[sentence, rows] if known and ids is not None else torch.arange(len(rows))
        table[sentence, : len(rows)] = given.cpu()
        mask[sentence, : len(rows)] = True
    words = _Words(tokenizer) if known and tokenizer is not None else None
    tokens = Tokens.from_ids(table, mask=mask, tokenizer=words)
    return replace(tokens, texts=tuple((one,) for one in texts)) if texts else tokens


class _Words:
    """A tokenizer of transformers as `Tokens` asks for it."""

    def __init__(self, tokenizer: Any) -> None:
        words = {tokenizer.mask_token_id, tokenizer.unk_token_id} - {tokenizer.eos_token_id}
        self.structural_ids = frozenset(set(tokenizer.all_special_ids) - words)
        self._convert: Callable[[int], str] = tokenizer.convert_ids_to_tokens

    def raw(self, token_id: int) -> str:
        """The vocabulary's own string."""
        return str(self._convert(token_id))

    def string(self, token_id: int) -> str:
        """The string without the marks of pieces and spaces."""
        raw = self.raw(token_id)
        if raw.startswith("##") and len(raw) > 2:
            return raw[2:]
        return " " + raw[1:] if raw[:1] in ("Ġ", "▁") else raw
