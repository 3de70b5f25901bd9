"""Starts the kernels of the backward: shapes, strides, block sizes and memory for the outputs."""

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from minibert.kernels.fused.backward_bias import backward_bias_kernel
from minibert.kernels.fused.backward_keys import backward_key_value_kernel
from minibert.kernels.fused.backward_queries import backward_delta_kernel, backward_query_kernel
from minibert.kernels.fused.backward_tiles import Inputs, Sizes, Strides

__all__ = [
    "Rows",
    "Tile",
    "by_keys",
    "by_queries",
    "d_block",
    "delta_and_lse",
    "filled_lse",
    "filled_weights",
    "of_bias",
    "rows_of",
    "tile_of",
]

#: The number of queries is rounded up to a multiple of this; every tile size divides it.
FILL = 128


class Tile(NamedTuple):
    """How a kernel is split: queries and keys of a tile, warps of a program, stages of its loop."""

    queries: int
    keys: int
    warps: int
    stages: int


#: Tiles that compile for sm_90a without spills, by kernel, bytes of a number and d_head.
TILES = {
    ("key_value", 2, 64): Tile(64, 128, 8, 3),
    ("key_value", 2, 128): Tile(64, 128, 8, 2),
    ("query", 2, 64): Tile(128, 64, 8, 3),
    ("query", 2, 128): Tile(128, 64, 8, 2),
    ("key_value", 4, 64): Tile(32, 32, 4, 2),
    ("key_value", 4, 128): Tile(16, 32, 4, 2),
    ("query", 4, 64): Tile(32, 32, 4, 2),
    ("query", 4, 128): Tile(32, 16, 4, 2),
}
#: Smaller tiles, for cases in which those would spill.
NARROW = {
    ("key_value", 2, 64): Tile(32, 128, 8, 3),
    ("key_value", 2, 128): Tile(32, 128, 8, 3),
    ("query", 2, 128): Tile(128, 32, 8, 2),
    ("key_value", 4, 64): Tile(16, 32, 4, 2),
    ("key_value", 4, 128): Tile(16, 16, 4, 2),
    ("query", 4, 64): Tile(32, 32, 8, 2),
    ("query", 4, 128): Tile(16, 16, 8, 2),
}


def tile_of(
    kernel: str, dtype: torch.dtype, d_head: int, *, cells: bool = False, relevance: bool = False
) -> Tile:
    """The tile of "key_value" or "query" for vectors of this dtype and width.

    `cells` says that there is a mask or a bias, `relevance` that it is summed beside gradients.
    """
    kind = (kernel, dtype.itemsize, 128 if d_head > 64 else 64)
    # Relevance beside gradients takes too many registers of wide heads in 16 bits, and of others in
    # 32.
    crowded = relevance and kind in (("key_value", 2, 128), ("key_value", 4, 64))
    return NARROW.get(kind, TILES[kind]) if cells or crowded else TILES[kind]


def d_block(d_head: int) -> int:
    """d_head rounded up to a size that a tile may have: a power of 2, at least 16."""
    return max(16, 1 << (d_head - 1).bit_length())


