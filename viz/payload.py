"""The numbers of a page as compact binary: what lies between a trace and the browser.

One block a layer, so that the browser unpacks only the layer that is looked at:

    probs (head, query, key) -> codes = round(255·sqrt(probs)) as uint8
                             -> the cells key <= query, when all others are zero
                             -> zlib -> digits
    query, key, value (head, position, d_head) -> float16 or float32 -> digits
    query, key of a head that float16 spoils -> what it takes away as int8 -> digits
    the same of a page that would be large -> vectors.py -> digits
    thumbnails: the largest code of each of at most 64 x 64 blocks of cells, of all layers

The square root spends the 256 steps where attention has its weights, near zero:
probs = (code / 255)^2 is at most sqrt(probs) / 255 + 1 / 255^2 / 4 from the truth, which is
below 4e-3 everywhere and below 4e-4 for probs under one percent.
"""

import base64
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from minibert.untrusted import Json

Array = np.ndarray
"""Numbers; which axes and precision stands where they are used."""

CODE_MAX = 255
# Blocks a side of a thumbnail: more than a picture of it has pixels.
THUMBNAIL = 64
# Steps of a remainder in the last place of a half.
_REST = 256
# Weights repeat nothing but zeros: searching for more takes ten times as long and saves nothing.
_SEARCH = zlib.Z_RLE


@dataclass(frozen=True)
class Block:
    """One array of a page: its name in its example, how to read it, and its bytes in digits."""

    name: str
    entry: Json
    data: str


def encode_probs(probs: Array) -> Array:
    """Probabilities as uint8, square-root coded: round(255·sqrt(probs)).

    (code / 255)^2 differs from probs by at most 4e-3. Values outside [0, 1], as rounding in
    half precision leaves them, are clipped.
    """
    codes = np.empty(probs.shape, np.uint8)
    # A part at a time: a layer of a long text in single precision is four times its codes.
    for head in np.ndindex(probs.shape[:-2]):
        root = np.clip(probs[head], 0.0, 1.0, dtype=np.float32)
        np.sqrt(root, out=root)
        root *= CODE_MAX
        codes[head] = np.rint(root, out=root)
    return codes


def pack_layer(layer: int, probs: Array) -> Block:
    """The probabilities of one layer, (head, query, key), square-root coded."""
    return pack_codes(layer, encode_probs(probs))


def pack_codes(layer: int, codes: Array) -> Block:
    """Pack a layer from its codes."""
    triangle = is_triangle(codes)
    _, n_queries, n_keys = codes.shape
    cells = codes[:, *np.tril_indices(n_queries, 0, n_keys)] if triangle else codes
    return block_of(
        f"probs-{layer}",
        cells,
        quantity="probs",
        layer=layer,
        shape=codes.shape,
        coding="sqrt",
        triangle=triangle,
    )


def cells_of(block: Block) -> Array:
    """The codes of a block of `pack_layer` or `pack_thumbnails`, read back."""
    entry = block.entry
    cells = np.frombuffer(bytes_of(block), np.uint8)
    if not entry["triangle"]:
        return cells.reshape(entry["shape"])
    n_heads, n_queries, n_keys = entry["shape"]
    codes = np.zeros(entry["shape"], np.uint8)
    codes[:, *np.tril_indices(n_queries, 0, n_keys)] = cells.reshape(n_heads, -1)
    return codes


def bytes_of(block: Block) -> bytes:
    """The bytes of a block, inflated where they are packed."""
    data = base64.b85decode(block.data.translate(str.maketrans(",:./", "<>&`")))
    return zlib.decompress(data) if block.entry["packing"] == "deflate" else data


def is_triangle(weights: Array) -> bool:
    """True where no query looks ahead: all cells key > query are zero, and both are as many."""
    _, n_queries, n_keys = weights.shape
    if n_queries != n_keys or weights[:, 0, 1:].any():
        return False
    rows, columns = np.tril_indices(n_queries)
    return int(np.count_nonzero(weights)) == int(np.count_nonzero(weights[:, rows, columns]))


def pack_vectors(
    name: str, layer: int, vectors: Array, *, head: int | None = None, single: bool = False
) -> Block:
    """query, key or value of one layer, (head, position, d_head), as float16.

    With `head`, of that head alone, (position, d_head), as float32; `single` gives that of all.
    """
    exact = single or head is not None
    where = f"{layer}" if head is None else f"{layer}-{head}"
    return block_of(
        f"{name}-{where}",
        vectors.astype(np.float32 if exact else np.float16, copy=False),
        quantity=name,
        layer=layer,
        head=head,
        shape=vectors.shape,
        # The last bits of such numbers look random: packing takes long and saves little.
        packing="none",
    )


