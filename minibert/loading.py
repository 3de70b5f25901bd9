"""From a name to a Model: hub id, local folder, embedded name, or a live transformers model."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from minibert.checkpoint.load import (
    DEFAULT,
    Asked,
    Checkpoint,
    find,
    open_folder,
    open_live,
)
from minibert.errors import CheckpointError, check_flag
from minibert.kernels.registry import check_name
from minibert.layers.config import TaskName
from minibert.layers.linear import pack
from minibert.model import Model

if TYPE_CHECKING:
    Name = str | Path | nn.Module
else:
    # Anything else is refused by `load` itself, which says what was expected.
    Name = object


# What is made in inference mode could not be differentiated through outside of it.
@torch.inference_mode(False)
def load(
    name: Name | None = None,
    *,
    task: TaskName | None = None,
    labels: Sequence[str] | None = None,
    head_seed: int | None = None,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
    revision: str | None = None,
    cache_dir: str | Path | None = None,
    offline: bool = False,
    allow_unexpected: bool = False,
    impl: str = "auto",
) -> Model:
    """The model of that name, ready to run.

    `name` is an embedded model (none given: tiny-bert), a folder with a Hugging Face checkpoint,
    a Hub id such as "bert-base-uncased", or a transformers model object, whose weights are
    shared and not copied. An embedded name wins over a folder of that name, which is "./name";
    a folder wins over a Hub id.

    task       a task head other than the one its config.json names; "none" for the body alone
    labels     names of the classes, in place of those of its config.json
    head_seed  makes a fresh task head with random weights from this seed, for a checkpoint without
               one, or in place of its own: `model.fresh` names them. Train it before it is asked
    dtype      float64, float32, bfloat16 or float16. When not given, a model of up to a billion
               weights is float32 (float64 where all its weights are), so that its numbers are
               exact; a larger one has the type of its file, as transformers gives every model:
               Llama-3-8B is bfloat16 and takes 16 GB
    device     the CPU when not given, or where the transformers object has its weights. Weights
               of a file go to another device one by one
    revision, cache_dir, offline: of the Hub; offline uses the cache alone
    allow_unexpected: leave out tensors that belong to no known part of the family
    impl       the implementation of attention, one of `minibert.implementations()`; "auto" takes
               the fastest that gives what a call needs

    Weights of a file are packed where the rule of the linear back ends says so (`model.unpack()`
    undoes it). Those that keep their type are mapped into memory, not read into it: the system
    takes their pages back when it needs memory. While the model lives, replace the file
    (write another and rename it, as `save` does), and never write into it or cut it. Every weight
    is looked at once, for NaN and infinity.
    Raises CheckpointError when something cannot be found, fetched, read, or does not fit, and
    AttentionError for an unknown implementation; nothing is half loaded.
    """
    asked = Asked(task, labels, head_seed, dtype, allow_unexpected)
    check_name(impl)
    check_flag("offline", offline, CheckpointError)
    chosen = None if device is None else _device(device)
    if isinstance(name, nn.Module):
        model = _build(open_live(name, asked))
        model.impl = impl
        moved = chosen is not None and any(p.device != chosen for p in model.parameters())
        return model.to(chosen) if moved else model
    folder = find(name, revision=revision, cache_dir=cache_dir, offline=offline)
    shown = DEFAULT if name is None else str(name)
    model = _build(open_folder(folder, asked, name=shown), chosen)
    model.impl = impl
    pack(model)
    return model


def from_transformers(model: Any, **options: Any) -> Model:
    """The same model in minibert; it shares the weights of the transformers model.

    `options` are those of `Asked`. Raises CheckpointError for a family or head minibert does not
    know.
    """
    return _build(open_live(model, Asked(**options)))


def _build(checkpoint: Checkpoint, device: torch.device | None = None) -> Model:
    # Without values: each parameter is put in as it is read, and never allocated twice.
    with torch.device("meta"):
        model = Model(checkpoint.config, tokenizer=checkpoint.tokenizer, name=checkpoint.name)
    checkpoint.fill(model, device)
    model.dropout = checkpoint.dropout
    model.fresh = tuple(checkpoint.fresh(dict(model.named_parameters())))
    return model


def _device(device: Any) -> torch.device:
    """The device, once a tensor could be put there."""
    try:
        return torch.empty(0, device=torch.device(device)).device
    # Each kind of device refuses in its own way, CUDA with an AssertionError.
    except Exception as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise CheckpointError(
            f"device={device!r} cannot be used ({reason}); expected a device of this machine, "
            'such as "cpu" or "cuda:0".'
        ) from error
