"""An implementation as torch.compile calls it without looking into it.

A module of its own, imported where something is compiled: the decorator imports half of torch.
"""

import torch

from minibert.kernels.call import Call, Outputs
from minibert.kernels.registry import Implementation


@torch.compiler.disable  # type: ignore[untyped-decorator]
def uncompiled(chosen: Implementation, call: Call) -> Outputs:
    """What the implementation gives."""
    return chosen.fn(call)
