"""Queries and keys at a distance: what rotary positions make of a head's QK circuit.

A rotary model turns the query at position i by R(i) and the key at j by R(j) (layers/rotary.py), so
that their score depends on how far apart they stand: R(i)·q · R(j)·k = R(i − j)·q · R(0)·k. There
is one QK circuit for each distance i − j: W_Q·R(distance)·W_Kᵀ.

Source: Su et al. 2021 (RoFormer), section 3.2.2.
"""

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from minibert.analysis.arguments import is_whole
from minibert.analysis.head_weights import HeadWeights
from minibert.errors import TraceError
from minibert.layers.rotary import rotate, turns

if TYPE_CHECKING:
    from minibert.model import Model

__all__ = ["at_distance"]


def at_distance(
    model: "Model", layer: int, weights: HeadWeights, distance: int | None
) -> HeadWeights:
    """The weights of the layer with query and key turned as for a key `distance` positions back.

    A negative distance is that of a key behind the query. Where frequencies depend on the length
    of the text, they are those of texts no longer than the model was first trained on
    (`n_original`). Without rotation the weights stay as they are, and `distance` has to be None.

    Raises TraceError where the two do not fit, and where queries and keys go through a norm: their
    product is then no bilinear form of what the layer reads.
    """
    _check(model, distance)
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


def _check(model: "Model", distance: Any) -> None:
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
    if distance is not None and (not is_whole(distance) or abs(distance) >= config.n_positions):
        raise TraceError(
            f"distance={distance!r:.80}: expected a whole number, smaller than the "
            f"{config.n_positions} positions of {model.name}."
        )
