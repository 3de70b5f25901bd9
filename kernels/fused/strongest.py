"""The kernel of the largest weights: the keys of the k largest scores of each row, and their probs.

It runs after the forward, whose lse turns scores into probs. A program owns a block of queries and
walks over the keys. For each row it holds the k largest scores so far. In each tile, the largest
score of a row replaces the smallest one that is held, again and again, until no row of the tile has
a larger one. The first tile takes k turns. Later tiles take fewer, since few of their scores are
larger than those held.
"""

from dataclasses import replace
from typing import no_type_check

import torch
import triton
import triton.language as tl
from torch import Tensor

from minibert.kernels.call import Call, Outputs, most_ranks, ranked
from minibert.kernels.fused.launch import Config, constants_of, inputs_of, sizes_of, strides_of
from minibert.kernels.fused.masks import key_range, tile_scores
from minibert.kernels.fused.primitives import (
    LOG2E,
    NOTHING,
    block_offsets,
    head_view,
    load_rows,
    program_place,
    row_start,
)
from minibert.kernels.fused.tuning import run
from minibert.quantities import Float


@triton.jit
@no_type_check
def held_with(scores, columns, first, best, keys):
    """The largest scores of each row and their keys, after one more tile of scores."""
    ranks = tl.arange(0, best.shape[1])[None, :]
    largest, smallest = tl.max(scores, 1), tl.min(best, 1)
    while tl.max((largest > smallest).to(tl.int32)) > 0:
        key = first + tl.argmax(scores, 1)
        here = (ranks == tl.argmin(best, 1)[:, None]) & (largest > smallest)[:, None]
        best = tl.where(here, largest[:, None], best)
        keys = tl.where(here, key[:, None], keys)
        scores = tl.where(columns == key[:, None], NOTHING, scores)
        largest, smallest = tl.max(scores, 1), tl.min(best, 1)
    return best, keys


@triton.jit
@no_type_check
def strongest_kernel(
    inputs, lse, top_keys, top_probs, strides, sizes, n_ranks, scale,
    CAUSAL: tl.constexpr, PRECISION: tl.constexpr,
    D_HEAD: tl.constexpr, BLOCK_D: tl.constexpr, D_VALUE: tl.constexpr, BLOCK_V: tl.constexpr,
    RANKS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """The keys of the n_ranks largest scores of a block of queries and their probs, in order.

    RANKS is a power of two that is not smaller.
    """
    place, block = program_place(sizes.n_blocks, sizes.n_places, sizes.n_together, CAUSAL)
    head, counts = head_view(inputs, strides, sizes, place)
    first = block * BLOCK_M
    rows = first + tl.arange(0, BLOCK_M)
    query = head[0] + tl.cast(first, tl.int64) * strides.query[2]
    query_offsets = block_offsets(strides.query[2], BLOCK_M, BLOCK_D)
    query_tile = load_rows(query, query_offsets, counts[0] - first, D_HEAD, BLOCK_M, BLOCK_D, True)
    begin, _, _, stop = key_range(
        inputs, sizes, place // sizes.n_heads, first, first + (BLOCK_M - 1), counts, CAUSAL
    )
    begin = begin // BLOCK_N * BLOCK_N
    best = tl.full((BLOCK_M, RANKS), NOTHING, tl.float32)
    keys = tl.zeros((BLOCK_M, RANKS), tl.int32)
    key_offsets = block_offsets(strides.key[2], BLOCK_N, BLOCK_D)
    for start in range(begin, stop, BLOCK_N):
        vectors = head[1] + tl.cast(start, tl.int64) * strides.key[2]
        key_tile = load_rows(
            vectors, key_offsets, counts[2] - start, D_HEAD, BLOCK_N, BLOCK_D, True
        )
        scores = tl.dot(query_tile, tl.trans(key_tile), input_precision=PRECISION)
        columns = (start + tl.arange(0, BLOCK_N))[None, :]
        scores, factor = tile_scores(
            scores, scale, inputs, strides, sizes, place, rows[:, None], columns, counts, True,
            CAUSAL,
        )  # fmt: skip
        best, keys = held_with(scores * factor, columns, start, best, keys)
    at, inside = row_start(inputs, sizes, place) + rows, rows < counts[0]
    lse2 = tl.load(lse + at, mask=inside, other=0.0) * LOG2E
    ranks = tl.arange(0, RANKS)[None, :]
    for rank in range(n_ranks):
        largest = tl.max(best, 1)
        here, there = ranks == tl.argmax(best, 1)[:, None], largest > 0.5 * NOTHING
        key = tl.where(there, tl.sum(tl.where(here, keys, 0), 1), -1)
        probs = tl.math.exp2(largest - lse2)
        # A score in the thousands may be rounded to more than its row's lse.
        probs = tl.where(there, tl.where(probs > 1.0, 1.0, probs), 0.0)
        tl.store(top_keys + at * n_ranks + rank, key.to(tl.int64), mask=inside)
        tl.store(top_probs + at * n_ranks + rank, probs, mask=inside)
        best = tl.where(here, NOTHING, best)


def strongest(
    call: Call, *, lse: Float[Tensor, "batch head query"], config: Config | None = None
) -> Outputs:
    """top_keys and top_probs, as far as they are wanted."""
    # No value is read: the keys stand in their place.
    call = replace(call.positively_scaled(), value=call.key)
    query, inputs, n_ranks = call.query, inputs_of(call), most_ranks(call.want)
    keys = query.new_empty((*query.shape[:3], n_ranks), dtype=torch.int64)
    probs = query.new_empty((*query.shape[:3], n_ranks), dtype=torch.float32)

    def launch(cut: Config) -> None:
        sizes, programs = sizes_of(inputs, call, cut.block_m)
        strongest_kernel[(programs,)](
            inputs, lse, keys, probs, strides_of(inputs), sizes, n_ranks, call.scale,
            **constants_of(call), RANKS=1 << (n_ranks - 1).bit_length(), **cut.constants(),
        )  # fmt: skip

    run("strongest", call, "", launch, config)
    return ranked(call.want, keys, probs)
