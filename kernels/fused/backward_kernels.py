"""The kernels of the backward: δ, and the gradients of query, key and value.

P = exp(s − lse) is computed again, tile by tile. dz is the gradient of z. For each query, δ is the
sum of dz·z over d_value minus the gradient of lse:

    dP = dz·valueᵀ      dS = P ∘ (dP − δ)      dC = dS ∘ (1 − tanh²(s/c)) with a soft cap c, or dS
    d value = Pᵀ·dz     d key = scale·dCᵀ·query     d query = scale·dC·key

A sink has no value, so that its dP is 0: d sink = −Σ exp(sink − lse)·δ over the queries.

As in FlashAttention-2 (Dao 2023, §3.1) a program owns a block of keys and walks over the queries,
or owns a block of queries and walks over the keys. The keys of a group of query heads belong to one
program, which takes the heads one after the other. So no two programs add to the same number, and
results are the same each time, bit by bit.

`launch.py` has the named tuples, `masks.py` the scores and who sees whom. A tile is (query, key).
In programs that own keys it is transposed, (key, query): then the tile is the left operand, which
the matrix instructions take from registers. `rows` and `columns` are positions of queries and keys
with an axis of size 1 added, so the same lines work for both forms.

lse (in base 2) and δ lie filled: each head of each sentence has whole blocks of FILL
queries, so that they are read without a mask. Where a row is dead or not there, lse is so large
that P is 0.

`no_type_check` keeps the shape checker of the tests out of functions that Triton compiles.
"""

from typing import no_type_check

import triton
import triton.language as tl

from minibert.kernels.fused.masks import (
    in_reach,
    key_range,
    query_range,
    seers,
    shaped_score,
    tanh,
    whole_blocks,
)
from minibert.kernels.fused.primitives import (
    LOG2E,
    block_offsets,
    head_start,
    head_view,
    load_cells,
    load_rows,
    row_start,
)

#: The number of queries is rounded up to a multiple of this; every tile size divides it.
FILL = tl.constexpr(128)


@triton.jit
@no_type_check
def head_rows(vectors, strides, starts, batch, head):
    """Where the vectors of one head begin; `starts` are those of packed sentences, or None."""
    begin = vectors + head_start(strides, batch, head)
    if starts is not None:
        begin += tl.load(starts + batch) * strides[2]
    return begin


@triton.jit
@no_type_check
def filled_start(inputs, sizes, batch, head):
    """Where lse and δ of one head begin.

    Of packed sentences sentence b begins at the block start // FILL + b: as blocks are rounded up,
    each sentence needs one more than its tokens fill, at most.
    """
    if inputs.starts is None:
        return tl.cast(batch * sizes.n_heads + head, tl.int64) * sizes.n_filled
    else:
        block = tl.load(inputs.starts + batch) // FILL + batch
        return tl.cast(head, tl.int64) * sizes.n_filled + block * FILL


@triton.jit
@no_type_check
def rows_from(
    vectors, stride, first, n_rows, D_HEAD: tl.constexpr, ROWS: tl.constexpr,
    COLUMNS: tl.constexpr, EDGE: tl.constexpr,
):  # fmt: skip
    """ROWS vectors of a head from `first` on, (ROWS, COLUMNS); 0 beyond D_HEAD.

    With EDGE 0 beyond n_rows as well; without, all of them are there.
    """
    # The first row in 64 bits: a million rows times their stride do not fit 32.
    start = tl.cast(first, tl.int64) * stride
    offsets = block_offsets(stride, ROWS, COLUMNS)
    return load_rows(vectors + start, offsets, n_rows - first, D_HEAD, ROWS, COLUMNS, EDGE)


@triton.jit
@no_type_check
def store_tile(vectors, stride, tile, first, n_rows, D_HEAD: tl.constexpr):
    """Rounds a (ROWS, COLUMNS) tile and writes the part of it inside n_rows and D_HEAD."""
    start = tl.cast(first, tl.int64) * stride
    inside = (first + tl.arange(0, tile.shape[0]) < n_rows)[:, None]
    if tile.shape[1] != D_HEAD:
        inside = inside & (tl.arange(0, tile.shape[1]) < D_HEAD)[None, :]
    offsets = block_offsets(stride, tile.shape[0], tile.shape[1])
    tl.store(vectors + start + offsets, tile.to(vectors.dtype.element_ty), mask=inside)


