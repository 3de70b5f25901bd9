"""What enters layer 0 as the sum that it is: word, position and segment embeddings.

With other positions or segments it is what would enter if the tokens stood elsewhere or were of
another text, and an edit of `embed` puts it in, so that no weight is written:

    same = embedding_parts(model, text, positions=[0] * 7)
    trace = model.trace(text, edit={"embed": same.embed})
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from minibert.analysis.arguments import check_model
from minibert.errors import TraceError
from minibert.model import Input, Model
from minibert.quantities import Float, Hidden, TokenIds
from minibert.text.inputs import in_range
from minibert.text.tokens import beside


@dataclass(frozen=True, eq=False)
class EmbeddingParts:
    """The embeddings of a batch; `embed` is the norm (and projection) of the sum of the parts.

    word      the row of the word table for each token, times the model's factor if it has one
    position  the row of the position table; None without such a table (rotary models)
    segment   the row of the segment table; None without one
    embed     what enters layer 0
    """

    word: Float[Tensor, "batch position d_embed"]
    position: Float[Tensor, "#batch position d_embed"] | None
    segment: Float[Tensor, "batch position d_embed"] | None
    embed: Hidden


def embedding_parts(
    model: Model, text: Input, *, positions: object = None, segments: object = None
) -> EmbeddingParts:
    """The embeddings of a text, with its own positions and segments or with those that are given.

    `positions` and `segments` are whole numbers, one a token: a list for one sentence, or (batch,
    position) with padding in. Positions count from 0, also in RoBERTa. Source: Devlin et al. 2019,
    section 3, "Input/Output Representations".

    Raises TokenizationError for text the model cannot read and for numbers that are none of its
    positions or segments, and TraceError where the model has no such table.
    """
    check_model(model)
    body, config, inputs = model.body, model.config, model.inputs(text)
    ids = inputs.ids
    rows = body.positions(ids).expand(ids.shape) if body.position is not None else None
    if positions is not None:
        if rows is None:
            raise TraceError(
                f"positions: {model.name} has no table of positions (it has "
                f"{config.positions}); its queries and keys know where they stand, not its stream."
            )
        chosen = _numbers("positions", positions, ids, config.n_positions, model.name)
        moved = chosen + config.position_offset
        rows = moved if inputs.mask is None else moved.where(inputs.mask, rows)
    if segments is None:
        kinds = torch.zeros_like(ids) if inputs.segments is None else inputs.segments
    elif body.segment is None:
        raise TraceError(f"segments: {model.name} does not tell two texts apart by segments.")
    else:
        kinds = _numbers("segments", segments, ids, config.n_segments, model.name)
    return EmbeddingParts(
        word=body.word(ids) * body.word_scale,
        position=None if body.position is None or rows is None else body.position(rows),
        segment=None if body.segment is None else body.segment(kinds),
        embed=body.embed(ids, kinds, rows),
    )


def _numbers(name: str, given: object, ids: TokenIds, size: int, where: str) -> TokenIds:
    """The numbers as a tensor like `ids`, all of them below `size`."""
    return in_range(beside(given, ids, name), size, name, where)
