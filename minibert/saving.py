"""A model as a Hugging Face folder: config.json, model.safetensors, tokenizer.json."""

import json
import os
import tempfile
from pathlib import Path

import torch
from safetensors.torch import save_file

from minibert.errors import CheckpointError
from minibert.model import Model
from minibert.weights import to_checkpoint

__all__ = ["save"]


def save(model: Model, folder: str | Path, *, dtype: torch.dtype | None = None) -> Path:
    """The folder, with everything transformers and minibert need to load the model again.

    `dtype` converts the weights on the way (float16 halves the file). Each file is written
    beside its place and then renamed, so an interrupted save leaves the old file whole.

    Raises CheckpointError when the folder cannot be written.
    """
    folder = Path(folder)
    tensors = to_checkpoint(model.config, dict(model.named_parameters()))
    tensors = {
        name: tensor.to("cpu", dtype or tensor.dtype).contiguous()
        for name, tensor in tensors.items()
    }
    config = model.config.to_hf() | {
        "dtype": str(next(iter(tensors.values())).dtype).removeprefix("torch.")
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _replace(folder / "config.json", json.dumps(config, indent=2).encode() + b"\n")
        if model.tokenizer is not None:
            _replace(folder / "tokenizer.json", model.tokenizer.to_json().encode())
        with tempfile.TemporaryDirectory(dir=folder) as beside:
            written = Path(beside) / "model.safetensors"
            save_file(tensors, written, metadata={"format": "pt"})
            os.replace(written, folder / "model.safetensors")
    except OSError as error:
        raise CheckpointError(f"{folder}: the model could not be saved ({error}).") from error
    return folder


def _replace(path: Path, content: bytes) -> None:
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
        file.write(content)
    os.replace(file.name, path)
    path.chmod(0o644)
