"""Weights as TransformerLens has them: processed, and as products of two factors."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any, cast

import torch
from torch import Tensor, nn

from minibert.errors import CheckpointError, TraceError, check_flag
from minibert.layers.config import Config
from minibert.layers.linear import Linear
from minibert.layers.norms import Norm
from minibert.model import Model
from minibert.quantities import Float


def _fold_ln(model: Model) -> None:
    """The weight and bias of each norm go into the linear layers that read it."""
    for layer in model.body.layers:
        attention, mlp = layer.attention, layer.mlp
        _fold(layer.attention_norm, attention.query, attention.key, attention.value)
        _fold(layer.mlp_norm, mlp.up, mlp.gate)
    _fold(model.body.final_norm, _decoder(model))


def _fold(norm: Norm | None, *linears: Linear | None) -> None:
    """What a LayerNorm gives has mean 0, so the mean of a row of the weights can be taken away."""
    if norm is None:
        return
    for linear in linears:
        if linear is None:
            continue
        if norm.bias is not None:
            _bias_of(linear).add_(linear.weight @ norm.bias)
        linear.weight.mul_(norm.scale)
        if norm.centres:
            linear.weight.sub_(linear.weight.mean(1, keepdim=True))
    norm.weight.fill_(0.0 if norm.plus_one else 1.0)
    if norm.bias is not None:
        norm.bias.zero_()


def _center_writing_weights(model: Model) -> None:
    """What is written into the stream has mean 0 over d_model."""
    for table in (model.body.word, model.body.position):
        if table is not None:
            table.weight.sub_(table.weight.mean(1, keepdim=True))
    for layer in model.body.layers:
        for linear in (layer.attention.output, layer.mlp.down):
            _center(linear)


def _center_unembed(model: Model) -> None:
    """W_U and b_U have mean 0 over the vocabulary."""
    _center(_decoder(model))


def _center(linear: Linear) -> None:
    linear.weight.sub_(linear.weight.mean(0))
    _bias_of(linear).sub_(_bias_of(linear).mean())


def _fold_value_biases(model: Model) -> None:
    """b_V goes into b_O, since the rows of attention sum to 1."""
    for layer in model.body.layers:
        attention = layer.attention
        of_heads = _bias_of(attention.value).unflatten(0, (-1, attention.d_head))
        of_heads = of_heads.repeat_interleave(attention.group, 0)
        _bias_of(attention.output).add_(attention.output.weight @ of_heads.flatten())
        _bias_of(attention.value).zero_()


PROCESSING: dict[str, Callable[[Model], None]] = {
    "fold_ln": _fold_ln,
    "center_writing_weights": _center_writing_weights,
    "center_unembed": _center_unembed,
    "fold_value_biases": _fold_value_biases,
}
"""What TransformerLens does to weights, in this order, where predictions stay as they are."""


def steps_of(config: Config, asked: Mapping[str, object]) -> list[str]:
    """The names of the steps that are done: those asked for; not said means where they can be.

    Raises CheckpointError for one that would change what the model predicts.
    """
    unfit = {}
    if config.norm == "rms":
        unfit["center_writing_weights"] = "an RMSNorm does not take the mean away"
    if config.norm_place not in ("before", "both"):
        unfit["fold_ln"] = "no norm stands in front of a linear layer"
    if config.logit_soft_cap is not None:
        unfit["center_unembed"] = "the logits go through a soft cap, which is not linear"
    if config.norm_place != "before":
        unfit["fold_value_biases"] = "a norm stands behind W_O"
    for name, wanted in asked.items():
        if wanted is not None:
            check_flag(name, wanted, CheckpointError)
        if wanted and name in unfit:
            raise CheckpointError(
                f"{name}=True on {config.model_type}: {unfit[name]}. Leave it out, or pass "
                f"{name}=False."
            )
    return [name for name in PROCESSING if asked.get(name, True) is not False and name not in unfit]


@torch.no_grad()
def processed(model: Model, steps: Iterable[str]) -> Model:
    """A copy of the model with these steps of `PROCESSING`; the model itself is left as it is."""
    copy = _copy(model)
    for name in steps:
        PROCESSING[name](copy)
    return copy


def _copy(model: Model) -> Model:
    """The same model with weights of its own, untied, and a bias wherever one may be needed."""
    config = replace(model.config, tied=False, query_bias=True, output_bias=True, mlp_bias=True)
    with torch.device("meta"):
        copy = Model(config, tokenizer=model.tokenizer, name=model.name)
        size, width = _decoder(model).weight.shape
        cast(nn.Module, copy.head).decoder = Linear(width, size, bias=True)
    # A tied weight has two names there.
    known = dict(model.named_parameters(remove_duplicate=False))
    word = model.body.word.weight
    copy.to_empty(device=word.device).to(word.dtype)
    for name, parameter in copy.named_parameters():
        if name in known:
            parameter.copy_(known[name])
        else:
            parameter.zero_()
    copy.impl = model.impl
    return copy


def _bias_of(linear: Linear) -> Tensor:
    assert linear.bias is not None, "a model is copied with every bias before it is processed"
    return linear.bias


def _decoder(model: Model) -> Linear:
    return cast(Linear, cast(nn.Module, model.head).decoder)


class FactoredMatrix:
    """The matrix A·B of shape (..., ldim, rdim), of rank mdim at most, which is not multiplied out.

    Raises TraceError for factors that cannot be multiplied.
    """

    def __init__(
        self,
        A: Float[Tensor, "*left ldim mdim"],  # noqa: N803, TransformerLens' names
        B: Float[Tensor, "*right mdim rdim"],  # noqa: N803
    ) -> None:
        if A.dim() < 2 or B.dim() < 2 or A.shape[-1] != B.shape[-2]:
            raise TraceError(
                f"FactoredMatrix of {tuple(A.shape)} and {tuple(B.shape)}; expected (..., ldim, "
                "mdim) and (..., mdim, rdim)."
            )
        leading = torch.broadcast_shapes(A.shape[:-2], B.shape[:-2])
        self.ldim, self.mdim, self.rdim = A.shape[-2], A.shape[-1], B.shape[-1]
        self.A = A.broadcast_to(*leading, self.ldim, self.mdim)
        self.B = B.broadcast_to(*leading, self.mdim, self.rdim)
        self.shape = torch.Size((*leading, self.ldim, self.rdim))
        self.ndim = len(self.shape)

    @property
    def AB(self) -> Tensor:  # noqa: N802
        """The product, multiplied out."""
        return self.A @ self.B

    @property
    def T(self) -> "FactoredMatrix":  # noqa: N802
        """The transposed matrix."""
        return FactoredMatrix(self.B.mT, self.A.mT)

    def __matmul__(self, other: Any) -> Any:
        """The product with a matrix, factored; with a vector, a vector."""
        if isinstance(other, FactoredMatrix):
            return (self @ other.A) @ other.B
        if other.dim() < 2:
            return (self.A @ (self.B @ other[..., None])).squeeze(-1)
        # The narrowest pair of factors.
        if self.rdim > self.mdim:
            return FactoredMatrix(self.A, self.B @ other)
        return FactoredMatrix(self.AB, other)

    def __rmatmul__(self, other: Any) -> Any:
        """The product of a matrix or a vector with this one."""
        if other.dim() < 2:
            return ((other[..., None, :] @ self.A) @ self.B).squeeze(-2)
        if self.ldim > self.mdim:
            return FactoredMatrix(other @ self.A, self.B)
        return FactoredMatrix(other, self.AB)

    def __mul__(self, scalar: Tensor | float) -> "FactoredMatrix":
        """This matrix times a number. Raises TraceError for more than one."""
        if isinstance(scalar, Tensor) and scalar.numel() != 1:
            raise TraceError(f"* takes a number, not {tuple(scalar.shape)}; for matrices write @.")
        return FactoredMatrix(self.A * scalar, self.B)

    __rmul__ = __mul__

    @cached_property
    def _svd(self) -> tuple[Tensor, Tensor, Tensor]:
        # Orthogonal factors of A and Bᵀ leave a matrix of mdim x mdim to decompose.
        left, over = torch.linalg.qr(self.A)
        right, under = torch.linalg.qr(self.B.mT)
        u, s, vh = torch.linalg.svd(over @ under.mT, full_matrices=False)
        return left @ u, s, right @ vh.mT

    def svd(self) -> tuple[Tensor, Tensor, Tensor]:
        """(U, S, V) with U·diag(S)·Vᵀ this matrix; min(mdim, ldim, rdim) singular values."""
        return self._svd

    # Left singular vectors as columns, singular values from the largest, right singular vectors;
    # Vh is not the transposed one in TransformerLens either.
    U = property(lambda self: self._svd[0])
    S = property(lambda self: self._svd[1])
    Vh = V = property(lambda self: self._svd[2])

    @property
    def eigenvalues(self) -> Tensor:
        """The eigenvalues that can differ from 0: those of B·A, complex."""
        if self.ldim != self.rdim:
            raise TraceError(
                f"Eigenvalues of a matrix of {self.ldim} x {self.rdim}; expected a square one."
            )
        return torch.linalg.eigvals(self.B @ self.A)

    def norm(self) -> Tensor:
        """The Frobenius norm."""
        return self.S.square().sum(-1).sqrt()

    def __getitem__(self, index: object) -> "FactoredMatrix":
        """Of the product's axes, in order; the last two stay, an int there takes a slice of one."""
        index = index if isinstance(index, tuple) else (index,)
        leading = self.ndim - 2
        real = [place for place, each in enumerate(index) if each is not None]
        if len(real) > self.ndim:
            raise TraceError(f"{len(real)} indices for a matrix with {self.ndim} axes.")
        cut = real[leading] if len(real) > leading else len(index)
        before, last = index[:cut], [_kept(each) for each in index[cut:]]
        rows, columns = (*last, slice(None), slice(None))[:2]
        return FactoredMatrix(self.A[before][..., rows, :], self.B[before][..., :, columns])

    def __repr__(self) -> str:
        return f"FactoredMatrix: Shape({self.shape}), Hidden Dim({self.mdim})"


def _kept(index: object) -> Any:
    """An index that keeps its axis."""
    if not isinstance(index, int):
        return index
    return slice(index, index + 1 if index != -1 else None)
