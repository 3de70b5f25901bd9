"""Which keys a query sees, and what is done to a score: one function each, for every kernel.

`sight` is the mask in numbers: a query at position p sees the keys from low(p) up to high(p). Both
grow with p. So a block of queries, from the first position to the last, has something to look at
from low(first) to high(last), and needs no mask from low(last) to high(first). `seers` says the
same of a key and the positions that see it. A mask in memory comes on top, cell by cell.

`counts` are the (queries, keys, real keys) of a head, rows and columns positions of queries and
keys with shapes that go together: a tile's, or one key for each row. Of transposed tiles rows are
along the second axis, and the same lines hold.
"""

from typing import no_type_check

import triton
import triton.language as tl

from minibert.kernels.fused.primitives import LOG2E, NOTHING, load_cells


@triton.jit
@no_type_check
def sight(inputs, sizes, batch, rows, counts, CAUSAL: tl.constexpr):
    """The first key that each row sees, and the key after the last."""
    n_queries, n_keys, n_real = counts
    position = rows + (n_keys - n_queries)
    low, high = 0, n_real
    if CAUSAL and inputs.prefix is not None:
        prefix = tl.load(inputs.prefix + batch).to(tl.int32)
        high = tl.minimum(high, tl.maximum(position + 1, prefix))
    elif CAUSAL:
        high = tl.minimum(high, position + 1)
    if sizes.before is not None:
        low = tl.maximum(position - sizes.before, 0)
    if sizes.after is not None:
        high = tl.minimum(high, position + sizes.after + 1)
    return low, high


@triton.jit
@no_type_check
def seers(inputs, sizes, batch, columns, counts, CAUSAL: tl.constexpr):
    """The first row that sees each real key, and the row after the last."""
    row = columns - (counts[1] - counts[0])
    low, high = 0, counts[0]
    if CAUSAL and inputs.prefix is not None:
        prefix = tl.load(inputs.prefix + batch).to(tl.int32)
        low = tl.where(columns < prefix, 0, tl.maximum(row, 0))
    elif CAUSAL:
        low = tl.maximum(row, 0)
    if sizes.after is not None:
        low = tl.maximum(low, row - sizes.after)
    if sizes.before is not None:
        high = tl.minimum(high, tl.maximum(row + sizes.before + 1, 0))
    return low, high


@triton.jit
@no_type_check
def key_range(inputs, sizes, batch, first, last, counts, CAUSAL: tl.constexpr):
    """For the rows first … last: (begin, full, whole, stop).

    Some of the keys in begin … stop are seen; those in full … whole by all of these rows. Rows
    beyond the last query see nothing.
    """
    begin, whole = sight(inputs, sizes, batch, first, counts, CAUSAL)
    full, stop = sight(inputs, sizes, batch, last, counts, CAUSAL)
    if CAUSAL or sizes.after is not None:
        whole, stop = tl.maximum(whole, 0), tl.maximum(stop, 0)
    there = first < counts[0]
    return begin, full, tl.where(there, whole, 0), tl.where(there, stop, 0)


@triton.jit
@no_type_check
def query_range(inputs, sizes, batch, first, last, counts, CAUSAL: tl.constexpr):
    """For the keys first … last: (begin, full, whole, stop).

    Some of the rows in begin … stop see one of these keys; those in full … whole see all of them,
    as far as they are real. No row sees keys that begin beyond the last real one.
    """
    begin, whole = seers(inputs, sizes, batch, first, counts, CAUSAL)
    full, stop = seers(inputs, sizes, batch, tl.minimum(last, counts[2] - 1), counts, CAUSAL)
    there = first < counts[2]
    return begin, full, tl.where(there, whole, 0), tl.where(there, stop, 0)


@triton.jit
@no_type_check
def whole_blocks(span, BLOCK: tl.constexpr, BEGINS: tl.constexpr = True):
    """A range with its inner limits at whole blocks, counted from 0.

    Masks are needed in begin … full and in whole … stop, where there may be nothing. BEGINS says
    that the range may begin after 0, and with a mask.
    """
    begin, full, whole, stop = span
    whole = whole // BLOCK * BLOCK
    if BEGINS:
        begin = begin // BLOCK * BLOCK
        full = (full + BLOCK - 1) // BLOCK * BLOCK
        # Without a block that everything sees, all of them are of the last kind.
        nothing = full > whole
        full, whole = tl.where(nothing, begin, full), tl.where(nothing, begin, whole)
    return begin, full, whole, stop