@dataclass(frozen=True, eq=False)
class Rows:
    """What every kernel of one backward reads: vectors with contiguous rows, mask in bytes.

    mask and bias have all four axes, expanded.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    z_gradient: Tensor
    lengths: Tensor | None
    mask: Tensor | None
    bias: Tensor | None
    causal: bool
    scale: float

    @property
    def shape(self) -> tuple[int, int, int, int, int]:
        """Batch, head, query, key, d_head."""
        B, H, Q, D = self.query.shape
        return B, H, Q, self.key.shape[2], D

    @property
    def sizes(self) -> Sizes:
        """For the kernels."""
        _, H, Q, K, _ = self.shape
        return Sizes(H, Q, -(-Q // FILL) * FILL, K)

    @property
    def strides(self) -> Strides:
        """For the kernels."""
        vectors = (self.query, self.key, self.value, self.z_gradient)
        return Strides(*(one.stride()[:3] for one in vectors), *map(_four, (self.mask, self.bias)))

    @property
    def cells(self) -> bool:
        """True with a mask or a bias."""
        return self.mask is not None or self.bias is not None

    def inputs(self, lse: Tensor, delta: Tensor | None, weights: Tensor | None = None) -> Inputs:
        """For the kernels."""
        vectors = (self.query, self.key, self.value, self.z_gradient)
        return Inputs(*vectors, lse, delta, weights, self.lengths, self.mask, self.bias)

    def constants(self, tile: Tile) -> dict[str, Any]:
        """What a kernel is compiled for."""
        D = self.query.shape[3]
        return {
            "D_HEAD": D,
            "D_BLOCK": d_block(D),
            "CAUSAL": self.causal,
            "QUERIES": tile.queries,
            "KEYS": tile.keys,
            # By default Triton rounds float32 to tf32.
            "PRECISION": "ieee",
            "num_warps": tile.warps,
            "num_stages": tile.stages,
        }


def rows_of(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    z_gradient: Tensor,
    *,
    lengths: Tensor | None,
    mask: Tensor | None,
    bias: Tensor | None,
    causal: bool,
    scale: float | None,
) -> Rows:
    """The tensors as the kernels take them; copied only where the rows are not contiguous."""
    (B, H, Q, D), K = query.shape, key.shape[2]
    return Rows(
        query=row_contiguous(query),
        key=row_contiguous(key),
        value=row_contiguous(value),
        z_gradient=row_contiguous(z_gradient),
        lengths=None if lengths is None else lengths.contiguous(),
        mask=None if mask is None else mask.view(torch.uint8).expand(B, H, Q, K),
        bias=None if bias is None else bias.detach().expand(B, H, Q, K),
        causal=causal,
        scale=1 / math.sqrt(D) if scale is None else float(scale),
    )


def row_contiguous(vectors: Tensor) -> Tensor:
    """The same numbers, without their gradient, with a last axis of stride 1."""
    vectors = vectors.detach()
    return vectors if vectors.stride(-1) == 1 else vectors.contiguous()


def _four(matrix: Tensor | None) -> tuple[int, ...]:
    return (0, 0, 0, 0) if matrix is None else matrix.stride()


def delta_and_lse(
    rows: Rows, z: Tensor, lse: Tensor, lse_gradient: Tensor | None
) -> tuple[Tensor, Tensor]:
    """δ = sum dz·z − d lse, and lse in base 2, (batch · head, filled queries), float32."""
    (B, H, _, _, D), sizes = rows.shape, rows.sizes
    z = row_contiguous(z)
    delta, in_base_2 = torch.empty(2, B * H, sizes.n_filled, device=z.device).unbind()
    with torch.cuda.device_of(z):
        backward_delta_kernel[(B * H * (sizes.n_filled // FILL),)](
            z,
            rows.z_gradient,
            lse.detach().float().contiguous(),
            None if lse_gradient is None else lse_gradient.float().contiguous(),
            delta,
            in_base_2,
            z.stride()[:3],
            rows.z_gradient.stride()[:3],
            sizes,
            D_HEAD=D,
            D_BLOCK=d_block(D),
            QUERIES=FILL,
            num_warps=8,
        )
    return delta, in_base_2


def filled_lse(lse: Tensor) -> Tensor:
    """lse in base 2 as the kernels take it, without δ."""
    in_base_2 = (lse.detach().float() * math.log2(math.e)).flatten(0, 1)
    return _filled(in_base_2.masked_fill(in_base_2.isneginf(), 1e30), 1e30)


def filled_weights(weights: Tensor | None, n_heads: int) -> Tensor | None:
    """Weights (batch, head or 1, query) as the kernels take them."""
    if weights is None:
        return None
    weights = weights.detach().float().expand(-1, n_heads, -1)
    return _filled(weights.flatten(0, 1), 0.0)


def _filled(numbers: Tensor, filling: float) -> Tensor:
    padding = (0, -numbers.shape[-1] % FILL)
    return torch.nn.functional.pad(numbers, padding, value=filling).contiguous()


def by_keys(
    rows: Rows,
    lse: Tensor,
    delta: Tensor | None,
    *,
    weights: Tensor | None,
    kind: int,
    tile: Tile | None,
) -> dict[str, Tensor]:
    """The gradients "key" and "value" where there is a δ, "relevance_by_key" with a kind."""
    B, H, _, K, D = rows.shape
    beside = bool(kind) and delta is not None
    tile = tile or tile_of("key_value", rows.key.dtype, D, cells=rows.cells, relevance=beside)
    found: dict[str, Tensor] = {}
    if delta is not None:
        found = {"key": torch.empty_like(rows.key), "value": torch.empty_like(rows.value)}
    if kind:
        found["relevance_by_key"] = lse.new_empty(B, H, K)
    outputs = tuple(found.get(name) for name in ("key", "value", "relevance_by_key"))
    with torch.cuda.device_of(lse):
        backward_key_value_kernel[(B * H * -(-K // tile.keys),)](
            rows.inputs(lse, delta, weights),
            rows.strides,
            outputs,
            tuple(_four(one)[:3] for one in outputs[:2]),
            rows.sizes,
            rows.scale,
            KIND=kind,
            **rows.constants(tile),
        )
    return found


def by_queries(
    rows: Rows, lse: Tensor, delta: Tensor, *, kind: int, tile: Tile | None
) -> dict[str, Tensor]:
    """The gradient "query", and "relevance_by_query" with a kind."""
    B, H, Q, _, D = rows.shape
    tile = tile or tile_of("query", rows.query.dtype, D, cells=rows.cells)
    found = {"query": torch.empty_like(rows.query)}
    if kind:
        found["relevance_by_query"] = lse.new_empty(B, H, Q)
    with torch.cuda.device_of(lse):
        backward_query_kernel[(B * H * -(-Q // tile.queries),)](
            rows.inputs(lse, delta),
            rows.strides,
            (found["query"], found.get("relevance_by_query")),
            (found["query"].stride()[:3],),
            rows.sizes,
            rows.scale,
            KIND=kind,
            **rows.constants(tile),
        )
    return found


def of_bias(rows: Rows, lse: Tensor, delta: Tensor, bias: Tensor, *, tile: Tile | None) -> Tensor:
    """The gradient of a bias in its own shape: summed over the axes along which it was 1."""
    B, H, Q, K, D = rows.shape
    tile = tile or tile_of("query", rows.query.dtype, D, cells=rows.cells)
    found = torch.empty(bias.shape, dtype=bias.dtype, device=bias.device)
    steps = (1, 1, tile.queries, tile.keys)
    blocks = [-(-size // step) for size, step in zip(bias.shape, steps, strict=True)]
    axes = zip(bias.shape, (B, H, Q, K), steps, strict=True)
    spans = tuple(whole if size == 1 else step for size, whole, step in axes)
    with torch.cuda.device_of(lse):
        backward_bias_kernel[(math.prod(blocks),)](
            rows.inputs(lse, delta),
            rows.strides,
            found,
            tuple(bias.shape),
            spans,
            rows.sizes,
            rows.scale,
            **rows.constants(tile),
        )
    return found
