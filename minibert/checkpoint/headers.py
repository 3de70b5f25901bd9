"""The names, types and shapes in weight files, before a tensor is read.

The first kind of weight file that a folder has counts, which may be split over several files with
an index. Nothing here waits for torch.
"""

import json
import os
import re
import struct
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from safetensors import SafetensorError, safe_open

from minibert.errors import CheckpointError
from minibert.untrusted import (
    MOST_TENSORS,
    Json,
    guarded,
    open_regular,
    present,
    read_json,
    shared_trials,
)

Tensors = TypeVar("Tensors")

EMBEDDED = Path(__file__).parents[1] / "embedded"


def embedded_names() -> list[str]:
    """The models that come with minibert."""
    return sorted(path.parent.name for path in EMBEDDED.glob("*/config.json"))


# The first that a checkpoint has is the one that is read.
WEIGHT_FILES = (
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)
# A file name without folders in it, which could point outside the checkpoint.
_PLAIN_NAME = re.compile(r"[\w-][\w.-]{0,200}")
_MOST_SHARDS = 2**12
# Its reader takes the square of the number of tensors; 2**14 of them fit.
_MOST_HEADER = 2**22


def weight_map(index: Path) -> dict[str, str]:
    """Tensor name -> the weight file that holds it, as an index file says.

    Raises CheckpointError for what is not an index, and for a name that leads out of its folder.
    """
    found = read_json(index).get("weight_map")
    if not isinstance(found, dict) or not all(isinstance(name, str) for name in found.values()):
        raise CheckpointError(f"{index}: not an index; expected weight_map, files by tensor.")
    files = sorted(set(found.values()))
    strange = [name for name in files if not _PLAIN_NAME.fullmatch(name)]
    if strange or not files:
        raise CheckpointError(
            f"{index}: expected the names of weight files beside it, found "
            f"{', '.join(map(repr, strange[:5])) or 'none'}. Nothing outside its folder is read."
        )
    if len(files) > _MOST_SHARDS:
        raise CheckpointError(f"{index}: {len(files)} files; expected at most {_MOST_SHARDS}.")
    return found


def shard_names(index: Path) -> list[str]:
    """The weight files that an index (`model.safetensors.index.json`) names, sorted."""
    return sorted(set(weight_map(index).values()))


def read_weights(
    folder: Path,
    safetensors: Callable[[Path], dict[str, Tensors]],
    pickle: Callable[[Path], dict[str, Tensors]],
) -> dict[str, Tensors]:
    """What the readers give of the first kind of weight file that the folder has, by tensor name.

    Raises CheckpointError when there is none, when one is cut short or damaged, when an index
    does not say what its files hold, and for a pickle that holds more than dense tensors.
    """
    first = next((name for name in WEIGHT_FILES if present(folder / name)), None)
    if first is None:
        raise CheckpointError(f"{folder} has no weights; looked for {', '.join(WEIGHT_FILES)}.")
    read = pickle if ".bin" in first else safetensors
    path = folder / first
    with shared_trials():
        entries = _read_shards(path, read) if first.endswith(".index.json") else read(path)
    if len(entries) > MOST_TENSORS:
        raise CheckpointError(f"{path}: {len(entries)} tensors; expected at most {MOST_TENSORS}.")
    return entries


def _read_shards(index: Path, read: Callable[[Path], dict[str, Tensors]]) -> dict[str, Tensors]:
    """The entries of every file that an index names, which must be the ones it names."""
    expected = weight_map(index)
    paths = {name: index.parent / name for name in sorted(set(expected.values()))}
    if missing := [name for name, path in paths.items() if not present(path)]:
        raise CheckpointError(
            f"{index}: it names weight files that are not there: {', '.join(missing[:5])}. "
            "Download the checkpoint again."
        )
    entries: dict[str, Tensors] = {}
    for name, path in paths.items():
        found = read(path)
        named = {tensor for tensor, file in expected.items() if file == name}
        if twice := sorted(found.keys() & entries.keys()):
            raise CheckpointError(f"{path}: {twice[0]} is in two files. Download it again.")
        if other := sorted(found.keys() ^ named):
            raise CheckpointError(
                f"{path}: its tensors are not those of {index.name}; {other[0]}, for example. "
                "Download the checkpoint again."
            )
        entries |= found
    return entries


def header_of(path: Path) -> tuple[Json, int]:
    """Type, shape and place of each tensor in a safetensors file, and where the values begin.

    Raises CheckpointError where it is not a whole one.
    """
    # safetensors calls every file that it may not open "No such file or directory".
    with open_regular(path) as file, guarded(path):
        start = file.read(8)
        size = struct.unpack("<Q", start)[0] if len(start) == 8 else 0
        if _MOST_HEADER < size <= os.fstat(file.fileno()).st_size:
            raise CheckpointError(f"{path}: a header of {size} bytes, above {_MOST_HEADER}.")
    try:
        # safetensors' own reader checks the header and that the file is as long as it says.
        with safe_open(path, framework="np"):
            pass
        with path.open("rb") as file:
            size = struct.unpack("<Q", file.read(8))[0]
            header: Json = json.loads(file.read(size))
    except (OSError, MemoryError) as error:
        raise CheckpointError(f"{path}: cannot be read ({error or 'out of memory'}).") from None
    except (SafetensorError, ValueError, RecursionError) as error:
        raise CheckpointError(
            f"{path}: not a whole safetensors file ({error}). "
            "It was cut short or damaged; download or save it again."
        ) from None
    header.pop("__metadata__", None)
    return header, 8 + size


def shapes_of(path: Path) -> dict[str, tuple[int, ...]]:
    """The shape of each tensor of a safetensors file. Raises CheckpointError as `header_of`."""
    return {name: tuple(about["shape"]) for name, about in header_of(path)[0].items()}
