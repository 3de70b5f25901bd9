"""The weights of the heads of a layer, in the convention of Elhage et al. 2021.

The stream is a row x, and a head acts on it from the right:

    query = x·W_Q + b_Q    key = x·W_K + b_K    value = x·W_V + b_V    head_out = z·W_O

Where several heads share a key-value head, W_K and W_V of a head are those of the one it reads.
What is returned are copies: changing them leaves the model as it is.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from minibert.analysis.arguments import check_model
from minibert.analysis.layer_norms import attention_norms
from minibert.analysis.precision import wide
from minibert.errors import TraceError
from minibert.layers.norms import LayerNorm, Norm, centred, scale_of
from minibert.quantities import Float
from minibert.trace.places import check_index

if TYPE_CHECKING:
    from minibert.model import Model

__all__ = [
    "HeadWeights",
    "check_can_fold",
    "head_name",
    "head_weights",
    "through_norm",
]


@dataclass(frozen=True, eq=False)
class HeadWeights:
    """W_Q, W_K, W_V and W_O of each head of a layer with their biases, in float32 or wider.

    b_O belongs to the layer and to none of its heads; it is not here. What stands behind the
    product, a norm of queries and keys or their rotation, is in none of them.
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

    `fold_norm` moves into them what the norm in front of the layer does to every row alike, so that
    they read x / std(x) instead of LayerNorm(x). With C = 1 − 1/d_model, which takes the mean of a
    row away, and the norm's weight γ and bias β:

        W → C·diag(γ)·W and b → b + β·W for W_Q, W_K and W_V;    W_O → W_O·C

    W_O is centred because every reader takes the mean away anyway. RMSNorm takes no mean away: C is
    1 there, β 0, and what is read is x / root mean square(x); γ is 1 + weight in Gemma. Where a
    layer has no norm in front (OLMo 2, ModernBERT's first), its W_Q, W_K and W_V stay. Where its
    output goes through a norm (Gemma 2, OLMo 2), W_O → W_O·C·diag(γ) of that norm.
    These are the weights that TransformerLens has after fold_ln and center_writing_weights, which
    leaves norms of an output alone.

    Raises TraceError for a layer that is not there, and for fold_norm where the norm stands behind
    the sum with the stream (BERT): what a head reads there is the stream itself.
    """
    check_model(model)
    layer = check_index("layer", layer, model.config.n_layers)
    if fold_norm:
        check_can_fold(model)
    block = model.body.layers[layer]
    attention, norms = block.attention, attention_norms(block)
    with torch.no_grad():
        parts: dict[str, Tensor] = {}
        for name, weight, bias in (
            ("query", attention.W_Q, attention.b_Q),
            ("key", attention.W_K, attention.b_K),
            ("value", attention.W_V, attention.b_V),
        ):
            weight, bias = _of_heads(attention.n_heads, weight, bias)
            if fold_norm and norms.before is not None:
                weight, bias = _behind_norm(norms.before, weight, bias)
            parts |= {name: weight.clone(), f"{name}_bias": bias.clone()}
        output = wide(attention.W_O).clone()
        if fold_norm and norms.output is not None:
            output = through_norm(norms.output, output)
        elif fold_norm and isinstance(_any_reader(model), LayerNorm):
            output = output - output.mean(-1, keepdim=True)
        parts["output"] = output
    return HeadWeights(**parts)


def _of_heads(n_heads: int, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor]:
    """W (head, d_model, d_head) and b (head, d_head) as every head reads them; zeros for no b."""
    weight = wide(weight)
    own = weight.new_zeros(len(weight), weight.shape[-1]) if bias is None else wide(bias)
    shared = n_heads // len(weight)
    return weight.repeat_interleave(shared, 0), own.repeat_interleave(shared, 0)


def _behind_norm(norm: Norm, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """The weight and bias that read what the norm has divided, and not yet scaled."""
    offset = getattr(norm, "bias", None)
    if offset is not None:
        bias = bias + wide(offset) @ weight
    scaled = wide(scale_of(norm))[:, None] * weight
    return centred(norm, scaled.mT).mT, bias


def _any_reader(model: "Model") -> Norm | None:
    """A norm in front of a layer; the last layer has one where any has."""
    return attention_norms(model.body.layers[-1]).before


def through_norm(
    norm: Norm, rows: Float[Tensor, "*rows d_model"]
) -> Float[Tensor, "*rows d_model"]:
    """Rows with what the norm does to every row alike: its mean taken away, times its weight."""
    return centred(norm, rows) * wide(scale_of(norm))


def check_can_fold(model: "Model") -> None:
    """Raise TraceError where norms stand behind the sum of a block with the stream."""
    if not model.config.pre_norm:
        raise TraceError(
            f"fold_norm=True: in {model.name} LayerNorm stands behind each layer, so a head reads "
            "the stream itself and there is nothing to fold; leave fold_norm out."
        )


def head_name(layer: int, head: int) -> str:
    """ "5-3" is head 3 of layer 5, both counted from 0."""
    return f"{layer}-{head}"
