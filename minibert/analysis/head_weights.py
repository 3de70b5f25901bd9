"""The weights of the heads of a layer, in the convention of Elhage et al. 2021.

The stream is a row x, and a head acts on it from the right:

    query = x·W_Q + b_Q    key = x·W_K + b_K    value = x·W_V + b_V    head_out = z·W_O

What is returned are copies: changing them leaves the model as it is.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from minibert.analysis.arguments import check_model
from minibert.analysis.precision import wide
from minibert.errors import TraceError
from minibert.quantities import Float
from minibert.trace.places import check_index

if TYPE_CHECKING:
    from minibert.model import Model

__all__ = [
    "HeadWeights",
    "centred",
    "check_can_fold",
    "head_name",
    "head_weights",
]


@dataclass(frozen=True, eq=False)
class HeadWeights:
    """W_Q, W_K, W_V and W_O of each head of a layer with their biases, in float32 or wider.

    b_O belongs to the layer and to none of its heads; it is not here.
    """

    query: Float[Tensor, "head d_model d_head"]
    key: Float[Tensor, "head d_model d_head"]
    value: Float[Tensor, "head d_model d_head"]
    output: Float[Tensor, "head d_head d_model"]
    query_bias: Float[Tensor, "head d_head"]
    key_bias: Float[Tensor, "head d_head"]
    value_bias: Float[Tensor, "head d_head"]


def head_weights(model: "Model", layer: int, *, fold_norm: bool = False) -> HeadWeights:
    """The weights of all heads of a layer.

    `fold_norm` moves into them what the LayerNorm in front of the layer does to every row alike,
    so that they read x / std(x) instead of LayerNorm(x). With C = 1 − 1/d_model, which takes the
    mean of a row away, and the norm's weight γ and bias β:

        W → C·diag(γ)·W and b → b + β·W for W_Q, W_K and W_V;    W_O → W_O·C

    W_O is centred because every reader takes the mean away anyway. These are the weights that
    TransformerLens has after fold_ln and center_writing_weights.

    Raises TraceError for a layer that is not there, and for fold_norm where LayerNorm stands
    behind the layer (BERT): what a head reads there is the stream itself.
    """
    check_model(model)
    layer = check_index("layer", layer, model.config.n_layers)
    if fold_norm:
        check_can_fold(model)
    block = model.body.layers[layer]
    attention = block.attention
    size = (attention.n_heads, attention.d_head)
    with torch.no_grad():
        parts: dict[str, Tensor] = {}
        for name in ("query", "key", "value"):
            weight = wide(getattr(attention, name).weight).unflatten(0, size).mT
            bias = getattr(attention, name).bias
            bias = weight.new_zeros(size) if bias is None else wide(bias).unflatten(0, size)
            if fold_norm:
                bias = bias + wide(block.attention_norm.bias) @ weight
                weight = centred(wide(block.attention_norm.weight)[:, None] * weight, dim=-2)
            parts |= {name: weight.clone(), f"{name}_bias": bias.clone()}
        output = wide(attention.output.weight).T.unflatten(0, size)
        parts["output"] = centred(output, dim=-1) if fold_norm else output.clone()
    return HeadWeights(**parts)


def check_can_fold(model: "Model") -> None:
    """Raise TraceError where no LayerNorm stands in front of the layers."""
    if not model.config.pre_norm:
        raise TraceError(
            f"fold_norm=True: in {model.name} LayerNorm stands behind each layer, so a head reads "
            "the stream itself and there is nothing to fold; leave fold_norm out."
        )


def centred(tensor: Tensor, *, dim: int) -> Tensor:
    """The tensor without its mean along an axis: what a LayerNorm does first."""
    return tensor - tensor.mean(dim, keepdim=True)


def head_name(layer: int, head: int) -> str:
    """ "5-3" is head 3 of layer 5, both counted from 0."""
    return f"{layer}-{head}"
