"""The jitted parts of the kernels: where numbers lie and how they are loaded.

Scores are in base 2 here, score·log2(e), because the hardware has an instruction for 2^x.
A masked score is NOTHING and not −inf: in the sum of 2^t·t in `fold.py`, 0·(−inf) would be NaN.

Cells of the map have any size, and the sizes of tiles are powers of two. So an axis of a tile is
filled cell by cell. Each cell takes a number of places that is a power of two, and the last places
may stay empty. A cell larger than a tile takes several tiles (parts). Without a map each tile is
one cell.

`no_type_check` keeps the shape checker of the tests out of functions that Triton compiles.
"""

import math
import os
from typing import NamedTuple, no_type_check

import triton
import triton.language as tl

from minibert.kernels.fused.launch import Config
from minibert.kernels.interpreter import prepare_once_a_launch

LN2 = tl.constexpr(0.6931471805599453)
LOG2E = tl.constexpr(1.4426950408889634)
#: The score of a masked cell; every number below half of it counts as masked.
NOTHING = tl.constexpr(-1.0e30)
INTERPRETED = tl.constexpr(os.environ.get("TRITON_INTERPRET") == "1")
if INTERPRETED.value:
    prepare_once_a_launch()


@triton.jit
@no_type_check
def program_place(n_blocks, n_heads, n_together, HEAVY_FIRST: tl.constexpr):
    """Which (batch · head) and which block of rows this program has.

    The programs of `n_together` heads run side by side, so that their keys stay in the L2 cache.
    Among them the last blocks come first, which are the longest where attention is causal.
    """
    program = tl.program_id(0)
    first_head = program // (n_blocks * n_together) * n_together
    within = program - first_head * n_blocks
    n_here = tl.minimum(n_together, n_heads - first_head)
    block = within // n_here
    if HEAVY_FIRST:
        block = n_blocks - 1 - block
    return first_head + within % n_here, block


@triton.jit
@no_type_check
def head_start(strides, batch, head):
    """Where the numbers of one head begin, in elements, counted in 64 bits."""
    return tl.cast(batch, tl.int64) * strides[0] + tl.cast(head, tl.int64) * strides[1]


