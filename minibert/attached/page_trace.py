"""A stack of a live model as pages read a trace: padding left out, tokens in words, sizes.

A page shows square matrices with the vectors that give them. So a stack that attends to itself has
one, cross-attention and single steps of a generation have none.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from minibert.attached.call import Call, repeated
from minibert.attached.layout import READABLE
from minibert.attached.stack import StackTrace
from minibert.errors import TraceError
from minibert.text.tokens import Tokens

Window = tuple[int, int] | None


@dataclass(frozen=True)
class PageSizes:
    """What a page asks of a config."""

    n_layers: int
    n_heads: int
    n_kv_heads: int
    d_head: int
    causal: bool
    scales: tuple[float, ...]
    windows: tuple[Window, ...]
    attention_soft_cap: float | None
    apart: str
    """What the weights have beside query and key, where these do not give them; "" after edits."""

    def attention_scale(self, layer: int) -> float:
        """What the layer's dot products are multiplied by."""
        return self.scales[layer]

    def window(self, layer: int) -> Window:
        """How many keys before and behind a query of the layer sees; None: all."""
        return self.windows[layer]


@dataclass(frozen=True)
class PageLayer:
    """One layer; real tokens stand in front. Keys and values have their own heads.

    probs is (batch, head, query, key); query, key, value and z (batch, head, position, d_head).
    """

    call: Call
    real: tuple[Tensor, ...]
    n_kv_heads: int

    def __getattr__(self, name: str) -> Tensor:
        if name not in READABLE:
            raise AttributeError(name)
        found = self.call.read(name).detach()
        if name in ("scores", "probs"):
            return self._front(self._front(found).mT).mT
        if name in ("key", "value") and found.shape[1] != self.n_kv_heads:
            found = repeated(found, self.n_kv_heads)
        return self._front(found)

    def _front(self, value: Tensor) -> Tensor:
        """The positions of real tokens in front, and 0 behind them, along axis 2."""
        found = torch.zeros_like(value)
        for sentence, real in enumerate(self.real):
            found[sentence, :, : len(real)] = value[sentence].index_select(1, real)
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


def page_trace(one: StackTrace) -> PageTrace:
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
            f"There is no page of {one!r}: it shows as many queries as keys, and heads of one "
            "width, the same in every layer. Pages of cross-attention, of single steps of a "
            "generation and of layers with windows of their own are not drawn; read "
            "trace.stack(name)[layer].probs, and draw cross-attention with "
            "minibert.viz.head_view(cross_attention=...)."
        )
    mask = first.real_queries
    real = tuple(
        torch.arange(n, device=first.query.device) if mask is None else mask[row].nonzero()[:, 0]
        for row in range(batch)
    )
    allowed = [_allowed(call, real) for call in calls]
    shared = {vectors.shape[1] for call in calls for vectors in (call.key, call.value)}
    # Layers that share keys in different ways show what each head reads.
    n_kv_heads = shared.pop() if len(shared) == 1 else heads
    sizes = PageSizes(
        len(calls), heads, n_kv_heads, width,
        causal=not any(bool(each.triu(1).any()) for of in allowed for each in of),
        scales=tuple(float(torch.as_tensor(call.scale).flatten()[0]) for call in calls),
        windows=tuple(map(_window, allowed)),
        attention_soft_cap=first.soft_cap,
        apart=_apart(calls),
    )  # fmt: skip
    layers = tuple(PageLayer(call, real, n_kv_heads) for call in calls)
    return PageTrace(one.model_name, _tokens(one, n, real), sizes, layers)


def _allowed(call: Call, real: tuple[Tensor, ...]) -> list[Tensor]:
    """Of each sentence, (query, key) of its own tokens: True where a head may look."""
    n, allowed = call.query.shape[2], call.mask_rows().allowed
    if allowed is None:
        return [torch.ones(len(rows), len(rows), dtype=torch.bool) for rows in real]
    whole = allowed.expand(len(real), *allowed.shape[1:])[:, 0].expand(-1, n, -1).cpu()
    return [one[rows.cpu()][:, rows.cpu()] for one, rows in zip(whole, real, strict=True)]


def _window(allowed: list[Tensor]) -> Window:
    """How far a layer's queries look, before and behind them; None where there is no limit."""
    offsets = [torch.arange(len(one))[None] - torch.arange(len(one))[:, None] for one in allowed]
    before, behind = (
        max((int((sign * by)[one].max()) for one, by in zip(allowed, offsets, strict=True)
             if bool(one.any())), default=0)
        for sign in (-1, 1)
    )  # fmt: skip
    longest = max(map(len, allowed)) - 1
    if before >= longest:
        # A causal layer without a window is not a layer with one.
        return None
    return max(before, 0), max(behind, 0)


def _apart(calls: list[Call]) -> str:
    """What the weights have beside query, key, scale, soft cap and window, for readers."""
    if any(call.matrices for call in calls):
        return ""
    found = {
        "a position bias": any(
            call.position_bias is not None or call.mask_rows().bias is not None for call in calls
        ),
        "sinks": any(call.sinks is not None for call in calls),
        "a scale of their own for each head or query": any(
            isinstance(call.scale, Tensor) and call.scale.numel() > 1 for call in calls
        ),
        "soft caps that differ by layer": len({call.soft_cap for call in calls}) > 1,
    }
    names = [name for name, there in found.items() if there] or ["a mask of their own"]
    return f"The weights of this model have {' and '.join(names)} beside query and key."


def _tokens(one: StackTrace, n_positions: int, real: tuple[Tensor, ...]) -> Tokens:
    """The tokens of the positions: words where they are known, else numbers."""
    ids = one.ids
    longest = max(map(len, real))
    known = ids is not None and ids.shape == (len(real), n_positions)
    table = torch.zeros(len(real), longest, dtype=torch.long)
    mask = torch.zeros(len(real), longest, dtype=torch.bool)
    for sentence, rows in enumerate(real):
        given = ids[sentence, rows] if known and ids is not None else torch.arange(len(rows))
        table[sentence, : len(rows)] = given.cpu()
        mask[sentence, : len(rows)] = True
    words = _Words(one.tokenizer) if known and one.tokenizer is not None else None
    tokens = Tokens.from_ids(table, mask=mask, tokenizer=words)
    return replace(tokens, texts=tuple((text,) for text in one.texts)) if one.texts else tokens


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
