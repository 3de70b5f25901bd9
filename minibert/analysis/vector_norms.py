"""Attention weighed by what it moves: ‖α·f(x)‖ instead of α.

A head sees position j as the vector f(x_j) = (x_j·W_V + b_V)·W_O and adds α_ij·f(x_j) to position
i, so a large weight on a short vector moves little. The sum of these vectors over all j and heads
is attn_out without b_O. No vector of width d_model is ever made for a pair of positions: with
W_Oᵀ = Q·R, ‖f(x)‖ is the norm of R·value, d_head numbers; for a sum over heads, the d_model x head
matrix of all f(x_j) at one j is Q_j·R_j, and the norm of R_j·α is taken, head numbers.

Sources: Kobayashi et al. 2020, "Attention is Not Only a Weight" (heads and their sum); Kobayashi et
al. 2021, "Incorporating Residual and Normalization Layers into Analysis of Masked Language Models"
(the block), who with Modarressi et al. 2022 carry vectors through LayerNorm in the same way.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from minibert.analysis.arguments import check_trace
from minibert.analysis.rows import wide
from minibert.analysis.stream import FrozenNorm, layer_of
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


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class BlockNorms(Result[Tensor]):
    """What reaches resid_mid from each position, (batch, query, key), norms and stream counted in.

    mixing   what comes from other positions, ‖sum over j ≠ i‖, in proportion to it plus what stays
    """

    mixing: Float[Tensor, "batch query"]


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


@sourced
def block_norms(trace: Trace, layer: int) -> BlockNorms:
    """The norms of a layer's attention block, residual stream and norms included.

    ‖g_i(h_i(Σ over heads of α_ij·f(x_j)) + x_i where j = i)‖. Where LayerNorm stands behind
    attention (BERT), every part of the sum passes through it: g_i(y) = (y − mean(y)) / s_i · γ,
    with s_i the standard deviation of the whole sum at i, or what an edit wrote in its place. Where
    what attention wrote passes through a norm alone (Gemma 2, OLMo 2), that is h_i, in the same
    way with the s_i of attn_out; RMSNorm takes no mean away. In GPT-2 nothing stands between, and
    both are the identity. b_O and a norm's bias belong to no position and are left out, as in the
    paper.

    Raises TraceError for a layer that was not computed.
    """
    check_trace(trace)
    at = trace[layer]
    with torch.no_grad():
        resid, moved, probs = wide(at.resid_pre), _moved(at), wide(at.probs)
        attn_out = wide(at.attn_out)
        bias = layer_of(at).attention.b_O
        attended = attn_out if bias is None else attn_out - wide(bias)
        own = torch.einsum("bhi,bihm->bim", probs.diagonal(dim1=-2, dim2=-1), moved)
        others = attended - own
        divisor = torch.ones_like(resid[..., :1])
        if (norm := FrozenNorm.of_layer(at, "attention_output_norm", at.attn_out)) is not None:
            moved, own, others = norm.scaled(moved), norm.carry(own), norm.carry(others)
            divisor = norm.deviation
        norm = FrozenNorm.of_layer(at, "attention_norm", at.resid_pre + at.attn_out)
        if layer_of(at).after and norm is not None:
            moved = norm.scaled(moved)
            resid, own, others = norm.carry(resid), norm.carry(own), norm.carry(others)
            divisor = divisor * norm.deviation
        norms = _norms_of_sums(probs, moved) / divisor
        stays = torch.linalg.vector_norm(own + resid, dim=-1)
        norms.diagonal(dim1=-2, dim2=-1).copy_(stays)
        comes = torch.linalg.vector_norm(others, dim=-1)
    title, mixing = f"Norms of the block, layer {at.layer}", comes / (comes + stays)
    tokens = trace.tokens.strings
    return BlockNorms(
        norms, "batch query key", title=title, unit="norm", tokens=tokens, mixing=mixing
    )


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
