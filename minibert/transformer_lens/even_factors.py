"""Another factorisation of a head's two circuits: W_Q·W_Kᵀ and W_V·W_O stay, their factors change.

Of all pairs of factors this one has orthogonal columns, so that single dimensions of query, key and
value can be read. The signs are the ones that the singular value decomposition gives.
"""

import torch
from torch import Tensor

from minibert.layers.linear import Linear
from minibert.layers.parts import Attention
from minibert.transformer_lens.factored_matrix import FactoredMatrix

__all__ = ["bias_of", "make_factors_even"]


def bias_of(linear: Linear) -> Tensor:
    """The bias of a layer that was given one."""
    assert linear.bias is not None, "a model is copied with every bias before it is processed"
    return linear.bias


def make_factors_even(attention: Attention) -> None:
    """Refactor W_Q, W_K, W_V and W_O of all heads in place; b_V goes into b_O.

    W_Q·W_Kᵀ = U·S·Vᵀ gives W_Q = U·sqrt(S) and W_K = V·sqrt(S), biases as a last row of each;
    W_V·W_O = U·S·Vᵀ gives W_V = U·S and W_O = Vᵀ.
    """
    query, key, value = (_rows(attention, name) for name in ("query", "key", "value"))
    even = FactoredMatrix(query, key.mT).make_even()
    _write(attention, "query", even.A)
    _write(attention, "key", even.B.mT)
    output = attention.output
    bias_of(output).add_(output.weight @ bias_of(attention.value))
    rows = output.weight.T.unflatten(0, (attention.n_heads, attention.d_head))
    left, singular, right = FactoredMatrix(value[:, :-1], rows).svd()
    free = torch.zeros_like(value[:, -1:])
    _write(attention, "value", torch.cat([left * singular[:, None], free], 1))
    output.weight.copy_(right.mT.flatten(0, 1).T)


def _rows(attention: Attention, name: str) -> Tensor:
    """W and, as its last row, b: (head, d_model + 1, d_head)."""
    linear = getattr(attention, name)
    both = torch.cat([linear.weight, linear.bias[:, None]], 1)
    return both.unflatten(0, (attention.n_heads, attention.d_head)).mT


def _write(attention: Attention, name: str, rows: Tensor) -> None:
    linear = getattr(attention, name)
    both = rows.mT.flatten(0, 1)
    linear.weight.copy_(both[:, :-1])
    linear.bias.copy_(both[:, -1])
