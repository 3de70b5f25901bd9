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

from minibert.kernels.call import Call, Outputs
from minibert.kernels.fused.fold import fold_scores, key_of_best, no_best, settled
from minibert.kernels.fused.launch import (
    Config,
    constants_of,
    edges,
    inputs_of,
    on_device,
    sizes_of,
    strides_of,
    words,
)
from minibert.kernels.fused.masks import key_range, masked_scores, shaped_score, whole_blocks
from minibert.kernels.fused.memory_copies import head_corner, rows_at, takes_tma, tiles_of
from minibert.kernels.fused.outputs import best_of, chosen_outputs, given_outputs, row_outputs
from minibert.kernels.fused.primitives import (
    LOG2E,
    NOTHING,
    block_offsets,
    head_view,
    load_rows,
    program_place,
)
from minibert.kernels.fused.row_outputs import store_chosen, store_rows, store_vectors
from minibert.kernels.fused.tuning import best_config


@triton.jit
@no_type_check
def walk(
    state, query_tile, head, tiles, inputs, strides, sizes, place, rows, counts, span, scale,
    EDGE: tl.constexpr, CAUSAL: tl.constexpr, PRODUCT: tl.constexpr, BEST: tl.constexpr,
    PRECISION: tl.constexpr, D_HEAD: tl.constexpr, D_VALUE: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """The rows' state after the keys of `span`, a block at a time."""
    SHAPED: tl.constexpr = inputs.soft_cap is not None or inputs.slopes is not None
    weighted, largest, total, product, best_key = state
    before, best = largest, no_best(BEST, largest.shape[0])
    _, key, value = head
    BLOCK_D: tl.constexpr = query_tile.shape[1]
    BLOCK_V: tl.constexpr = weighted.shape[1]
    key_offsets = block_offsets(strides.key[2], BLOCK_N, BLOCK_D)
    value_offsets = block_offsets(strides.value[2], BLOCK_N, BLOCK_V)
    # Computing a block's address from the previous block takes fewer instructions.
    key += tl.cast(span[0], tl.int64) * strides.key[2]
    value += tl.cast(span[0], tl.int64) * strides.value[2]
    for first in range(span[0], span[1], BLOCK_N):
        left = counts[2] - first
        key_tile = rows_at(
            key, key_offsets, left, tiles[0], tiles[2], first, D_HEAD, BLOCK_N, BLOCK_D, EDGE
        )
        scores = tl.dot(query_tile, tl.trans(key_tile), input_precision=PRECISION)
        factor = scale * LOG2E
        columns = (first + tl.arange(0, BLOCK_N))[None, :]
        if EDGE:
            scores = masked_scores(
                scores, scale, inputs, strides, sizes, place, rows[:, None], columns, counts, CAUSAL
            )
            factor = 1.0
        elif SHAPED:
            batch, number = place // sizes.n_heads, place % sizes.n_heads
            scores = shaped_score(
                scores, scale, inputs, strides, sizes, batch, number, rows[:, None], columns,
                counts, CAUSAL,
            )  # fmt: skip
            factor = 1.0
        weights, shrink, largest, total, product, best = fold_scores(
            scores, factor, first, largest, total, product, best, PRODUCT, BEST
        )
        value_tile = rows_at(
            value, value_offsets, left, tiles[1], tiles[2], first, D_VALUE, BLOCK_N, BLOCK_V, EDGE
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
def forward_kernel(
    inputs, outputs, chosen, strides, sizes, scale, key_tiles, value_tiles,
    CAUSAL: tl.constexpr, BEST: tl.constexpr, PRECISION: tl.constexpr,
    D_HEAD: tl.constexpr, BLOCK_D: tl.constexpr, D_VALUE: tl.constexpr, BLOCK_V: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
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
    seen = key_range(
        inputs, sizes, place // sizes.n_heads, first, first + (BLOCK_M - 1), counts, CAUSAL
    )
    begin, full, whole, stop = whole_blocks(seen, BLOCK_N, sizes.before is not None)
    none = tl.zeros((BLOCK_M,), tl.float32)
    parts = tl.zeros((BLOCK_M, 4), tl.float32)
    weighted = tl.zeros((BLOCK_M, BLOCK_V), tl.float32)
    state = (weighted, none + NOTHING, parts, parts, tl.zeros((BLOCK_M,), tl.int32))
    PRODUCT: tl.constexpr = outputs.entropy is not None
    if inputs.mask is None and inputs.bias is None:
        if sizes.before is not None:
            span = (begin, full)
            state = walk(
                state, query_tile, head, tiles, inputs, strides, sizes, place, rows, counts,
                span, scale, True, CAUSAL, PRODUCT, BEST, PRECISION, D_HEAD, D_VALUE, BLOCK_N,
            )  # fmt: skip
        span = (full, whole)
        state = walk(
            state, query_tile, head, tiles, inputs, strides, sizes, place, rows, counts,
            span, scale, False, CAUSAL, PRODUCT, BEST, PRECISION, D_HEAD, D_VALUE, BLOCK_N,
        )  # fmt: skip
        span = (whole, stop)
    else:
        span = (begin, stop)
    state = walk(
        state, query_tile, head, tiles, inputs, strides, sizes, place, rows, counts,
        span, scale, True, CAUSAL, PRODUCT, BEST, PRECISION, D_HEAD, D_VALUE, BLOCK_N,
    )  # fmt: skip
    weighted, largest, total, product, best = state
    total, product = tl.sum(total, 1), tl.sum(product, 1)
    lse2, share = store_rows(
        outputs, inputs, sizes, place, rows, counts[0], largest, total, product, best
    )
    weighted = weighted * share[:, None]
    store_vectors(outputs.z, weighted, inputs, strides, sizes, place, rows, counts[0], D_VALUE)
    store_chosen(
        chosen, query_tile, inputs, strides, sizes, place, rows, counts, head, lse2, scale, CAUSAL,
        D_HEAD,
    )  # fmt: skip


def forward(call: Call, *, config: Config | None = None) -> Outputs:
    """z, lse and the wanted statistics of T1 and T2 (rows and chosen probs), of one kernel.

    Of packed sentences batch is 1.
    """
    call = call.positively_scaled()
    query, value, want = call.query, call.value, call.want
    inputs = inputs_of(call)
    outputs = row_outputs(call)
    chosen = chosen_outputs(call)
    strides = strides_of(inputs, outputs.z)
    constants = constants_of(call) | {"BEST": best_of(query.dtype, want)}
    tier = "argmax" if "argmax" in want else "entropy" if "entropy" in want else "plain"

    def launch(cut: Config) -> None:
        cut = config or cut
        sizes, programs = sizes_of(inputs, call, cut.block_m)
        tiles = [tiles_of(one, cut) if cut.tma else None for one in (inputs.key, inputs.value)]
        blocks = {"BLOCK_M": cut.block_m, "BLOCK_N": cut.block_n}
        compiled = {"num_warps": cut.num_warps, "num_stages": cut.num_stages}
        forward_kernel[(programs,)](
            inputs, outputs, chosen, strides, sizes, call.scale, *tiles,
            **constants, **blocks, **compiled,
        )  # fmt: skip

    with on_device(query):
        tma = not edges(call) and takes_tma(inputs)
        shape = f"{words(call)} {'tma ' * tma}{tier}".strip()
        # What decides is the wider vector, of keys or of values.
        widest = (query, call.key) if query.shape[-1] >= value.shape[-1] else (value, query)
        launch(config or best_config("forward", shape, *widest, launch))
    return given_outputs(outputs, chosen)
