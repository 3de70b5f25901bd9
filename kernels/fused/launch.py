"""The arguments of the forward kernels: named tuples, outputs, grid and config.

The kernels read the fields of the tuples by name. This file uses tensors only, not Triton.

Row outputs are (batch, head, query), for packed sentences (1, head, token); contiguous.
"""

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from minibert.kernels.requests import Want

__all__ = [
    "LARGEST_HEAD",
    "Chosen",
    "Config",
    "Inputs",
    "Outputs",
    "Sizes",
    "Strides",
    "best_of",
    "block_of_features",
    "chosen_outputs",
    "inputs_of",
    "on_device",
    "row_outputs",
    "sizes_of",
    "starts_of",
    "strides_of",
]

#: The widest head whose vectors fit the registers of a program together with its scores.
LARGEST_HEAD = 128
#: Keys and values of the heads that run side by side: about half of the L2 cache of a large GPU.
BYTES_TOGETHER = 24 * 2**20

_ROWS = ("row_max", "max_prob", "entropy", "argmax")


class Config(NamedTuple):
    """How one kernel is split and compiled: rows and keys of a block, warps, and loads in flight.

    With `tma` the keys and values that need no mask come by Hopper's copy unit.
    """

    block_m: int
    block_n: int
    num_warps: int
    num_stages: int
    tma: bool = False


class Inputs(NamedTuple):
    """Tensors a kernel reads; None where a call has none. mask is uint8."""

    query: Any
    key: Any
    value: Any
    lengths: Any
    starts: Any
    mask: Any
    bias: Any


class Outputs(NamedTuple):
    """Tensors with one number, or one vector, for each row; None where one is not wanted."""

    z: Any
    lse: Any
    row_max: Any
    max_prob: Any
    entropy: Any
    argmax: Any


class Chosen(NamedTuple):
    """Probs at chosen offsets and keys, and these offsets and keys; None where not wanted."""

    offset_mass: Any
    offsets: Any
    n_offsets: Any
    key_mass: Any
    positions: Any
    n_positions: Any


class Strides(NamedTuple):
    """In elements: (batch, head, row) of vectors, (batch, head, query, key) of mask and bias."""

    query: Any
    key: Any
    value: Any
    z: Any
    mask: Any
    bias: Any


class Sizes(NamedTuple):
    """Heads of all sentences, heads of one, rows, keys, blocks of rows; heads side by side."""

    n_places: Any
    n_heads: Any
    n_queries: Any
    n_keys: Any
    n_blocks: Any
    n_together: Any


def block_of_features(d_head: int) -> int:
    """The width of a tile of vectors: a power of two that the matrix instructions take."""
    return max(16, 1 << (d_head - 1).bit_length())


def best_of(query: Tensor, want: Want) -> str | None:
    """How the kernels find the argmax: not at all, "exact", or "near" for inputs of 16 bits.

    "near" tells scores apart, and gives row_max and max_prob's maximum, to 2^-18 of a score (a
    tile of 256 keys: 2^-17), which is far below what 16 bits leave of one.
    """
    if "argmax" not in want:
        return None
    return "exact" if query.dtype == torch.float32 else "near"


def inputs_of(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    scale: float,
    lengths: Tensor | None,
    mask: Tensor | None,
    bias: Tensor | None,
    starts: Tensor | None = None,
) -> tuple[Inputs, float]:
    """The tensors as the kernels take them, and a scale that is positive.

    The maximum of scaled scores is the scaled maximum only for a scale above 0, so its sign goes
    into the query, and a scale of 0 altogether.
    """
    if scale <= 0:
        sign = -1.0 if scale < 0 else 0.0
        query, scale = query * sign, -scale or 1.0
    B, H, Q, K = (*query.shape[:3], key.shape[2])
    query, key, value = (
        one if one.stride(-1) == 1 else one.contiguous() for one in (query, key, value)
    )
    if mask is not None:
        mask = mask.view(torch.uint8).expand(B, H, Q, K)
    if bias is not None:
        bias = bias.expand(B, H, Q, K)
    if lengths is not None:
        lengths = lengths.contiguous()
    return Inputs(query, key, value, lengths, starts, mask, bias), scale


def row_outputs(query: Tensor, want: Want) -> Outputs:
    """Empty tensors for z, lse and the wanted numbers of rows."""
    rows = [
        query.new_empty(query.shape[:3], dtype=torch.int64 if name == "argmax" else torch.float32)
        if name in want
        else None
        for name in _ROWS
    ]
    lse = query.new_empty(query.shape[:3], dtype=torch.float32)
    z = torch.empty_like(query, memory_format=torch.preserve_format)
    return Outputs(z if z.stride(-1) == 1 else z.contiguous(), lse, *rows)


def chosen_outputs(query: Tensor, n_keys: int, want: Want) -> Chosen:
    """Empty tensors for offset_mass and key_mass, and their offsets and positions."""
    reach = query.shape[2] + n_keys
    # An offset larger than the length always points outside the text, so it can be limited.
    offsets = tuple(max(-reach, min(reach, one)) for one in want.get("offset_mass", ()))
    positions = want.get("key_mass", ())
    parts: list[Any] = []
    for numbers in (offsets, positions):
        if numbers:
            mass = query.new_empty((*query.shape[:3], len(numbers)), dtype=torch.float32)
            parts += [mass, _on_device(numbers, query.device), len(numbers)]
        else:
            parts += [None, None, None]
    return Chosen(*parts)


@lru_cache(maxsize=256)
def _on_device(numbers: tuple[int, ...], device: torch.device) -> Tensor:
    return torch.tensor(numbers, dtype=torch.int32, device=device)


def strides_of(inputs: Inputs, z: Tensor) -> Strides:
    """The strides of the inputs and of z, without that of the contiguous axis of vectors."""
    vectors = [one.stride()[:3] for one in (inputs.query, inputs.key, inputs.value, z)]
    matrices = [None if one is None else one.stride() for one in (inputs.mask, inputs.bias)]
    strides = [*vectors, *matrices]
    if inputs.starts is not None:
        # Packed sentences have different lengths, so `starts` says where each begins, not a stride.
        strides = [None if one is None else (0, *one[1:]) for one in strides]
    return Strides(*strides)


def sizes_of(
    inputs: Inputs, block_m: int, *, causal: bool, longest: int | None = None
) -> tuple[Sizes, int]:
    """The sizes, and how many programs there are. `longest`: rows of the longest sentence."""
    B, H, Q, D = inputs.query.shape
    K = inputs.key.shape[2]
    places = (B if inputs.starts is None else len(inputs.starts) - 1) * H
    blocks = math.ceil((Q if longest is None else longest) / block_m)
    together = 1
    if causal:
        together = BYTES_TOGETHER // (2 * K * D * inputs.key.element_size())
    together = max(1, min(places, together))
    return Sizes(places, H, Q, K, blocks, together), places * blocks


def starts_of(lengths: Sequence[int], device: torch.device) -> Tensor:
    """The first row of each packed sentence, and the row after the last sentence."""
    starts = torch.tensor([0, *lengths], dtype=torch.int64).cumsum(0)
    return starts.to(device, non_blocking=True)


def on_device(tensor: Tensor) -> AbstractContextManager[Any]:
    """Makes the tensor's GPU the current one, on which Triton starts kernels."""
    return torch.cuda.device(tensor.device) if tensor.is_cuda else nullcontext()
