"""What Qwen2 and Qwen3 have in common: windows from a layer on, if they are turned on."""

from collections.abc import Mapping
from typing import Any

from minibert.checkpoint.families.form import (
    READ,
    Json,
    Judged,
    read_boolean,
    read_whole,
    read_window,
    read_windows,
    window_of,
    write_layer_types,
)
from minibert.checkpoint.families.llama_like import ALL_TURN
from minibert.checkpoint.families.llama_like import VERDICTS as LLAMA_VERDICTS
from minibert.layers.config import Config

_WINDOWS = ("use_sliding_window", "sliding_window", "max_window_layers", "layer_types")
VERDICTS: Mapping[str, Judged] = {**LLAMA_VERDICTS, **dict.fromkeys(_WINDOWS, READ)}


def read(config: Json, said: Json) -> dict[str, Any]:
    """Rotary and windows."""
    window = read_window(config, 4096)
    if not read_boolean(config, "use_sliding_window", False):
        window = None
    first = read_whole(config, "max_window_layers", 28, least=0)
    windows = read_windows(
        config, said["n_layers"], window, lambda layer: window is not None and layer >= first
    )
    return ALL_TURN.read(config, said) | {"windows": windows}


def write(config: Config) -> dict[str, Any]:
    """What `read` reads."""
    window = window_of(config)
    return ALL_TURN.write(config) | {
        "use_sliding_window": window is not None,
        "sliding_window": window,
        "layer_types": write_layer_types(config),
    }
