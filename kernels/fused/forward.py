"""The kernel of the forward: z and lse as flash attention gives them, with statistics of the rows.

A program owns a block of queries and walks over the keys, as in FlashAttention-2 (Dao 2023, §3.1).
It reads first, without a mask, the blocks of keys that all of its queries see completely. Then it
reads those at an edge: the end of the text, or the limit of causal order. Blocks that no query sees
are not read. `fold.py` has the formulas.

Outputs that are not wanted are None and cost nothing. row_max, max_prob and entropy come from the
same walk; entropy adds one multiplication for each score. argmax stores a position with each
maximum. offset_mass and key_mass compute their few scores again at the end.
"""

from typing import no_type_check

import triton
import triton.language as tl
from torch import Tensor

from minibert.kernels.fused.fold import fold_scores, key_of_best, no_best, settled
from minibert.kernels.fused.launch import (
    Config,
    best_of,
    block_of_features,
    chosen_outputs,
    inputs_of,
    on_device,
    row_outputs,
    sizes_of,
    strides_of,
)
from minibert.kernels.fused.memory_copies import head_corner, rows_at, takes_tma, tiles_of
from minibert.kernels.fused.primitives import (
    LOG2E,
    NOTHING,
    block_offsets,
    head_view,
    load_rows,
    masked_scores,
    program_place,
    row_start,
)
from minibert.kernels.fused.row_outputs import store_chosen, store_rows, store_vectors
from minibert.kernels.fused.tuning import best_config
from minibert.kernels.requests import Want
from minibert.quantities import Bool, Float, Int

__all__ = ["forward", "forward_kernel"]


