"""Attention weighed by what it moves: ‖α·f(x)‖ instead of α.

A head sees position j as the vector f(x_j) = (x_j·W_V + b_V)·W_O and adds α_ij·f(x_j) to position
i, so a large weight on a short vector moves little. The sum of these vectors over all j and heads
is attn_out without b_O.

No vector of width d_model is ever made for a pair of positions. With W_Oᵀ = Q·R, ‖f(x)‖ is the
norm of R·value, d_head numbers; for a sum over heads, the d_model x head matrix of all f(x_j)
at one j is Q_j·R_j, and the norm of R_j·α is taken, head numbers.

Sources: Kobayashi et al. 2020, "Attention is Not Only a Weight" (the norms); Kobayashi et al.
2021, "Incorporating Residual and Normalization Layers into Analysis of Masked Language Models"
(the block).
"""

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from minibert.analysis.arguments import check_trace
from minibert.analysis.frozen_norm import FrozenNorm
from minibert.analysis.precision import wide
from minibert.doors import Figure, plots
from minibert.layers.parts import Layer
from minibert.quantities import Float
from minibert.trace.read import LayerTrace, Trace

__all__ = ["BlockNorms", "HeadNorms", "SummedNorms", "block_norms", "head_norms", "summed_norms"]

Labels = tuple[tuple[str, ...], ...]

# Keys whose products with all queries are held at once.
_KEYS = 64


@dataclass(frozen=True, eq=False)
class HeadNorms:
    """What each head of a layer moves from key to query; rows and columns of padding are void."""

    layer: int
    vectors: Float[Tensor, "batch head key"]
    """‖f(x_j)‖: how long the vector is that a position offers."""
    norms: Float[Tensor, "batch head query key"]
    """‖α_ij·f(x_j)‖ = α_ij·‖f(x_j)‖."""
    labels: Labels

    def plot(
        self, path: str | Path | None = None, *, head: int | None = None, sentence: int = 0
    ) -> Figure:
        """The matplotlib Figure of one head's norms, queries down and keys across, or of all heads.

        Saved where `path` is given, as SVG, PDF or PNG by its name. Raises TraceError for a head
        or sentence that is not there, and MinibertError without matplotlib.
        """
        return plots.matrix_of_head(
            self.norms[None],
            [self.layer],
            self.labels,
            layer=None,
            head=head,
            sentence=sentence,
            name="Norms ‖α·f(x)‖",
            unit="norm",
            path=path,
        )


@dataclass(frozen=True, eq=False)
class SummedNorms:
    """What all heads of a layer together move: norms = ‖Σ over heads of α_ij·f(x_j)‖."""

    layer: int
    norms: Float[Tensor, "batch query key"]
    labels: Labels

    def plot(self, path: str | Path | None = None, *, sentence: int = 0) -> Figure:
        """The matplotlib Figure of the norms, queries down and keys across.

        Saved where `path` is given, as SVG, PDF or PNG by its name. Raises TraceError for a
        sentence that is not there, and MinibertError without matplotlib.
        """
        return _plot(self, f"Norms ‖Σ α·f(x)‖, layer {self.layer}", sentence, path)


@dataclass(frozen=True, eq=False)
class BlockNorms:
    """What reaches resid_mid from each position, the residual stream and norms counted in."""

    layer: int
    norms: Float[Tensor, "batch query key"]
    """‖g_i(h_i(Σ over heads of α_ij·f(x_j)) + x_i where j = i)‖."""
    mixing: Float[Tensor, "batch query"]
    """What comes from other positions, ‖sum over j ≠ i‖, in proportion to it plus what stays."""
    labels: Labels

    def plot(self, path: str | Path | None = None, *, sentence: int = 0) -> Figure:
        """The matplotlib Figure of the norms, queries down and keys across.

        Saved where `path` is given, as SVG, PDF or PNG by its name. Raises TraceError for a
        sentence that is not there, and MinibertError without matplotlib.
        """
        return _plot(self, f"Norms of the block, layer {self.layer}", sentence, path)


def head_norms(trace: Trace, layer: int) -> HeadNorms:
    """The norms of a layer head by head: ‖α_ij·f(x_j)‖.

    Raises TraceError for a layer that was not computed.
    """
    check_trace(trace)
    at = trace[layer]
    with torch.no_grad():
        # R·value has the norm of W_Oᵀ·value.
        corner = torch.linalg.qr(_output(at).mT, mode="r")[1]
        vectors = torch.linalg.vector_norm(_values(at) @ corner.mT, dim=-1)
        norms = wide(at.probs) * vectors[:, :, None]
    return HeadNorms(at.layer, vectors, norms, trace.tokens.strings)


def summed_norms(trace: Trace, layer: int) -> SummedNorms:
    """The norms of a layer over all heads at once: ‖Σ α_ij·f(x_j)‖ over heads.

    Memory: head x position vectors of width d_model, and the layer's probs.
    Raises TraceError for a layer that was not computed.
    """
    check_trace(trace)
    at = trace[layer]
    with torch.no_grad():
        norms = _norms_of_sums(wide(at.probs), _moved(at))
    return SummedNorms(at.layer, norms, trace.tokens.strings)


def block_norms(trace: Trace, layer: int) -> BlockNorms:
    """The norms of a layer's attention block, residual stream and norms included.

    Where LayerNorm stands behind attention (BERT), every part of the sum passes through it:
    g_i(y) = (y − mean(y)) / s_i · γ, with s_i the standard deviation of the whole sum at i, or what
    an edit wrote in its place. Where
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
        bias = _output_bias(at)
        attended = attn_out if bias is None else attn_out - bias
        own = torch.einsum("bhi,bihm->bim", probs.diagonal(dim1=-2, dim2=-1), moved)
        others = attended - own
        divisor = torch.ones_like(resid[..., :1])
        if (norm := FrozenNorm.of_layer(at, "attention_output_norm", at.attn_out)) is not None:
            moved, own, others = norm.scaled(moved), norm.carry(own), norm.carry(others)
            divisor = norm.deviation
        norm = FrozenNorm.of_layer(at, "attention_norm", at.resid_pre + at.attn_out)
        if _block(at).after and norm is not None:
            moved = norm.scaled(moved)
            resid, own, others = norm.carry(resid), norm.carry(own), norm.carry(others)
            divisor = divisor * norm.deviation
        norms = _norms_of_sums(probs, moved) / divisor
        stays = torch.linalg.vector_norm(own + resid, dim=-1)
        norms.diagonal(dim1=-2, dim2=-1).copy_(stays)
        comes = torch.linalg.vector_norm(others, dim=-1)
    return BlockNorms(at.layer, norms, comes / (comes + stays), trace.tokens.strings)


def _plot(
    result: SummedNorms | BlockNorms, title: str, sentence: int, path: str | Path | None
) -> Figure:
    return plots.token_map(
        result.norms, result.labels, sentence=sentence, title=title, unit="norm", path=path
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
    return wide(at.value).repeat_interleave(_block(at).attention.group, 1)


def _output(at: LayerTrace) -> Float[Tensor, "head d_head d_model"]:
    return wide(_block(at).attention.W_O)


def _output_bias(at: LayerTrace) -> Tensor | None:
    bias = _block(at).attention.b_O
    return None if bias is None else wide(bias)


def _block(at: LayerTrace) -> Layer:
    """The layer's weights."""
    return at.trace.model.body.layers[at.layer]
