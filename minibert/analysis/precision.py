"""Numbers in float32 at least, without a graph."""

import torch
from torch import Tensor

__all__ = ["wide"]


def wide(x: Tensor) -> Tensor:
    """The same numbers without a gradient, in float32 where they are stored in less."""
    # torch.Tensor.detach and not the method: packed layers stay packed.
    return torch.Tensor.detach(x).to(torch.promote_types(x.dtype, torch.float32))