@triton.jit
@no_type_check
def probabilities(
    products, lse, rows, columns, counts, inputs, strides, sizes, batch, head, scale,
    CAUSAL: tl.constexpr, EDGE: tl.constexpr,
):  # fmt: skip
    """P = 2^(score − lse), both in base 2; 0 where the query may not look at the key.

    Of tiles that are not EDGE no position forbids a cell, which only the mask in memory can.
    """
    scores = shaped_score(
        products, scale, inputs, strides, sizes, batch, head, rows, columns, counts, CAUSAL
    )
    probs = tl.math.exp2(scores - lse)
    if EDGE:
        seen = in_sight(inputs, sizes, batch, rows, columns, counts, CAUSAL)
        probs = tl.where(seen, probs, 0.0)
    if inputs.mask is not None:
        inside = (columns < counts[2]) & (rows < counts[0])
        seen = load_cells(inputs.mask, strides.mask, batch, head, rows, columns, inside)
        probs = tl.where(seen != 0, probs, 0.0)
    return probs


@triton.jit
@no_type_check
def in_sight(inputs, sizes, batch, rows, columns, counts, CAUSAL: tl.constexpr):
    """True where the position of a query lets it look at a key.

    In a transposed tile a thread has more queries than keys, and the limits of its keys stay the
    same from turn to turn. There keys beyond the length count as real.
    """
    TRANSPOSED: tl.constexpr = rows.shape[0] == 1
    if TRANSPOSED:
        low, high = seers(inputs, sizes, batch, columns, counts, CAUSAL)
        seen = rows >= low
        if sizes.before is not None:
            seen = seen & (rows < high)
    else:
        seen = in_reach(inputs, sizes, batch, rows, columns, counts, CAUSAL)
    return seen


@triton.jit
@no_type_check
def cap_slope(score_gradient, products, scale, inputs):
    """dS past the soft cap c·tanh(s/c), whose slope is 1 − tanh²."""
    if inputs.soft_cap is not None:
        capped = tanh(products * (scale / inputs.soft_cap))
        score_gradient *= 1.0 - capped * capped
    return score_gradient


@triton.jit
@no_type_check
def whole_query_blocks(span, n_queries, BLOCK: tl.constexpr):
    """The range of `masks.query_range` with its inner limits at whole blocks, counted from 0.

    Positions forbid cells in begin … full and in whole … stop alone.
    """
    begin, full, whole, stop = span
    begin = begin // BLOCK * BLOCK
    full = (full + BLOCK - 1) // BLOCK * BLOCK
    # Behind the last query P is 0, so the last block is a whole one, however few it has.
    filled = tl.where(whole == n_queries, whole + (BLOCK - 1), whole)
    whole = filled // BLOCK * BLOCK
    # Without a block that sees everything, all of them are of the last kind.
    nothing = full > whole
    full, whole = tl.where(nothing, begin, full), tl.where(nothing, begin, whole)
    return begin, full, whole, tl.maximum(stop, whole)


@triton.jit
@no_type_check
def turn_of(at, full, whole, TWO_EDGES: tl.constexpr):
    """The block of a turn of the loop over both edges, which leaves out full … whole."""
    if TWO_EDGES:
        at += tl.where(at >= full, whole - full, 0)
    return at


