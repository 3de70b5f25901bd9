"""The names of the files that a checkpoint keeps its weights in.

Used by hub.py, which fetches them, and by checkpoint.py, which reads them.
"""

import json
import re
from pathlib import Path

from minibert.errors import CheckpointError

__all__ = ["WEIGHT_FILES", "shard_names"]

# The first that a checkpoint has is the one that is read.
WEIGHT_FILES = (
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)
# A file name without folders in it, which could point outside the checkpoint.
_PLAIN_NAME = re.compile(r"[\w-][\w.-]*")


def shard_names(index: Path) -> list[str]:
    """The weight files that an index (`model.safetensors.index.json`) names, sorted.

    Raises CheckpointError for what is no index, and for a name that leads out of its folder.
    """
    try:
        names = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
        strange = sorted(name for name in names if not _PLAIN_NAME.fullmatch(name))
    except (ValueError, LookupError, AttributeError, TypeError, OSError, RecursionError) as error:
        raise CheckpointError(f"{index}: not an index of weight files ({error!r}).") from error
    if strange or not names:
        raise CheckpointError(
            f"{index}: expected the names of weight files beside it, found "
            f"{', '.join(map(repr, strange)) or 'none'}. Nothing outside its folder is read."
        )
    return sorted(names)
