"""One text in one model as a page holds it: what its header says, and its numbers.

Made from plain weights here and from a trace in trace_example.py; page.py puts several together.
"""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

from minibert.viz.inputs import Array, of_heads
from minibert.viz.labels import Label, label_columns, written_texts
from minibert.viz.payload import THUMBNAIL, Block, pack_layer, pack_thumbnails, pool

__all__ = ["Example", "needed_parts", "weights_example"]


@dataclass(frozen=True)
class Example:
    """A text in a model; `about` is the header of data.js but for its arrays."""

    about: dict[str, Any]
    blocks: tuple[Block, ...]

    @property
    def size(self) -> int:
        """Bytes of its numbers in a file."""
        return sum(len(block.data) for block in self.blocks)

    def written(self, index: int) -> dict[str, Any]:
        """The header of this example as the page's `index`-th."""
        names = (name for name, _ in self.named_blocks(index))
        arrays = zip(names, (block.entry for block in self.blocks), strict=True)
        return {**self.about, "arrays": [{**entry, "block": name} for name, entry in arrays]}

    def named_blocks(self, index: int) -> Iterator[tuple[str, str]]:
        """The name in the page, and the base64, of each block."""
        return ((f"e{index}-{block.name}", block.data) for block in self.blocks)

    def with_blocks(self, blocks: Sequence[Block], note: str = "") -> "Example":
        """The same with more numbers, or with a note."""
        notes = [*self.about["notes"], *([note] if note else [])]
        return replace(self, about={**self.about, "notes": notes}, blocks=(*self.blocks, *blocks))


def needed_parts(examples: Sequence[Example]) -> tuple[str, ...]:
    """The parts of `document.PARTS` that some example has the numbers for."""
    held = {block.entry["quantity"] for example in examples for block in example.blocks}
    vectors, layers = "query" in held, any(example.about["lens"] for example in examples)
    return ("page", *(["vectors"] if vectors else []), *(["layers"] if layers else []))


def weights_example(
    probs: dict[int, Array],
    labels: Sequence[Label],
    *,
    n_layers: int,
    heads: Sequence[int],
    key_labels: Sequence[Label] | None = None,
    name: str = "",
    model: str = "",
) -> Example:
    """Attention weights, (head, query, key) of each layer by its number, as an example."""
    n_heads = len(next(iter(probs.values())))
    shown = {layer: of_heads(weights, heads) for layer, weights in probs.items()}
    # Two at a time: compressing lets go of Python's lock.
    with ThreadPoolExecutor(2) as workers:
        blocks = list(workers.map(pack_layer, shown, shown.values()))
    triangle = all(block.entry["triangle"] for block in blocks)
    if max(next(iter(shown.values())).shape[1:]) > THUMBNAIL:
        # In front: the small pictures of all heads can be drawn before the rest is there.
        blocks.insert(0, pack_thumbnails([pool(weights) for weights in shown.values()]))
    about = {
        "causal": triangle,
        "cut": False,
        "edited": False,
        "heads": list(heads),
        "key_tokens": None if key_labels is None else label_columns(key_labels),
        "layers": list(probs),
        "lens": None,
        "model": model,
        "name": name,
        "notes": [],
        "scale": None,
        "sizes": {"d_head": None, "n_heads": n_heads, "n_layers": n_layers},
        "texts": [*written_texts(labels), *written_texts(key_labels or ())],
        "tokens": label_columns(labels),
    }
    return Example(about, tuple(blocks))
