"""The implementation "triton": attention and its statistics in fused kernels, O(N) memory.

This file picks the kernels: `one_tile.py` for short texts, and `forward.py` for longer ones,
followed by `columns.py` for what is summed over queries. Where an input requires gradients it goes
through `gradients.py`.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from minibert.errors import AttentionError
from minibert.kernels.fused.columns import received_and_map
from minibert.kernels.fused.forward import forward
from minibert.kernels.fused.launch import Options, starts_of
from minibert.kernels.fused.one_tile import fits, one_tile
from minibert.kernels.requests import Want
from minibert.quantities import Bool, Float, Int

__all__ = ["attend", "gradients"]


def attend(
    query: Float[Tensor, "batch head query d_head"],
    key: Float[Tensor, "batch key_head key d_head"],
    value: Float[Tensor, "batch key_head key d_value"],
    *,
    lengths: Int[Tensor, " batch"] | None = None,
    mask: Bool[Tensor, "#batch #head #query #key"] | None = None,
    causal: bool = False,
    scale: float,
    bias: Float[Tensor, "#batch #head #query #key"] | None = None,
    window: tuple[int | None, int | None] | None = None,
    prefix: Int[Tensor, " sentence"] | None = None,
    soft_cap: float | None = None,
    alibi_slopes: Float[Tensor, "... head"] | None = None,
    sinks: Float[Tensor, " head"] | None = None,
    packed: Sequence[int] | None = None,
    packed_keys: Sequence[int] | None = None,
    want: Want,
) -> dict[str, Tensor]:
    """z, lse and every wanted statistic, without a matrix of probs.

    With `argmax` of 16-bit inputs the last bits of a score hold its column: scores closer than 63
    last places of float32, some 4e-6 of them, may tie, and row_max and max_prob err by as much.
    Offsets, keys and argmax of packed sentences count from the first token of each.
    Raises AttentionError when the map of packed sentences is wanted, as there is none of several.
    """
    options = _options(
        query.device, scale=scale, causal=causal, lengths=lengths, mask=mask, bias=bias,
        window=window, prefix=prefix, soft_cap=soft_cap, alibi_slopes=alibi_slopes, sinks=sinks,
        packed=packed, packed_keys=packed_keys,
    )  # fmt: skip
    if packed is not None and "map" in want:
        raise AttentionError(
            'packed sentences: "map" is wanted, but each sentence would have its own; '
            "ask for it sentence by sentence."
        )
    tensors = (query, key, value, bias, alibi_slopes, sinks)
    trained = any(tensor is not None and tensor.requires_grad for tensor in tensors)
    if torch.is_grad_enabled() and trained:
        from minibert.kernels.fused.gradients import attend_with_gradient

        return attend_with_gradient(_attend, query, key, value, options, want=want)
    return _attend(query, key, value, options, want=want)


def gradients(
    z_gradient: Float[Tensor, "batch head query d_value"],
    query: Float[Tensor, "batch head query d_head"],
    key: Float[Tensor, "batch key_head key d_head"],
    value: Float[Tensor, "batch key_head key d_value"],
    z: Float[Tensor, "batch head query d_value"],
    lse: Float[Tensor, "batch head query"],
    *,
    lse_gradient: Float[Tensor, "batch head query"] | None,
    wanted: Iterable[str],
    **options: Any,
) -> dict[str, Tensor]:
    """The gradients of what is `wanted` of query, key, value, bias and sinks.

    z and lse are what `attend` gave for the same options. In `gradients.double_check` they are
    computed again in float64 and compared.
    """
    from minibert.kernels.fused.gradients import checked_backward, checks

    told = _options(query.device, **options)
    return checked_backward(
        z_gradient, query, key, value, z, lse, told,
        lse_gradient=lse_gradient, wanted=wanted, check=checks(),
    )  # fmt: skip


def _options(
    device: torch.device,
    *,
    window: tuple[int | None, int | None] | None = None,
    packed: Sequence[int] | None = None,
    packed_keys: Sequence[int] | None = None,
    **told: Any,
) -> Options:
    """The keywords of a call as the kernels take them."""
    options = Options(window=(None, None) if window is None else window, **told)
    return options if packed is None else _packed(options, tuple(packed), packed_keys, device)


def _packed(
    options: Options,
    lengths: tuple[int, ...],
    keys: Sequence[int] | None,
    device: torch.device,
) -> Options:
    """The same for sentences of so many tokens, and of so many keys where they differ."""
    options = replace(options, starts=starts_of(lengths, device), longest=max(lengths, default=0))
    if keys is None:
        return options
    key_starts = starts_of(tuple(keys), device)
    return replace(options, key_starts=key_starts, longest_keys=max(keys, default=0))


def _attend(
    query: Tensor, key: Tensor, value: Tensor, options: Options, *, want: Want
) -> dict[str, Tensor]:
    summed = "received" in want or "map" in want
    if summed and options.starts is None and fits(query, key, value, want, options):
        return one_tile(query, key, value, options, want=want)
    found = forward(query, key, value, options, want=want)
    if summed:
        found |= received_and_map(query, key, options, lse=found["lse"], want=want)
    return found
