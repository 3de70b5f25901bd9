"""Less and less of an example, for a cell of a notebook: what is left out, and in which order.

value -> query and key in a byte a number -> query and key -> all but the largest weights of each
token -> all weights: an overview
"""

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from minibert.viz.example import Example
from minibert.viz.payload import (
    Array,
    Block,
    bytes_of,
    cells_of,
    encode_probs,
    pack_codes,
    with_remainders,
)
from minibert.viz.vectors import Coded, Looking, coded, key_head, pack_coded, rests_of

SAVED = "`.save(path)` writes a page with all of it."
_NO_VALUE = f"Left out here, to keep the notebook small: value. {SAVED}"
_CODED = (
    "Left out here, to keep the notebook small: value, and all but a byte a number of query and"
    f" key. {SAVED}"
)
_NO_VECTORS = f"Left out here, to keep the notebook small: query, key and value. {SAVED}"
_LARGEST = "Only the {count} largest weights of each token in each head are here, and no query, key"
_LARGEST += f" and value, to keep the notebook small. {SAVED}"
_OVERVIEW = f"Only the overview is here, to keep the notebook small. {SAVED}"
# So many weights of each token stay, tried in this order.
_COUNTS = (64, 16, 4)


def lessened(examples: tuple[Example, ...]) -> Iterator[tuple[Example, ...]]:
    """The examples as they are, then with less and less; each of them can be shown."""
    yield examples
    steps: list[Callable[[Example], Example]] = [_without_value, _in_bytes, _without_vectors]
    for step in steps:
        yield tuple(map(step, examples))
    for count in _COUNTS:
        yield tuple(_with_largest(example, count) for example in examples)
    tried = tuple(_overview(example) for example in examples)
    if all(example.blocks for example in tried):
        yield tried


def _named(block: Block, *names: str) -> bool:
    """True for a block of these quantities, or of the rests of them."""
    return block.entry["quantity"].removesuffix(" rest") in names


def _only(example: Example, blocks: list[Block], note: str) -> Example:
    return replace(example, blocks=tuple(blocks)).with_blocks((), note)


def _without(example: Example, names: tuple[str, ...], note: str) -> Example:
    kept = [block for block in example.blocks if not _named(block, *names)]
    return example if len(kept) == len(example.blocks) else _only(example, kept, note)


def _without_value(example: Example) -> Example:
    return _without(example, ("value",), _NO_VALUE)


def _in_bytes(example: Example) -> Example:
    """query and key in a byte a number, where weights are there that need not follow from them."""
    if not any(_named(block, "probs") for block in example.blocks):
        return _without_value(example)
    kept, smaller = [], False
    for block in example.blocks:
        codes = _in_codes(block)
        if codes is not None:
            kept.append(pack_coded(block.entry["quantity"], block.entry["layer"], codes))
        elif not _named(block, "query", "key", "value"):
            kept.append(block)
        smaller |= codes is not None
    return _only(example, kept, _CODED) if smaller else _without_value(example)


def _in_codes(block: Block) -> Coded | None:
    """query or key of all heads as codes; None for what is none, or is coded already."""
    plain = block.entry["coding"] == "plain" and block.entry["head"] is None
    return coded(_floats(block)) if plain and _named(block, "query", "key") else None


def _without_vectors(example: Example) -> Example:
    """Where weights are there; else they have to be computed first."""
    if not any(_named(block, "probs") for block in example.blocks):
        return _with_weights(example, lambda codes: codes, _NO_VECTORS)
    return _without(example, ("query", "key", "value"), _NO_VECTORS)


def _with_largest(example: Example, count: int) -> Example:
    return _with_weights(
        example, lambda codes: _largest(codes, count), _LARGEST.format(count=count)
    )


def _with_weights(example: Example, change: Callable[[Array], Array], note: str) -> Example:
    """The example with weights alone, each layer's codes changed; an overview stays one."""
    if not has_weights(example):
        return example
    changed = map(change, layers_of(example))
    weights = [pack_codes(*one) for one in zip(example.about["layers"], changed, strict=True)]
    kept = [block for block in example.blocks if _named(block, "thumbnails")]
    return _only(example, kept + weights, note)


