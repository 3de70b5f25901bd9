"""The two circuits of a head, from its weights: QK says where it looks, OV says what it moves.

    query = x·W_Q + b_Q    key = x·W_K + b_K    value = x·W_V + b_V    head_out = z·W_O

    scores = scale · (x·W_Q + b_Q)·(y·W_K + b_K)ᵀ        W_QK = W_Q·W_Kᵀ
    head_out of a head that looks at x alone = (x·W_V + b_V)·W_O        W_OV = W_V·W_O

x and y are rows of what the layer reads. Where several heads share a key-value head, W_K and W_V of
a head are those of the one it reads. Scores are those before a soft cap, mask and window. Both
matrices are d_model x d_model of rank d_head at most; here they stay two thin factors, and singular
values and eigenvalues come from those.

A rotary model turns the query at position i by R(i) and the key at j by R(j) (layers/rotary.py), so
that their score depends on how far apart they stand: R(i)·q · R(j)·k = R(i − j)·q · R(0)·k. There
is one QK circuit for each distance i − j: W_Q·R(distance)·W_Kᵀ.

qk_circuit, ov_circuit       the factors of one head, its singular values and eigenvalues
qk_on_tokens, ov_on_tokens   the full circuits, on the tokens that are asked for: which token looks
                             at which, and what it then writes
copying_scores               how far each head writes the token that it looks at
composition_scores           how much of what one head writes another head reads

A token's row is what the layer would read if the stream held the token's embedding alone, without
position, segment or other heads: LayerNorm(embedding) in GPT-2, the normed embedding in BERT.

Sources: Elhage et al. 2021, "A Mathematical Framework for Transformer Circuits"; the orientation
is that of TransformerLens (`model.QK`, `model.OV`); Su et al. 2021 (RoFormer), section 3.2.2.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from minibert.analysis.arguments import (
    check_choice,
    check_model,
    is_whole,
    listed,
    token_id,
    token_name,
    whole_number,
)
from minibert.analysis.rows import wide
from minibert.analysis.stream import NormsOfBlock
from minibert.doors import Figure, opened
from minibert.errors import TokenizationError, TraceError, check_index
from minibert.layers.norms import LayerNorm, Norm, centred, scale_of
from minibert.layers.parts import Layer
from minibert.layers.rotary import rotate, turns
from minibert.model import Model
from minibert.quantities import Float, Int, Shaped
from minibert.result import Result, sourced

Ids = Int[Tensor, " token"] | Sequence[int]
COMPOSITIONS = ("Q", "K", "V")


@dataclass(frozen=True, eq=False)
class HeadWeights:
    """W_Q, W_K, W_V and W_O of each head of a layer with their biases, in float32 or wider.

    b_O belongs to the layer and to none of its heads; it is not here. What stands behind the
    product, a norm of queries and keys or their rotation, is in none of them.
    """

    query: Float[Tensor, "head d_model d_head"]
    key: Float[Tensor, "head d_model d_head"]
    value: Float[Tensor, "head d_model d_head"]
    output: Float[Tensor, "head d_head d_model"]
    query_bias: Float[Tensor, "head d_head"]
    key_bias: Float[Tensor, "head d_head"]
    value_bias: Float[Tensor, "head d_head"]


def head_weights(model: Model, layer: int, *, fold_norm: bool = False) -> HeadWeights:
    """The weights of all heads of a layer.

    `fold_norm` moves into them what the norm in front of the layer does to every row alike, so that
    they read x / std(x) instead of LayerNorm(x). With C = 1 − 1/d_model, which takes the mean of a
    row away, and the norm's weight γ and bias β:

        W → C·diag(γ)·W and b → b + β·W for W_Q, W_K and W_V;    W_O → W_O·C

    W_O is centred because every reader takes the mean away anyway. RMSNorm takes no mean away: C is
    1 there, β 0, and what is read is x / root mean square(x); γ is 1 + weight in Gemma. Where a
    layer has no norm in front (OLMo 2, ModernBERT's first), its W_Q, W_K and W_V stay. Where its
    output goes through a norm (Gemma 2, OLMo 2), W_O → W_O·C·diag(γ) of that norm.
    These are the weights that TransformerLens has after fold_ln and center_writing_weights, which
    leaves norms of an output alone.

    Raises TraceError for a layer that is not there, and for fold_norm where the norm stands behind
    the sum with the stream (BERT): what a head reads there is the stream itself.
    """
    check_model(model)
    layer = check_index("layer", layer, model.config.n_layers)
    if fold_norm:
        check_can_fold(model)
    block = model.body.layers[layer]
    attention, norms = block.attention, NormsOfBlock.of(block, "attention")
    with torch.no_grad():
        parts: dict[str, Tensor] = {}
        for name, weight, bias in (
            ("query", attention.W_Q, attention.b_Q),
            ("key", attention.W_K, attention.b_K),
            ("value", attention.W_V, attention.b_V),
        ):
            weight, bias = _of_heads(attention.n_heads, weight, bias)
            if fold_norm and norms.before is not None:
                weight, bias = _behind_norm(norms.before, weight, bias)
            parts |= {name: weight.clone(), f"{name}_bias": bias.clone()}
        output = wide(attention.W_O).clone()
        if fold_norm and norms.output is not None:
            output = through_norm(norms.output, output)
        elif fold_norm and isinstance(_any_reader(model), LayerNorm):
            output = output - output.mean(-1, keepdim=True)
        parts["output"] = output
    return HeadWeights(**parts)


def _of_heads(n_heads: int, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor]:
    """W (head, d_model, d_head) and b (head, d_head) as every head reads them; zeros for no b."""
    weight = wide(weight)
    own = weight.new_zeros(len(weight), weight.shape[-1]) if bias is None else wide(bias)
    shared = n_heads // len(weight)
    return weight.repeat_interleave(shared, 0), own.repeat_interleave(shared, 0)


def _behind_norm(norm: Norm, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """The weight and bias that read what the norm has divided, and not yet scaled."""
    offset = getattr(norm, "bias", None)
    if offset is not None:
        bias = bias + wide(offset) @ weight
    scaled = wide(scale_of(norm))[:, None] * weight
    return centred(norm, scaled.mT).mT, bias


def _any_reader(model: Model) -> Norm | None:
    """A norm in front of a layer; the last layer has one where any has."""
    return NormsOfBlock.of(model.body.layers[-1], "attention").before


def through_norm(
    norm: Norm, rows: Float[Tensor, "*rows d_model"]
) -> Float[Tensor, "*rows d_model"]:
    """Rows with what the norm does to every row alike: its mean taken away, times its weight."""
    return centred(norm, rows) * wide(scale_of(norm))


def check_can_fold(model: Model) -> None:
    """Raise TraceError where norms stand behind the sum of a block with the stream."""
    if not model.config.pre_norm:
        raise TraceError(
            f"fold_norm=True: in {model.name} LayerNorm stands behind each layer, so a head reads "
            "the stream itself and there is nothing to fold; leave fold_norm out."
        )


def head_name(layer: int, head: int) -> str:
    """ "5-3" is head 3 of layer 5, both counted from 0."""
    return f"{layer}-{head}"


def at_distance(
    model: Model, layer: int, weights: HeadWeights, distance: int | None
) -> HeadWeights:
    """The weights of the layer with query and key turned as for a key `distance` positions back.

    A negative distance is that of a key behind the query. Where frequencies depend on the length
    of the text, they are those of texts no longer than the model was first trained on
    (`n_original`). Without rotation the weights stay as they are, and `distance` has to be None.

    Raises TraceError where the two do not fit, and where queries and keys go through a norm: their
    product is then no bilinear form of what the layer reads.
    """
    _check_distance(model, distance)
    rotary = model.config.rotary_of(layer)
    if rotary is None or distance is None:
        return weights
    kept = weights.query

    def turned(vectors: torch.Tensor, position: int) -> torch.Tensor:
        place = torch.tensor([[position]], device=kept.device)
        length = torch.full_like(place, max(rotary.n_original, 1))
        # (head, rows, d_head): every row stands at this one position.
        return rotate(vectors[:, :, None], turns(rotary, place, length, kept.dtype))[:, :, 0]

    return replace(
        weights,
        query=turned(weights.query, distance),
        query_bias=turned(weights.query_bias[:, None], distance)[:, 0],
        key=turned(weights.key, 0),
        key_bias=turned(weights.key_bias[:, None], 0)[:, 0],
    )


def _check_distance(model: Model, distance: object) -> None:
    config = model.config
    if config.query_key_norm != "none":
        raise TraceError(
            f"{model.name} puts queries and keys through a norm, whose divisor differs from row to "
            "row: a score is no product of a query's row, one matrix and a key's row, and there is "
            "no QK circuit. Read query, key and scores of a trace; ov_circuit and V-composition "
            "are there."
        )
    if config.rotary is not None and distance is None:
        raise TraceError(
            f"{model.name} turns queries and keys by where they stand, so a head has one QK "
            "circuit for each distance: give distance=, how many positions the key stands before "
            "the query (0: the token itself, 1: the one before it)."
        )
    if config.rotary is None and distance is not None:
        raise TraceError(
            f"distance={distance!r:.80}: {model.name} has no rotary positions, so its QK circuits "
            "are the same at every distance; leave distance out."
        )
    if distance is not None and (
        not is_whole(distance) or abs(int(distance)) >= config.n_positions
    ):
        raise TraceError(
            f"distance={distance!r:.80}: expected a whole number, smaller than the "
            f"{config.n_positions} positions of {model.name}."
        )


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class SingularVectors(Result[Tensor]):
    """matrix = left · diag(values) · rightᵀ; the values in falling order, vectors in columns."""

    left: Float[Tensor, "d_model rank"]
    right: Float[Tensor, "d_model rank"]


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
        title = f"{type(self).__name__.removesuffix('Circuit') or 'Circuit'} of head {self.label}"
        names, unit = "number", "singular value"
        return SingularVectors(
            values, names, title, unit, left=left @ small, right=right @ small_right.T
        )

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
        plane = Result(self.eigenvalues(), "number", title="Eigenvalues")
        return opened("plot")([self.singular_vectors(), plane], path)

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
    model: Model,
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


def ov_circuit(model: Model, layer: int, head: int, *, fold_norm: bool = False) -> OVCircuit:
    """The OV circuit of a head: two factors and its bias, copied from the model.

    `fold_norm` and what is raised are as for `qk_circuit`.
    """
    weights = head_weights(model, layer, fold_norm=fold_norm)
    layer = check_index("layer", layer, model.config.n_layers)
    head = check_index("head", head, model.config.n_heads)
    return OVCircuit(
        layer, head, weights.value[head], weights.output[head], weights.value_bias[head]
    )


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class CopyingScores(Result[Tensor]):
    """How far each head writes the token that it looks at, (layer, head).

    Σ λ / Σ |λ| over the eigenvalues λ of W_E·W_V·W_O·W_U: 1 where each direction among tokens is
    strengthened, −1 where each is weakened, 0 for a matrix that is 0.

    eigenvalues   complex; those that need not be 0
    """

    eigenvalues: Shaped[Tensor, "layer head d_head"]

    def plot(self, path: str | Path | None = None, **choices: int | str | None) -> Figure:
        """The matplotlib Figure of all scores, or with `layer` and `head` of its eigenvalues."""
        if not choices:
            return super().plot(path)
        plane = Result(self.eigenvalues, "layer head number", title="Eigenvalues")
        return plane.plot(path, **choices)


@sourced
def qk_on_tokens(
    model: Model,
    layer: int,
    head: int,
    *,
    queries: Ids,
    keys: Ids,
    distance: int | None = None,
) -> Result[Tensor]:
    """The score of each query token with each key token: scale · (x·W_Q + b_Q)·(y·W_K + b_K).

    Only these ids are ever computed. `distance`, which a rotary model needs, is how many positions
    the key stands before the query. Raises TraceError as `qk_circuit` does, and TokenizationError
    for ids outside the vocabulary.

    Source: Elhage et al. 2021, the full QK circuit W_E·W_QK·W_Eᵀ, here with biases and scale.
    """
    circuit = qk_circuit(model, layer, head, distance=distance)
    query_ids, key_ids = _checked(model, queries), _checked(model, keys)
    with torch.no_grad():
        x, y = (_token_rows(model, circuit.layer, ids) for ids in (query_ids, key_ids))
        values = circuit.scores(x, y)
    labels = {"query": _strings(model, query_ids), "key": _strings(model, key_ids)}
    return Result(values, "query key", f"QK of head {circuit.label}", "score", labels, signed=True)


@sourced
def ov_on_tokens(
    model: Model,
    layer: int,
    head: int,
    *,
    sources: Ids,
    targets: Ids,
) -> Result[Tensor]:
    """What each target's logit gains when the head looks at a source: (x·W_V + b_V)·W_O·W_U.

    A last norm (GPT-2) counts as C·diag(γ), without its bias and its division: the values are
    logits times the standard deviation of the last stream. C takes a row's mean away, and is 1 in
    an RMSNorm. A norm of what attention wrote (Gemma 2) counts likewise. The decoder of a masked
    language model is read directly, past the transform in front of it, and a soft cap is left out.

    Raises TraceError for a layer or head that is not there and for a model whose embedding and
    decoder are not as wide as the stream, TokenizationError for ids outside the vocabulary.

    Source: Elhage et al. 2021, the full OV circuit W_E·W_OV·W_U, here with b_V.
    """
    circuit = ov_circuit(model, layer, head)
    source_ids, target_ids = _checked(model, sources), _checked(model, targets)
    with torch.no_grad():
        moved = circuit.moves(_token_rows(model, circuit.layer, source_ids))
        output_norm = NormsOfBlock.of(model.body.layers[circuit.layer], "attention").output
        if output_norm is not None:
            moved = through_norm(output_norm, moved)
        unembed = wide(_unembedding(model)[target_ids])
        if (final := model.body.final_norm) is not None:
            unembed = centred(final, wide(scale_of(final)) * unembed)
        values = moved @ unembed.T
    labels = {"source": _strings(model, source_ids), "target": _strings(model, target_ids)}
    title, unit = f"OV of head {circuit.label}", "gain of the logit"
    return Result(values, "source target", title, unit, labels, signed=True)


@sourced
def copying_scores(model: Model, *, fold_norm: bool = False) -> CopyingScores:
    """The copying score of every head, from the eigenvalues of W_E·W_V·W_O·W_U.

    These are the eigenvalues of the small (W_O·W_U)·(W_E·W_V). Embeddings and weights count as
    they stand in the model, without biases; `fold_norm` puts the weights of the norm in front of
    the layer into W_V, those of a norm of its output into W_O and those of the last one into W_U,
    as in `head_weights`.

    Raises TraceError where embedding or decoder are not as wide as the stream, and for fold_norm
    in a model whose norms stand behind the sum with the stream.

    Source: Elhage et al. 2021, "Summarizing OV/QK matrices" and "Detecting copying behavior".
    """
    check_model(model)
    if fold_norm:
        check_can_fold(model)
    unembed = _unembedding(model)
    eigenvalues = []
    with torch.no_grad():
        between = _embed_to_unembed(model, unembed, fold_norm=fold_norm)
        for layer in range(model.config.n_layers):
            weights = head_weights(model, layer, fold_norm=fold_norm)
            small = weights.output @ between @ weights.value
            eigenvalues.append(_eigenvalues(small, layer))
    stacked = torch.stack(eigenvalues)
    sizes = stacked.abs().sum(-1)
    # Eigenvalues of a real matrix come in conjugate pairs: the sum is real.
    scores = stacked.sum(-1).real / torch.where(sizes == 0, 1, sizes)
    names, unit = "layer head", "Σ λ / Σ |λ|"
    limits = (-1.0, 1.0)
    return CopyingScores(
        scores, names, "Copying", unit, signed=True, limits=limits, eigenvalues=stacked
    )


def _embed_to_unembed(
    model: Model, unembed: Tensor, *, fold_norm: bool
) -> Float[Tensor, "d_model d_model"]:
    """W_U·W_E, which every head shares: the one d_model x d_model matrix worth its memory."""
    product = wide(unembed).T @ wide(model.W_E)
    final = model.body.final_norm
    if not fold_norm or final is None:
        return product
    return centred(final, (wide(scale_of(final))[:, None] * product).T).T


def _eigenvalues(small: Tensor, layer: int) -> Tensor:
    if not small.isfinite().all():
        raise TraceError(
            f"The weights of layer {layer} or the embeddings are not all finite, so there are no "
            "eigenvalues; look for nan and inf in the checkpoint."
        )
    return torch.linalg.eigvals(small)


def _token_rows(model: Model, layer: int, ids: Tensor) -> Float[Tensor, "token d_model"]:
    body = model.body
    rows = body.word(ids) * body.word_scale
    if body.embed_norm is not None:
        rows = body.embed_norm(rows)
    if body.embed_project is not None:
        rows = body.embed_project(rows)
    return body.layers[layer].attention_input(rows[None])[0]


def _unembedding(model: Model) -> Float[Tensor, "vocab d_model"]:
    """The rows that logits are read with: the decoder's, or the embedding of a model without."""
    unembed = model.W_U
    rows = model.body.word.weight if unembed is None else unembed.mT
    if rows.shape[1] != model.config.d_model or model.config.d_embed != model.config.d_model:
        raise TraceError(
            f"The embedding of {model.name} is {model.config.d_embed} wide and its stream "
            f"{model.config.d_model}, so its heads write no tokens that a decoder could read "
            "directly; expected a model where both are the same."
        )
    return rows


def _checked(model: Model, ids: Ids) -> Int[Tensor, " token"]:
    """The ids as one row on the model's device."""
    given = ids.tolist() if isinstance(ids, Tensor) else ids
    row = [token_id(model, one) for one in listed(given, "ids", TokenizationError, "[5, 11]")]
    if not row:
        raise TokenizationError("Token ids: expected a row of at least one, as [5, 11].")
    return torch.tensor(row, device=model.body.word.weight.device)


def _strings(model: Model, ids: Tensor) -> tuple[str, ...]:
    return tuple([token_name(model, i) for i in ids.tolist()])


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class CompositionScores(Result[Tensor]):
    """The score of each pair of heads, (layer, head, later_layer, later_head).

    0 where B stands in A's layer or an earlier one, which nothing of A reaches, and where a
    matrix is 0.
    """

    def between(self, earlier: tuple[int, int], later: tuple[int, int]) -> float:
        """The score of two heads, each as (layer, head).

        Raises TraceError for a head that is not there, or that is not of an earlier layer.
        """
        n_layers, n_heads = self.values.shape[:2]
        first, second = (
            (check_index("layer", layer, n_layers), check_index("head", head, n_heads))
            for layer, head in (earlier, later)
        )
        if first[0] >= second[0]:
            raise TraceError(
                f"Head {head_name(*first)} writes nothing that head {head_name(*second)} reads: "
                "expected the head of the earlier layer first."
            )
        return self.values[first][second].item()

    def best(self, count: int = 1) -> list[tuple[tuple[int, int], tuple[int, int], float]]:
        """The pairs that score highest, as ((layer, head), (later layer, head), score).

        Raises TraceError for a count below 1.
        """
        count = whole_number("count", count, TraceError, least=1)
        n_layers = len(self.values)
        earlier = torch.arange(n_layers)[:, None, None, None]
        pairs = (earlier < torch.arange(n_layers)[:, None]).expand(self.values.shape).nonzero()
        values = self.values.cpu()[tuple(pairs.T)].nan_to_num(-torch.inf)
        order = values.argsort(descending=True, stable=True)[:count]
        found = zip(pairs[order].tolist(), values[order].tolist(), strict=True)
        return [((a, b), (c, d), score) for (a, b, c, d), score in found]

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
        heads = [head_name(layer, head) for layer in range(L) for head in range(H)]
        labels = {"earlier_head": heads[:-H], "later_head": heads[H:]}
        return Result(scores, "earlier_head later_head", self.title, self.unit, labels)


@sourced
def composition_scores(
    model: Model, kind: str, *, fold_norm: bool = False, distance: int | None = None
) -> CompositionScores:
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
            write = through_norm(norms.after, write)
    return write
