"""What the forward kernels write for each row, and how they find the argmax.

Row outputs are (batch, head, query), for packed sentences (1, head, token); contiguous.
"""

from collections.abc import Collection
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from minibert.kernels.call import Call, Outputs

_ROWS = ("row_max", "max_prob", "entropy", "argmax")


class RowOutputs(NamedTuple):
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
    parts: list[Any] = []
    for numbers in (offsets, positions):
        if numbers:
            mass = query.new_empty((*query.shape[:3], len(numbers)), dtype=torch.float32)
            parts += [mass, _on_device(numbers, query.device), len(numbers)]
        else:
            parts += [None, None, None]
    return Chosen(*parts)


def given_outputs(outputs: RowOutputs, chosen: Chosen, **others: Tensor | None) -> Outputs:
    """What a kernel has written, by name."""
    found = outputs._asdict() | others
    found |= {"offset_mass": chosen.offset_mass, "key_mass": chosen.key_mass}
    return {name: one for name, one in found.items() if one is not None}


@lru_cache(maxsize=256)
def _on_device(numbers: tuple[int, ...], device: torch.device) -> Tensor:
    return torch.tensor(numbers, dtype=torch.int32, device=device)
