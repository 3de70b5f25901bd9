"""The two circuits of a head: QK says where it looks, OV says what it moves from there.

    scores = scale · (x·W_Q + b_Q)·(y·W_K + b_K)ᵀ        W_QK = W_Q·W_Kᵀ
    head_out of a head that looks at x alone = (x·W_V + b_V)·W_O        W_OV = W_V·W_O

x and y are rows of what the layer reads. In a rotary model there is a QK circuit for each distance
between query and key, W_QK = W_Q·R(distance)·W_Kᵀ (rotation.py). Scores are those before a soft
cap, mask and window. Both matrices are d_model x d_model of rank d_head at
most; here they stay two thin factors, and singular values and eigenvalues come from those.

Source: Elhage et al. 2021, "A Mathematical Framework for Transformer Circuits"; the orientation
is that of TransformerLens (`model.QK`, `model.OV`).
"""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from minibert.analysis.head_weights import head_name, head_weights
from minibert.analysis.rotation import at_distance
from minibert.doors import Figure, plots
from minibert.errors import TraceError
from minibert.quantities import Float, Shaped
from minibert.trace.places import check_index

if TYPE_CHECKING:
    from minibert.model import Model

__all__ = ["Circuit", "OVCircuit", "QKCircuit", "SingularVectors", "ov_circuit", "qk_circuit"]


@dataclass(frozen=True, eq=False)
class SingularVectors:
    """matrix = left · diag(values) · rightᵀ; the values in falling order, vectors in columns."""

    left: Float[Tensor, "d_model rank"]
    values: Float[Tensor, " rank"]
    right: Float[Tensor, "d_model rank"]

    def plot(self, path: str | Path | None = None) -> Figure:
        """The matplotlib Figure of the singular values, in falling order.

        Saved where `path` is given, as SVG, PDF or PNG by its name. Raises MinibertError without
        matplotlib.
        """
        return plots.spectrum(self.values, title="Singular values", path=path)


@dataclass(frozen=True, eq=False)
class Circuit:
    """matrix = left · right, kept as these two factors, for one head."""

    layer: int
    head: int
    left: Float[Tensor, "d_model d_head"]
    right: Float[Tensor, "d_head d_model"]

    @property
    def label(self) -> str:
        """Layer and head, as "5-3"."""
        return head_name(self.layer, self.head)

    def matrix(self) -> Float[Tensor, "d_model d_model"]:
        """The product of the factors, d_model² numbers."""
        return self.left @ self.right

    def singular_vectors(self) -> SingularVectors:
        """The singular value decomposition of the matrix, d_head values, from its factors.

        left = Q₁·R₁ and rightᵀ = Q₂·R₂; the decomposition of the small R₁·R₂ᵀ, turned by Q₁ and Q₂.

        Raises TraceError where a weight is not finite.
        """
        self._check_finite("singular values")
        left, left_corner = torch.linalg.qr(self.left)
        right, right_corner = torch.linalg.qr(self.right.T)
        small, values, small_right = torch.linalg.svd(left_corner @ right_corner.T)
        return SingularVectors(left @ small, values, right @ small_right.T)

    def eigenvalues(self) -> Shaped[Tensor, " d_head"]:
        """The d_head eigenvalues of the matrix that need not be 0, complex, largest first.

        left·right and the small right·left have the same ones but for zeros.

        Raises TraceError where a weight is not finite.
        """
        self._check_finite("eigenvalues")
        values = torch.linalg.eigvals(self.right @ self.left)
        return values[values.abs().argsort(descending=True)]

    def norm(self) -> Float[Tensor, ""]:
        """The Frobenius norm of the matrix."""
        corner = torch.linalg.qr(self.left, mode="r")[1]
        return torch.linalg.matrix_norm(corner @ self.right)

    def plot(self, path: str | Path | None = None) -> Figure:
        """The matplotlib Figure of the singular values, and the eigenvalues in the complex plane.

        Saved where `path` is given, as SVG, PDF or PNG by its name. Raises TraceError where a
        weight is not finite, and MinibertError without matplotlib.
        """
        title = f"{type(self).__name__.removesuffix('Circuit') or 'Circuit'} of head {self.label}"
        values = self.singular_vectors().values
        return plots.spectra(values, self.eigenvalues(), title=title, path=path)

    def _check_finite(self, what: str) -> None:
        if not (self.left.isfinite().all() and self.right.isfinite().all()):
            raise TraceError(
                f"The weights of head {self.label} are not all finite, so its circuit has no "
                f"{what}; look for nan and inf in the checkpoint."
            )


