"""A trace as one safetensors file, and back.

Place: `Trace.save` and `Trace.load` are the doors. The file holds what the pass kept, under
`embed`, `logits` and `layers.<layer>.<quantity>`; the tokens; and whose trace it is: the model's
name, config and a SHA-256 of its weights. Loading maps the file: what is not read is not loaded.
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

__all__ = ["StoredTrace", "open_trace", "save_trace"]

# One entry alone: safetensors writes several in an order that changes, and so do the bytes.
ENTRY, VERSION = "minibert.trace", 2
_OF_EACH_TOKEN = ("raw", "strings", "spans", "words", "special")
_COLUMNS = (*_OF_EACH_TOKEN, "texts")
_OF_TOKENS = ("ids", "mask", "segments")

PathLike = str | os.PathLike[str]


@dataclass(frozen=True)
class StoredTrace:
    """What `Trace.load` makes a trace of."""

    model: Any
    inputs: Inputs
    allowed: AllowedKeys
    until: int | None
    edited_from: int | None
    records: list[dict[str, Tensor]]
    kept: dict[str, Tensor]
    backends: dict[str, str]


def save_trace(trace: Any, path: PathLike) -> Path:
    """The path, now holding the trace; whole or not at all.

    Raises TraceError when the file cannot be written; what stood there before stays.
    """
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


def _tensors(trace: Any) -> dict[str, Tensor]:
    named = {f"tokens.{name}": getattr(trace.tokens, name) for name in _OF_TOKENS} | trace.kept
    for layer, record in enumerate(trace.records):
        named |= {f"layers.{layer}.{name}": value for name, value in record.items()}
    tensors: dict[str, Tensor] = {}
    seen: set[int] = set()
    for name, value in named.items():
        stored = value.detach().cpu().contiguous()
        # safetensors wants each memory once; a bare body's logits are its last resid_post.
        stored = stored.clone() if stored.data_ptr() in seen else stored
        seen.add(stored.data_ptr())
        tensors[name] = stored
    return tensors


def _about(trace: Any) -> dict[str, Any]:
    return {
        "version": VERSION,
        "model": identity_of(trace.model),
        "until": trace.until,
        "edited_from": trace.edited_from,
        "backends": trace.backends,
        "tokens": {name: getattr(trace.tokens, name) for name in _COLUMNS},
    }


def open_trace(path: PathLike, model: Any = None) -> StoredTrace:
    """What the file holds, mapped into memory: of a tensor only what is read is loaded.

    While the trace lives, replace the file (as `save_trace` does), and never write into it or cut
    it. With a model on another device than the CPU everything is copied there at once. Raises
    TraceError for what is no whole trace file of this version, and for another model's trace.
    """
    path = _path(path)
    try:
        # safetensors calls every file that it may not open "No such file or directory".
        path.open("rb").close()
        with safe_open(path, framework="pt") as file:
            about = _read_about(file.metadata() or {}, path)
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except OSError as error:
        raise TraceError(f"{path}: the trace cannot be read ({error}).") from error
    except SafetensorError as error:
        raise TraceError(
            f"{path}: not a whole trace file ({error}). It was cut short or is none; "
            "trace.save(path) writes one."
        ) from error
    return _guarded(path, lambda: _assemble(about, tensors, model, path))


def _read_about(metadata: Mapping[str, str], path: Path) -> Any:
    if ENTRY not in metadata:
        raise TraceError(
            f"{path}: a safetensors file, but no trace; trace.save(path) writes one. "
            "The weights of a model are read by minibert.load(folder)."
        )
    about = _guarded(path, lambda: dict(json.loads(metadata[ENTRY])))
    if about.get("version") != VERSION:
        raise TraceError(
            f"{path}: a trace file of version {about.get('version')!r}; this minibert reads "
            f"version {VERSION}. Read it with the minibert that wrote it, or trace again."
        )
    return about


def _guarded(path: Path, read: Callable[[], Any]) -> Any:
    """What `read` gives; TraceError where it stumbles over contents that no trace has."""
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
    about: Mapping[str, Any], tensors: dict[str, Tensor], model: Any, path: Path
) -> StoredTrace:
    identity, until = about["model"], about["until"]
    fields = identity["config"]
    config = Config(**(fields | {"labels": tuple(fields["labels"])}))
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
    """JSON's lists as the tuples they were."""
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
