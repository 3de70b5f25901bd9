"""The arguments of every kernel: one set of named tuples, sizes and config, and what is written.

The kernels read the fields of the tuples by name. Row outputs are (batch, head, query), for packed
sentences (1, head, token); contiguous. This file uses tensors only, not Triton.
"""

import math
from collections.abc import Collection
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from minibert.kernels.call import Call, Outputs
from minibert.quantities import Int

#: Keys and values of the heads that run side by side: about half of the L2 cache of a large GPU.
BYTES_TOGETHER = 24 * 2**20


class Config(NamedTuple):
    """How a kernel is split and compiled: rows and keys of a block, warps, and loads in flight."""

    block_m: int
    block_n: int
    num_warps: int
    num_stages: int

    def constants(self) -> dict[str, int]:
        """The constants that a kernel is compiled with.

        Products and sums become one multiply-add, which Triton does unasked only before 3.10.
        """
        compiled = {"num_warps": self.num_warps, "num_stages": self.num_stages}
        compiled |= {"enable_fp_fusion": True}
        return {"BLOCK_M": self.block_m, "BLOCK_N": self.block_n} | compiled


class Inputs(NamedTuple):
    """Tensors a kernel reads, and the soft cap; None where a call has none. mask is uint8.

    slopes are (batch, head) and sinks (head), float32. The last three are of the backward: lse (in
    base 2) and delta are float32, (batch · head, queries filled up to whole blocks).
    """

    query: Tensor
    key: Tensor
    value: Tensor
    lengths: Tensor | None = None
    starts: Tensor | None = None
    mask: Tensor | None = None
    bias: Tensor | None = None
    key_starts: Tensor | None = None
    prefix: Tensor | None = None
    slopes: Tensor | None = None
    sinks: Tensor | None = None
    soft_cap: float | None = None
    z_gradient: Tensor | None = None
    lse: Tensor | None = None
    delta: Tensor | None = None


Stride = tuple[int, ...]


class Strides(NamedTuple):
    """In elements: (batch, head, row) of vectors, (batch, head, query, key) of mask and bias.

    slopes have (batch, head). z is what the forward writes.
    """

    query: Stride
    key: Stride
    value: Stride
    z: Stride | None = None
    mask: Stride | None = None
    bias: Stride | None = None
    slopes: Stride | None = None
    z_gradient: Stride | None = None


class Sizes(NamedTuple):
    """Heads of all sentences, heads of one, rows, keys, blocks of rows; heads side by side.

    `group` query heads read one key head. A query sees `before` keys before its own position and
    `after` after it; None: no limit. The backward fills queries up to `n_filled`.
    """

    n_places: int
    n_heads: int
    n_queries: int
    n_keys: int
    n_blocks: int
    n_together: int
    group: int = 1
    before: int | None = None
    after: int | None = None
    n_filled: int = 0


def block_of_features(d_head: int) -> int:
    """The width of a tile of vectors: a power of two that the matrix instructions take."""
    return max(16, 1 << (d_head - 1).bit_length())


def limits(call: Call) -> tuple[int | None, int | None]:
    """How far a query sees, before and after; causal order without a prefix ends after it."""
    before, after = call.window or (None, None)
    return before, None if call.causal and call.prefix is None else after


def edges(call: Call) -> bool:
    """True when cells of a mask or a bias are read."""
    return call.mask is not None or call.bias is not None


def shaped(call: Call) -> bool:
    """True when every score is changed beside the scale, by a soft cap or by ALiBi."""
    return call.soft_cap is not None or call.alibi_slopes is not None


def words(call: Call) -> str:
    """The facts that decide the fastest config, in words; see `tuning.candidates`."""
    holds = {
        "packed": call.packed is not None,
        "causal": call.causal,
        "edges": edges(call),
        "window": limits(call) != (None, None),
        "shaped": shaped(call),
    }
    return " ".join(word for word, true in holds.items() if true)


def longest(call: Call) -> tuple[int, int]:
    """Queries and keys of the longest sentence."""
    if call.packed is None:
        return call.query.shape[2], call.key.shape[2]
    return max(call.packed, default=0), max(call.packed_keys or call.packed, default=0)


def constants_of(call: Call) -> dict[str, object]:
    """What every kernel is compiled for, beside its block sizes."""
    d_head, d_value = call.query.shape[-1], call.value.shape[-1]
    return {
        "CAUSAL": call.causal,
        # By default Triton rounds float32 to tf32.
        "PRECISION": "ieee",
        "D_HEAD": d_head,
        "BLOCK_D": block_of_features(d_head),
        "D_VALUE": d_value,
        "BLOCK_V": block_of_features(d_value),
    }


def inputs_of(call: Call) -> Inputs:
    """The tensors as the kernels take them; copied only where vectors are not contiguous."""
    B, H, Q, K = (*call.query.shape[:3], call.key.shape[2])
    mask, bias, slopes, sinks = call.mask, call.bias, call.alibi_slopes, call.sinks
    device = call.query.device
    return Inputs(
        row_contiguous(call.query),
        row_contiguous(call.key),
        row_contiguous(call.value),
        lengths=None if call.lengths is None else call.lengths.contiguous(),
        starts=None if call.packed is None else starts_of(call.packed, device),
        mask=None if mask is None else mask.view(torch.uint8).expand(B, H, Q, K),
        bias=None if bias is None else bias.expand(B, H, Q, K),
        key_starts=None if call.packed_keys is None else starts_of(call.packed_keys, device),
        prefix=None if call.prefix is None else call.prefix.contiguous(),
        slopes=None if slopes is None else slopes.float().expand(B, H),
        sinks=None if sinks is None else sinks.float().contiguous(),
        soft_cap=call.soft_cap,
    )


