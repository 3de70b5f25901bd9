"""The kernel of the columns: how much each key received, and the map, in a second pass.

It needs the lse that the forward gave:

    sums[k] = sum over queries q of P[q, k]       P[q, k] = exp(s[q, k] − lse[q])

A program owns a block of keys and walks over the queries. No two programs add to the same number,
so results are the same each time, bit by bit. Tiles are transposed, (key, query), because then a
program adds along the rows of the matrix instructions. `primitives.py` explains how the cells of
the map are split into tiles.
"""

import math
from dataclasses import replace
from typing import NamedTuple, no_type_check

import torch
import triton
import triton.language as tl
from torch import Tensor

from minibert.kernels.call import Call, Outputs
from minibert.kernels.fused.launch import (
    Config,
    constants_of,
    inputs_of,
    longest,
    sizes_of,
    strides_of,
)
from minibert.kernels.fused.masks import query_range, tile_scores
from minibert.kernels.fused.primitives import (
    LOG2E,
    NOTHING,
    cells_of,
    head_view,
    key_start,
    load_at,
    positions_of,
    program_place,
    query_tiles,
    row_start,
)
from minibert.kernels.fused.tuning import run
from minibert.quantities import Float, Int


class Columns(NamedTuple):
    """What the kernel writes, and reads in addition to the inputs; None where not wanted."""

    lse: Tensor
    sums: Tensor | None
    map: Tensor | None


@triton.jit
@no_type_check
def load_normaliser(columns, begin, queries, inside):
    """lse in base 2; for a row without allowed keys, or outside, so large that probs are 0."""
    lse = tl.load(columns.lse + begin + queries, mask=inside, other=float("-inf"))
    return tl.where(lse == float("-inf"), -NOTHING, lse * LOG2E)