@triton.jit
@no_type_check
def walk(
    state,
    query_tile,
    head,
    tiles,
    inputs,
    strides,
    place,
    n_heads,
    rows,
    counts,
    span,
    scale2,
    EDGE: tl.constexpr,
    CAUSAL: tl.constexpr,
    PRODUCT: tl.constexpr,
    BEST: tl.constexpr,
    PRECISION: tl.constexpr,
    D_HEAD: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """The rows' state after the keys of `span`, a block at a time."""
    weighted, largest, total, product, best_key = state
    before, best = largest, no_best(BEST, largest.shape[0])
    _, key, value = head
    BLOCK_D: tl.constexpr = query_tile.shape[1]
    key_offsets = block_offsets(strides.key[2], BLOCK_N, BLOCK_D)
    value_offsets = block_offsets(strides.value[2], BLOCK_N, BLOCK_D)
    # Computing a block's address from the previous block takes fewer instructions.
    key += tl.cast(span[0], tl.int64) * strides.key[2]
    value += tl.cast(span[0], tl.int64) * strides.value[2]
    for first in range(span[0], span[1], BLOCK_N):
        left = counts[2] - first
        key_tile = rows_at(
            key, key_offsets, left, tiles[0], tiles[2], first, D_HEAD, BLOCK_N, BLOCK_D, EDGE
        )
        scores = tl.dot(query_tile, tl.trans(key_tile), input_precision=PRECISION)
        factor = scale2
        if EDGE:
            columns = (first + tl.arange(0, BLOCK_N))[None, :]
            scores = masked_scores(
                scores * scale2, inputs, strides, place, n_heads, rows[:, None], columns, counts,
                CAUSAL,
            )  # fmt: skip
            factor = 1.0
        weights, shrink, largest, total, product, best = fold_scores(
            scores, factor, first, largest, total, product, best, PRODUCT, BEST
        )
        value_tile = rows_at(
            value, value_offsets, left, tiles[1], tiles[2], first, D_HEAD, BLOCK_N, BLOCK_D, EDGE
        )
        weighted = weighted * shrink[:, None]
        weights = weights.to(value_tile.dtype)
        weighted = settled(tl.dot(weights, value_tile, weighted, input_precision=PRECISION))
        key += tl.cast(BLOCK_N, tl.int64) * strides.key[2]
        value += tl.cast(BLOCK_N, tl.int64) * strides.value[2]
    if BEST is not None:
        best_key = tl.where(largest > before, key_of_best(best, BEST, BLOCK_N), best_key)
    return weighted, largest, total, product, best_key


@triton.jit
@no_type_check
def spans(first, counts, CAUSAL: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """Where the whole blocks of keys end that all these queries see, and the keys that any sees."""
    n_queries, n_keys, n_real = counts
    shift = n_keys - n_queries
    stop = tl.where(first < n_queries, n_real, 0)
    whole = stop
    if CAUSAL:
        whole = tl.minimum(stop, tl.maximum(shift + first + 1, 0))
        stop = tl.minimum(stop, tl.maximum(shift + first + BLOCK_M, 0))
    return whole // BLOCK_N * BLOCK_N, stop


@triton.jit
@no_type_check
def forward_kernel(
    inputs,
    outputs,
    chosen,
    strides,
    sizes,
    scale,
    key_tiles,
    value_tiles,
    CAUSAL: tl.constexpr,
    BEST: tl.constexpr,
    PRECISION: tl.constexpr,
    D_HEAD: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """z = softmax(scale·query·keyᵀ + bias)·value of a block of queries, with lse and statistics.

    The named tuples are those of `launch.py`. Source: Dao 2023, algorithm 1.
    """
    place, block = program_place(sizes.n_blocks, sizes.n_places, sizes.n_together, CAUSAL)
    head, counts = head_view(inputs, strides, sizes, place)
    tiles = (key_tiles, value_tiles, head_corner(inputs, sizes, place))
    first = block * BLOCK_M
    rows = first + tl.arange(0, BLOCK_M)
    query = head[0] + tl.cast(first, tl.int64) * strides.query[2]
    query_offsets = block_offsets(strides.query[2], BLOCK_M, BLOCK_D)
    left = counts[0] - first
    query_tile = load_rows(query, query_offsets, left, D_HEAD, BLOCK_M, BLOCK_D, True)
    whole, stop = spans(first, counts, CAUSAL, BLOCK_M, BLOCK_N)
    none = tl.zeros((BLOCK_M,), tl.float32)
    parts = tl.zeros((BLOCK_M, 4), tl.float32)
    weighted = tl.zeros((BLOCK_M, BLOCK_D), tl.float32)
    state = (weighted, none + NOTHING, parts, parts, tl.zeros((BLOCK_M,), tl.int32))
    scale2 = scale * LOG2E
    PRODUCT: tl.constexpr = outputs.entropy is not None
    if inputs.mask is None and inputs.bias is None:
        span = (0, whole)
        state = walk(
            state, query_tile, head, tiles, inputs, strides, place, sizes.n_heads, rows, counts,
            span, scale2, False, CAUSAL, PRODUCT, BEST, PRECISION, D_HEAD, BLOCK_N,
        )  # fmt: skip
        span = (whole, stop)
    else:
        span = (0, stop)
    state = walk(
        state, query_tile, head, tiles, inputs, strides, place, sizes.n_heads, rows, counts,
        span, scale2, True, CAUSAL, PRODUCT, BEST, PRECISION, D_HEAD, BLOCK_N,
    )  # fmt: skip
    weighted, largest, total, product, best = state
    total, product = tl.sum(total, 1), tl.sum(product, 1)
    begin = row_start(inputs, sizes, place)
    lse2, alive = store_rows(outputs, rows, begin, counts[0], largest, total, product, best)
    weighted = weighted * tl.where(alive, 1.0 / total, 0.0)[:, None]
    store_vectors(outputs.z, weighted, inputs, strides, sizes, place, rows, counts[0], D_HEAD)
    store_chosen(
        chosen, query_tile, inputs, strides, sizes, place, rows, counts, head, lse2, scale2, CAUSAL,
        D_HEAD,
    )  # fmt: skip


def forward(
    query: Float[Tensor, "batch head query d_head"],
    key: Float[Tensor, "batch head key d_head"],
    value: Float[Tensor, "batch head key d_head"],
    *,
    scale: float,
    causal: bool,
    lengths: Int[Tensor, " batch"] | None = None,
    mask: Bool[Tensor, "#batch #head #query #key"] | None = None,
    bias: Float[Tensor, "#batch #head #query #key"] | None = None,
    starts: Int[Tensor, " start"] | None = None,
    longest: int | None = None,
    want: Want,
    config: Config | None = None,
) -> dict[str, Tensor]:
    """z, lse and the wanted statistics of T1 and T2 (rows and chosen probs), of one kernel.

    With `starts` (packed sentences, the longest of `longest` rows) batch is 1.
    """
    inputs, scale = inputs_of(
        query, key, value, scale=scale, lengths=lengths, mask=mask, bias=bias, starts=starts
    )
    outputs = row_outputs(query, want)
    chosen = chosen_outputs(query, key.shape[2], want)
    strides = strides_of(inputs, outputs.z)
    d_head, edges = query.shape[-1], mask is not None or bias is not None
    constants = {
        "CAUSAL": causal,
        "BEST": best_of(query, want),
        "PRECISION": "ieee",
        "D_HEAD": d_head,
        "BLOCK_D": block_of_features(d_head),
    }

    tier = "argmax" if "argmax" in want else "entropy" if "entropy" in want else "plain"

    def launch(cut: Config) -> None:
        cut = config or cut
        sizes, programs = sizes_of(inputs, cut.block_m, causal=causal, longest=longest)
        tiles = [tiles_of(one, cut) if cut.tma else None for one in (inputs.key, inputs.value)]
        blocks = {"BLOCK_M": cut.block_m, "BLOCK_N": cut.block_n}
        compiled = {"num_warps": cut.num_warps, "num_stages": cut.num_stages}
        forward_kernel[(programs,)](
            inputs, outputs, chosen, strides, sizes, scale, *tiles,
            **constants, **blocks, **compiled,
        )  # fmt: skip

    with on_device(query):
        packed = starts is not None
        tma = not edges and takes_tma(inputs)
        words = {"packed": packed, "causal": causal, "edges": edges, "tma": tma, tier: True}
        shape = " ".join(word for word, holds in words.items() if holds)
        launch(config or best_config("forward", shape, query, key, launch))
    found = {**outputs._asdict(), "offset_mass": chosen.offset_mass, "key_mass": chosen.key_mass}
    return {name: one for name, one in found.items() if one is not None}