def has_weights(example: Example) -> bool:
    """True where every layer has weights, or query and key that give them."""
    held = {(block.entry["quantity"], block.entry["layer"]) for block in example.blocks}
    layers, scale = example.about["layers"], example.about["scale"]
    from_vectors = scale is not None and all(("query", layer) in held for layer in layers)
    return from_vectors or all(("probs", layer) in held for layer in layers)


def layers_of(example: Example) -> Iterator[Array]:
    """The weights of each layer as codes, (head, query, key): those held, or else computed."""
    held = {block.entry["layer"]: block for block in example.blocks if _named(block, "probs")}
    for layer in example.about["layers"]:
        yield cells_of(held[layer]) if held else _computed(example, layer)


def _largest(codes: Array, count: int) -> Array:
    """The codes with all but the largest of each row at zero; of equal ones the first stay."""
    if codes.shape[-1] <= count:
        return codes
    kept = np.zeros_like(codes)
    for head, weights in enumerate(codes):
        places = np.argsort(255 - weights, axis=-1, kind="stable")[:, :count]
        np.put_along_axis(kept[head], places, np.take_along_axis(weights, places, -1), -1)
    return kept


def _overview(example: Example) -> Example:
    kept = [block for block in example.blocks if _named(block, "thumbnails")]
    return example if len(kept) == len(example.blocks) else _only(example, kept, _OVERVIEW)


def _floats(block: Block) -> Array:
    """query or key of a block, in single precision."""
    data, shape = bytes_of(block), block.entry["shape"]
    if block.entry["coding"] != "steps":
        kind = np.dtype(block.entry["dtype"]).newbyteorder("<")
        return np.frombuffer(data, kind).reshape(shape).astype(np.float32)
    n_codes = int(np.prod(shape))
    return np.frombuffer(data[-n_codes:], np.int8).reshape(shape) * _steps(block)


def _steps(block: Block) -> Array:
    """The steps of a block of codes, (head, position, 1)."""
    *places, _ = block.entry["shape"]
    halves = np.frombuffer(bytes_of(block), "<f2", count=int(np.prod(places)))
    return halves.astype(np.float32).reshape(*places, 1)


def _computed(example: Example, layer: int) -> Array:
    """The codes of a layer's weights, from query and key as the page holds them."""
    about = example.about
    looking, found = Looking.of_page(about, layer), []
    read = [key_head(about["sizes"], head) for head in about["heads"]]
    held = list(dict.fromkeys(read))
    for place, head in enumerate(about["heads"]):
        query = _vector(example, "query", layer, head, place)
        key = _vector(example, "key", layer, read[place], held.index(read[place]))
        scores = looking.scores(query @ key.T, np.arange(len(query)))
        exps = np.exp(scores - scores.max(-1, keepdims=True))
        found.append(encode_probs(exps / exps.sum(-1, keepdims=True)))
    return np.stack(found)


def _vector(example: Example, name: str, layer: int, head: int, place: int) -> Array:
    """query or key of a head, as its own block has it, or its layer's with what makes it finer."""
    own = _block(example, name, layer, head)
    if own:
        return _floats(own)
    whole = _block(example, name, layer, None)
    rest = _block(example, f"{name} rest", layer, head)
    if not whole:
        raise ValueError(f"the page holds no {name} of layer {layer}, head {head}")
    numbers = _floats(whole)[place]
    if not rest:
        return numbers
    if whole.entry["coding"] != "steps":
        return with_remainders(
            numbers, np.frombuffer(bytes_of(rest), np.int8).reshape(numbers.shape)
        )
    return _steps(whole)[place] * rests_of(rest) + numbers


def _block(example: Example, name: str, layer: int, head: int | None) -> Block | None:
    wanted = (name, layer, head)
    found = (
        block
        for block in example.blocks
        if (block.entry["quantity"], block.entry["layer"], block.entry["head"]) == wanted
    )
    return next(found, None)
