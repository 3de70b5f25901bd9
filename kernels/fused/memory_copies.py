"""Loads of keys and values by Hopper's tensor memory accelerator (TMA), where the inputs allow it.

`forward.py` uses it for the blocks that need no mask. `tuning.py` times it against loads by pointer
and keeps the faster one.

One thread asks the copy unit for a whole tile, with a descriptor that is made before the kernel
starts, so no thread computes addresses. For plain bf16 with d_head 64 and 4 warps, the compiler
needs 221 registers a thread in place of 240, and 4 % more instructions, which wait for the copy
unit. The effect on speed has not been measured. (With separate warps for the copies,
`warp_specialize`, Triton 3.6's compiler fails on this loop with an assertion.)
"""

from importlib.util import find_spec
from typing import Any, no_type_check

import torch
import triton
import triton.language as tl
from torch import Tensor

from minibert.kernels.fused.launch import Config, Inputs, block_of_features
from minibert.kernels.fused.primitives import load_rows
from minibert.quantities import Float

#: The address and the strides of a descriptor's tensor must be multiples of this many bytes.
_ALIGNED = 16
#: Descriptors exist since triton 3.4.
_HAS_DESCRIPTORS = find_spec("triton.tools.tensor_descriptor") is not None


@triton.jit
@no_type_check
def head_corner(inputs, sizes, place):
    """Where the keys of a head begin in the descriptors: (batch, head, row)."""
    batch, head = place // sizes.n_heads, place % sizes.n_heads // sizes.group
    if inputs.key_starts is not None:
        return 0, head, tl.load(inputs.key_starts + batch).to(tl.int32)
    elif inputs.starts is not None:
        return 0, head, tl.load(inputs.starts + batch).to(tl.int32)
    else:
        return batch, head, 0


@triton.jit
@no_type_check
def rows_at(
    vectors,
    offsets,
    left,
    tiles,
    corner,
    first,
    D_HEAD: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    EDGE: tl.constexpr,
):
    """A (ROWS, COLUMNS) tile of vectors from row `first` on, the columns beyond d_head 0.

    By the copy unit where there are `tiles`; with EDGE, which ends rows, by pointer.
    """
    if EDGE or tiles is None:
        return load_rows(vectors, offsets, left, D_HEAD, ROWS, COLUMNS, EDGE)
    else:
        batch, head, start = corner
        return tl.reshape(tiles.load([batch, head, start + first, 0]), (ROWS, COLUMNS))


def takes_tma(inputs: Inputs) -> bool:
    """Whether this GPU has the copy unit, and it can read these keys and values."""
    key = inputs.key
    if not (key.is_cuda and _HAS_DESCRIPTORS and torch.version.cuda):
        return False
    if torch.cuda.get_device_capability(key.device)[0] < 9:
        return False
    # Not in float32: the loop would spill registers, and it waits for multiplications, not memory.
    return key.dtype != torch.float32 and _readable(key) and _readable(inputs.value)


def tiles_of(vectors: Float[Tensor, "batch head key d_head"], cut: Config) -> Any:
    """The descriptor of tiles of one head's rows; None where TMA cannot read them.

    Source of what it can read: CUDA driver API, cuTensorMapEncodeTiled.
    """
    if not _readable(vectors):
        return None
    from triton.tools.tensor_descriptor import TensorDescriptor

    strides = [
        one if n > 1 else _ALIGNED for n, one in zip(vectors.shape, vectors.stride(), strict=True)
    ]
    block = [1, 1, cut.block_n, block_of_features(vectors.shape[-1])]
    return TensorDescriptor(vectors, list(vectors.shape), [*strides[:-1], 1], block)


def _readable(vectors: Tensor) -> bool:
    size = vectors.element_size()
    axes = zip(vectors.shape[:-1], vectors.stride()[:-1], strict=True)
    # An axis that is only repeated (expanded) has a stride of 0.
    aligned = all(n == 1 or (step and step * size % _ALIGNED == 0) for n, step in axes)
    begins = vectors.data_ptr() % _ALIGNED == 0
    return bool(vectors.numel()) and vectors.stride(-1) == 1 and aligned and begins
