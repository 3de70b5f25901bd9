"""The names of the files that a checkpoint keeps its weights in.

Used by hub.py, which fetches them, and by checkpoint.py, which reads them.
"""

import re
from pathlib import Path

from minibert.errors import CheckpointError
from minibert.untrusted import read_json

__all__ = ["WEIGHT_FILES", "shard_names", "weight_map"]

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


def weight_map(index: Path) -> dict[str, str]:
    """Tensor name -> the weight file that holds it, as an index file says.

    Raises CheckpointError for what is no index, and for a name that leads out of its folder.
    """
    found = read_json(index).get("weight_map")
    if not isinstance(found, dict) or not all(isinstance(name, str) for name in found.values()):
        raise CheckpointError(
            f"{index}: not an index of weight files; expected weight_map, an object with a file "
            "name for each tensor."
        )
    files = sorted(set(found.values()))
    strange = [name for name in files if not _PLAIN_NAME.fullmatch(name)]
    if strange or not files:
        raise CheckpointError(
            f"{index}: expected the names of weight files beside it, found "
            f"{', '.join(map(repr, strange[:5])) or 'none'}. Nothing outside its folder is read."
        )
    if len(files) > _MOST_SHARDS:
        raise CheckpointError(
            f"{index}: it names {len(files)} files; expected at most {_MOST_SHARDS}."
        )
    return found


def shard_names(index: Path) -> list[str]:
    """The weight files that an index (`model.safetensors.index.json`) names, sorted."""
    return sorted(set(weight_map(index).values()))
