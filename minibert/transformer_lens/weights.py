"""Weights as TransformerLens has them: processed, and as products of two factors.

processed       fold_ln, center_writing_weights, center_unembed, fold_value_biases, and factors
                made even, where they leave the predictions as they are
FactoredMatrix  a product of two factors that is not multiplied out
"""

from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, cast

import torch
from torch import Tensor, nn

from minibert.errors import CheckpointError, TraceError
from minibert.layers.config import Config
from minibert.layers.linear import Linear
from minibert.layers.norms import LayerNorm, Norm, RMSNorm, scale_of
from minibert.layers.parts import Attention
from minibert.model import Model
from minibert.quantities import Float

Left = Float[Tensor, "*left ldim mdim"]
Right = Float[Tensor, "*right mdim rdim"]


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


@dataclass(frozen=True)
class Processing:
    """Which transforms. None means: where the model allows it, as TransformerLens does.

    fold_ln                 the weight and bias of a norm in front of a linear layer go into it
    center_writing_weights  what is written into the stream has mean 0 over d_model
    center_unembed          W_U and b_U have mean 0 over the vocabulary
    fold_value_biases       b_V goes into b_O, since the rows of attention sum to 1
    refactor_factored_attn_matrices   W_Q and W_K of a head have orthogonal columns of the same
                            norms, W_O orthonormal rows
    """

    fold_ln: bool | None = None
    center_writing_weights: bool | None = None
    center_unembed: bool | None = None
    fold_value_biases: bool | None = None
    refactor_factored_attn_matrices: bool = False

    def checked(self, config: Config) -> "Processing":
        """The same with every None decided. Raises CheckpointError for what cannot be done."""
        unfit = _unfit(config)
        decided = {}
        for field in fields(self):
            wanted = getattr(self, field.name)
            if wanted and field.name in unfit:
                raise CheckpointError(
                    f"{field.name}=True on {config.model_type}: {unfit[field.name]}. Leave it out, "
                    f"or pass {field.name}=False."
                )
            decided[field.name] = field.name not in unfit if wanted is None else wanted
        return Processing(**decided)

    @property
    def any(self) -> bool:
        """True where something is to be done."""
        return any(getattr(self, field.name) for field in fields(self))


def _unfit(config: Config) -> dict[str, str]:
    """Why a transform would change what the model predicts."""
    found = {}
    if config.norm == "rms":
        found["center_writing_weights"] = "an RMSNorm does not take the mean away"
    if config.norm_place not in ("before", "both"):
        found["fold_ln"] = "no norm stands in front of a linear layer"
    if config.logit_soft_cap is not None:
        found["center_unembed"] = "the logits go through a soft cap, which is not linear"
    if config.norm_place != "before":
        found["fold_value_biases"] = "a norm stands behind W_O"
    if config.rotary is not None:
        found["refactor_factored_attn_matrices"] = "queries and keys are rotated after W_Q and W_K"
    if config.n_kv_heads != config.n_heads:
        found["refactor_factored_attn_matrices"] = "several heads share their keys and values"
    return found


@torch.no_grad()
def processed(model: Model, processing: Processing) -> Model:
    """A copy of the model with these transforms; the model itself is left as it is."""
    wanted = processing.checked(model.config)
    copy = _copy(model)
    if wanted.fold_ln:
        _fold_norms(copy)
    if wanted.center_writing_weights:
        _center_writing(copy)
    if wanted.center_unembed:
        decoder = _decoder(copy)
        decoder.weight.sub_(decoder.weight.mean(0))
        bias_of(decoder).sub_(bias_of(decoder).mean())
    if wanted.fold_value_biases:
        for layer in copy.body.layers:
            attention = layer.attention
            of_heads = bias_of(attention.value).unflatten(0, (-1, attention.d_head))
            of_heads = of_heads.repeat_interleave(attention.group, 0)
            bias_of(attention.output).add_(attention.output.weight @ of_heads.flatten())
            bias_of(attention.value).zero_()
    if wanted.refactor_factored_attn_matrices:
        for layer in copy.body.layers:
            make_factors_even(layer.attention)
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


def _fold_norms(model: Model) -> None:
    for layer in model.body.layers:
        attention, mlp = layer.attention, layer.mlp
        _fold(layer.attention_norm, attention.query, attention.key, attention.value)
        _fold(layer.mlp_norm, mlp.up, mlp.gate)
    _fold(model.body.final_norm, _decoder(model))


def _fold(norm: Norm | None, *linears: Linear | None) -> None:
    """The norm's weight and bias go into the linear layers that read it.

    What a LayerNorm gives has mean 0, so the mean of a row of the weights, which reads the mean,
    can be taken away.
    """
    if norm is None:
        return
    for linear in linears:
        if linear is None:
            continue
        if isinstance(norm, LayerNorm) and norm.bias is not None:
            bias_of(linear).add_(linear.weight @ norm.bias)
        linear.weight.mul_(scale_of(norm))
        if isinstance(norm, LayerNorm):
            linear.weight.sub_(linear.weight.mean(1, keepdim=True))
    norm.weight.fill_(0.0 if isinstance(norm, RMSNorm) and norm.plus_one else 1.0)
    if isinstance(norm, LayerNorm) and norm.bias is not None:
        norm.bias.zero_()


