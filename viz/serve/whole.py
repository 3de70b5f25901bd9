"""What the picture of the whole asks for: a model's weights, a head in many texts."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from minibert.errors import MinibertError
from minibert.layers.linear import Linear
from minibert.model import Model
from minibert.trace.read import Trace
from minibert.viz.labels import label_columns
from minibert.viz.trace_example import Sentence

__all__ = ["Collected", "collected", "weight_of"]

# Numbers that one question may ask for: 64 MiB.
_MOST_NUMBERS = 2**24
Collected = tuple[dict[str, Any], Mapping[str, npt.NDArray[Any]]]


def weight_of(model: Model, name: str, layer: int | None, row: int | None) -> Tensor | None:
    """A weight, or one row of its first axis; None where the model has none of this name.

    `name` is its name below the layer, or its whole name where the layer is None. Raises
    MinibertError for a layer or a row that is not there, and for more numbers than a page may ask
    for at once.
    """
    n_layers = model.config.n_layers
    if layer is not None and layer >= n_layers:
        raise MinibertError(f"layer {layer}: {model.name} has {n_layers}.")
    owner: torch.nn.Module = model if layer is None else model.body.layers[layer]
    try:
        weight = owner.get_parameter(name)
    except AttributeError:
        return None
    # Not weight.detach(): a packed layer answers that by dropping its packed copy.
    value = torch.Tensor.detach(weight)
    module = owner.get_submodule(name.rpartition(".")[0])
    if isinstance(module, Linear) and module.multiplier != 1.0:
        value = value * module.multiplier
    if row is not None:
        if row >= len(value):
            raise MinibertError(f"{name} has {len(value)} rows; there is no row {row}.")
        value = value[row]
    if value.numel() > _MOST_NUMBERS:
        raise MinibertError(f"{name} has {value.numel()} numbers; ask for one row.")
    return value


def collected(traces: Iterable[Trace], layer: int, head: int) -> Collected:
    """Query and key of one head in many texts, one behind the other, as source.js has them.

    Raises MinibertError for a layer or head that the model does not have, and for no text.
    """
    known = list(traces)
    if not known:
        raise MinibertError("There is no text to collect a head of.")
    config = known[0].config
    if layer >= config.n_layers or head >= config.n_heads:
        raise MinibertError(
            f"layer {layer}, head {head}: the model has {config.n_layers} layers of "
            f"{config.n_heads} heads."
        )
    sentences = [Sentence(trace, 0) for trace in known]
    body = {
        "from": [
            {"texts": list(one.trace.tokens.texts[0]), "tokens": label_columns(one.labels)}
            for one in sentences
        ],
        "width": config.d_head,
        "scale": float(config.attention_scale(layer)),
        "causal": bool(config.causal),
        "softCap": config.attention_soft_cap,
        "window": config.window(layer),
    }
    heads = {"query": head, "key": head * config.n_kv_heads // config.n_heads}
    vectors = {
        name: np.concatenate([one.vectors(name, layer)[place] for one in sentences])
        for name, place in heads.items()
    }
    return body, {name: value.astype(np.float32, copy=False) for name, value in vectors.items()}