def remainders(vectors: Array) -> Array:
    """What rounding to half precision takes away, in 256ths of the last place of each half."""
    half = vectors.astype(np.float16)
    steps = np.spacing(np.abs(half)).astype(np.float32) / _REST
    return np.clip(np.rint((vectors - half) / steps), -_REST // 2, _REST // 2 - 1).astype(np.int8)


def refined(vectors: Array) -> Array:
    """The vectors as halves and remainders give them: 2^-20 of their size from the truth."""
    return with_remainders(vectors.astype(np.float16), remainders(vectors))


def with_remainders(halves: Array, rests: Array) -> Array:
    """Halves, in any precision, with what `remainders` found that rounding took from them."""
    half = halves.astype(np.float16)
    steps = np.spacing(np.abs(half)).astype(np.float32) / np.float32(_REST)
    return half + rests * steps


def pack_remainders(name: str, layer: int, head: int, vectors: Array) -> Block:
    """What `pack_vectors` of the layer leaves of one head, (position, d_head), as int8."""
    return block_of(
        f"{name}-rest-{layer}-{head}",
        remainders(vectors),
        quantity=f"{name} rest",
        layer=layer,
        head=head,
        shape=vectors.shape,
        packing="none",
    )


def pack_thumbnails(pooled: Sequence[Array]) -> Block:
    """What `pool` left of each layer, as (layer, head, row, column), square-root coded."""
    codes = encode_probs(np.stack(pooled))
    return block_of("thumbnails", codes, quantity="thumbnails", shape=codes.shape, coding="sqrt")


def pool(weights: Array, size: int = THUMBNAIL) -> Array:
    """The largest weight of each block of cells, at most `size` blocks a side, along the last axes.

    Block i begins at cell floor(i * length / size); a side of up to `size` cells stays as it is.
    """
    for axis in (-2, -1):
        length = weights.shape[axis]
        if length > size:
            starts = np.arange(size + 1) * length // size
            last, starts = starts[1:] - 1, starts[:-1]
            pooled = weights.take(starts, axis)
            # One cell of every block at a time: five times as fast as ufunc.reduceat.
            for offset in range(1, -(-length // size)):
                cells = weights.take(np.minimum(starts + offset, last), axis)
                np.maximum(pooled, cells, out=pooled)
            weights = pooled
    return weights


def block_of(
    name: str,
    numbers: Array,
    *,
    quantity: str,
    shape: Sequence[int],
    layer: int | None = None,
    head: int | None = None,
    coding: str = "plain",
    packing: str = "deflate",
    triangle: bool = False,
    search: int = _SEARCH,
) -> Block:
    """One array as a block, its bytes little-endian; the arguments are the entry of data.js.

    `search` is zlib's strategy: by default only zeros are expected to repeat.
    """
    data = np.ascontiguousarray(numbers, numbers.dtype.newbyteorder("<")).data
    if packing == "deflate":
        packing_up = zlib.compressobj(strategy=search)
        data = memoryview(packing_up.compress(data) + packing_up.flush())
    entry = {
        "block": name,
        "coding": coding,
        "dtype": str(numbers.dtype),
        "head": head,
        "layer": layer,
        "packing": packing,
        "quantity": quantity,
        "shape": list(shape),
        "triangle": triangle,
    }
    return Block(name, entry, digits(data))


# Those of RFC 1924, but for four that mean something in HTML or in its attributes.
_DIGITS = np.frombuffer(
    b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%.()*+-;,=:?@^_/{|}~",
    np.uint8,
)
# Bytes, a multiple of four.
_AT_ONCE = 2**16


def digits(data: bytes | memoryview) -> str:
    """Bytes as text that means nothing to HTML or JSON: five digits are four bytes.

    Base64 takes 5.3 characters for them.
    """
    content = memoryview(data).cast("B")
    # A part at a time: numbers of all groups take twice the room of the text.
    parts = (content[i : i + _AT_ONCE] for i in range(0, len(content), _AT_ONCE))
    return "".join(map(_written, parts))


def _written(content: memoryview) -> str:
    missing = -len(content) % 4
    groups = np.frombuffer(bytes(content) + bytes(missing), ">u4").astype(np.uint32)
    found = np.empty((len(groups), 5), np.uint8)
    for place in reversed(range(5)):
        groups, digit = np.divmod(groups, np.uint32(85))
        found[:, place] = _DIGITS[digit]
    text = found.tobytes().decode("ascii")
    return text[: len(text) - missing]
