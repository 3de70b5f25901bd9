"""The kernel for short texts: all keys in one tile, so that every statistic takes one pass.

With few keys, at most 256, most of the time goes into reading and writing memory. A program
owns a head. It loads the keys and values once and walks over the blocks of queries. It knows the
final normaliser of each row at once, so it adds up received and the cells of the map on the way.
"""

import math
from typing import Any, NamedTuple, no_type_check

import torch
import triton
import triton.language as tl
from torch import Tensor

from minibert.kernels.call import Call, Outputs
from minibert.kernels.fused.fold import fold_scores, key_of_best, no_best
from minibert.kernels.fused.forward import store_chosen, store_rows, store_vectors
from minibert.kernels.fused.launch import (
    Config,
    best_of,
    block_of_features,
    chosen_outputs,
    constants_of,
    edges,
    given_outputs,
    inputs_of,
    row_outputs,
    shaped,
    sizes_of,
    strides_of,
)
from minibert.kernels.fused.masks import masked_scores
from minibert.kernels.fused.primitives import (
    NOTHING,
    cells_of,
    head_view,
    key_start,
    load_at,
    positions_of,
)
from minibert.kernels.fused.tuning import run_tuned

#: Keys of a program; half as many for vectors wider than 64, a quarter for numbers of 32 bits.
LARGEST_TILE = 256
#: Queries that a program walks over; for more queries several programs are faster.
MOST_QUERIES = 512
#: The smallest block of queries of all configs; a block has only whole cells of the map.
SMALLEST_BLOCK = 16


class Summed(NamedTuple):
    """Outputs that sum over queries; None where they are not wanted."""

    received: Any
    map: Any


@triton.jit
@no_type_check
def store_map(
    map, probs, grid, place, tile, counts, n_counted, QUERY_PLACES: tl.constexpr, KEY_PLACES
):
    """Writes the means of the cells that a block of rows of probs covers."""
    BLOCK_M: tl.constexpr = probs.shape[0]
    BLOCK_N: tl.constexpr = probs.shape[1]
    ROWS: tl.constexpr = BLOCK_M // QUERY_PLACES
    COLUMNS: tl.constexpr = BLOCK_N // KEY_PLACES
    # Neighbours in a row are in the same thread, neighbours in a column are not; so rows go first.
    by_column = tl.sum(tl.reshape(probs, (BLOCK_M, COLUMNS, KEY_PLACES)), 2)
    cells = tl.sum(tl.reshape(by_column, (ROWS, QUERY_PLACES, COLUMNS)), 1)
    row = tile * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, COLUMNS)
    # A cell without real positions has the sum 0, and its mean is defined as 0.
    queries = tl.minimum(tl.maximum(n_counted - row * grid.query_cell, 1), grid.query_cell)
    keys = tl.minimum(tl.maximum(counts[2] - column * grid.key_cell, 1), grid.key_cell)
    cells *= (1.0 / queries)[:, None]
    cells *= (1.0 / keys)[None, :]
    at = (place * grid.query_cells + row[:, None]) * grid.key_cells + column[None, :]
    inside = (row < grid.query_cells)[:, None] & (column < grid.key_cells)[None, :]
    tl.store(map + at, cells, mask=inside)


