"""What the forward kernels write for each row, and how they find the argmax.

Row outputs are (batch, head, query), for packed sentences (1, head, token); contiguous.
"""

from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from minibert.kernels.requests import Want

__all__ = ["Chosen", "Outputs", "best_of", "chosen_outputs", "row_outputs"]

_ROWS = ("row_max", "max_prob", "entropy", "argmax")


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


def best_of(query: Tensor, want: Want) -> str | None:
    """How the kernels find the argmax: not at all, "exact", or "near" for inputs of 16 bits.

    "near" tells scores apart, and gives row_max and max_prob's maximum, to 2^-18 of a score (a
    tile of 256 keys: 2^-17), which is far below what 16 bits leave of one.
    """
    if "argmax" not in want:
        return None
    return "exact" if query.dtype == torch.float32 else "near"


def row_outputs(query: Tensor, value: Tensor, want: Want) -> Outputs:
    """Empty tensors for z, lse and the wanted numbers of rows."""
    rows = [
        query.new_empty(query.shape[:3], dtype=torch.int64 if name == "argmax" else torch.float32)
        if name in want
        else None
        for name in _ROWS
    ]
    lse = query.new_empty(query.shape[:3], dtype=torch.float32)
    if value.shape[-1] != query.shape[-1]:
        z = query.new_empty((*query.shape[:3], value.shape[-1]))
    else:
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
