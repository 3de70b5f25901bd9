"""A saved trace as a page reads it, without torch and without the model that was traced.

file of `trace.save` -> description and mapped arrays -> a `SavedTrace` for each sentence
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import numpy as np

from minibert.doors import PageSizes
from minibert.errors import TraceError
from minibert.trace.container import COLUMNS, LABELS, checked_columns, read_arrays
from minibert.untrusted import Json, guarded
from minibert.viz.payload import Array
from minibert.viz.vectors import Looking, softmax

if TYPE_CHECKING:
    from minibert.text.tokens import Tokens
else:
    Tokens = object

_DAMAGED = "its description of the trace is damaged; save the trace again"


@dataclass(frozen=True)
class SavedLayer:
    """One layer: what the file holds of it, and the weights, which follow from query and key."""

    record: Mapping[str, Array]
    looking: Looking

    def __getattr__(self, name: str) -> Array:
        """query, key or value, (1, head, position, d_head)."""
        return self.record[name]

    @property
    def probs(self) -> Array:
        """(1, head, query, key); after an edit of weights or scores those that the edit left."""
        if "probs" in self.record:
            return self.record["probs"]
        query = self.record["query"].astype(np.float32)
        rows = np.broadcast_to(np.arange(query.shape[2]), query.shape[:3])
        if "scores" in self.record:
            scores = self.looking.from_scaled(self.record["scores"].astype(np.float32), rows)
        else:
            key = self.record["key"].repeat(query.shape[1] // self.record["key"].shape[1], 1)
            scores = self.looking.scores(query @ key.astype(np.float32).swapaxes(2, 3), rows)
        return softmax(scores)


@dataclass(frozen=True)
class SavedTrace:
    """One sentence of a saved trace, its padding left out."""

    model_name: str
    dtype: str
    tokens: Tokens
    config: PageSizes
    layers: tuple[SavedLayer, ...]
    edited_from: int | None

    def __len__(self) -> int:
        """Layers that the pass computed."""
        return len(self.layers)

    def __getitem__(self, layer: int) -> SavedLayer:
        """One layer."""
        return self.layers[layer]


def saved_traces(path: Path) -> list[SavedTrace]:
    """Each sentence of the file.

    Raises TraceError for a file that is not a complete trace, or has no strings of its tokens.
    """
    about, arrays = read_arrays(path)
    with guarded(path, TraceError, _DAMAGED):
        if not {*LABELS} <= about["tokens"].keys():
            raise TraceError(
                f"{path} was saved by an older minibert, without the strings of its tokens. Save "
                "it again: Trace.load(path, model).save(path)."
            )
        mask = arrays["tokens.mask"]
        lengths = tuple(mask.sum(1).tolist())
        columns = checked_columns(about["tokens"], (*COLUMNS, *LABELS), lengths)
        sizes = _sizes(about)
        return [_sentence(i, n, about, sizes, columns, arrays) for i, n in enumerate(lengths)]


def _sizes(about: Json) -> PageSizes:
    config = about["model"]["config"]
    cap = config["attention_soft_cap"]
    return PageSizes(
        n_layers=int(config["n_layers"]),
        n_heads=int(config["n_heads"]),
        n_kv_heads=int(config["n_kv_heads"]),
        d_head=int(config["d_head"]),
        causal=bool(config["causal"]),
        scales=tuple(map(float, about["scales"])),
        windows=tuple(one and (int(one[0]), int(one[1])) for one in about["windows"]),
        attention_soft_cap=None if cap is None else float(cap),
    )


def _sentence(
    i: int,
    length: int,
    about: Json,
    sizes: PageSizes,
    columns: dict[str, tuple[tuple[object, ...], ...]],
    arrays: dict[str, Array],
) -> SavedTrace:
    # A page reads these of `Tokens`; the tensors of a batch are not among them.
    rows = {name: column[i : i + 1] for name, column in columns.items()}
    tokens = SimpleNamespace(segments=arrays["tokens.segments"][i : i + 1, :length], **rows)
    layers = tuple(
        SavedLayer(_record(layer, i, length, sizes, arrays), Looking.of_trace(sizes, layer))
        for layer in range(len(sizes.scales))
    )
    return SavedTrace(
        str(about["model"]["name"]),
        str(about["model"]["dtype"]),
        cast(Tokens, tokens),
        sizes,
        layers,
        about["edited_from"],
    )


def _record(
    layer: int, i: int, length: int, sizes: PageSizes, arrays: dict[str, Array]
) -> dict[str, Array]:
    """The sentence's part of what the file holds of attention in a layer."""
    heads = dict.fromkeys(("key", "value"), sizes.n_kv_heads)
    last = dict.fromkeys(("scores", "probs"), length)
    found = {}
    for name in ("query", "key", "value", "scores", "probs"):
        place = f"layers.{layer}.{name}"
        if place not in arrays and name in last:
            continue
        found[name] = arrays[place][i : i + 1, :, :length, : last.get(name)]
        axes = (1, heads.get(name, sizes.n_heads), length, last.get(name, sizes.d_head))
        if found[name].shape != axes:
            raise ValueError(f"{place} has shape {arrays[place].shape}")
    return found
