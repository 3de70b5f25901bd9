"""Writes a trace to one file, for `Trace.save`, and reads it, for `Trace.load`.

The file holds the quantities that the pass kept, as `embed`, `logits` and
`layers.<layer>.<quantity>`; the tokens; and the model's name, config and a SHA-256 of its weights.
container.py says how. Loading maps the file into memory, so a quantity is loaded from disk only
when it is read.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from torch import Tensor

from minibert.errors import CheckpointError, TokenizationError, TraceError
from minibert.kernels.allowed_keys import AllowedKeys
from minibert.layers.config import Config
from minibert.quantities import QUANTITIES
from minibert.text.inputs import Inputs
from minibert.text.tokens import Tokens
from minibert.trace.container import read_container, write_container
from minibert.trace.identity import check_model, identity_of, stand_in
from minibert.trace.pass_record import PassRecord
from minibert.trace.run import TracedModel
from minibert.trace.stored_tokens import NUMBERS, describe_tokens, read_tokens, tuples
from minibert.untrusted import guarded
from minibert.writing import check_place, replacing

__all__ = ["StoredTrace", "open_trace", "save_trace"]

PathLike = str | os.PathLike[str]


@dataclass(frozen=True)
class StoredTrace:
    """The contents of a trace file, from which `Trace.load` makes a trace."""

    model: TracedModel
    inputs: Inputs
    allowed: AllowedKeys
    until: int | None
    edited_from: int | None
    records: list[dict[str, Tensor]]
    kept: dict[str, Tensor]
    backends: dict[str, str]


def save_trace(trace: PassRecord, path: PathLike) -> Path:
    """Write the trace to a file, and return its path. Gradients and statistics are not saved.

    Raises TraceError when the file cannot be written; a file that was there before is kept.
    """
    if trace.allowed.packed is not None:
        raise TraceError(
            "A trace of packed sentences is not saved as one file: save trace.text(i) of each."
        )
    if trace.inputs.embeds is not None:
        raise TraceError(
            "A trace of inputs_embeds is not saved: a file holds the tokens that were read, and "
            "embeddings have none. Save what you read of it with torch.save."
        )
    target = _path(path)
    check_place(target, TraceError)
    try:
        with replacing(target) as beside:
            write_container(beside, _tensors(trace), _about(trace))
            # safetensors writes files that only their owner may read.
            beside.chmod(0o644)
    except (OSError, SafetensorError) as error:
        raise TraceError(f"{target}: the trace could not be saved ({error}).") from error
    return target


def _path(path: Any) -> Path:
    try:
        return Path(os.fsdecode(os.fsencode(path)))
    except (TypeError, UnicodeEncodeError) as error:
        raise TraceError(f"path={path!r:.80}: expected the path of a file ({error}).") from error


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


def _about(trace: PassRecord) -> dict[str, Any]:
    return {
        "model": identity_of(trace.model),
        "until": trace.until,
        "edited_from": trace.edited_from,
        "backends": trace.backends,
        "tokens": describe_tokens(trace.tokens),
    }


def open_trace(path: PathLike, model: TracedModel | None = None) -> StoredTrace:
    """The contents of the file, mapped into memory: only the parts that are read are loaded.

    Before, the whole file is read once to compare its digest.

    While the trace is in use, never write into the file or shorten it; replacing it, as
    `save_trace` does, is safe. With a model on another device than the CPU everything is copied
    there at once. Raises TraceError for a file that is not a complete trace of this version, for
    one that was changed, and for the trace of another model.
    """
    path = _path(path)
    about, tensors = read_container(path)
    damaged = "its description of the trace is damaged; save the trace again"
    try:
        with guarded(path, TraceError, damaged):
            return _assemble(about, tensors, model, path)
    except (CheckpointError, TokenizationError) as error:
        raise TraceError(f"{path}: {damaged} ({error})") from error


def _assemble(
    about: Mapping[str, Any], tensors: dict[str, Tensor], model: TracedModel | None, path: Path
) -> StoredTrace:
    identity, until, edited_from = about["model"], about["until"], about["edited_from"]
    config = Config(**{name: tuples(value) for name, value in identity["config"].items()})
    backends = about["backends"]
    _check_values(identity, config, {"until": until, "edited_from": edited_from}, backends)
    numbers = {name: tensors.pop(f"tokens.{name}") for name in NUMBERS}
    tokens = read_tokens(about["tokens"], numbers, config, identity["name"])
    _check_tensors(tensors, config, tokens, path)
    n_records = config.n_layers if until is None else until
    records = [_under(f"layers.{layer}.", tensors) for layer in range(n_records)]
    needed = ("embed", "logits") if until is None else ("embed",)
    edited = () if until is not None else ("final_norm_scale", "pooled")
    kept = {name: tensors[name] for name in needed}
    kept |= {name: tensors[name] for name in edited if name in tensors}
    if len(tensors) != len(kept) + sum(map(len, records)):
        raise ValueError("tensors of layers that were not computed")
    if model is None:
        inputs = Inputs(tokens.ids, tokens.mask, tokens.segments, tokens)
        model = stand_in(config, identity, path)
    else:
        check_model(model, config, identity, path)
        inputs = model.inputs(tokens)
        device = inputs.ids.device
        records = [{name: t.to(device) for name, t in record.items()} for record in records]
        kept = {name: tensor.to(device) for name, tensor in kept.items()}
    allowed = AllowedKeys.of(inputs.mask, causal=config.causal, ids=inputs.ids)
    return StoredTrace(model, inputs, allowed, until, edited_from, records, kept, backends)


def _check_values(
    identity: Mapping[str, Any], config: Config, layers: Mapping[str, Any], backends: Any
) -> None:
    """Raise ValueError for a value that is not of its kind, whatever type JSON gave it."""
    words = [*(identity[name] for name in ("name", "dtype", "weights")), *config.labels]
    words += [config.problem_type, config.model_type]
    words += [backends["attention"], backends["linear"]]
    if not all(isinstance(word, str) for word in words):
        raise ValueError("a name that is no string")
    # Such as an unpaired surrogate, which no page can be written with.
    "".join(words).encode()
    for name, layer in layers.items():
        # An edit of the logits alone stands behind the last layer.
        most = config.n_layers if name == "edited_from" else config.n_layers - 1
        known = isinstance(layer, int) and not isinstance(layer, bool)
        if layer is not None and not (known and 0 <= layer <= most):
            raise ValueError(f"{name} is no layer of the model")


def _under(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    found = {
        name.removeprefix(prefix): value
        for name, value in tensors.items()
        if name.startswith(prefix)
    }
    # What the layer behind it begins with; the rest can be computed, or said to be absent.
    if "resid_post" not in found:
        raise LookupError(f"no {prefix}resid_post")
    return found


def _check_tensors(
    tensors: Mapping[str, Tensor], config: Config, tokens: Tokens, path: Path
) -> None:
    batch, position = tokens.ids.shape
    sizes = {"batch": batch, "head": config.n_heads, "kv_head": config.n_kv_heads} | {
        axis: getattr(config, axis) for axis in ("d_model", "d_head", "d_mlp")
    }
    sizes |= {"1": 1} | dict.fromkeys(("position", "query", "key"), position)
    for name, tensor in tensors.items():
        quantity = name.rpartition(".")[2]
        if not tensor.is_floating_point():
            raise TraceError(
                f"{path}: {name} holds {tensor.dtype}, expected floating-point numbers."
            )
        if name == "logits":
            # Of a sentence or of each position, as the task has it.
            expected = (*(batch, position)[: tensor.ndim - 1], *tensor.shape[-1:])
        else:
            expected = tuple(sizes[axis] for axis in QUANTITIES[quantity].axes)
        if tensor.shape != expected or tensor.ndim < 2:
            raise TraceError(
                f"{path}: {name} has shape {tuple(tensor.shape)}, expected {expected} for "
                f"{batch} sentences of {position} positions. Save the trace again."
            )