def row_contiguous(vectors: Tensor) -> Tensor:
    """The tensor with a last axis of stride 1."""
    return vectors if vectors.stride(-1) == 1 else vectors.contiguous()


def strides_of(inputs: Inputs, z: Tensor | None = None) -> Strides:
    """The strides of the inputs and of z, without that of the contiguous axis of vectors."""
    tensors, vectors = inputs._asdict() | {"z": z}, ("query", "key", "value", "z", "z_gradient")
    strides = {
        name: tensors[name].stride()[: 3 if name in vectors else None]
        for name in Strides._fields
        if tensors[name] is not None
    }
    if inputs.starts is not None:
        # Packed sentences have different lengths, so `starts` says where each begins, not a stride.
        strides = {name: (0, *one[1:]) for name, one in strides.items()}
    return Strides(**strides)


def sizes_of(inputs: Inputs, call: Call, block_m: int) -> tuple[Sizes, int]:
    """The sizes for blocks of `block_m` rows, and how many programs there are."""
    B, H, Q, D = inputs.query.shape
    key_heads, K = inputs.key.shape[1:3]
    places = (B if inputs.starts is None else len(inputs.starts) - 1) * H
    blocks = math.ceil(longest(call)[0] / block_m)
    together = 1
    if call.causal:
        together = BYTES_TOGETHER // max(1, 2 * K * D * inputs.key.element_size())
    together = max(1, min(places, together))
    before, after = limits(call)
    sizes = Sizes(places, H, Q, K, blocks, together, H // key_heads, before, after)
    return sizes, places * blocks


@lru_cache(maxsize=256)
def starts_of(lengths: tuple[int, ...], device: torch.device) -> Int[Tensor, " start"]:
    """The first row of each packed sentence, and the row after the last sentence.

    Made once for the same lengths: a copy to the device cannot be part of a CUDA graph.
    """
    # Kept beyond this call, so it must not belong to an inference mode around it.
    with torch.inference_mode(False):
        starts = torch.tensor([0, *lengths], dtype=torch.int64).cumsum(0)
        return starts.to(device, non_blocking=True)


def on_device(tensor: Tensor) -> AbstractContextManager[object]:
    """Makes the tensor's GPU the current one, on which Triton starts kernels."""
    return torch.cuda.device(tensor.device) if tensor.is_cuda else nullcontext()


_ROWS = ("row_max", "max_prob", "entropy", "argmax")


class RowOutputs(NamedTuple):
    """Tensors with one number, or one vector, for each row; None where one is not wanted."""

    z: Tensor
    lse: Tensor
    row_max: Tensor | None
    max_prob: Tensor | None
    entropy: Tensor | None
    argmax: Tensor | None


class Chosen(NamedTuple):
    """Probs at chosen offsets and keys, and these offsets and keys; None where not wanted."""

    offset_mass: Tensor | None
    offsets: Tensor | None
    n_offsets: int | None
    key_mass: Tensor | None
    positions: Tensor | None
    n_positions: int | None


def best_of(dtype: torch.dtype, want: Collection[str]) -> str | None:
    """How the kernels find the argmax: not at all, "exact", or "near" for inputs of 16 bits.

    "near" tells scores apart, and gives row_max and max_prob's maximum, to 2^-18 of a score (a
    tile of 256 keys: 2^-17), which is far below what 16 bits leave of one.
    """
    if "argmax" not in want:
        return None
    return "exact" if dtype == torch.float32 else "near"


def row_outputs(call: Call) -> RowOutputs:
    """Empty tensors for z, lse and the wanted numbers of rows."""
    query, shape = call.query, call.query.shape[:3]
    rows = [
        query.new_empty(shape, dtype=torch.int64 if name == "argmax" else torch.float32)
        if name in call.want
        else None
        for name in _ROWS
    ]
    lse = query.new_empty(shape, dtype=torch.float32)
    if call.value.shape[-1] != query.shape[-1]:
        z = query.new_empty((*shape, call.value.shape[-1]))
    else:
        z = torch.empty_like(query, memory_format=torch.preserve_format)
    return RowOutputs(z if z.stride(-1) == 1 else z.contiguous(), lse, *rows)


def chosen_outputs(call: Call) -> Chosen:
    """Empty tensors for offset_mass and key_mass, and their offsets and positions."""
    query, want = call.query, call.want
    reach = query.shape[2] + call.key.shape[2]
    # An offset larger than the length always points outside the text, so it can be limited.
    offsets = tuple(max(-reach, min(reach, one)) for one in want.get("offset_mass", ()))
    positions = want.get("key_mass", ())

    def part(numbers: tuple[int, ...]) -> tuple[Tensor | None, Tensor | None, int | None]:
        if not numbers:
            return None, None, None
        mass = query.new_empty((*query.shape[:3], len(numbers)), dtype=torch.float32)
        return mass, _on_device(numbers, query.device), len(numbers)

    return Chosen(*part(offsets), *part(positions))


def given_outputs(outputs: RowOutputs, chosen: Chosen, **others: Tensor | None) -> Outputs:
    """The outputs of a kernel, by name."""
    found = outputs._asdict() | others
    found |= {"offset_mass": chosen.offset_mass, "key_mass": chosen.key_mass}
    return {name: one for name, one in found.items() if one is not None}


@lru_cache(maxsize=256)
def _on_device(numbers: tuple[int, ...], device: torch.device) -> Tensor:
    return torch.tensor(numbers, dtype=torch.int32, device=device)
