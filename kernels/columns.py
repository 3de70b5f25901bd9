"""`column_sums`: how much a key is looked at, or counts, summed over weighted queries; O(N) memory.

For analyses that send one row of numbers through attention (rollout and relevance of one output
position).
"""

import math
from typing import Any

import torch
from torch import Tensor

from minibert.errors import AttentionError
from minibert.kernels.allowed_keys import Window
from minibert.kernels.blocks import Block, Inputs, floor_of, parts_of
from minibert.kernels.call import Call
from minibert.kernels.checks import check_call, check_rows
from minibert.kernels.row_blocks import RowSums
from minibert.quantities import Float, Shaped

__all__ = ["COLUMNS", "column_sums"]

#: What can be summed, P the probs and dP = z_gradient · valueᵀ their gradient.
COLUMNS = ("probs", "relevance", "positive_relevance", "absolute_relevance")


def column_sums(
    query: Shaped[Tensor, "..."],
    key: Shaped[Tensor, "..."],
    *,
    lse: Shaped[Tensor, "..."] | None = None,
    weights: Shaped[Tensor, "..."] | None = None,
    value: Shaped[Tensor, "..."] | None = None,
    z_gradient: Shaped[Tensor, "..."] | None = None,
    of: str = "probs",
    lengths: Shaped[Tensor, "..."] | None = None,
    mask: Shaped[Tensor, "..."] | None = None,
    causal: bool = False,
    window: Window | None = None,
    scale: float | None = None,
    soft_cap: float | None = None,
    bias: Shaped[Tensor, "..."] | None = None,
) -> Float[Tensor, "batch head key"]:
    """For each key the sum over queries of w · f(P, P ∘ dP), without an N x N tensor.

    `of` names f: "probs" P, "relevance" P∘dP, "positive_relevance" max(P∘dP, 0),
    "absolute_relevance" |P∘dP|, where dP = z_gradient · valueᵀ is the gradient of P. The last three
    need value and z_gradient, (batch, head, query, d_value).
    weights, (batch, head or 1, query), are w, 1 unless given. Every query counts, padding too:
    give it weight 0. Rows before the first and behind the last weight that is not 0 are not
    computed. lse is that of `attend` for the same inputs (in half precision not that of
    impl="eager", whose scores are rounded); it is computed where it is not given.
    The other options are those of `attend`. float32, float64 for float64; no gradient.

    Raises AttentionError as `attend` does, for another `of`, and where value, z_gradient,
    weights or lse are missing or do not fit.
    Source of P∘dP: Chefer et al. 2021, equation 5, whose Ā is the mean over heads of
    "positive_relevance"; w is the row of relevance that passes through the layers.

    >>> query, key = torch.randn(2, 1, 2, 5, 8).unbind()
    >>> column_sums(query, key).sum(-1).allclose(torch.tensor(5.0))  # a row of probs sums to 1
    True
    """
    options: dict[str, Any] = {"lengths": lengths, "mask": mask, "causal": causal, "bias": bias}
    options |= {"scale": scale, "window": window, "soft_cap": soft_cap}
    values = key if value is None else value
    call = Call.of(query, key, values, **check_call(query, key, values, **options))
    _check(query, value, z_gradient, weights=weights, lse=lse, of=of)
    # float32 is promised, whatever autocast would make of the products.
    with torch.no_grad(), torch.autocast(query.device.type, enabled=False):
        of_values = None if of == "probs" else z_gradient
        return _in_blocks(call, lse=lse, weights=weights, z_gradient=of_values, of=of)


def _in_blocks(
    call: Call,
    *,
    lse: Tensor | None,
    weights: Tensor | None,
    z_gradient: Tensor | None,
    of: str,
) -> Float[Tensor, "batch head key"]:
    inputs = Inputs(call)
    (B, H, Q), K = inputs.query.shape[:3], inputs.key.shape[2]
    new = inputs.query.new_ones
    sums, counted = new((B, H, K), dtype=inputs.dtype).zero_(), new((1, 1, Q), dtype=inputs.dtype)
    counted = counted if weights is None else weights.to(inputs.dtype)
    rows = _weighted_rows(counted)
    for part in parts_of(inputs):
        values, slopes = None, None
        if z_gradient is not None:
            values = part.values(call.value).transpose(-2, -1)
            slopes = part.rows_of("z_gradient", z_gradient)
        for block in part.blocks(rows):
            cells, factors = _probs(block, lse)
            if values is not None and slopes is not None:
                # dP = z_gradient · valueᵀ
                given = slopes[block.units, block.rows], values[block.units, :, block.keys]
                of_probs = block.second()
                torch.bmm(*given, out=of_probs.flatten(0, 1))
                cells.mul_(of_probs)
                if of == "positive_relevance":
                    cells.clamp_(min=0)
                elif of == "absolute_relevance":
                    cells.abs_()
            factors = factors * block.of_rows(counted)
            summed = factors.flatten(0, 1).unsqueeze(1) @ cells.flatten(0, 1)  # unit 1 key
            sentences, heads, _ = block.place
            sums[sentences, heads, block.keys] += summed.view(*cells.shape[:2], -1)
    return sums


def _probs(block: Block, lse: Tensor | None) -> tuple[Tensor, Tensor]:
    """The probs of a block without their normaliser, and the normaliser of each row."""
    if lse is None:
        sums = RowSums.empty(block.scores, {})
        weights = sums.weights(block)
        return weights, sums.normaliser(dead_rows=block.may_be_masked).squeeze(-1)
    ends = lse[block.place].to(block.scores.dtype)
    dead = ends == -math.inf
    # A dead row has masked cells alone, whose floor takes part in no sum.
    cells = block.scores.sub_(ends.masked_fill(dead, -floor_of(ends)).unsqueeze(-1)).exp_()
    return cells, (~dead).to(cells.dtype)


def _weighted_rows(weights: Tensor) -> slice:
    """The rows from the first to the last with a weight."""
    counting = (weights != 0).flatten(0, 1).any(dim=0).nonzero().flatten().tolist()
    return slice(counting[0], counting[-1] + 1) if counting else slice(0, 0)


def _check(
    query: Tensor,
    value: Tensor | None,
    z_gradient: Tensor | None,
    *,
    weights: Tensor | None,
    lse: Tensor | None,
    of: str,
) -> None:
    if of not in COLUMNS:
        raise AttentionError(f"of={of!r:.80}: expected one of {', '.join(map(repr, COLUMNS))}.")
    if of != "probs" and (value is None or z_gradient is None):
        missing = "value" if value is None else "z_gradient"
        raise AttentionError(
            f'of="{of}" without {missing}: expected value and z_gradient, the gradient of z, whose '
            "product is the gradient of the probs."
        )
    B, H, Q, _ = query.shape
    D = query.shape[3] if value is None else value.shape[3]
    given: dict[str, tuple[object, list[tuple[int, ...]], str]] = {
        "z_gradient": (z_gradient, [(B, H, Q, D)], "that of z"),
        "weights": (weights, [(B, H, Q), (B, 1, Q)], "a number for each query"),
        "lse": (lse, [(B, H, Q)], "what attend(...).lse is"),
    }
    for name, (tensor, shapes, meaning) in given.items():
        if tensor is not None:
            check_rows(name, tensor, query, shapes, meaning)