@triton.jit
@no_type_check
def walk_queries(
    state, key_tile, keys, head, inputs, columns, grid, strides, sizes, place, counts, span, scale,
    EDGE: tl.constexpr, CAUSAL: tl.constexpr, PRECISION: tl.constexpr, D_HEAD: tl.constexpr,
    QUERY_PLACES: tl.constexpr, KEY_PLACES: tl.constexpr, BLOCK_M: tl.constexpr,
):  # fmt: skip
    """Sums of the keys, and of the cells of the map, after the tiles of queries of `span`."""
    sums, cells = state
    BLOCK_N: tl.constexpr = key_tile.shape[0]
    BLOCK_D: tl.constexpr = key_tile.shape[1]
    n_counted, begin = span[2], row_start(inputs, sizes, place)
    for tile in range(span[0], span[1]):
        queries, filled = positions_of(
            tile, grid.query_cell, grid.query_parts, QUERY_PLACES, BLOCK_M
        )
        inside = filled & (queries < n_counted)
        query_tile = load_at(head[0], queries, strides.query[2], inside, D_HEAD, BLOCK_D)
        normaliser = load_normaliser(columns, begin, queries, inside)
        scores = tl.dot(key_tile, tl.trans(query_tile), input_precision=PRECISION)
        scores, factor = tile_scores(
            scores, scale, inputs, strides, sizes, place, queries[None, :], keys[:, None], counts,
            EDGE, CAUSAL,
        )  # fmt: skip
        scores *= factor
        probs = tl.math.exp2(scores - normaliser[None, :])
        if columns.map is not None:
            ROWS: tl.constexpr = BLOCK_M // QUERY_PLACES
            by_row = tl.sum(tl.reshape(probs, (BLOCK_N, ROWS, QUERY_PLACES)), 2)
            by_row = tl.where((keys < counts[2])[:, None], by_row, 0.0)
            sums += tl.sum(by_row, 1)
            cells = tl.where(tile % grid.query_parts == 0, 0.0, cells)
            by_cell = tl.reshape(by_row, (BLOCK_N // KEY_PLACES, KEY_PLACES, ROWS))
            cells += tl.sum(by_cell, 1)
            store_cells(columns.map, cells, grid, place, tile, span[3], ROWS)
        else:
            sums += tl.sum(probs, 1)
    return sums, cells


@triton.jit
@no_type_check
def store_cells(map, cells, grid, place, tile, block, ROWS: tl.constexpr):
    """Writes the sums of cells so far; the last tile of a cell writes the whole sum."""
    COLUMNS: tl.constexpr = cells.shape[0]
    row = tile // grid.query_parts * ROWS + tl.arange(0, ROWS)
    column = block * COLUMNS + tl.arange(0, COLUMNS)
    n_columns = grid.key_cells * grid.key_parts
    inside = (row < grid.query_cells)[None, :] & (column < n_columns)[:, None]
    start = tl.cast(place, tl.int64) * grid.query_cells * n_columns
    tl.store(map + start + row[None, :] * n_columns + column[:, None], cells, mask=inside)


@triton.jit
@no_type_check
def columns_kernel(
    inputs, columns, grid, strides, sizes, scale,
    CAUSAL: tl.constexpr, REAL_QUERIES: tl.constexpr, PRECISION: tl.constexpr,
    D_HEAD: tl.constexpr, BLOCK_D: tl.constexpr, D_VALUE: tl.constexpr, BLOCK_V: tl.constexpr,
    QUERY_PLACES: tl.constexpr, KEY_PLACES: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """sums[k] = sum over queries of P for a block of keys, and sums of the map's cells.

    With REAL_QUERIES the queries after a sentence's length do not count.
    """
    place, block = program_place(sizes.n_blocks, sizes.n_places, sizes.n_together, False)
    head, counts = head_view(inputs, strides, sizes, place)
    keys, filled = positions_of(block, grid.key_cell, grid.key_parts, KEY_PLACES, BLOCK_N)
    # An empty place counts as a key after the last one, which no query sees.
    keys = tl.where(filled, keys, counts[1])
    key_tile = load_at(head[1], keys, strides.key[2], keys < counts[2], D_HEAD, BLOCK_D)
    n_counted = counts[0]
    if REAL_QUERIES:
        n_counted = tl.minimum(n_counted, counts[2])
    last_key = tl.max(tl.where(keys < counts[2], keys, 0))
    rows = query_range(
        inputs, sizes, place // sizes.n_heads, tl.min(keys), last_key, counts, CAUSAL
    )
    rows = (rows[0], rows[1], rows[2], tl.minimum(rows[3], n_counted))
    BEFORE: tl.constexpr = sizes.before is not None
    begin, full, whole, stop = query_tiles(rows, grid, BEFORE, QUERY_PLACES, BLOCK_M)
    COLUMNS: tl.constexpr = BLOCK_N // KEY_PLACES
    state = (
        tl.zeros((BLOCK_N,), tl.float32),
        tl.zeros((COLUMNS, BLOCK_M // QUERY_PLACES), tl.float32),
    )
    LIMITED: tl.constexpr = CAUSAL or sizes.after is not None
    if inputs.mask is not None or inputs.bias is not None:
        span = (begin, stop, n_counted, block)
        state = walk_queries(
            state, key_tile, keys, head, inputs, columns, grid, strides, sizes, place, counts, span,
            scale, True, CAUSAL, PRECISION, D_HEAD, QUERY_PLACES, KEY_PLACES, BLOCK_M,
        )  # fmt: skip
    else:
        if LIMITED:
            span = (begin, full, n_counted, block)
            state = walk_queries(
                state, key_tile, keys, head, inputs, columns, grid, strides, sizes, place, counts,
                span, scale, True, CAUSAL, PRECISION, D_HEAD, QUERY_PLACES, KEY_PLACES, BLOCK_M,
            )  # fmt: skip
        span = (full, whole, n_counted, block)
        state = walk_queries(
            state, key_tile, keys, head, inputs, columns, grid, strides, sizes, place, counts, span,
            scale, False, CAUSAL, PRECISION, D_HEAD, QUERY_PLACES, KEY_PLACES, BLOCK_M,
        )  # fmt: skip
        if BEFORE:
            span = (whole, stop, n_counted, block)
            state = walk_queries(
                state, key_tile, keys, head, inputs, columns, grid, strides, sizes, place, counts,
                span, scale, True, CAUSAL, PRECISION, D_HEAD, QUERY_PLACES, KEY_PLACES, BLOCK_M,
            )  # fmt: skip
    if columns.sums is not None:
        sums = tl.where(keys < counts[2], state[0], 0.0)
        at = key_start(inputs, sizes, place) + keys
        tl.store(columns.sums + at, sums, mask=keys < counts[1])


def received_and_map(
    call: Call, *, lse: Float[Tensor, "batch head query"], config: Config | None = None
) -> Outputs:
    """The statistics received and map, as far as they are wanted, in one pass."""
    (B, H, Q), K, want = call.query.shape[:3], call.key.shape[2], call.want
    found = {}
    if "received" in want:
        found["received"] = call.query.new_empty((B, H, K), dtype=torch.float32)
    blocks = want["map"][0] if "map" in want else None
    columns = Columns(lse, found.get("received"), None)
    real = Q == K and call.lengths is not None
    sums = _launch(call, columns, real_queries=real, blocks=blocks, config=config)
    if sums is not None:
        found["map"] = _means(sums, call.lengths, Q, K)
    return found


def _launch(
    call: Call,
    columns: Columns,
    *,
    real_queries: bool,
    blocks: int | None = None,
    config: Config | None = None,
) -> Tensor | None:
    """Runs the kernel; gives the sums of the map's cells, a part of a cell each, or None."""
    # No value is read: the keys stand in their place.
    call = replace(call.positively_scaled(), value=call.key)
    query, inputs = call.query, inputs_of(call)
    B, H, Q, _ = query.shape
    constants = constants_of(call) | {"REAL_QUERIES": real_queries}
    result = None

    def launch(cut: Config) -> None:
        nonlocal result
        grid, query_places, key_places, tiles = cells_of(cut, Q, longest(call)[1], blocks)
        if blocks is not None:
            shape = (B, H, grid.query_cells, grid.key_cells, grid.key_parts)
            result = query.new_zeros(shape, dtype=torch.float32)
        sizes, _ = sizes_of(inputs, call, cut.block_m)
        sizes = sizes._replace(n_blocks=tiles)
        columns_kernel[(tiles * sizes.n_places,)](
            inputs, columns._replace(map=result), grid, strides_of(inputs), sizes, call.scale,
            **constants, QUERY_PLACES=query_places, KEY_PLACES=key_places, **cut.constants(),
        )  # fmt: skip

    run("columns", call, "map" if blocks else "sums", launch, config)
    return result


def _means(
    sums: Float[Tensor, "batch head query_block key_block part"],
    lengths: Int[Tensor, " batch"] | None,
    n_queries: int,
    n_keys: int,
) -> Float[Tensor, "batch head query_block key_block"]:
    """The sums of the map's cells divided by how many real positions each cell has.

    Nothing is copied from the host, so that it can be part of a CUDA graph.
    """
    total = sums.squeeze(-1) if sums.shape[-1] == 1 else sums.sum(dim=-1)
    counts = []
    for n, cells in zip((n_queries, n_keys), total.shape[2:], strict=True):
        size = math.ceil(n / cells)
        first = torch.arange(cells, device=sums.device) * size
        if lengths is None or n != n_keys:
            counts.append((n - first).clamp(0, size)[None])
        else:
            counts.append((lengths.clamp(max=n)[:, None] - first).clamp(0, size))
    cells_of = counts[0][:, :, None] * counts[1][:, None, :]
    return total / cells_of.clamp_min(1).unsqueeze(1)
