"""The implementation "triton": attention and its statistics in fused kernels, O(N) memory.

This file picks the kernels: `one_tile.py` for short texts, and `forward.py` for longer ones,
followed by `columns.py` for what is summed over queries. Where an input requires gradients it goes
through `gradients.py`.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from minibert.errors import AttentionError
from minibert.kernels.fused.columns import received_and_map
from minibert.kernels.fused.forward import forward
from minibert.kernels.fused.launch import starts_of
from minibert.kernels.fused.one_tile import fits, one_tile
from minibert.kernels.requests import Want
from minibert.quantities import Bool, Float, Int

__all__ = ["attend", "packed_attend"]


def attend(
    query: Float[Tensor, "batch head query d_head"],
    key: Float[Tensor, "batch head key d_head"],
    value: Float[Tensor, "batch head key d_head"],
    *,
    lengths: Int[Tensor, " batch"] | None = None,
    mask: Bool[Tensor, "#batch #head #query #key"] | None = None,
    causal: bool = False,
    scale: float,
    bias: Float[Tensor, "#batch #head #query #key"] | None = None,
    want: Want,
) -> dict[str, Tensor]:
    """z, lse and every wanted statistic, without a matrix of probs.

    With `argmax` of 16-bit inputs the last bits of a score hold its column: scores closer than 63
    last places of float32, some 4e-6 of them, may tie, and row_max and max_prob err by as much.
    """
    options: dict[str, Any] = {"lengths": lengths, "mask": mask, "bias": bias}
    options |= {"causal": causal, "scale": scale}
    tensors = (query, key, value) if bias is None else (query, key, value, bias)
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
        from minibert.kernels.fused.gradients import attend_with_gradient

        return attend_with_gradient(_attend, query, key, value, want=want, **options)
    return _attend(query, key, value, want=want, **options)


def _attend(
    query: Tensor, key: Tensor, value: Tensor, *, want: Want, **options: Any
) -> dict[str, Tensor]:
    edges = options["mask"] is not None or options["bias"] is not None
    if ("received" in want or "map" in want) and fits(query, key, want, edges=edges):
        return one_tile(query, key, value, want=want, **options)
    return _two_passes(query, key, value, want, options)


def packed_attend(
    query: Float[Tensor, "1 head token d_head"],
    key: Float[Tensor, "1 head token d_head"],
    value: Float[Tensor, "1 head token d_head"],
    *,
    lengths: Sequence[int],
    causal: bool = False,
    scale: float,
    want: Want,
) -> dict[str, Tensor]:
    """z, lse and statistics of packed sentences; each sentence attends only to itself.

    lengths are their tokens, all of them together. Offsets, keys and argmax count from the first
    token of a sentence. Gradients do not flow. Raises AttentionError when the map is wanted, as
    there is none of several sentences, and when the lengths are not those of the tokens.
    """
    if "map" in want:
        raise AttentionError(
            'packed sentences: "map" is wanted, but each sentence would have its own; '
            "ask for it sentence by sentence."
        )
    if sum(lengths) != query.shape[2]:
        raise AttentionError(
            f"packed sentences: lengths add up to {sum(lengths)}; expected {query.shape[2]}, the "
            "number of tokens."
        )
    options: dict[str, Any] = {"causal": causal, "scale": scale}
    options |= {"starts": starts_of(lengths, query.device), "longest": max(lengths, default=0)}
    return _two_passes(query, key, value, want, options)


def _two_passes(
    query: Tensor, key: Tensor, value: Tensor, want: Want, options: dict[str, Any]
) -> dict[str, Tensor]:
    found = forward(query, key, value, want=want, **options)
    if "received" in want or "map" in want:
        found |= received_and_map(query, key, lse=found["lse"], want=want, **options)
    return found
