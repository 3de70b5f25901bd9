"""A product A·B that is kept as its two factors, which are narrow: W_Q·W_Kᵀ and W_V·W_O of a head.

The names are those of TransformerLens' FactoredMatrix. Source of the idea: Elhage et al. 2021, "A
mathematical framework for transformer circuits".
"""

from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from minibert.errors import TraceError
from minibert.quantities import Float

__all__ = ["FactoredMatrix", "composition_scores"]

Left = Float[Tensor, "*left ldim mdim"]
Right = Float[Tensor, "*right mdim rdim"]


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