def _center_writing(model: Model) -> None:
    body = model.body
    for table in (body.word, body.position):
        if table is not None:
            table.weight.sub_(table.weight.mean(1, keepdim=True))
    for layer in body.layers:
        for linear in (layer.attention.output, layer.mlp.down):
            linear.weight.sub_(linear.weight.mean(0))
            bias_of(linear).sub_(bias_of(linear).mean())


def _decoder(model: Model) -> Linear:
    return cast(Linear, cast(nn.Module, model.head).decoder)


class FactoredMatrix:
    """The matrix A·B of shape (..., ldim, rdim), of rank mdim at most.

    Raises TraceError for factors that cannot be multiplied.
    """

    def __init__(self, A: Left, B: Right) -> None:  # noqa: N803, TransformerLens' names
        if A.dim() < 2 or B.dim() < 2 or A.shape[-1] != B.shape[-2]:
            raise TraceError(
                f"FactoredMatrix of {tuple(A.shape)} and {tuple(B.shape)}; expected (..., ldim, "
                "mdim) and (..., mdim, rdim)."
            )
        leading = torch.broadcast_shapes(A.shape[:-2], B.shape[:-2])
        self.ldim, self.mdim, self.rdim = A.shape[-2], A.shape[-1], B.shape[-1]
        self.A = A.broadcast_to(*leading, self.ldim, self.mdim)
        self.B = B.broadcast_to(*leading, self.mdim, self.rdim)
        self.has_leading_dims = bool(leading)
        self.shape = torch.Size((*leading, self.ldim, self.rdim))

    @property
    def ndim(self) -> int:
        """How many axes the product has."""
        return len(self.shape)

    @property
    def pair(self) -> tuple[Tensor, Tensor]:
        """The two factors."""
        return self.A, self.B

    @property
    def AB(self) -> Tensor:  # noqa: N802
        """The product, multiplied out."""
        return self.A @ self.B

    @property
    def BA(self) -> Tensor:  # noqa: N802
        """B·A, of shape (..., mdim, mdim). Raises TraceError unless ldim is rdim."""
        if self.ldim != self.rdim:
            raise TraceError(
                f"B·A of a matrix of {self.ldim} x {self.rdim}; expected a square one."
            )
        return self.B @ self.A

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

    def __mul__(self, scalar: Any) -> "FactoredMatrix":
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

    @property
    def U(self) -> Tensor:  # noqa: N802
        """Left singular vectors, as columns."""
        return self._svd[0]

    @property
    def S(self) -> Tensor:  # noqa: N802
        """Singular values, the largest first."""
        return self._svd[1]

    @property
    def V(self) -> Tensor:  # noqa: N802
        """Right singular vectors, as columns."""
        return self._svd[2]

    @property
    def Vh(self) -> Tensor:  # noqa: N802
        """V, as in TransformerLens, where this name does not mean the transposed one either."""
        return self.V

    @property
    def eigenvalues(self) -> Tensor:
        """The eigenvalues that can differ from 0: those of B·A, complex."""
        return torch.linalg.eigvals(self.BA)

    def norm(self) -> Tensor:
        """The Frobenius norm."""
        return self.S.square().sum(-1).sqrt()

    def make_even(self) -> "FactoredMatrix":
        """The same matrix with factors U·sqrt(S) and sqrt(S)·Vᵀ."""
        root = self.S.sqrt()
        return FactoredMatrix(self.U * root[..., None, :], root[..., :, None] * self.V.mT)

    def collapse_l(self) -> Tensor:
        """S·Vᵀ: the matrix without its left orthogonal factor, which changes no norm."""
        return self.S[..., :, None] * self.V.mT

    def collapse_r(self) -> Tensor:
        """U·S: the matrix without its right orthogonal factor."""
        return self.U * self.S[..., None, :]

    def unsqueeze(self, k: int) -> "FactoredMatrix":
        """With one more leading axis of size 1 at `k`."""
        return FactoredMatrix(self.A.unsqueeze(k), self.B.unsqueeze(k))

    def get_corner(self, k: int = 3) -> Tensor:
        """The first k rows and columns of the product, and k of each leading axis."""
        corner = self.A[..., :k, :] @ self.B[..., :, :k]
        return corner[tuple(slice(k) for _ in range(corner.dim()))]

    def __getitem__(self, index: Any) -> "FactoredMatrix":
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


def _kept(index: Any) -> Any:
    """An index that keeps its axis."""
    if not isinstance(index, int):
        return index
    return slice(index, index + 1 if index != -1 else None)


def composition_scores(
    left: FactoredMatrix, right: FactoredMatrix, broadcast_dims: bool = True
) -> Tensor:
    """‖left·right‖ / (‖left‖·‖right‖), Frobenius norms, of every left with every right matrix.

    Without `broadcast_dims` leading axes are matched as they are.
    Source: Elhage et al. 2021, "Q-, K- and V-composition".
    """
    if left.rdim != right.ldim:
        raise TraceError(f"{left!r} cannot be multiplied with {right!r}.")
    if broadcast_dims:
        of_left, of_right = left.ndim - 2, right.ndim - 2
        for _ in range(of_left):
            right = right.unsqueeze(0)
        for _ in range(of_right):
            left = left.unsqueeze(of_left)
    one, other = left.collapse_l(), right.collapse_r()
    together = torch.linalg.matrix_norm(one @ other)
    return together / torch.linalg.matrix_norm(one) / torch.linalg.matrix_norm(other)