@dataclass(frozen=True, eq=False)
class QKCircuit(Circuit):
    """Where a head looks: matrix = W_Q·W_Kᵀ, rows for the query's side, columns for the key's."""

    query_bias: Float[Tensor, " d_head"]
    key_bias: Float[Tensor, " d_head"]
    scale: float
    """What scores are multiplied by: 1/sqrt(d_head), unless the model's config differs."""
    distance: int | None = None
    """How many positions the key stands before the query, in a rotary model."""

    def scores(
        self, x: Float[Tensor, "*query d_model"], y: Float[Tensor, "*key d_model"]
    ) -> Float[Tensor, "*query_and_key"]:
        """scale · (x·W_Q + b_Q)·(y·W_K + b_K)ᵀ for every row of x with every row of y."""
        query = (x.to(self.left) @ self.left + self.query_bias) * self.scale
        key = y.to(self.left) @ self.right.T + self.key_bias
        return torch.tensordot(query, key, dims=([-1], [-1]))

    @property
    def key_direction(self) -> Float[Tensor, " d_model"]:
        """W_K·b_Q: scale · y·key_direction is what a key scores whatever the query is."""
        return self.query_bias @ self.right

    @property
    def query_direction(self) -> Float[Tensor, " d_model"]:
        """W_Q·b_K: adds one number to all scores of a row, which the softmax takes away again."""
        return self.left @ self.key_bias


@dataclass(frozen=True, eq=False)
class OVCircuit(Circuit):
    """What a head moves: matrix = W_V·W_O, from what it looks at to what it writes."""

    value_bias: Float[Tensor, " d_head"]

    def moves(self, x: Float[Tensor, "*rows d_model"]) -> Float[Tensor, "*rows d_model"]:
        """(x·W_V + b_V)·W_O: what the head would write if it looked at this row alone."""
        return (x.to(self.left) @ self.left + self.value_bias) @ self.right

    @property
    def bias(self) -> Float[Tensor, " d_model"]:
        """b_V·W_O: what the head writes wherever it looks, since a row of probs sums to 1."""
        return self.value_bias @ self.right


def qk_circuit(
    model: "Model",
    layer: int,
    head: int,
    *,
    fold_norm: bool = False,
    distance: int | None = None,
) -> QKCircuit:
    """The QK circuit of a head: two factors and its biases, copied from the model.

    >>> import minibert
    >>> model = minibert.load()
    >>> circuit = qk_circuit(model, 1, 3)
    >>> trace = model.trace("leaves fall in autumn")
    >>> circuit.scores(trace[1].resid_pre[0], trace[1].resid_pre[0]).allclose(
    ...     trace[1, 3].scores[0], atol=1e-5
    ... )
    True

    `fold_norm` as in `head_weights`: the factors then read x / std(x) instead of LayerNorm(x).
    A rotary model has one circuit for each `distance`, how many positions the key stands before the
    query; both factors are turned by it.
    Raises TraceError for a layer or head that is not there, for a distance that is missing, or
    given without rotation, and for a model that puts queries and keys through a norm.
    """
    weights = head_weights(model, layer, fold_norm=fold_norm)
    layer = check_index("layer", layer, model.config.n_layers)
    weights = at_distance(model, layer, weights, distance)
    head = check_index("head", head, model.config.n_heads)
    return QKCircuit(
        layer,
        head,
        weights.query[head],
        weights.key[head].T,
        weights.query_bias[head],
        weights.key_bias[head],
        model.config.attention_scale(layer),
        distance,
    )


def ov_circuit(model: "Model", layer: int, head: int, *, fold_norm: bool = False) -> OVCircuit:
    """The OV circuit of a head: two factors and its bias, copied from the model.

    `fold_norm` and what is raised are as for `qk_circuit`.
    """
    weights = head_weights(model, layer, fold_norm=fold_norm)
    layer = check_index("layer", layer, model.config.n_layers)
    head = check_index("head", head, model.config.n_heads)
    return OVCircuit(
        layer, head, weights.value[head], weights.output[head], weights.value_bias[head]
    )