@triton.jit
@no_type_check
def in_reach(inputs, sizes, batch, rows, columns, counts, CAUSAL: tl.constexpr):
    """True where the position of a query lets it look at a key."""
    low, high = sight(inputs, sizes, batch, rows, counts, CAUSAL)
    seen = columns < high
    if sizes.before is not None:
        seen = seen & (columns >= low)
    return seen


@triton.jit
@no_type_check
def allowed(inputs, strides, sizes, batch, head, rows, columns, counts, CAUSAL: tl.constexpr):
    """True where the query may look at the key, by position and by the mask in memory."""
    seen = in_reach(inputs, sizes, batch, rows, columns, counts, CAUSAL)
    if inputs.mask is not None:
        inside = seen & (rows < counts[0])
        cells = load_cells(inputs.mask, strides.mask, batch, head, rows, columns, inside)
        seen = seen & (cells != 0)
    return seen


@triton.jit
@no_type_check
def tanh(x):
    """To the last places of float32, also near 0."""
    size = tl.abs(x)
    far = 1.0 - 2.0 / (tl.math.exp2(size * (2.0 * LOG2E)) + 1.0)
    # Near 0 the difference from 1 has few places left. x + x^3·P(x^2), P fitted by least squares in
    # float64: 4.5e-9 of tanh at most below 0.625.
    square = size * size
    near = -0.00570404 * square + 0.02063786
    near = near * square - 0.05373916
    near = near * square + 0.13331432
    near = near * square - 0.33333281
    far = tl.where(size < 0.625, size + size * square * near, far)
    return tl.where(x < 0.0, -far, far)


@triton.jit
@no_type_check
def shaped_score(
    products, scale, inputs, strides, sizes, batch, head, rows, columns, counts,
    CAUSAL: tl.constexpr,
):  # fmt: skip
    """The scores in base 2 of products query·key: scaled, capped, with bias and ALiBi.

    A bias is read where the position allows a cell; of other cells nothing is promised.
    Sources: Press et al. 2022 (ALiBi); Gemma Team 2024, "Gemma 2" (soft cap).
    """
    if inputs.soft_cap is not None:
        scores = tanh(products * (scale / inputs.soft_cap)) * (inputs.soft_cap * LOG2E)
    else:
        scores = products * (scale * LOG2E)
    if inputs.bias is not None:
        inside = in_reach(inputs, sizes, batch, rows, columns, counts, CAUSAL) & (rows < counts[0])
        bias = load_cells(inputs.bias, strides.bias, batch, head, rows, columns, inside)
        scores += bias.to(tl.float32) * LOG2E
    if inputs.slopes is not None:
        slope = tl.load(inputs.slopes + batch * strides.slopes[0] + head * strides.slopes[1])
        distance = tl.abs(rows + (counts[1] - counts[0]) - columns)
        scores -= (slope * LOG2E) * distance.to(tl.float32)
    return scores


@triton.jit
@no_type_check
def masked_scores(
    products, scale, inputs, strides, sizes, place, rows, columns, counts, CAUSAL: tl.constexpr
):
    """The shaped scores in base 2, NOTHING where the query may not look at the key."""
    batch, head = place // sizes.n_heads, place % sizes.n_heads
    scores = shaped_score(
        products, scale, inputs, strides, sizes, batch, head, rows, columns, counts, CAUSAL
    )
    seen = allowed(inputs, strides, sizes, batch, head, rows, columns, counts, CAUSAL)
    return tl.where(seen, scores, NOTHING)


@triton.jit
@no_type_check
def tile_scores(
    products, scale, inputs, strides, sizes, place, rows, columns, counts, EDGE: tl.constexpr,
    CAUSAL: tl.constexpr,
):  # fmt: skip
    """The scores of a tile, masked where EDGE says so, and their remaining factor."""
    SHAPED: tl.constexpr = inputs.soft_cap is not None or inputs.slopes is not None
    if EDGE:
        return masked_scores(
            products, scale, inputs, strides, sizes, place, rows, columns, counts, CAUSAL
        ), 1.0
    elif SHAPED:
        batch, head = place // sizes.n_heads, place % sizes.n_heads
        return shaped_score(
            products, scale, inputs, strides, sizes, batch, head, rows, columns, counts, CAUSAL
        ), 1.0
    else:
        return products, scale * LOG2E
