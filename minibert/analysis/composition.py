"""How much of what one head writes another head reads, from their weights: composition.

    query = x·W_Q + b_Q    key = x·W_K + b_K    value = x·W_V + b_V    head_out = z·W_O

    scores = scale · (x·W_Q + b_Q)·(y·W_K + b_K)ᵀ        W_QK = W_Q·W_Kᵀ
    head_out of a head that looks at x alone = (x·W_V + b_V)·W_O        W_OV = W_V·W_O

x and y are rows of what the layer reads. Where several heads share a key-value head, W_K and W_V of
a head are those of the one it reads. Both matrices are d_model x d_model of rank d_head at most;
here they stay two thin factors.

Source: Elhage et al. 2021, "A Mathematical Framework for Transformer Circuits". The circuits of one
head, with their singular values and eigenvalues, are `QK` and `OV` of
`minibert.transformer_lens.HookedTransformer`.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from minibert.analysis.arguments import check_choice, check_model
from minibert.analysis.rows import wide
from minibert.analysis.stream import NormsOfBlock
from minibert.errors import TraceError
from minibert.layers.parts import Layer, Norm, centred
from minibert.model import Model
from minibert.quantities import Float
from minibert.result import Result, sourced

COMPOSITIONS = ("Q", "K", "V")


@dataclass(frozen=True, eq=False)
class HeadWeights:
    """W_Q, W_K, W_V and W_O of each head of a layer, in float32 or wider.

    What follows the product, a norm of queries and keys or their rotation, is in none of
    them.
    """

    query: Float[Tensor, "head d_model d_head"]
    key: Float[Tensor, "head d_model d_head"]
    value: Float[Tensor, "head d_model d_head"]
    output: Float[Tensor, "head d_head d_model"]


def head_weights(model: Model, layer: int, *, fold_norm: bool = False) -> HeadWeights:
    """The weights of all heads of a layer.

    `fold_norm` moves into them what the norm in front of the layer does to every row alike, so that
    they read x / std(x) instead of LayerNorm(x). With C = 1 − 1/d_model, which takes the mean of a
    row away, and the norm's weight γ:

        W → C·diag(γ)·W for W_Q, W_K and W_V;    W_O → W_O·C

    W_O is centred because every reader takes the mean away anyway. RMSNorm takes no mean away: C is
    1 there, and what is read is x / root mean square(x); γ is 1 + weight in Gemma. Where a layer
    has no norm in front (OLMo 2, ModernBERT's first), its W_Q, W_K and W_V stay. Where its output
    goes through a norm (Gemma 2, OLMo 2), W_O → W_O·C·diag(γ) of that norm.
    These are the weights that TransformerLens has after fold_ln and center_writing_weights, which
    leaves norms of an output alone.
    """
    block = model.body.layers[layer]
    attention, norms = block.attention, NormsOfBlock.of(block, "attention")
    with torch.no_grad():
        output = wide(attention.W_O).clone()
        if fold_norm and norms.output is not None:
            output = _through_norm(norms.output, output)
        elif fold_norm and (reader := _any_reader(model)) is not None and reader.centres:
            output = output - output.mean(-1, keepdim=True)
        norm = norms.before if fold_norm else None
        query, key, value = (
            _read_by_heads(attention.n_heads, weight, norm)
            for weight in (attention.W_Q, attention.W_K, attention.W_V)
        )
    return HeadWeights(query, key, value, output)


def _read_by_heads(n_heads: int, weight: Tensor, norm: Norm | None) -> Tensor:
    """W (head, d_model, d_head) as every head reads it, after what the norm does alike."""
    weight = wide(weight).repeat_interleave(n_heads // len(weight), 0)
    if norm is not None:
        scaled = wide(norm.scale)[:, None] * weight
        weight = centred(norm, scaled.mT).mT
    return weight.clone()


def _any_reader(model: Model) -> Norm | None:
    """A norm in front of a layer; the last layer has one where any has."""
    return NormsOfBlock.of(model.body.layers[-1], "attention").before


def _through_norm(
    norm: Norm, rows: Float[Tensor, "*rows d_model"]
) -> Float[Tensor, "*rows d_model"]:
    """Rows with what the norm does to every row alike: its mean taken away, times its weight."""
    return centred(norm, rows) * wide(norm.scale)


def _head_name(layer: int, head: int) -> str:
    """ "5-3" is head 3 of layer 5, both counted from 0."""
    return f"{layer}-{head}"


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class CompositionScores(Result[Tensor]):
    """The score of each pair of heads, (layer, head, later_layer, later_head).

    0 where B stands in A's layer or an earlier one, which nothing of A reaches, and where a
    matrix is 0.
    """

    def shown(self) -> Result[Tensor]:
        """Heads down and heads of later layers across; nan where the second is of no later layer.

        Raises TraceError for a model of one layer.
        """
        L, H = self.values.shape[:2]
        if L < 2:
            raise TraceError("A model of one layer has no head that reads another; none to draw.")
        later = torch.ones(L, L, device=self.values.device).triu(1).bool()[:, None, :, None]
        # The first layer reads no head, and nothing reads the last one.
        scores = self.values.where(later, torch.nan)[:-1, :, 1:].flatten(2).flatten(0, 1)
        heads = [_head_name(layer, head) for layer in range(L) for head in range(H)]
        labels = {"earlier_head": heads[:-H], "later_head": heads[H:]}
        return Result(scores, "earlier_head later_head", self.title, self.unit, labels)


@sourced
def composition_scores(model: Model, kind: str, *, fold_norm: bool = False) -> CompositionScores:
    """The composition score of every head A with every head B of every later layer.

    In the row convention it is ‖W_A·W_B‖ / (‖W_A‖·‖W_B‖) in Frobenius norms, where W_A = W_OV of A
    and `kind` says what W_B is:

        Q    W_B = W_Q·W_Kᵀ    B's queries read what A wrote
        K    W_B = W_K·W_Qᵀ    B's keys read it
        V    W_B = W_V·W_O     B moves it on

    It is 0 where B reads nothing of it and 1 at most. Two random matrices of rank d_head come to
    about 1/sqrt(d_model), so a score says something only beside the others of its kind. Biases have
    no part in it. Source: Elhage et al. 2021, "Mechanics of composition"; the numbers are those of
    TransformerLens' `all_composition_scores`.

    Without `fold_norm` the weights count as they stand in the model,
    as if no norm stood between two heads. With it, what each norm in between does to every row
    alike counts too (C takes the mean of a row away, γ is the norm's weight; division by the
    standard deviation differs from row to row and is left out; `head_weights` has RMSNorm and norms
    of a block's output):

        LayerNorm in front (GPT-2)    W_A → W_A·C and W_B → C·diag(γ)·W_B, γ of B's layer, on
                                      W_B's reading sides; TransformerLens' defaults
        LayerNorm after (BERT)        W_A → W_A·∏ C·diag(γ) over both norms of each layer
                                      from A's up to the one before B's

    Queries and keys of a rotary model count as they are before they are turned, as in
    TransformerLens. Memory is that of two layers' weights. Raises TraceError for another kind, and
    for Q and K of a model that puts queries and keys through a norm.
    """
    check_model(model)
    check_choice(kind, "kind", COMPOSITIONS)
    if kind != "V" and model.config.query_key_norm != "none":
        raise TraceError(
            f"{model.name} puts queries and keys through a norm, whose divisor differs from row to "
            "row: a score is not a product of a query's row, one matrix and a key's row, so it "
            "has no QK circuit. Read query, key and scores of a trace; V-composition is there."
        )
    n_layers, n_heads = model.config.n_layers, model.config.n_heads
    scores: list[Tensor] = []
    blocks = model.body.layers
    with torch.no_grad():
        # The writing of every head below, reduced to d_head rows and divided by its norm.
        writes: list[Tensor] = []
        for layer in range(n_layers):
            weights = head_weights(model, layer, fold_norm=fold_norm and model.config.pre_norm)
            reads = _unit(_reads(weights, kind))
            rows = [torch.einsum("hrm,gms->hgrs", write, reads) for write in writes]
            found = [torch.linalg.vector_norm(each, dim=(-2, -1)) for each in rows]
            absent = [reads.new_zeros(n_heads, n_heads)] * (n_layers - layer)
            scores.append(torch.stack([*found, *absent]))
            writes.append(_reduced(weights.value, weights.output))
            if fold_norm and not model.config.pre_norm:
                writes = [_through_norms(write, blocks[layer]) for write in writes]
            writes = [_unit(write) for write in writes]
    # later_layer layer head later_head
    values = torch.stack(scores).permute(1, 2, 0, 3).contiguous()
    names = "layer head later_layer later_head"
    return CompositionScores(values, names, f"{kind}-composition", "composition score")


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
    for norms in (NormsOfBlock.of(block, "attention"), NormsOfBlock.of(block, "mlp")):
        if norms.after is not None:
            write = _through_norm(norms.after, write)
    return write
