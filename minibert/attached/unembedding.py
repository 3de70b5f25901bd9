"""What a live model makes of the stream that leaves its last block, found by numbers.

logits = cap(factor · head(scale · norm(stream))): the final norm, the head (the unembedding, or the
head of masked language models), and what follows it, a factor (Cohere, Granite) or a soft cap
(Gemma 2). T5 scales what its head reads.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from minibert.attached.block import Event, Frame, adds_up, factor_of


@dataclass(frozen=True)
class Unembedding:
    """The modules and numbers of the formula above; `block` is the last block's module."""

    block: nn.Module
    norm: nn.Module | None
    head: nn.Module
    scale: float
    factor: float
    cap: float | None

    def logits(self, stream: Tensor) -> Tensor:
        """The logits of streams, (..., d_model) to (..., vocab)."""
        hidden = stream if self.norm is None else self.norm(stream)
        return self.after(self.head(hidden if self.scale == 1 else hidden * self.scale))

    def after(self, logits: Tensor) -> Tensor:
        """What follows the head."""
        logits = logits if self.factor == 1 else logits * self.factor
        return logits if self.cap is None else torch.tanh(logits / self.cap) * self.cap


def unembedding_of(model: nn.Module, behind: Frame | None, logits: object) -> Unembedding | str:
    """The unembedding of a first run, or why there is none."""
    if behind is None or not isinstance(logits, Tensor):
        return "the model returned no logits of tokens, or the streams of its last block are absent"
    stream, made = behind.own.read, behind.rows(logits)
    if stream is None or made is None:
        return "the model has not one row of logits for each position of its last stream"
    events = [one for one in behind.events if one.read is not None and one.wrote is not None]
    caps = {getattr(one, "final_logit_softcapping", None) for one in _configs(model)}
    norms: list[Event | None] = [None, *(one for one in events if one.is_norm)]
    for norm in norms:
        if norm is not None and (norm.read is None or not torch.equal(norm.read, stream)):
            continue
        hidden = stream if norm is None else norm.wrote
        assert hidden is not None
        if (found := _head(events, hidden, made, [cap for cap in caps if cap])) is not None:
            return Unembedding(behind.own.module, None if norm is None else norm.module, *found)
    return "no module reads the last stream, or its norm, and gives the logits"


def _configs(model: Any) -> list[Any]:
    config = getattr(model, "config", None)
    inside = [getattr(config, name, None) for name in getattr(config, "sub_configs", {})]
    return [config, *inside]


def _head(
    events: Sequence[Event], hidden: Tensor, logits: Tensor, caps: Sequence[float]
) -> tuple[nn.Module, float, float, float | None] | None:
    """The outermost module that takes the hidden state to the logits, and the numbers around it."""
    for event in events:
        read, wrote = event.read, event.wrote
        assert read is not None
        assert wrote is not None
        if read.shape != hidden.shape or wrote.shape != logits.shape:
            continue
        scale = factor_of(torch.zeros_like(hidden), hidden, read)
        if scale is None:
            continue
        factor = factor_of(torch.zeros_like(wrote), wrote, logits)
        if factor is not None:
            return event.module, scale, factor, None
        for cap in caps:
            if adds_up(logits, torch.tanh(wrote / cap) * cap):
                return event.module, scale, 1.0, cap
    return None
