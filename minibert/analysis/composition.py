"""How much of what one head writes another head reads: Q-, K- and V-composition.

For a head A and a head B of a later layer, in the row convention of circuits.py, the score is
‖W_A·W_B‖ / (‖W_A‖·‖W_B‖) in Frobenius norms, where W_A = W_OV of A and

    Q    W_B = W_Q·W_Kᵀ    B's queries read what A wrote
    K    W_B = W_K·W_Qᵀ    B's keys read it
    V    W_B = W_V·W_O     B moves it on

It is 0 where B reads nothing of it and 1 at most. Two random matrices of rank d_head come to
about 1/sqrt(d_model), so a score says something only beside the others of its kind. Biases have
no part in it. In a rotary model W_Q·W_Kᵀ is one matrix for each distance (rotation.py).

Source: Elhage et al. 2021, "Mechanics of composition"; the numbers are those of TransformerLens'
`all_composition_scores`.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from minibert.analysis.arguments import check_choice, check_model, whole_number
from minibert.analysis.head_weights import HeadWeights, head_name, head_weights, through_norm
from minibert.analysis.layer_norms import attention_norms, mlp_norms
from minibert.analysis.rotation import at_distance
from minibert.doors import Figure, plots
from minibert.errors import TraceError
from minibert.layers.parts import Layer
from minibert.quantities import Float
from minibert.trace.places import check_index

if TYPE_CHECKING:
    from minibert.model import Model

__all__ = ["COMPOSITIONS", "CompositionScores", "composition_scores"]

COMPOSITIONS = ("Q", "K", "V")
# Pairs that a printed table names.
_SHOWN = 5


@dataclass(frozen=True, eq=False)
class CompositionScores:
    """The score of each pair of heads: scores[layer of A, A, layer of B, B].

    0 where B stands in A's layer or an earlier one, which nothing of A reaches, and where a
    matrix is 0.
    """

    kind: str
    scores: Float[Tensor, "layer head later_layer later_head"]
    labels: tuple[str, ...]
    """ "0-0", "0-1" ...: layer and head, in the order of both halves of the axes."""

    def between(self, earlier: tuple[int, int], later: tuple[int, int]) -> float:
        """The score of two heads, each as (layer, head).

        Raises TraceError for a head that is not there, or that is not of an earlier layer.
        """
        n_layers, n_heads = self.scores.shape[:2]
        first, second = (
            (check_index("layer", layer, n_layers), check_index("head", head, n_heads))
            for layer, head in (earlier, later)
        )
        if first[0] >= second[0]:
            raise TraceError(
                f"Head {head_name(*first)} writes nothing that head {head_name(*second)} reads: "
                "expected the head of the earlier layer first."
            )
        return self.scores[first][second].item()

    def best(self, count: int = 1) -> list[tuple[tuple[int, int], tuple[int, int], float]]:
        """The pairs that score highest, as ((layer, head), (later layer, head), score).

        Raises TraceError for a count below 1.
        """
        count = whole_number("count", count, TraceError, least=1)
        n_layers = len(self.scores)
        earlier = torch.arange(n_layers)[:, None, None, None]
        pairs = (earlier < torch.arange(n_layers)[:, None]).expand(self.scores.shape).nonzero()
        values = self.scores.cpu()[tuple(pairs.T)].nan_to_num(-torch.inf)
        order = values.argsort(descending=True, stable=True)[:count]
        found = zip(pairs[order].tolist(), values[order].tolist(), strict=True)
        return [((a, b), (c, d), score) for (a, b, c, d), score in found]

    def plot(self, path: str | Path | None = None) -> Figure:
        """The matplotlib Figure of the scores: heads down, heads of later layers across.

        Grey where the second head is of no later layer. Saved where `path` is given, as SVG, PDF
        or PNG by its name. Raises TraceError for a model of one layer, and MinibertError without
        matplotlib.
        """
        L, H = self.scores.shape[:2]
        if L < 2:
            raise TraceError("A model of one layer has no head that reads another; none to draw.")
        later = torch.ones(L, L, device=self.scores.device).triu(1).bool()[:, None, :, None]
        # The first layer reads no head, and nothing reads the last one.
        scores = self.scores.where(later, torch.nan)[:-1, :, 1:].flatten(2).flatten(0, 1)
        heat = plots.Heat(
            scores,
            rows=self.labels[:-H],
            columns=self.labels[H:],
            title=f"{self.kind}-composition",
            unit="composition score",
            row_title="earlier head (layer-head)",
            column_title="later head (layer-head)",
            every=H,
        )
        return plots.heat_map(heat, path)

    def __str__(self) -> str:
        rows = (f"{head_name(*a)} > {head_name(*b)} {s:.3f}" for a, b, s in self.best(_SHOWN))
        return "\n".join([f"{self.kind}-composition, the highest first", *rows])

    def __repr__(self) -> str:
        n_layers, n_heads = self.scores.shape[:2]
        return f"CompositionScores({self.kind!r}: {n_layers} layers x {n_heads} heads)"


def composition_scores(
    model: "Model", kind: str, *, fold_norm: bool = False, distance: int | None = None
) -> CompositionScores:
    """The composition score of every head with every head of every later layer.

    `kind` is "Q", "K" or "V". Without `fold_norm` the weights count as they stand in the model,
    as if no norm stood between two heads. With it, what each norm in between does to every row
    alike counts too (C takes the mean of a row away, γ is the norm's weight; division by the
    standard deviation differs from row to row and is left out; `head_weights` has RMSNorm and norms
    of a block's output):

        LayerNorm in front (GPT-2)    W_A → W_A·C and W_B → C·diag(γ)·W_B, γ of B's layer, on
                                      W_B's reading sides; TransformerLens' defaults
        LayerNorm behind (BERT)       W_A → W_A·∏ C·diag(γ) over both norms of each layer
                                      from A's up to the one before B's

    Q and K of a rotary model need `distance`, as in `qk_circuit`; at 0 queries and keys are not
    turned, as in TransformerLens. Memory is that of two layers' weights. Raises TraceError for
    another kind, and for Q and K as `qk_circuit` does.
    """
    check_model(model)
    check_choice(kind, "kind", COMPOSITIONS)
    if kind == "V" and distance is not None:
        raise TraceError(
            f"distance={distance!r:.80}: V-composition is about values, which no position turns; "
            "leave distance out."
        )
    n_layers, n_heads = model.config.n_layers, model.config.n_heads
    scores: list[Tensor] = []
    blocks = model.body.layers
    with torch.no_grad():
        # The writing of every head below, reduced to d_head rows and divided by its norm.
        writes: list[Tensor] = []
        for layer in range(n_layers):
            weights = head_weights(model, layer, fold_norm=fold_norm and model.config.pre_norm)
            of_reader = weights if kind == "V" else at_distance(model, layer, weights, distance)
            reads = _unit(_reads(of_reader, kind))
            rows = [torch.einsum("hrm,gms->hgrs", write, reads) for write in writes]
            found = [torch.linalg.vector_norm(each, dim=(-2, -1)) for each in rows]
            absent = [reads.new_zeros(n_heads, n_heads)] * (n_layers - layer)
            scores.append(torch.stack([*found, *absent]))
            writes.append(_reduced(weights.value, weights.output))
            if fold_norm and not model.config.pre_norm:
                writes = [_through_norms(write, blocks[layer]) for write in writes]
            writes = [_unit(write) for write in writes]
    labels = tuple([head_name(n, h) for n in range(n_layers) for h in range(n_heads)])
    # later_layer layer head later_head
    return CompositionScores(kind, torch.stack(scores).permute(1, 2, 0, 3).contiguous(), labels)


def _reads(weights: HeadWeights, kind: str) -> Float[Tensor, "head d_model rank"]:
    """A thin matrix with W_B's reading side and norms: W_B times a matrix with orthonormal rows."""
    first, second = {
        "Q": (weights.query, weights.key.mT),
        "K": (weights.key, weights.query.mT),
        "V": (weights.value, weights.output),
    }[kind]
    return _reduced(second.mT, first.mT).mT


def _reduced(left: Tensor, right: Tensor) -> Tensor:
    """R·right, where left = Q·R: ‖R·right·M‖ = ‖left·right·M‖ for any M, with d_head rows."""
    return torch.linalg.qr(left, mode="r")[1] @ right


def _unit(matrices: Tensor) -> Tensor:
    norms = torch.linalg.matrix_norm(matrices)[:, None, None]
    return matrices / torch.where(norms == 0, 1, norms)


def _through_norms(write: Tensor, block: Layer) -> Tensor:
    for norms in (attention_norms(block), mlp_norms(block)):
        if norms.after is not None:
            write = through_norm(norms.after, write)
    return write
