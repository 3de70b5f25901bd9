"""A model as a Hugging Face folder: config.json, model.safetensors, tokenizer.json.

The safetensors file is written a tensor at a time: in memory is one, and not the file. The format
is 8 bytes with the length of the header, the header in JSON, and the tensors one after the other;
https://huggingface.co/docs/safetensors. The own writer of safetensors takes all at once.
"""

import json
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from minibert.checkpoint.config import config_to_hf
from minibert.checkpoint.dropout import dropout_to_hf
from minibert.checkpoint.weights import joined, stored_parts
from minibert.errors import CheckpointError
from minibert.layers.config import Config
from minibert.layers.dropout import Dropout
from minibert.text.tokenizer import Tokenizer
from minibert.writing import replacing

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


@runtime_checkable
class Saveable(Protocol):
    """What a model has to have in order to be saved."""

    config: Config
    tokenizer: Tokenizer | None

    @property
    def dropout(self) -> Dropout:
        """What becomes 0 in training."""
        ...

    def named_parameters(self) -> Iterator[tuple[str, Tensor]]:
        """Each parameter once, by our name."""
        ...


def save(model: Saveable, folder: str | Path, *, dtype: torch.dtype | None = None) -> Path:
    """The folder, with everything transformers and minibert need to load the model again.

    `dtype` converts the weights on the way (float16 halves the file). All files are written
    beside their places and then renamed, so a save that fails leaves the old ones whole. One tensor
    at a time is converted and written: beside the model, memory grows by the largest.

    Raises CheckpointError when the folder cannot be written or a value does not fit the dtype.
    """
    folder = Path(folder)
    parts = stored_parts(model.config, dict(model.named_parameters()))
    shapes = {name: _checked(name, joined(of), dtype) for name, of in parts.items()}
    config = config_to_hf(model.config) | dropout_to_hf(model.dropout, model.config)
    config = config | {
        name: mark for name, mark in _text_marks(model).items() if not config.get(name)
    }
    config["dtype"] = str(next(iter(shapes.values()))[1]).removeprefix("torch.")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as name:
            beside = Path(name)
            (beside / "config.json").write_text(json.dumps(config, indent=2) + "\n")
            if model.tokenizer is not None:
                tokenizer = model.tokenizer.to_json()
                (beside / "tokenizer.json").write_text(tokenizer, encoding="utf-8")
            write_tensors(beside / "model.safetensors", shapes, lambda name: joined(parts[name]))
            for path in sorted(beside.iterdir()):
                with replacing(folder / path.name) as unfinished:
                    path.replace(unfinished)
    except OSError as error:
        raise CheckpointError(f"{folder}: the model could not be saved ({error}).") from error
    return folder


def _checked(
    name: str, tensor: Tensor, dtype: torch.dtype | None
) -> tuple[tuple[int, ...], torch.dtype]:
    """Shape and dtype of a stored tensor, whose values fit the dtype."""
    kind = dtype or tensor.dtype
    if kind not in DTYPES:
        raise CheckpointError(
            f"{name}: {kind} is not saved; expected dtype= one of {', '.join(map(str, DTYPES))}."
        )
    check_finite(name, tensor.to(kind))
    return tuple(tensor.shape), kind


def _text_marks(model: Saveable) -> dict[str, int]:
    """The ids that begin and end a text, where the tokenizer has them.

    Without them transformers takes GPT-2's 50256, whatever the vocabulary.
    """
    if model.tokenizer is None:
        return {}
    marks = {"bos_token_id": model.tokenizer.bos_id, "eos_token_id": model.tokenizer.eos_id}
    return {name: mark for name, mark in marks.items() if mark is not None}
