"""What `--json` writes: one document on standard output and nothing else there.

docs/command_line.md has the keys. Names stay as they are; new ones may be added.
"""

import json
import math
from collections.abc import Mapping
from typing import Annotated

import typer

from minibert.terminal import say

__all__ = ["AsJson", "say_json"]

AsJson = Annotated[
    bool,
    typer.Option("--json", help="One JSON document, every number unrounded, and nothing else."),
]


def say_json(document: Mapping[str, object]) -> None:
    """Write the document on one line; NaN and infinity, which JSON has no word for, as null."""
    say(json.dumps(_plain(document), allow_nan=False))


def _plain(value: object) -> object:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {name: _plain(one) for name, one in value.items()}
    return [_plain(one) for one in value] if isinstance(value, list | tuple) else value
