"""Attention weighed by what it moves: ‖α·f(x)‖ instead of α.

A head sees position j as the vector f(x_j) = (x_j·W_V + b_V)·W_O and adds α_ij·f(x_j) to position
i, so a large weight on a short vector moves little. The sum of these vectors over all j and heads
is attn_out without b_O. No vector of width d_model is ever made for a pair of positions: with
W_Oᵀ = Q·R, ‖f(x)‖ is the norm of R·value, d_head numbers; for a sum over heads, the d_model x head
matrix of all f(x_j) at one j is Q_j·R_j, and the norm of R_j·α is taken, head numbers.

Source: Kobayashi et al. 2020, "Attention is Not Only a Weight".
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from minibert.analysis.arguments import check_trace
from minibert.analysis.rows import wide
from minibert.analysis.stream import layer_of
from minibert.quantities import Float
from minibert.result import Result, sourced
from minibert.trace.layer_view import LayerTrace
from minibert.trace.read import Trace

# Keys whose products with all queries are held at once.
_KEYS = 64


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class HeadNorms(Result[Tensor]):
    """What each head of a layer moves: ‖α_ij·f(x_j)‖ = α_ij·‖f(x_j)‖, (batch, head, query, key).

    vectors   ‖f(x_j)‖: how long the vector is that a position offers
    """

    vectors: Float[Tensor, "batch head key"]


@sourced
def head_norms(trace: Trace, layer: int) -> HeadNorms:
    """The norms of a layer head by head, ‖α_ij·f(x_j)‖; rows and columns of padding are void.

    Raises TraceError for a layer that was not computed.
    """
    check_trace(trace)
    at = trace[layer]
    with torch.no_grad():
        # R·value has the norm of W_Oᵀ·value.
        corner = torch.linalg.qr(_output(at).mT, mode="r")[1]
        vectors = torch.linalg.vector_norm(_values(at) @ corner.mT, dim=-1)
        norms = wide(at.probs) * vectors[:, :, None]
    title, tokens = f"Norms ‖α·f(x)‖, layer {at.layer}", trace.tokens.strings
    return HeadNorms(
        norms, "batch head query key", title=title, unit="norm", tokens=tokens, vectors=vectors
    )


@sourced
def summed_norms(trace: Trace, layer: int) -> Result[Tensor]:
    """The norms of a layer over all heads at once, ‖Σ α_ij·f(x_j)‖ over heads: (batch, query, key).

    Memory: head x position vectors of width d_model, and the layer's probs.
    Raises TraceError for a layer that was not computed.
    """
    check_trace(trace)
    at = trace[layer]
    with torch.no_grad():
        norms = _norms_of_sums(wide(at.probs), _moved(at))
    title, tokens = f"Norms ‖Σ α·f(x)‖, layer {at.layer}", trace.tokens.strings
    return Result(norms, "batch query key", title=title, unit="norm", tokens=tokens)


def _norms_of_sums(
    probs: Float[Tensor, "batch head query key"],
    vectors: Float[Tensor, "batch key head d_model"],
) -> Float[Tensor, "batch query key"]:
    """‖Σ over heads of probs·vector‖ of each pair."""
    corners = torch.linalg.qr(vectors.mT, mode="r")[1]  # batch key rank head
    norms = torch.empty_like(probs[:, 0].mT)
    for here, corner, found in zip(probs, corners, norms, strict=True):
        by_key = torch.empty_like(here.mT, memory_format=torch.contiguous_format)
        for target, source in zip(by_key, here, strict=True):
            # A matrix at a time: torch transposes two axes in blocks, and three number by number.
            target.copy_(source.mT)
        whole = by_key.transpose(0, 1)  # key head query
        for first in range(0, len(corner), _KEYS):
            part = slice(first, first + _KEYS)
            torch.sum((corner[part] @ whole[part]).square_(), 1, out=found[part])
    return norms.sqrt_().mT


def _moved(at: LayerTrace) -> Float[Tensor, "batch key head d_model"]:
    """f(x_j) of each head."""
    return torch.einsum("bhkd,hdm->bkhm", _values(at), _output(at))


def _values(at: LayerTrace) -> Float[Tensor, "batch head key d_head"]:
    """The value that each head reads."""
    return wide(at.value).repeat_interleave(layer_of(at).attention.group, 1)


def _output(at: LayerTrace) -> Float[Tensor, "head d_head d_model"]:
    return wide(layer_of(at).attention.W_O)
