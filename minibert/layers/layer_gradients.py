"""The gradients that autograd would give only where a pass computes more than it needs.

That is an N x N tensor, one as large as all head_out, the input of a head apart from that of the
others, or a norm apart from what it divides by.

Each belongs to a quantity of the table in layer.py, and follows from the gradient of a quantity
behind it. Autograd gives all others.
"""

from functools import partial

import torch
from torch import Tensor

from minibert.kernels.eager import weighted_values
from minibert.layers.evaluation import EVERYTHING, read_by
from minibert.layers.layer import LayerPass, LayerQuantities
from minibert.layers.norms import Norm, centred
from minibert.quantities import (
    HeadVectors,
    Hidden,
    Matrix,
    NormScale,
    PerHeadHidden,
    Quantity,
)


class LayerGradients(LayerQuantities):
    """The gradients of one layer: what the functions below read beside the quantities."""

    values: LayerPass

    def read_quantity(self, quantity: Quantity[Tensor]) -> Tensor:
        """The gradient of the quantity here."""
        raise NotImplementedError

    def of_all_heads(self) -> "LayerGradients":
        """The same place with all heads."""
        raise NotImplementedError

    def direct(self, name: str) -> Tensor | None:
        """The part of a gradient that is not by way of what is computed from the quantity."""
        raise NotImplementedError

    def below(self) -> Hidden:
        """The gradient of what entered the layer."""
        raise NotImplementedError


@LayerQuantities.probs.gradient_of("z")
def _probs_gradient(at: LayerGradients) -> Matrix:
    """dz·valueᵀ."""
    return weighted_values(at.z, at.values.value.transpose(-2, -1))


@LayerQuantities.scores.gradient_of("z")
def _scores_gradient(at: LayerGradients) -> Matrix:
    """probs * (dprobs − sum over keys of probs * dprobs): back through softmax and soft cap."""
    probs, cap = at.values.probs, at.values.choices.soft_cap
    weighted = probs * at.probs
    back = weighted.addcmul_(probs, weighted.sum(-1, keepdim=True), value=-1)
    return back if cap is None else back * (1 - torch.tanh(at.values.scores / cap) ** 2)


@LayerQuantities.head_out.gradient_of("attn_out")
def _head_out_gradient(at: LayerGradients) -> PerHeadHidden:
    """That of attn_out, which is a sum over heads."""
    heads = range(at.values.choices.n_heads)[at.values.heads]
    return at.attn_out.unsqueeze(1).expand(-1, len(heads), -1, -1)


@LayerQuantities.resid_pre.gradient_of("resid_pre")
def _resid_pre_gradient(at: LayerGradients) -> Hidden:
    """That of what left the layer below, or of the embeddings."""
    return at.below()


def _norm_gradient(at: LayerGradients, name: str) -> NormScale:
    """−sum of (gradient of the norm's output) · weight · centred(x) / scale² over a row."""
    values, layer = at.values, at.values.layer
    output = "resid_post" if name.startswith("mlp") else "resid_mid"
    if name == layer.norm_behind(name.partition("_")[0]):
        back: Hidden = getattr(at, output)
    elif name == "attention_norm":
        back = _attention_input_gradient(at.of_all_heads())
    else:
        back = at.mlp_pre @ layer.mlp.W_in.mT
        if (gate := layer.mlp.W_gate) is not None:
            back = back + at.mlp_gate @ gate.mT
    norm: Norm = getattr(layer, name)
    scale: NormScale = getattr(values, f"{name}_scale")
    weighed = back * norm.scale * centred(norm, values.read_by_norm(name))
    return -weighed.sum(-1, keepdim=True) / scale.square()


# What W_Q, W_K and W_V, or W_in and W_gate, read is normed; in BERT the sum with the stream is.
LayerQuantities.attention_norm_scale.gradient_of("value", "resid_mid")(
    partial(_norm_gradient, name="attention_norm")
)
LayerQuantities.mlp_norm_scale.gradient_of("mlp_pre", "resid_post")(
    partial(_norm_gradient, name="mlp_norm")
)
LayerQuantities.attention_output_norm_scale.gradient_of("resid_mid")(
    partial(_norm_gradient, name="attention_output_norm")
)
LayerQuantities.mlp_output_norm_scale.gradient_of("resid_post")(
    partial(_norm_gradient, name="mlp_output_norm")
)


def _input_gradient(at: LayerGradients, name: str) -> PerHeadHidden:
    """The gradient of what each head's projection reads, such as dq·W_Qᵀ of that head."""
    attention, heads = at.values.attention, at.values.heads
    back, rows = _projected_gradient(at.of_all_heads(), name), attention.rows_of(name)
    if heads != EVERYTHING:
        chosen = read_by(heads, attention.n_heads, 1 if name == "query" else attention.group)
        back, rows = back[:, chosen], rows[chosen]
    return torch.einsum("bhpd,hdm->bhpm", back, rows)


def _attention_input_gradient(at: LayerGradients) -> Hidden:
    """The gradient of what W_Q, W_K and W_V read, where all heads read the same."""
    parts = [
        _projected_gradient(at, name).transpose(1, 2).flatten(2)
        @ at.values.attention.rows_of(name).flatten(0, 1)
        for name in ("query", "key", "value")
    ]
    # A number may be made of what single heads read, too.
    read = [at.direct(f"{name}_input") for name in ("query", "key", "value")]
    parts += [each.sum(1) for each in read if each is not None]
    return sum(parts[1:], parts[0])


def _projected_gradient(at: LayerGradients, name: str) -> HeadVectors:
    """The gradient of what W_Q, W_K or W_V gives, in front of a norm of queries and keys."""
    attention = at.values.attention
    turned = attention.rotary is not None and name != "value"
    back: HeadVectors = getattr(at, f"{name}_unrotated" if turned else name)
    return attention.before_norm(name, at.values.attention_input, back)


LayerQuantities.query_input.gradient_of("query")(partial(_input_gradient, name="query"))
LayerQuantities.key_input.gradient_of("key")(partial(_input_gradient, name="key"))
LayerQuantities.value_input.gradient_of("value")(partial(_input_gradient, name="value"))