@triton.jit
@no_type_check
def one_tile_kernel(
    inputs, outputs, chosen, summed, grid, strides, sizes, scale,
    CAUSAL: tl.constexpr, BEST: tl.constexpr, REAL_QUERIES: tl.constexpr, PRECISION: tl.constexpr,
    D_HEAD: tl.constexpr, BLOCK_D: tl.constexpr, D_VALUE: tl.constexpr, BLOCK_V: tl.constexpr,
    QUERY_PLACES: tl.constexpr, KEY_PLACES: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """z, lse and all statistics of a head whose keys fit one tile."""
    place = tl.program_id(0)
    head, counts = head_view(inputs, strides, sizes, place)
    keys, filled = positions_of(0, grid.key_cell, 1, KEY_PLACES, BLOCK_N)
    # An empty place counts as a key after the last one, which no query sees.
    keys = tl.where(filled, keys, counts[1])
    key_tile = load_at(head[1], keys, strides.key[2], keys < counts[2], D_HEAD, BLOCK_D)
    value_tile = load_at(head[2], keys, strides.value[2], keys < counts[2], D_VALUE, BLOCK_V)
    n_counted = counts[0]
    if REAL_QUERIES:
        n_counted = tl.minimum(n_counted, counts[2])
    received = tl.zeros((BLOCK_N,), tl.float32)
    none = tl.zeros((BLOCK_M,), tl.float32)
    parts = tl.zeros((BLOCK_M, 4), tl.float32)
    for tile in range(0, sizes.n_blocks):
        rows, there = positions_of(tile, grid.query_cell, 1, QUERY_PLACES, BLOCK_M)
        rows = tl.where(there, rows, counts[0])
        inside = rows < counts[0]
        query_tile = load_at(head[0], rows, strides.query[2], inside, D_HEAD, BLOCK_D)
        scores = tl.dot(query_tile, tl.trans(key_tile), input_precision=PRECISION)
        scores = masked_scores(
            scores, scale, inputs, strides, sizes, place, rows[:, None], keys[None, :], counts,
            CAUSAL,
        )  # fmt: skip
        weights, _, largest, total, product, best = fold_scores(
            scores, 1.0, 0, none + NOTHING, parts, parts, no_best(BEST, BLOCK_M),
            outputs.entropy is not None, BEST,
        )  # fmt: skip
        total, product = tl.sum(total, 1), tl.sum(product, 1)
        best = tl.where(largest > NOTHING, key_of_best(best, BEST, BLOCK_N), 0)
        best = best // KEY_PLACES * grid.key_cell + best % KEY_PLACES
        lse2, share = store_rows(
            outputs, inputs, sizes, place, rows, counts[0], largest, total, product, best
        )
        rounded = weights.to(value_tile.dtype)
        if summed.received is not None or summed.map is not None:
            probs = weights * tl.where(rows < n_counted, share, 0.0)[:, None]
            received += tl.sum(probs, 0)
            if summed.map is not None:
                store_map(
                    summed.map, probs, grid, place, tile, counts, n_counted, QUERY_PLACES,
                    KEY_PLACES,
                )  # fmt: skip
        z = tl.dot(rounded, value_tile, input_precision=PRECISION)
        z *= share[:, None]
        store_vectors(outputs.z, z, inputs, strides, sizes, place, rows, counts[0], D_VALUE)
        store_chosen(
            chosen, query_tile, inputs, strides, sizes, place, rows, counts, head, lse2,
            scale, CAUSAL, D_HEAD,
        )  # fmt: skip
    if summed.received is not None:
        at = key_start(inputs, sizes, place) + keys
        tl.store(summed.received + at, received, mask=keys < counts[1])


def fits(call: Call) -> bool:
    """True when the keys fit one tile, whole cells of the map included."""
    query, value = call.query, call.value
    if _crowded(call) and query.element_size() > 2:
        # With numbers of 32 bits, the registers have no room for what is done to each score.
        return False
    if block_of_features(max(query.shape[-1], value.shape[-1])) > 128:
        return False
    Q, K = query.shape[2], call.key.shape[2]
    blocks = call.want["map"][0] if "map" in call.want else None
    query_cell = 1 if blocks is None else math.ceil(Q / blocks)
    largest = _largest_tile(query, value)
    return _tile(K, blocks) <= largest and Q <= MOST_QUERIES and query_cell <= SMALLEST_BLOCK


def fitted(cut: Config, keys: int, largest: int, *, edges: bool, wide: bool) -> Config:
    """The config with a tile of `keys`; beside the largest, registers hold 16 rows a block.

    For numbers of 32 bits, `wide`, the config has the rows that fit.
    """
    if wide:
        # The many threads of that config have too little to share in a smaller tile.
        return cut._replace(block_n=max(keys, 32))
    if keys < largest:
        return cut._replace(block_n=keys)
    # More threads share the additional work that each score needs with `edges`.
    warps = 8 if edges and keys == LARGEST_TILE else 4
    return Config(SMALLEST_BLOCK, keys, warps, 1)


def one_tile(call: Call, *, config: Config | None = None) -> Outputs:
    """z, lse and every wanted statistic in one pass; only where `fits` is True."""
    call = call.positively_scaled()
    query, value, want = call.query, call.value, call.want
    inputs = inputs_of(call)
    (B, H, Q, _), K = query.shape, call.key.shape[2]
    outputs, chosen = row_outputs(call), chosen_outputs(call)
    blocks = want["map"][0] if "map" in want else None
    constants = constants_of(call) | {
        "BEST": best_of(query.dtype, want),
        "REAL_QUERIES": Q == K and call.lengths is not None,
    }

    def empty(*shape: int) -> Tensor:
        return query.new_empty((B, H, *shape), dtype=torch.float32)

    summed = Summed(empty(K) if "received" in want else None, None)

    def launch(cut: Config) -> None:
        nonlocal summed
        if config is None:
            wide, largest = query.element_size() > 2, _largest_tile(query, value)
            cut = fitted(cut, _tile(K, blocks), largest, edges=_crowded(call), wide=wide)
        grid, query_places, key_places, _ = cells_of(cut, Q, K, blocks)
        if blocks is not None:
            summed = summed._replace(map=empty(grid.query_cells, grid.key_cells))
        sizes, _ = sizes_of(inputs, call, cut.block_m)
        tiles = math.ceil(grid.query_cells * query_places / cut.block_m)
        one_tile_kernel[(B * H,)](
            inputs, outputs, chosen, summed, grid, strides_of(inputs, outputs.z),
            sizes._replace(n_blocks=tiles), call.scale, **constants,
            QUERY_PLACES=query_places, KEY_PLACES=key_places,
            **cut.constants(),
        )  # fmt: skip

    run_tuned("one tile", call, f"{_tile(K, blocks)} keys", launch, config)
    return given_outputs(outputs, chosen, **summed._asdict())


def _crowded(call: Call) -> bool:
    """Whether something is done to each score, which takes registers."""
    return edges(call) or shaped(call)


def _tile(n_keys: int, blocks: int | None) -> int:
    """The power of two of places that the keys, in whole cells, take."""
    cell = 1 if blocks is None else math.ceil(n_keys / blocks)
    places = math.ceil(n_keys / cell) * (1 << (cell - 1).bit_length())
    return max(16, 1 << (places - 1).bit_length())


def _largest_tile(query: Tensor, value: Tensor) -> int:
    """The most places of keys whose scores fit the registers beside the vectors."""
    widest = block_of_features(max(query.shape[-1], value.shape[-1]))
    largest = LARGEST_TILE if widest <= 64 else LARGEST_TILE // 2
    return largest if query.element_size() <= 2 else largest // 4
