"""Writing a safetensors file a tensor at a time: in memory is one, and not the file.

The format is 8 bytes with the length of the header, the header in JSON, and the tensors one after
the other; https://huggingface.co/docs/safetensors. safetensors' own writer takes all at once.
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from torch import Tensor

from minibert.errors import CheckpointError

__all__ = ["DTYPES", "check_finite", "write_tensors"]

#: The format's names of the dtypes that a model may have, in the order of safetensors' files.
DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.bfloat16: "BF16",
    torch.float16: "F16",
}


def write_tensors(
    path: Path,
    shapes: Mapping[str, tuple[tuple[int, ...], torch.dtype]],
    tensor_of: Callable[[str], Tensor],
) -> None:
    """Write a file of these tensors, byte for byte what `safetensors.torch.save_file` writes.

    `tensor_of` gives the values of a name; each is converted to its dtype in `shapes`, written and
    let go before the next is asked for. Raises OSError.
    """
    order = list(DTYPES)
    # The widest numbers first, so that each tensor is aligned.
    names = sorted(shapes, key=lambda name: (order.index(shapes[name][1]), name))
    about: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name in names:
        shape, dtype = shapes[name]
        start, end = end, end + torch.Size(shape).numel() * dtype.itemsize
        about[name] = {"dtype": DTYPES[dtype], "shape": shape, "data_offsets": (start, end)}
    header = json.dumps(about, separators=(",", ":"), ensure_ascii=False).encode()
    header += b" " * (-len(header) % 8)
    with path.open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        for name in names:
            tensor = tensor_of(name).to("cpu", shapes[name][1]).contiguous()
            file.write(tensor.reshape(-1).view(torch.uint8).numpy().data)


def check_finite(name: str, tensor: Tensor) -> None:
    """Raise CheckpointError for a value that is NaN, infinite or too large for the dtype."""
    # Both are NaN where one number is; isfinite would take the tensor's size again.
    if tensor.numel() and not all(end.isfinite() for end in tensor.aminmax()):
        raise CheckpointError(
            f"{name} has values that are NaN or too large for {tensor.dtype}; nothing was "
            "saved. Save as float32 or bfloat16."
        )
