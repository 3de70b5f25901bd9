"""The gradients that autograd would give through an N x N tensor, or one as large as all head_out.

Each belongs to a quantity of the table in layer.py, and follows from the gradient of a quantity
behind it. Autograd gives all others.
"""

import torch
from torch import Tensor

from minibert.kernels.eager import weighted_values
from minibert.layers.layer import LayerQuantities
from minibert.layers.layer_pass import LayerPass
from minibert.quantities import Hidden, Matrix, PerHeadHidden, Quantity

__all__ = ["LayerGradients"]


class LayerGradients(LayerQuantities):
    """The gradients of one layer: what the functions below read beside the quantities."""

    values: LayerPass

    def read_quantity(self, quantity: Quantity[Tensor]) -> Tensor:
        """The gradient of the quantity here."""
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
    probs, cap = at.values.probs, at.values.attention.soft_cap
    weighted = probs * at.probs
    back = weighted.addcmul_(probs, weighted.sum(-1, keepdim=True), value=-1)
    return back if cap is None else back * (1 - torch.tanh(at.values.scores / cap) ** 2)


@LayerQuantities.head_out.gradient_of("attn_out")
def _head_out_gradient(at: LayerGradients) -> PerHeadHidden:
    """That of attn_out, which is a sum over heads."""
    heads = range(at.values.attention.n_heads)[at.values.heads]
    return at.attn_out.unsqueeze(1).expand(-1, len(heads), -1, -1)


@LayerQuantities.resid_pre.gradient_of("resid_pre")
def _resid_pre_gradient(at: LayerGradients) -> Hidden:
    """That of what left the layer below, or of the embeddings."""
    return at.below()
