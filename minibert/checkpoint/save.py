"""A model as a Hugging Face folder: config.json, model.safetensors, tokenizer.json."""

import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from minibert.checkpoint.config import config_to_hf
from minibert.checkpoint.dropout import dropout_to_hf
from minibert.checkpoint.tensor_file import DTYPES, check_finite, write_tensors
from minibert.checkpoint.weights import joined, stored_parts
from minibert.errors import CheckpointError
from minibert.layers.config import Config
from minibert.layers.dropout import Dropout
from minibert.text.tokenizer import Tokenizer

__all__ = ["Saveable", "save"]


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
                os.replace(path, folder / path.name)
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
