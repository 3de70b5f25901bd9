"""Attention and its statistics in blocks of rows: O(N) memory on any machine, no N x N tensor.

What a block is, and which keys it spares, is in `blocks.py`; the formulas are in `row_blocks.py`.
"""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from minibert.kernels.blocks import Inputs
from minibert.kernels.masks import Window
from minibert.kernels.packed_rows import attend_packed
from minibert.kernels.packing import sentence_by_sentence
from minibert.kernels.requests import Want
from minibert.kernels.row_blocks import attend_in_blocks
from minibert.quantities import Bool, Float, Int

__all__ = ["attend"]


def attend(
    query: Float[Tensor, "batch head query d_head"],
    key: Float[Tensor, "batch kv_head key d_head"],
    value: Float[Tensor, "batch kv_head key d_value"],
    *,
    lengths: Int[Tensor, " batch"] | None,
    mask: Bool[Tensor, "#batch #head #query #key"] | None,
    causal: bool,
    scale: float,
    bias: Float[Tensor, "#batch #head #query #key"] | None,
    want: Want,
    packed: Sequence[int] | None = None,
    packed_keys: Sequence[int] | None = None,
    window: Window | None = None,
    prefix: Int[Tensor, " sentence"] | None = None,
    soft_cap: float | None = None,
    alibi_slopes: Float[Tensor, "*#batch head"] | None = None,
    sinks: Float[Tensor, " head"] | None = None,
) -> dict[str, Tensor]:
    """z, lse and the wanted statistics in one pass; no gradient flows through it.

    Computed in float32, in float64 for float64. Keys outside a window are not read. Beside the
    outputs it holds two blocks of 2^20 numbers for each thread (2^18 where that is all of a head),
    2^22 at most, or of 16 rows where those are longer; the sums of each row and z of a block; and
    copies of the keys of some heads, with their queries and values where these are of several
    sentences, in half precision, or not contiguous in d_head. A map with cells of less than four
    rows takes a third block. The memory of blocks and copies is kept for the next call
    (`work_memory.release` gives it back).
    """
    options: dict[str, Any] = {"causal": causal, "window": window, "prefix": prefix}
    options |= {"soft_cap": soft_cap, "alibi_slopes": alibi_slopes, "sinks": sinks}
    if packed is None:
        inputs = Inputs(query, key, scale, lengths=lengths, mask=mask, bias=bias, **options)
        return attend_in_blocks(inputs, value, want)
    plain = packed_keys is None and query.shape[1] == key.shape[1] and key.shape == value.shape
    others = (one for name, one in options.items() if name != "causal")
    if plain and all(one is None for one in others):
        return attend_packed(
            query, key, value, packed=packed, causal=causal, scale=scale, want=want
        )
    options |= {"packed": packed, "packed_keys": packed_keys, "scale": scale, "want": want}
    return sentence_by_sentence(attend, query, key, value, **options)
