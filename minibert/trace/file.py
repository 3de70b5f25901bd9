"""Writes a trace to one safetensors file, for `Trace.save`, and reads it, for `Trace.load`.

The file holds the quantities that the pass kept, as `embed`, `logits` and
`layers.<layer>.<quantity>`; the tokens; and the model's name, config and a SHA-256 of its weights.
Loading maps the file into memory, so a quantity is loaded from disk only when it is read.
"""

import json
import os
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from minibert.errors import MinibertError, TraceError
from minibert.kernels.call import AllowedKeys
from minibert.layers.config import Config
from minibert.quantities import QUANTITIES
from minibert.text.inputs import Inputs
from minibert.text.tokens import Tokens
from minibert.trace.identity import check_model, identity_of, stand_in
from minibert.trace.pass_record import PassRecord
from minibert.trace.run import TracedModel

__all__ = ["StoredTrace", "open_trace", "save_trace"]

# One entry for all metadata: safetensors writes several in a random order, so bytes would differ.
ENTRY, VERSION = "minibert.trace", 2
_OF_EACH_TOKEN = ("raw", "strings", "spans", "words", "special")
_COLUMNS = (*_OF_EACH_TOKEN, "texts")
_OF_TOKENS = ("ids", "mask", "segments")

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
    target = _path(path)
    if target.is_dir():
        raise TraceError(f"{target} is a folder; name a file in it for the trace.")
    if not target.parent.is_dir():
        raise TraceError(f"{target}: there is no folder {target.parent} to save the trace in.")
    tensors = _tensors(trace)
    metadata = {ENTRY: json.dumps(_about(trace))}
    try:
        with tempfile.TemporaryDirectory(dir=target.parent) as folder:
            beside = Path(folder) / "trace"
            save_file(tensors, beside, metadata=metadata)
            # safetensors writes files that only their owner may read.
            beside.chmod(0o644)
            os.replace(beside, target)
    except (OSError, SafetensorError) as error:
        raise TraceError(f"{target}: the trace could not be saved ({error}).") from error
    return target


def _path(path: Any) -> Path:
    try:
        return Path(os.fsdecode(os.fsencode(path)))
    except (TypeError, UnicodeEncodeError) as error:
        raise TraceError(f"path={path!r:.80}: expected the path of a file ({error}).") from error


def _tensors(trace: PassRecord) -> dict[str, Tensor]:
    named = {f"tokens.{name}": getattr(trace.tokens, name) for name in _OF_TOKENS} | trace.kept
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
        "version": VERSION,
        "model": identity_of(trace.model),
        "until": trace.until,
        "edited_from": trace.edited_from,
        "backends": trace.backends,
        "tokens": {name: getattr(trace.tokens, name) for name in _COLUMNS},
    }


def open_trace(path: PathLike, model: TracedModel | None = None) -> StoredTrace:
    """The contents of the file, mapped into memory: only the parts that are read are loaded.

    While the trace is in use, never write into the file or shorten it; replacing it, as
    `save_trace` does, is safe. With a model on another device than the CPU everything is copied
    there at once. Raises TraceError for a file that is not a complete trace of this version, and
    for the trace of another model.
    """
    path = _path(path)
    try:
        # Opened here first, because safetensors says "No such file or directory" of every file that
        # it may not read.
        path.open("rb").close()
        with safe_open(path, framework="pt") as file:
            about = _read_about(file.metadata() or {}, path)
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except OSError as error:
        raise TraceError(f"{path}: the trace cannot be read ({error}).") from error
    except SafetensorError as error:
        raise TraceError(
            f"{path}: not a complete trace file ({error}). It was cut short, or is another kind of "
            "file; trace.save(path) writes a trace."
        ) from error
    return _guarded(path, lambda: _assemble(about, tensors, model, path))


def _read_about(metadata: Mapping[str, str], path: Path) -> Any:
    if ENTRY not in metadata:
        raise TraceError(
            f"{path}: a safetensors file, but not a trace; trace.save(path) writes a trace. "
            "minibert.load(folder) reads the weights of a model."
        )
    about = _guarded(path, lambda: dict(json.loads(metadata[ENTRY])))
    if about.get("version") != VERSION:
        raise TraceError(
            f"{path}: a trace file of version {about.get('version')!r}; this minibert reads "
            f"version {VERSION}. Read it with the minibert that wrote it, or trace again."
        )
    return about


def _guarded(path: Path, read: Callable[[], Any]) -> Any:
    """The result of `read`; TraceError where it fails because the file's contents are damaged."""
    try:
        return read()
    except TraceError:
        raise
    except (
        MinibertError,
        ValueError,
        TypeError,
        LookupError,
        AttributeError,
        RecursionError,
    ) as error:
        raise TraceError(
            f"{path}: its description of the trace is damaged ({error!r}). Save the trace again."
        ) from error


def _assemble(
    about: Mapping[str, Any], tensors: dict[str, Tensor], model: TracedModel | None, path: Path
) -> StoredTrace:
    identity, until = about["model"], about["until"]
    fields = identity["config"]
    config = Config(**{name: _tuples(value) for name, value in fields.items()})
    numbers = {name: tensors.pop(f"tokens.{name}") for name in _OF_TOKENS}
    tokens = _read_tokens(about["tokens"], numbers)
    _check_shapes(tensors, config, tokens, path)
    if model is None:
        inputs = Inputs(**numbers, tokens=tokens)
        model = stand_in(config, identity, path)
    else:
        check_model(model, config, identity, path)
        inputs = model.inputs(tokens)
        tensors = {name: tensor.to(inputs.ids.device) for name, tensor in tensors.items()}
    n_records = config.n_layers if until is None else int(until)
    records = [_under(f"layers.{layer}.", tensors) for layer in range(n_records)]
    kept = {name: tensors[name] for name in ("embed", "logits") if until is None or name == "embed"}
    allowed = AllowedKeys.of(inputs.mask, causal=config.causal, ids=inputs.ids)
    return StoredTrace(
        model, inputs, allowed, until, about["edited_from"], records, kept, about["backends"]
    )


def _read_tokens(about: Mapping[str, Any], numbers: dict[str, Any]) -> Tokens:
    columns = {name: _tuples(about[name]) for name in _COLUMNS}
    lengths = numbers["mask"].sum(dim=1).tolist()
    for name in _OF_EACH_TOKEN:
        if list(map(len, columns[name])) != lengths:
            raise ValueError(f"{name} of the tokens do not fit their ids")
    return Tokens(**numbers, **columns)


def _under(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    found = {name: value for name, value in tensors.items() if name.startswith(prefix)}
    if not found:
        raise LookupError(f"nothing under {prefix}")
    return {name.removeprefix(prefix): value for name, value in found.items()}


def _tuples(value: Any) -> Any:
    """The value with tuples in place of JSON's lists."""
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def _check_shapes(
    tensors: Mapping[str, Tensor], config: Config, tokens: Tokens, path: Path
) -> None:
    batch, position = tokens.ids.shape
    sizes = {"batch": batch, "head": config.n_heads} | {
        axis: getattr(config, axis) for axis in ("d_model", "d_head", "d_mlp")
    }
    sizes |= dict.fromkeys(("position", "query", "key"), position)
    for name, tensor in tensors.items():
        quantity = name.rpartition(".")[2]
        if quantity == "logits":
            continue
        expected = tuple(sizes[axis] for axis in QUANTITIES[quantity].axes)
        if tensor.shape != expected:
            raise TraceError(
                f"{path}: {name} has shape {tuple(tensor.shape)}, expected {expected} for "
                f"{batch} sentences of {position} positions. Save the trace again."
            )
