"""Measured numbers as files: the folder of a run, and a Parquet file a request.

    seen = minibert.attached.measured_files.read("numbers")
    seen.table(), seen.sinks(), seen.page()

A Parquet file has a row a layer, sentence, head and token: the numbers of the token's query, and
`received` of its key. Those with parameters have a column each, as "offset_mass -1".
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from minibert.attached.measuring import (
    ABOUT,
    COUNTS,
    LAYER,
    LayerMeasured,
    Measured,
    Run,
    checked,
)
from minibert.errors import TraceError, how_to_install
from minibert.kernels.call import Want
from minibert.writing import replacing

_KEY = b"minibert"
_PLACES = ("layer", "batch", "head", "position")


def read(folder: str | Path, request: str | None = None) -> Measured:
    """What a folder holds by now: a run of `measuring(folder=)`, or a request of a server.

    Of several requests the newest is read, or the one named. Without numbers it has no runs yet.
    Raises TraceError for no folder, for files of another kind, for a request that is not there and
    for a request asked of a run.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise TraceError(f"{folder} is not a folder.")
    if (folder / ABOUT).exists():
        if request is not None:
            raise TraceError(
                f"{folder} is a run of measuring, which has no requests to choose from."
            )
        return _of_run(folder)
    files = sorted(folder.glob("*.parquet"), key=lambda path: path.stat().st_mtime)
    if not files and request is None:
        return Measured("", {})
    for path in reversed(files):
        seen, name = _of_parquet(path)
        if request in (None, name):
            return seen
    raise TraceError(f"{folder} has no request {request!r:.80} among {len(files)} files.")


def _of_run(folder: Path) -> Measured:
    try:
        about = json.loads((folder / ABOUT).read_text())
        seen = Measured(about["model"], _want(about["want"]), folder)
        numbers = sorted(int(one.name) for one in folder.iterdir() if one.name.isdecimal())
        seen.runs = [run for number in numbers if (run := _run(folder / str(number)))]
    except (KeyError, TypeError, ValueError) as error:
        raise TraceError(f"{folder}: damaged, or not written by measuring ({error}).") from error
    return seen


def _run(folder: Path) -> Run:
    """The layers of each stack, as far as all of them have numbers."""
    stacks: Run = {}
    for stack in sorted(folder.iterdir()):
        layers = [stack / str(number) for number in range(len([*stack.iterdir()]))]
        if all((layer / COUNTS).exists() for layer in layers):
            counts = [np.fromfile(layer / COUNTS, np.int64).tolist() for layer in layers]
            # In the middle of a step the first layers are one token ahead.
            least = min(counts)
            if least[0]:
                stacks[stack.name] = [_layer(layer, *least) for layer in layers]
    return stacks


def _layer(folder: Path, n_queries: int, n_keys: int, *real: int) -> LayerMeasured:
    layer, kept = LayerMeasured(), {}
    for name, (kind, shape) in json.loads((folder / LAYER).read_text()).items():
        # A row that is not whole is left out.
        size = np.dtype(kind).itemsize * int(np.prod(shape))
        whole = (folder / name).stat().st_size // size
        rows = np.memmap(folder / name, kind, "c", shape=(whole, *shape))
        kept[name] = torch.from_numpy(rows).movedim(0, 2)
    layer.hold(kept, n_queries, n_keys, torch.tensor(real))
    return layer


def write_parquet(path: Path, seen: Measured, request: str) -> None:
    """Write the newest run of one stack, whole or not at all. Needs pyarrow."""
    arrow, files = _arrow()
    parts: dict[str, list[Any]] = {}
    layers = next(iter(seen.runs[-1].values()))
    for number, layer in enumerate(layers):
        columns = _columns(layer, seen.want)
        shape = next(iter(columns.values())).shape
        places = np.indices(shape, np.int32)
        whole = dict(zip(_PLACES, (np.full(shape, number, np.int32), *places), strict=True))
        for name, one in {**whole, **columns}.items():
            parts.setdefault(name, []).append(np.ravel(one))
    table = arrow.table({name: np.concatenate(part) for name, part in parts.items()})
    about = {"model": seen.model_name, "want": [*seen.want.items()], "request": request}
    about["n_real"] = torch.as_tensor(layers[0].n_real).expand(places.shape[1]).tolist()
    with replacing(path) as beside:
        files.write_table(table.replace_schema_metadata({_KEY: json.dumps(about)}), beside)


def _columns(layer: LayerMeasured, want: Want) -> dict[str, Any]:
    """The columns of a layer, (batch, head, position) each."""
    found: dict[str, Tensor] = {}
    for name, of in want.items():
        values = layer.read(name).cpu()
        found |= (
            {column: values[..., i] for i, column in enumerate(_names(name, of))}
            if of
            else {name: values}
        )
    return {name: values.numpy() for name, values in found.items()}


def _names(name: str, of: Any) -> list[str]:
    ranks = name in ("top_keys", "top_probs")
    return [f"{name} {at}" for at in (range(of[0]) if ranks else of)]


def _of_parquet(path: Path) -> tuple[Measured, str]:
    """A request, and its name."""
    _, files = _arrow()
    try:
        table = files.read_table(path)
        about = json.loads(table.schema.metadata[_KEY])
        want, real = _want(about["want"]), torch.tensor(about["n_real"])
        columns = {name: table[name].to_numpy() for name in table.column_names}
        layers = [
            _layer_of(columns, columns["layer"] == number, want, real)
            for number in range(int(columns["layer"].max()) + 1)
        ]
    except Exception as error:  # pyarrow raises errors of many families
        raise TraceError(f"{path}: damaged, or not the numbers of a request.") from error
    seen = Measured(about["model"], want)
    seen.runs.append({"layers": layers})
    return seen, about["request"]


def _layer_of(columns: dict[str, Any], rows: Any, want: Want, real: Tensor) -> LayerMeasured:
    shape = [int(columns[name][rows].max()) + 1 for name in _PLACES[1:]]
    layer, kept = LayerMeasured(), {}
    for name, of in want.items():
        parts = [columns[column][rows].reshape(shape) for column in (_names(name, of) or [name])]
        kept[name] = torch.from_numpy(np.stack(parts, -1) if of else parts[0])
    layer.hold(kept, shape[2], shape[2], real)
    return layer


def _want(items: list[Any]) -> Want:
    return checked((name, tuple(of)) if of else name for name, of in items)


def _arrow() -> tuple[Any, Any]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise TraceError(
            f"Numbers by request are Parquet files, and pyarrow is not installed: "
            f"{how_to_install('survey')}."
        ) from None
    return pyarrow, pyarrow.parquet
