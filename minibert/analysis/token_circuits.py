"""The circuits of a head on tokens: which token looks at which, and what it then writes.

The full circuits of Elhage et al. 2021 are vocabulary x vocabulary; here they are computed for
the ids that are asked for, and the copying score comes from d_head x d_head products.

A token's row is what the layer would read if the stream held the token's embedding alone,
without position, segment or other heads: LayerNorm(embedding) in GPT-2, the normed embedding
in BERT. In a rotary model a score depends on the distance between the two tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from minibert.analysis.arguments import check_model
from minibert.analysis.circuits import ov_circuit, qk_circuit
from minibert.analysis.head_weights import check_can_fold, head_name, head_weights, through_norm
from minibert.analysis.layer_norms import attention_norms
from minibert.analysis.precision import wide
from minibert.doors import Figure, plots
from minibert.errors import TokenizationError, TraceError
from minibert.layers.norms import centred, scale_of
from minibert.quantities import Float, Int, Shaped
from minibert.trace.places import check_index

if TYPE_CHECKING:
    from minibert.model import Model

__all__ = ["CopyingScores", "TokenTable", "copying_scores", "ov_on_tokens", "qk_on_tokens"]


@dataclass(frozen=True, eq=False)
class TokenTable:
    """A full circuit on some tokens: one value for each pair."""

    values: Float[Tensor, "row column"]
    rows: tuple[str, ...]
    """The tokens that look (QK) or that are looked at (OV)."""
    columns: tuple[str, ...]
    """The tokens that are looked at (QK) or whose logits change (OV)."""

    def plot(self, path: str | Path | None = None) -> Figure:
        """The matplotlib Figure of the table.

        Saved where `path` is given, as SVG, PDF or PNG by its name. Raises MinibertError without
        matplotlib.
        """
        heat = plots.Heat(
            self.values, rows=self.rows, columns=self.columns, signed=True, vocabulary=True
        )
        return plots.heat_map(heat, path)


@dataclass(frozen=True, eq=False)
class CopyingScores:
    """How far each head writes the token that it looks at.

    scores = Σ λ / Σ |λ| over the eigenvalues λ of W_E·W_V·W_O·W_U: 1 where each direction among
    tokens is strengthened, −1 where each is weakened, 0 for a matrix that is 0.
    """

    scores: Float[Tensor, "layer head"]
    eigenvalues: Shaped[Tensor, "layer head d_head"]
    """Complex; those that need not be 0."""

    def plot(
        self, path: str | Path | None = None, *, layer: int | None = None, head: int | None = None
    ) -> Figure:
        """The matplotlib Figure of all scores, or of one head's eigenvalues.

        Saved where `path` is given, as SVG, PDF or PNG by its name. Raises TraceError for a layer
        or head that is not there or only one of the two, and MinibertError without matplotlib.
        """
        if layer is None and head is None:
            table = plots.by_head(
                self.scores,
                title="Copying",
                unit="Σ λ / Σ |λ|",
                signed=True,
                limits=(-1.0, 1.0),
            )
            return plots.heat_map(table, path)
        if layer is None or head is None:
            raise TraceError("Give both layer and head for one head's eigenvalues, or neither.")
        row = check_index("layer", layer, len(self.scores))
        column = check_index("head", head, self.scores.shape[1])
        title = f"Eigenvalues, head {head_name(row, column)}"
        return plots.eigenvalue_plane(self.eigenvalues[row, column], title=title, path=path)


def qk_on_tokens(
    model: "Model",
    layer: int,
    head: int,
    *,
    queries: Int[Tensor, " query"] | Sequence[int],
    keys: Int[Tensor, " key"] | Sequence[int],
    distance: int | None = None,
) -> TokenTable:
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
    return TokenTable(values, _strings(model, query_ids), _strings(model, key_ids))


def ov_on_tokens(
    model: "Model",
    layer: int,
    head: int,
    *,
    sources: Int[Tensor, " source"] | Sequence[int],
    targets: Int[Tensor, " target"] | Sequence[int],
) -> TokenTable:
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
        output_norm = attention_norms(model.body.layers[circuit.layer]).output
        if output_norm is not None:
            moved = through_norm(output_norm, moved)
        unembed = wide(_unembedding(model)[target_ids])
        if (final := model.body.final_norm) is not None:
            unembed = centred(final, wide(scale_of(final)) * unembed)
        values = moved @ unembed.T
    return TokenTable(values, _strings(model, source_ids), _strings(model, target_ids))


def copying_scores(model: "Model", *, fold_norm: bool = False) -> CopyingScores:
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
    return CopyingScores(scores, stacked)


def _embed_to_unembed(
    model: "Model", unembed: Tensor, *, fold_norm: bool
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


def _token_rows(model: "Model", layer: int, ids: Tensor) -> Float[Tensor, "token d_model"]:
    body: Any = model.body
    rows = body.word(ids) * body.word_scale
    if body.embed_norm is not None:
        rows = body.embed_norm(rows)
    if body.embed_project is not None:
        rows = body.embed_project(rows)
    return body.layers[layer].attention_input(rows[None])[0]


def _unembedding(model: "Model") -> Float[Tensor, "vocab d_model"]:
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


def _checked(model: "Model", ids: Tensor | Sequence[int]) -> Int[Tensor, " token"]:
    """The ids as one row on the model's device."""
    device = model.body.word.weight.device
    try:
        row = ids if isinstance(ids, Tensor) else torch.tensor(list(ids), device=device)
    except (TypeError, ValueError, RuntimeError) as error:
        raise TokenizationError(
            f"{ids!r:.80} is no row of token ids ({error}); expected whole numbers, as [5, 11]."
        ) from error
    if row.dim() != 1 or not row.numel() or row.dtype not in (torch.int64, torch.int32):
        raise TokenizationError(
            f"Token ids are {row.dtype} of shape {tuple(row.shape)}; expected a row of at least "
            "one whole number."
        )
    low, high = (int(bound) for bound in row.aminmax())
    if low < 0 or high >= model.config.vocab_size:
        raise TokenizationError(
            f"Token id {low if low < 0 else high} is outside the vocabulary of {model.name}: "
            f"expected 0 to {model.config.vocab_size - 1}."
        )
    return row.to(device)


def _strings(model: "Model", ids: Tensor) -> tuple[str, ...]:
    tokenizer = model.tokenizer
    return tuple([str(i) if tokenizer is None else tokenizer.string(i) for i in ids.tolist()])
