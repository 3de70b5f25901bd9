"""How the cells of the map lie in the tiles of a kernel.

Cells of the map have any size, and the sizes of tiles are powers of two. So an axis of a tile is
filled cell by cell. Each cell takes a number of places that is a power of two, and the last places
may stay empty. A cell larger than a tile takes several tiles (parts). Without a map each tile is
one cell.
"""

import math
from typing import Any, NamedTuple, no_type_check

import triton
import triton.language as tl

from minibert.kernels.fused.launch import Config


class Grid(NamedTuple):
    """How the two axes are split: real positions in a cell, number of cells, tiles of a cell."""

    query_cell: Any
    query_cells: Any
    query_parts: Any
    key_cell: Any
    key_cells: Any
    key_parts: Any


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