@triton.jit
@no_type_check
def backward_delta_kernel(
    inputs, rows, strides, sizes, D_VALUE: tl.constexpr, BLOCK_V: tl.constexpr,
    BLOCK_M: tl.constexpr,
):  # fmt: skip
    """Fills lse (in base 2) and δ of `inputs` from what the forward gave for each row.

    `rows` is a `backward.Rows`. Of a sink it writes what this block of queries adds to its
    gradient.
    """
    pair, first = tl.program_id(0) // sizes.n_blocks, tl.program_id(0) % sizes.n_blocks * BLOCK_M
    batch, head = pair // sizes.n_heads, pair % sizes.n_heads
    _, counts = head_view(inputs, strides, sizes, pair)
    queries = first + tl.arange(0, BLOCK_M)
    there = queries < counts[0]
    given = row_start(inputs, sizes, pair) + queries
    filled = filled_start(inputs, sizes, batch, head) + queries
    # A sentence that is shorter than the longest one has no place for more blocks.
    owned = queries < tl.cdiv(counts[0], BLOCK_M) * BLOCK_M
    logs = tl.load(rows.lse + given, mask=there, other=float("-inf"))
    dead = logs == float("-inf")
    logs = tl.where(dead, 1e30, logs * LOG2E)
    tl.store(inputs.lse + filled, logs, mask=owned)
    z = head_rows(rows.z, strides.z, inputs.starts, batch, head)
    dz = head_rows(inputs.z_gradient, strides.z_gradient, inputs.starts, batch, head)
    z_tile = rows_from(z, strides.z[2], first, counts[0], D_VALUE, BLOCK_M, BLOCK_V, True)
    dz_tile = rows_from(
        dz, strides.z_gradient[2], first, counts[0], D_VALUE, BLOCK_M, BLOCK_V, True
    )
    sums = tl.sum(z_tile.to(tl.float32) * dz_tile.to(tl.float32), axis=1)
    if rows.lse_gradient is not None:
        sums -= tl.load(rows.lse_gradient + given, mask=there, other=0.0)
    sums = tl.where(dead, 0.0, sums)
    tl.store(inputs.delta + filled, sums, mask=owned)
    if rows.sink_parts is not None:
        sink = tl.load(inputs.sinks + head) * LOG2E
        tl.store(
            rows.sink_parts + tl.program_id(0), -tl.sum(tl.math.exp2(sink - logs) * sums, axis=0)
        )


