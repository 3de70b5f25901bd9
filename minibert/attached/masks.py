"""The masks of transformers' attention calls, in the two parts that minibert's kernels take.

A call has one mask: True where attention is allowed, or numbers that are added to the scores, of
which the smallest that there are, or −inf, forbid. Without one everything is allowed, but that
under sdpa a module that is causal sees no later key.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from minibert.quantities import Bool, Float

__all__ = ["Mask", "mask_of", "rows_of"]


@dataclass(frozen=True)
class Mask:
    """What a call's mask says: which keys are allowed, and what is added to the scores."""

    allowed: Bool[Tensor, "#batch #head #query #key"] | None = None
    """None: all of them."""
    bias: Float[Tensor, "#batch #head #query #key"] | None = None
    """Finite; None: nothing is added."""
    forbidden: float = -torch.inf
    """What the model adds to a forbidden score; finite numbers leave a row without keys uniform."""


def mask_of(
    mask: Tensor | None, query: Tensor, key: Tensor, *, causal: bool, rows: slice | Tensor
) -> Mask:
    """The mask of some query rows of a call; `causal` orders the keys where there is no mask."""
    n_keys = key.shape[-2]
    if mask is None:
        if not causal:
            return Mask()
        positions = torch.arange(query.shape[-2], device=query.device)[rows, None]
        return Mask(torch.arange(n_keys, device=query.device)[None, None, None] <= positions)
    mask = rows_of(mask, rows)[..., :n_keys]
    if mask.dtype == torch.bool:
        return Mask(mask)
    if not mask.is_floating_point():
        return Mask(mask != 0)
    least = torch.finfo(mask.dtype).min
    allowed = mask > least / 2
    forbidden = -torch.inf if bool((mask == -torch.inf).any()) else least
    bias = torch.where(allowed, mask, 0)
    return Mask(allowed, bias if bool(bias.any()) else None, forbidden)


def rows_of(matrix: Tensor, rows: slice | Tensor) -> Tensor:
    """Some rows of a matrix whose row axis may be 1."""
    return matrix if matrix.shape[-2] == 1 else matrix[..., rows, :]
