"""The parts of a model that a page works numbers out from: what it is built of, and its weights."""

from typing import Any

import torch
from torch import Tensor

from minibert.errors import MinibertError
from minibert.layers.config import Config
from minibert.model import Model

__all__ = ["built_of", "check_head", "shape_of_head", "weights_of"]

# The families that the page draws and works out.
_FAMILIES = ("bert", "gpt2")


def built_of(config: Config) -> dict[str, Any] | None:
    """`Built` of static/core/data/source.js; None for a family that is not worked out."""
    if config.family not in _FAMILIES or config.d_embed != config.d_model:
        return None
    alone = config.family == "gpt2"
    return {
        "norm": "before" if config.pre_norm else "after",
        "eps": config.norm_eps,
        "activation": config.activation,
        "segments": not alone and config.n_segments > 0,
        "embedNorm": not alone,
        "finalNorm": alone,
        "transform": not alone,
    }


def check_head(config: Config, layer: int, head: int) -> None:
    """Raise MinibertError for a head that there is not."""
    if layer >= config.n_layers or head >= config.n_heads:
        raise MinibertError(
            f"There is no head {head} of layer {layer}; the model has {config.n_layers} layers of "
            f"{config.n_heads} heads."
        )


def shape_of_head(config: Config, layer: int) -> dict[str, Any]:
    """What weights follow from query and key by: `Collected` of static/core/data/source.js."""
    scale = float(config.attention_scale(layer))
    return {"width": config.d_head, "scale": scale, "causal": bool(config.causal)}


def weights_of(model: Model, name: str, layer: int | None, row: int | None) -> Tensor | None:
    """A weight, or one row of its first axis, in single precision; None where there is none.

    The name is that of `named_parameters`, below the layer where one is given. Raises MinibertError
    for a layer or row that there is not.
    """
    if layer is not None and layer >= model.config.n_layers:
        raise MinibertError(
            f"There is no layer {layer}; the model has {model.config.n_layers} layers."
        )
    whole = name if layer is None else f"body.groups.{layer}.{name}"
    weight = dict(model.named_parameters()).get(whole)
    if weight is None:
        return None
    if row is None:
        return weight.detach().to(torch.float32)
    if row >= len(weight):
        raise MinibertError(f"{whole} has {len(weight)} rows; there is no row {row}.")
    return weight[row].detach().to(torch.float32)
