"""Writes a trace to one file, for `Trace.save`, and reads it, for `Trace.load`.

The file holds the quantities that the pass kept, as `embed`, `logits` and
`layers.<layer>.<quantity>`; ids, texts, spans and words of the tokens; and the model's name, config
and a SHA-256 of its weights.
Loading maps the file into memory, so a quantity is loaded from disk only when it is read.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, TypeGuard, cast

import torch
from safetensors import SafetensorError
from torch import Tensor

from minibert.errors import TokenizationError, TraceError
from minibert.kernels.allowed_keys import AllowedKeys
from minibert.layers.config import Config
from minibert.layers.evaluation import Evaluation
from minibert.quantities import QUANTITIES
from minibert.text.inputs import Inputs
from minibert.text.tokens import Tokens
from minibert.trace.container import (
    COLUMNS,
    LABELS,
    checked_columns,
    is_count,
    read_container,
    write_container,
)
from minibert.trace.edit import Point
from minibert.trace.identity import weights_digest
from minibert.trace.plan import shape_of
from minibert.trace.record import PassRecord, Record
from minibert.trace.run import TracedModel
from minibert.untrusted import Json, guarded
from minibert.writing import as_path, check_place, replacing


def identity_of(model: TracedModel) -> dict[str, object]:
    """Name, config, type and digest of the weights, ready for JSON."""
    if not isinstance(model, torch.nn.Module):
        raise TraceError(
            f"{model.name} is a {type(model).__name__}: expected a torch module, whose weights "
            "identify the model in a trace's file."
        )
    return {
        "name": model.name,
        "config": asdict(model.config),
        "dtype": _dtype(model),
        "weights": weights_digest(model),
    }


def _dtype(model: TracedModel) -> str:
    return str(model.body.dtype).removeprefix("torch.")


def check_model(model: object, identity: Json, path: Path) -> TypeGuard[TracedModel]:
    """True; TraceError, saying what differs, where a file is a trace of another model."""
    # From Python 3.12 on isinstance(model, TracedModel) does not see submodules: body and head.
    if not isinstance(model, torch.nn.Module) or not hasattr(model, "task_logits"):
        raise TraceError(f"model={type(model).__name__}: expected the model of the trace {path}.")
    traced = cast(TracedModel, model)
    # As JSON has it.
    ours, theirs = json.loads(json.dumps(asdict(traced.config))), identity["config"]
    about = f"{path} is a trace of {identity['name']!r:.80}, and {traced.name!r} is another model"
    if differing := [name for name in ours if ours[name] != theirs[name]]:
        shown = ", ".join(f"{name} {theirs[name]!r:.80} and {ours[name]!r}" for name in differing)
        raise TraceError(f"{about}: {shown}. Give the model that was traced.")
    dtype = _dtype(traced)
    if dtype != identity["dtype"]:
        raise TraceError(
            f"{about}: the trace is in {identity['dtype']!s:.80}, the model in {dtype}. Load it "
            f"with the dtype= of the trace."
        )
    if weights_digest(model) != identity["weights"]:
        raise TraceError(
            f"{about}: the weights differ. They were changed after the trace was saved, or "
            "belong to another training of the same architecture. Give the model that was traced."
        )
    return True


NUMBERS = ("ids", "mask", "segments")


def read_tokens(about: Json, numbers: Mapping[str, Tensor], model: TracedModel) -> Tokens:
    """The tokens of these columns and tensors; their strings are those of the model's tokenizer.

    Raises TokenizationError, ValueError or LookupError for what is not a batch that the model could
    have read.
    """
    ids, mask, segments = (numbers[name] for name in NUMBERS)
    tokens = Tokens.from_ids(ids, mask=mask, segments=segments, tokenizer=model.tokenizer)
    Inputs(tokens.ids, tokens.mask, tokens.segments).checked(model.config, model.name)
    found: Any = checked_columns(about, COLUMNS, tokens.lengths)
    return replace(tokens, **found)


PathLike = str | os.PathLike[str]


def save_trace(trace: PassRecord, path: PathLike) -> Path:
    """Write the trace to a file, and return its path. Gradients and statistics are not saved.

    Raises TraceError when the file cannot be written; a file that was there before is kept.
    """
    if trace.allowed.packed is not None:
        raise TraceError("Packed sentences are not saved as one file: save trace.text(i) of each.")
    target = as_path(path, TraceError)
    check_place(target, TraceError)
    try:
        with replacing(target) as beside:
            write_container(beside, _tensors(trace), _about(trace))
    except (OSError, SafetensorError) as error:
        raise TraceError(f"{target}: the trace could not be saved ({error}).") from error
    return target


def _tensors(trace: PassRecord) -> dict[str, Tensor]:
    named = {f"tokens.{name}": getattr(trace.tokens, name) for name in NUMBERS} | trace.kept
    for layer, record in enumerate(trace.records):
        named |= {f"layers.{layer}.{name}": value for name, value in record.items()}
    tensors: dict[str, Tensor] = {}
    seen: set[int] = set()
    for name, value in named.items():
        stored = value.detach().cpu().contiguous()
        # safetensors refuses two tensors in the same memory, and the logits of a model without a
        # head are its last resid_post.
        stored = stored.clone() if stored.data_ptr() in seen else stored
        seen.add(stored.data_ptr())
        tensors[name] = stored
    return tensors


def _about(trace: PassRecord) -> dict[str, object]:
    config, layers = trace.config, range(len(trace.records))
    return {
        "model": identity_of(trace.unchanged_model()),
        "until": trace.until,
        "edited_from": trace.edited_from,
        "backends": trace.backends,
        "tokens": {name: getattr(trace.tokens, name) for name in (*COLUMNS, *LABELS)},
        "scales": [config.attention_scale(layer) for layer in layers],
        "windows": [config.window(layer) for layer in layers],
    }


def open_trace(kind: type[Record], path: PathLike, model: TracedModel) -> Record:
    """The trace in the file, mapped into memory: only the parts that are read are loaded.

    Before, the whole file is read once to compare its digest.

    While the trace is in use, never write into the file or shorten it; replacing it, as
    `save_trace` does, is safe. With a model on another device than the CPU everything is copied
    there at once. Raises TraceError for a file that is not a complete trace of this version, for
    one that was changed, and for the trace of another model.
    """
    path = as_path(path, TraceError)
    about, tensors = read_container(path)
    damaged = "its description of the trace is damaged; save the trace again"
    try:
        with guarded(path, TraceError, damaged):
            check_model(model, about["model"], path)
            return _assembled(kind, about, tensors, model, path)
    except TokenizationError as error:
        raise TraceError(f"{path}: {damaged} ({error})") from error


def _assembled(
    kind: type[Record], about: Json, tensors: dict[str, Tensor], model: TracedModel, path: Path
) -> Record:
    config, until, edited_from = model.config, about["until"], about["edited_from"]
    # An edit of only the logits comes after the last layer.
    for layer, most in ((until, config.n_layers - 1), (edited_from, config.n_layers)):
        if layer is not None and not (is_count(layer) and layer <= most):
            raise ValueError("until or edited_from is not a layer of the model")
    numbers = {name: tensors.pop(f"tokens.{name}") for name in NUMBERS}
    tokens = read_tokens(about["tokens"], numbers, model)
    _check_tensors(tensors, config, tokens, path)
    n_records = config.n_layers if until is None else until
    records = [_under(f"layers.{layer}.", tensors) for layer in range(n_records)]
    needed = ("embed", "logits") if until is None else ("embed",)
    edited = () if until is not None else ("final_norm_scale", "pooled")
    kept = {name: tensors[name] for name in needed}
    kept |= {name: tensors[name] for name in edited if name in tensors}
    if len(tensors) != len(kept) + sum(map(len, records)):
        raise ValueError("tensors of layers that were not computed")
    inputs = model.inputs(tokens)
    device = inputs.ids.device
    allowed = AllowedKeys.of(inputs.mask, causal=config.causal, ids=inputs.ids)
    trace = kind(model, inputs, Evaluation(allowed), until=until)
    trace.records = [{name: t.to(device) for name, t in record.items()} for record in records]
    trace.kept = {name: tensor.to(device) for name, tensor in kept.items()}
    trace.edited_from = edited_from
    trace.stored_backends = {name: str(about["backends"][name]) for name in trace.backends}
    return trace


def _under(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    found = {
        name.removeprefix(prefix): value
        for name, value in tensors.items()
        if name.startswith(prefix)
    }
    # What the next layer begins with; the rest can be computed, or said to be absent.
    if "resid_post" not in found:
        raise LookupError(f"no {prefix}resid_post")
    return found


def _check_tensors(
    tensors: Mapping[str, Tensor], config: Config, tokens: Tokens, path: Path
) -> None:
    batch, position = tokens.ids.shape
    allowed = AllowedKeys(batch, position, tokens.ids.device, config.causal)
    for name, tensor in tensors.items():
        quantity = name.rpartition(".")[2]
        if not tensor.is_floating_point():
            raise TraceError(f"{path}: {name} holds {tensor.dtype}; expected floats.")
        if name == "logits":
            # Of a sentence or of each position, as the task has it.
            expected = (*(batch, position)[: tensor.ndim - 1], *tensor.shape[-1:])
        else:
            if QUANTITIES[quantity].per_layer != (quantity != name):
                raise LookupError(f"{name} is not in its place")
            expected = shape_of(Point(quantity), config, allowed)
        if tensor.shape != expected or tensor.ndim < 2:
            raise TraceError(
                f"{path}: {name} has shape {tuple(tensor.shape)}, expected {expected} for "
                f"{batch} sentences of {position} positions. Save the trace again."
            )
