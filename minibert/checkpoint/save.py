"""A model as a Hugging Face folder: config.json, model.safetensors, tokenizer.json."""

import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from minibert.checkpoint.config import config_to_hf, dropout_to_hf
from minibert.checkpoint.files import DTYPES
from minibert.checkpoint.weights import to_checkpoint
from minibert.errors import CheckpointError
from minibert.layers.config import Config
from minibert.layers.dropout import Dropout
from minibert.text.tokenizer import Tokenizer
from minibert.writing import replacing


def save(
    folder: str | Path,
    config: Config,
    parameters: Mapping[str, Tensor],
    *,
    dropout: Dropout,
    tokenizer: Tokenizer | None,
    dtype: torch.dtype | None = None,
) -> Path:
    """The folder, with everything transformers and minibert need to load the model again.

    `dtype` converts the weights on the way (float16 halves the file). All files are written
    beside their places and then renamed, so a save that fails leaves the old ones whole.

    Raises CheckpointError when the folder cannot be written or a value does not fit the dtype.
    """
    try:
        named = os.fsdecode(os.fsencode(folder))
    except (TypeError, UnicodeEncodeError):
        named = ""
    if not named.strip() or "\0" in named:
        raise CheckpointError(f"folder={folder!r:.80}: expected the path of a folder.")
    folder = Path(named)
    stored = to_checkpoint(config, parameters)
    tensors = {name: _converted(name, tensor, dtype) for name, tensor in stored.items()}
    about = config_to_hf(config) | dropout_to_hf(dropout, config)
    about |= {name: mark for name, mark in _text_marks(tokenizer).items() if not about.get(name)}
    about["dtype"] = str(next(iter(tensors.values())).dtype).removeprefix("torch.")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as name:
            beside = Path(name)
            (beside / "config.json").write_text(json.dumps(about, indent=2) + "\n")
            if tokenizer is not None:
                (beside / "tokenizer.json").write_text(tokenizer.to_json(), encoding="utf-8")
            save_file(tensors, beside / "model.safetensors", metadata={"format": "pt"})
            for path in sorted(beside.iterdir()):
                with replacing(folder / path.name) as unfinished:
                    path.replace(unfinished)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{folder}: the model could not be saved ({error}).") from error
    return folder


def _converted(name: str, tensor: Tensor, dtype: torch.dtype | None) -> Tensor:
    """The tensor as it is written. Raises CheckpointError for values that do not fit the dtype."""
    kind = dtype or tensor.dtype
    if kind not in DTYPES:
        raise CheckpointError(
            f"{name}: {kind} is not saved; expected dtype= one of {', '.join(map(str, DTYPES))}."
        )
    converted = tensor.to("cpu", kind).contiguous()
    # Both are NaN where one number is; isfinite would take the tensor's size again.
    if converted.numel() and not all(end.isfinite() for end in converted.aminmax()):
        raise CheckpointError(
            f"{name} has values that are NaN or too large for {converted.dtype}; nothing was "
            "saved. Save as float32 or bfloat16."
        )
    return converted


def _text_marks(tokenizer: Tokenizer | None) -> dict[str, int]:
    """The ids that begin and end a text, where the tokenizer has them.

    Without them transformers takes GPT-2's 50256, whatever the vocabulary.
    """
    if tokenizer is None:
        return {}
    marks = {"bos_token_id": tokenizer.bos_id, "eos_token_id": tokenizer.eos_id}
    return {name: mark for name, mark in marks.items() if mark is not None}