@triton.jit
@no_type_check
def over_keys(
    query_tile, dz_tile, numbers, d_query, head, inputs, strides, sizes, place, counts, scale, span,
    first_query, D_HEAD: tl.constexpr, D_VALUE: tl.constexpr, CAUSAL: tl.constexpr,
    EDGE: tl.constexpr, BLOCK_N: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """d query of a block of queries, without the scale, with what these keys add."""
    logs, delta = numbers
    BLOCK_D: tl.constexpr = query_tile.shape[1]
    BLOCK_V: tl.constexpr = dz_tile.shape[1]
    rows = first_query + tl.arange(0, query_tile.shape[0])[:, None]
    first, last, full, whole = span
    # At an edge there are one or two turns, so there is little to load ahead; without it wgmma is
    # not serialised. float32, which has no matrix instruction, would spill.
    SHORT: tl.constexpr = EDGE and query_tile.dtype != tl.float32
    for turn in tl.range(first, last, BLOCK_N, num_stages=1 if SHORT else None):
        key = turn_of(turn, full, whole, EDGE and sizes.before is not None)
        columns = key + tl.arange(0, BLOCK_N)[None, :]
        key_tile = rows_from(
            head[1], strides.key[2], key, counts[2], D_HEAD, BLOCK_N, BLOCK_D, EDGE
        )
        value_tile = rows_from(
            head[2], strides.value[2], key, counts[2], D_VALUE, BLOCK_N, BLOCK_V, EDGE
        )
        products = tl.dot(query_tile, tl.trans(key_tile), input_precision=PRECISION)
        probs = probabilities(
            products, logs, rows, columns, counts,
            inputs, strides, sizes, place[0], place[1], scale, CAUSAL, EDGE,
        )  # fmt: skip
        d_probs = tl.dot(dz_tile, tl.trans(value_tile), input_precision=PRECISION)
        d_scores = cap_slope(probs * (d_probs - delta), products, scale, inputs)
        d_query = tl.dot(d_scores.to(key_tile.dtype), key_tile, d_query, input_precision=PRECISION)
    return d_query


@triton.jit
@no_type_check
def backward_query_kernel(
    inputs, strides, output, output_strides, sizes, scale,
    CAUSAL: tl.constexpr, PRECISION: tl.constexpr, D_HEAD: tl.constexpr, BLOCK_D: tl.constexpr,
    D_VALUE: tl.constexpr, BLOCK_V: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """d query of one block of queries."""
    pair, block = tl.program_id(0) // sizes.n_blocks, tl.program_id(0) % sizes.n_blocks
    if CAUSAL:
        # The longest rows first, so that no program is left working alone at the end.
        block = sizes.n_blocks - 1 - block
    first = block * BLOCK_M
    place = (pair // sizes.n_heads, pair % sizes.n_heads)
    head, counts = head_view(inputs, strides, sizes, pair)
    n_queries = counts[0]
    dz = head_rows(inputs.z_gradient, strides.z_gradient, inputs.starts, place[0], place[1])
    query_tile = rows_from(
        head[0], strides.query[2], first, n_queries, D_HEAD, BLOCK_M, BLOCK_D, True
    )
    dz_tile = rows_from(
        dz, strides.z_gradient[2], first, n_queries, D_VALUE, BLOCK_M, BLOCK_V, True
    )
    queries = first + tl.arange(0, BLOCK_M)
    there = (queries < tl.cdiv(n_queries, BLOCK_M) * BLOCK_M)[:, None]
    at = filled_start(inputs, sizes, place[0], place[1]) + queries[:, None]
    if inputs.starts is None:
        numbers = (tl.load(inputs.lse + at), tl.load(inputs.delta + at))
    else:
        # A sentence that is shorter than the longest one has no place for more blocks.
        numbers = (
            tl.load(inputs.lse + at, mask=there, other=1e30),
            tl.load(inputs.delta + at, mask=there, other=0.0),
        )
    seen = key_range(inputs, sizes, place[0], first, first + (BLOCK_M - 1), counts, CAUSAL)
    begin, full, whole, stop = whole_blocks(seen, BLOCK_N)
    d_query = tl.zeros((BLOCK_M, BLOCK_D), tl.float32)
    span = (full, whole, full, whole)
    d_query = over_keys(
        query_tile, dz_tile, numbers, d_query, head, inputs, strides, sizes, place, counts, scale,
        span, first, D_HEAD, D_VALUE, False, False, BLOCK_N, PRECISION,
    )  # fmt: skip
    if sizes.before is None:
        span = (whole, stop, full, whole)
    else:
        span = (begin, full + (stop - whole), full, whole)
    d_query = over_keys(
        query_tile, dz_tile, numbers, d_query, head, inputs, strides, sizes, place, counts, scale,
        span, first, D_HEAD, D_VALUE, CAUSAL, True, BLOCK_N, PRECISION,
    )  # fmt: skip
    to_query = head_rows(output, output_strides, inputs.starts, place[0], place[1])
    store_tile(to_query, output_strides[2], d_query * scale, first, n_queries, D_HEAD)


@triton.jit
@no_type_check
def over_queries(
    key_tile, value_tile, sums, inputs, strides, sizes, place, counts, scale, span, first_key,
    D_HEAD: tl.constexpr, D_VALUE: tl.constexpr, CAUSAL: tl.constexpr, EDGE: tl.constexpr,
    BLOCK_M: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """`sums` of a block of keys, d key (without the scale) and d value, grown.

    The length plays no part: a key beyond it spoils its own row alone, which the caller drops.
    """
    d_key, d_value = sums
    batch, head = place
    query = head_rows(inputs.query, strides.query, inputs.starts, batch, head)
    dz = head_rows(inputs.z_gradient, strides.z_gradient, inputs.starts, batch, head)
    begin, n_queries = filled_start(inputs, sizes, batch, head), counts[0]
    columns = first_key + tl.arange(0, key_tile.shape[0])[:, None]
    first, last, full, whole = span
    counts = (n_queries, counts[1], counts[1])
    for turn in range(first, last, BLOCK_M):
        row = turn_of(turn, full, whole, EDGE and sizes.before is not None)
        rows = row + tl.arange(0, BLOCK_M)[None, :]
        at = begin + rows
        query_tile = rows_from(
            query, strides.query[2], row, n_queries, D_HEAD, BLOCK_M, key_tile.shape[1], True
        )
        dz_tile = rows_from(
            dz, strides.z_gradient[2], row, n_queries, D_VALUE, BLOCK_M, value_tile.shape[1], True
        )
        products = tl.dot(key_tile, tl.trans(query_tile), input_precision=PRECISION)
        probs = probabilities(
            products, tl.load(inputs.lse + at), rows, columns, counts,
            inputs, strides, sizes, batch, head, scale, CAUSAL, EDGE,
        )  # fmt: skip
        d_probs = tl.dot(value_tile, tl.trans(dz_tile), input_precision=PRECISION)
        rounded = probs.to(dz_tile.dtype)
        d_value = tl.dot(rounded, dz_tile, d_value, input_precision=PRECISION)
        d_scores = probs * (d_probs - tl.load(inputs.delta + at))
        rounded = cap_slope(d_scores, products, scale, inputs).to(query_tile.dtype)
        d_key = tl.dot(rounded, query_tile, d_key, input_precision=PRECISION)
    return d_key, d_value


@triton.jit
@no_type_check
def over_head(
    key_tile, value_tile, sums, inputs, strides, sizes, place, counts, scale, first_key,
    D_HEAD: tl.constexpr, D_VALUE: tl.constexpr, CAUSAL: tl.constexpr, BLOCK_M: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """`sums` of `over_queries` with what one query head adds."""
    KEYS: tl.constexpr = key_tile.shape[0]
    ORDERED: tl.constexpr = CAUSAL or sizes.before is not None or sizes.after is not None
    if ORDERED:
        seen = query_range(
            inputs, sizes, place[0], first_key, first_key + (KEYS - 1), counts, CAUSAL
        )
        begin, full, whole, stop = whole_query_blocks(seen, counts[0], BLOCK_M)
        span = (begin, full + (stop - whole), full, whole)
        sums = over_queries(
            key_tile, value_tile, sums, inputs, strides, sizes, place, counts, scale, span,
            first_key, D_HEAD, D_VALUE, CAUSAL, True, BLOCK_M, PRECISION,
        )  # fmt: skip
        span = (full, whole, full, whole)
    else:
        # No query attends to a block of padding.
        span = (0, tl.where(first_key < counts[2], counts[0], 0), 0, 0)
    return over_queries(
        key_tile, value_tile, sums, inputs, strides, sizes, place, counts, scale, span,
        first_key, D_HEAD, D_VALUE, False, False, BLOCK_M, PRECISION,
    )  # fmt: skip


@triton.jit
@no_type_check
def backward_key_value_kernel(
    inputs, strides, outputs, output_strides, sizes, scale,
    CAUSAL: tl.constexpr, PRECISION: tl.constexpr, D_HEAD: tl.constexpr, BLOCK_D: tl.constexpr,
    D_VALUE: tl.constexpr, BLOCK_V: tl.constexpr, GROUPED: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """`outputs` of one block of keys: d key and d value."""
    pair, first_key = tl.program_id(0) // sizes.n_blocks, tl.program_id(0) % sizes.n_blocks
    first_key *= BLOCK_N
    n_key_heads = sizes.n_heads
    if GROUPED:
        n_key_heads = sizes.n_heads // sizes.group
    batch, key_head = pair // n_key_heads, pair % n_key_heads
    first_head = key_head
    if GROUPED:
        first_head = key_head * sizes.group
    head, counts = head_view(inputs, strides, sizes, batch * sizes.n_heads + first_head)
    n_keys = counts[1]
    key_tile = rows_from(head[1], strides.key[2], first_key, n_keys, D_HEAD, BLOCK_N, BLOCK_D, True)
    value_tile = rows_from(
        head[2], strides.value[2], first_key, n_keys, D_VALUE, BLOCK_N, BLOCK_V, True
    )
    sums = (tl.zeros((BLOCK_N, BLOCK_D), tl.float32), tl.zeros((BLOCK_N, BLOCK_V), tl.float32))
    if GROUPED:
        for query_head in range(first_head, first_head + sizes.group):
            sums = over_head(
                key_tile, value_tile, sums, inputs, strides, sizes, (batch, query_head), counts,
                scale, first_key, D_HEAD, D_VALUE, CAUSAL, BLOCK_M, PRECISION,
            )  # fmt: skip
    else:
        sums = over_head(
            key_tile, value_tile, sums, inputs, strides, sizes, (batch, first_head), counts, scale,
            first_key, D_HEAD, D_VALUE, CAUSAL, BLOCK_M, PRECISION,
        )  # fmt: skip
    real = (first_key + tl.arange(0, BLOCK_N) < counts[2])[:, None]
    starts = inputs.starts if inputs.key_starts is None else inputs.key_starts
    to_key = head_rows(outputs[0], output_strides[0], starts, batch, key_head)
    to_value = head_rows(outputs[1], output_strides[1], starts, batch, key_head)
    d_key = tl.where(real, sums[0] * scale, 0.0)
    d_value = tl.where(real, sums[1], 0.0)
    store_tile(to_key, output_strides[0][2], d_key, first_key, n_keys, D_HEAD)
    store_tile(to_value, output_strides[1][2], d_value, first_key, n_keys, D_VALUE)