@triton.jit
@no_type_check
def block_offsets(stride, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Where the cells of a tile of vectors are, from its first cell."""
    return tl.arange(0, ROWS)[:, None] * stride + tl.arange(0, COLUMNS)[None, :]


@triton.jit
@no_type_check
def load_rows(
    vectors, offsets, n_rows, D_HEAD: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    EDGE: tl.constexpr,
):  # fmt: skip
    """A (ROWS, COLUMNS) tile of vectors, the columns beyond d_head 0.

    With EDGE the rows from n_rows on are 0 too; without, all of them are there.
    """
    inside_row = (tl.arange(0, ROWS) < n_rows)[:, None]
    inside_column = (tl.arange(0, COLUMNS) < D_HEAD)[None, :]
    if EDGE and D_HEAD != COLUMNS:
        return tl.load(vectors + offsets, mask=inside_row & inside_column, other=0.0)
    elif EDGE:
        return tl.load(vectors + offsets, mask=inside_row, other=0.0)
    elif D_HEAD != COLUMNS:
        return tl.load(vectors + offsets, mask=inside_column, other=0.0)
    else:
        return tl.load(vectors + offsets)


@triton.jit
@no_type_check
def load_cells(matrix, strides, batch, head, rows, columns, inside):
    """The cells of a mask or bias at rows and columns, whose shapes go together; 0 outside."""
    begin = head_start(strides, batch, head)
    cells = tl.cast(rows, tl.int64) * strides[2] + tl.cast(columns, tl.int64) * strides[3]
    return tl.load(matrix + begin + cells, mask=inside, other=0)


@triton.jit
@no_type_check
def head_view(inputs, strides, sizes, place):
    """Where one head's (query, key, value) begin, and its numbers of (queries, keys, real keys).

    Each key head serves `sizes.group` query heads in a row. Packed sentences have `starts`: the
    first row of each, and one past the last row of all; `key_starts` where their keys differ.
    """
    batch, head = place // sizes.n_heads, place % sizes.n_heads
    key_head = head // sizes.group
    query = inputs.query + head_start(strides.query, batch, head)
    key = inputs.key + head_start(strides.key, batch, key_head)
    value = inputs.value + head_start(strides.value, batch, key_head)
    n_queries, n_keys = sizes.n_queries, sizes.n_keys
    if inputs.starts is not None:
        start = tl.load(inputs.starts + batch)
        n_queries = (tl.load(inputs.starts + batch + 1) - start).to(tl.int32)
        n_keys = n_queries
        query += start * strides.query[2]
        if inputs.key_starts is not None:
            start = tl.load(inputs.key_starts + batch)
            n_keys = (tl.load(inputs.key_starts + batch + 1) - start).to(tl.int32)
        key += start * strides.key[2]
        value += start * strides.value[2]
    n_real = n_keys
    if inputs.lengths is not None:
        n_real = tl.minimum(n_keys, tl.load(inputs.lengths + batch).to(tl.int32))
    return (query, key, value), (n_queries, n_keys, n_real)


@triton.jit
@no_type_check
def row_start(inputs, sizes, place):
    """Where the outputs of one head begin that have one number a row: (batch, head, query)."""
    begin = tl.cast(place, tl.int64) * sizes.n_queries
    if inputs.starts is not None:
        head = tl.cast(place % sizes.n_heads, tl.int64)
        begin = head * sizes.n_queries + tl.load(inputs.starts + place // sizes.n_heads)
    return begin


@triton.jit
@no_type_check
def key_start(inputs, sizes, place):
    """Where the sums of one head begin: (batch, head, key)."""
    begin = tl.cast(place, tl.int64) * sizes.n_keys
    if inputs.key_starts is not None:
        head = tl.cast(place % sizes.n_heads, tl.int64)
        begin = head * sizes.n_keys + tl.load(inputs.key_starts + place // sizes.n_heads)
    elif inputs.starts is not None:
        begin = row_start(inputs, sizes, place)
    return begin


class Grid(NamedTuple):
    """How the two axes are split: real positions in a cell, number of cells, tiles of a cell."""

    query_cell: int
    query_cells: int
    query_parts: int
    key_cell: int
    key_cells: int
    key_parts: int


@triton.jit
@no_type_check
def positions_of(tile, cell, parts, PLACES: tl.constexpr, BLOCK: tl.constexpr):
    """The position at each place of a tile, and which places are filled."""
    place = tl.arange(0, BLOCK)
    if PLACES == BLOCK:
        # A case of its own, so that the compiler sees one contiguous range of memory.
        within = tile % parts * BLOCK
        return (tile // parts * cell + within) + place, place < cell - within
    else:
        within = place % PLACES
        return (tile * (BLOCK // PLACES) + place // PLACES) * cell + within, within < cell


@triton.jit
@no_type_check
def tile_of(position, cell, parts, PLACES: tl.constexpr, BLOCK: tl.constexpr):
    """The tile that contains a position."""
    return position // cell // (BLOCK // PLACES) * parts + position % cell // BLOCK


@triton.jit
@no_type_check
def query_tiles(span, grid, LIMITED_AHEAD: tl.constexpr, PLACES: tl.constexpr, BLOCK: tl.constexpr):
    """The tiles of the rows of `span` (see `masks.query_range`), whose masks are needed as there.

    Without LIMITED_AHEAD the rows in full … whole go on until the last one.
    """
    begin, full, whole, stop = span
    cell, parts = grid.query_cell, grid.query_parts
    first = tile_of(begin, cell, parts, PLACES, BLOCK)
    last = tl.where(stop > 0, tile_of(stop - 1, cell, parts, PLACES, BLOCK) + 1, 0)
    full = tl.where(full > 0, tile_of(tl.maximum(full - 1, 0), cell, parts, PLACES, BLOCK) + 1, 0)
    full, ending = tl.minimum(full, last), last
    if LIMITED_AHEAD:
        ending = tl.where(whole < stop, tile_of(whole, cell, parts, PLACES, BLOCK), last)
        # Without a tile that sees everything, all of them are of the last kind.
        nothing = full > ending
        full, ending = tl.where(nothing, first, full), tl.where(nothing, first, ending)
    return first, full, ending, last


@triton.jit
@no_type_check
def load_at(vectors, positions, stride, inside, D_HEAD: tl.constexpr, BLOCK_D: tl.constexpr):
    """The vectors at `positions` as a tile; 0 where not `inside` and beyond d_head."""
    feature = tl.arange(0, BLOCK_D)
    cells = tl.cast(positions, tl.int64)[:, None] * stride + feature[None, :]
    seen = inside[:, None]
    if D_HEAD != BLOCK_D:
        seen = seen & (feature < D_HEAD)[None, :]
    return tl.load(vectors + cells, mask=seen, other=0.0)


def cells_of(
    cut: Config, n_queries: int, n_keys: int, blocks: int | None
) -> tuple[Grid, int, int, int]:
    """The grid, the places of a cell along either axis of a tile, and the tiles of keys."""
    axes = []
    for n, block in ((n_queries, cut.block_m), (n_keys, cut.block_n)):
        cell = block if blocks is None else math.ceil(n / blocks)
        cells, parts = math.ceil(n / cell), math.ceil(cell / block)
        places = block if parts > 1 else 1 << (cell - 1).bit_length()
        axes.append((cell, cells, parts, places))
    (query_cell, query_cells, query_parts, query_places), keys = axes[0], axes[1]
    key_cell, key_cells, key_parts, key_places = keys
    tiles = math.ceil(key_cells / (cut.block_n // key_places)) * key_parts
    grid = Grid(query_cell, query_cells, query_parts, key_cell, key_cells, key_parts)
    return grid, query_places, key_places, tiles
