"""Which layers see a window only: `layer_types` in a config.json, or what a family takes for it."""

from collections.abc import Callable
from typing import Any

from minibert.checkpoint.families.fields import Json, read_whole, refuse
from minibert.errors import CheckpointError
from minibert.layers.config import Config

FULL, SLIDING = "full_attention", "sliding_attention"
# Config refuses more.
_MOST_LAYERS = 2**9


def read_windows(
    config: Json, n_layers: int, size: int | None, slides: Callable[[int], bool]
) -> tuple[int, ...]:
    """The windows of Config: `size` in each layer that `layer_types` calls sliding.

    `slides` says which do so where the file has no layer_types.
    """
    types: Any = config.get("layer_types")
    if types is None:
        types = [SLIDING if slides(layer) else FULL for layer in range(min(n_layers, _MOST_LAYERS))]
    elif not isinstance(types, list | tuple) or not all(one in (FULL, SLIDING) for one in types):
        raise refuse("layer_types", types, f"a list of {FULL} and {SLIDING}")
    elif len(types) != n_layers:
        raise refuse("layer_types", types, f"one for each of {n_layers} layers")
    if SLIDING not in types:
        return ()
    if size is None:
        raise CheckpointError(
            "config.json: layers have sliding_attention, and sliding_window is null or turned off; "
            "expected a number of tokens."
        )
    return tuple(size if one == SLIDING else 0 for one in types)


def window_of(config: Config) -> int | None:
    """The one size of all windows; None where no layer has one.

    Raises CheckpointError for several sizes: a config.json has place for one.
    """
    sizes = set(config.windows) - {0}
    if len(sizes) > 1:
        raise CheckpointError(
            f"config: windows of {', '.join(map(str, sorted(sizes)))} tokens; expected one size, "
            "as a config.json has place for one."
        )
    return next(iter(sizes), None)


def write_layer_types(config: Config) -> list[str]:
    """The layer_types of these windows."""
    sizes = config.windows or (0,) * config.n_layers
    return [SLIDING if size else FULL for size in sizes]


def read_window(config: Json, usual: int | None) -> int | None:
    """`sliding_window`: a positive whole number, or None."""
    value = config.get("sliding_window", usual)
    return None if value is None else read_whole(config, "sliding_window", usual)


def one_window(config: Json, said: Json, usual: int | None) -> dict[str, Any]:
    """The windows of Config where all layers have the one of `sliding_window`."""
    size = read_window(config, usual)
    n_layers = min(said["n_layers"], _MOST_LAYERS)
    return {"windows": () if size is None else (size,) * n_layers}


def write_one_window(config: Config) -> dict[str, Any]:
    """What `one_window` reads."""
    size = window_of(config)
    if size is not None and 0 in config.windows:
        raise CheckpointError(
            f"config: some layers have windows and some have none; {config.family} checkpoints "
            "have one window for all layers, or none."
        )
    return {"sliding_window": size}
