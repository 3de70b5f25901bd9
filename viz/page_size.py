"""How large a page may become, and what it holds less of for that."""

from dataclasses import replace

from minibert.viz.example import Example
from minibert.viz.trace_example import Sentence
from minibert.viz.vectors import Holding, packed_values, value_size, vectors_size

__all__ = ["CODED", "Sources", "fitting_sources", "with_value"]

# A page is as large as this, or as so many bytes a token, before it holds less of the vectors.
_SMALL_PAGE, _BYTES_A_TOKEN = 500_000, 31_250
# Script, style and tokens, about.
_SHELL = 100_000

_NO_VALUE = (
    "The value vectors are left out, since the page would be above {room}; exact=(layer, head)"
    " puts in those of a head."
)
CODED = (
    "Query and key are rounded to hundredths of each vector's largest number, to keep the page"
    " small; exact=(layer, head) puts in those of a head as the model had them."
)

Sources = list[tuple[str, Sentence, Holding]]


def fitting_sources(sources: Sources) -> Sources:
    """The sources, with vectors in a byte a number where the page would be large in halves."""
    if _size_in_halves(sources) <= _room(sources):
        return sources
    return [(name, one, replace(holding, coded=True)) for name, one, holding in sources]


def _room(sources: Sources) -> int:
    """Bytes that a page of these sentences may take."""
    n_tokens = sum(len(sentence.labels) for _, sentence, _ in sources)
    return max(_SMALL_PAGE, n_tokens * _BYTES_A_TOKEN)


def _size_in_halves(sources: Sources) -> int:
    """Bytes of the page that holds query and key in half precision, about."""
    vectors = (
        vectors_size(holding, len(sentence.labels), sentence.trace.config)
        for _, sentence, holding in sources
        if holding.vectors
    )
    return sum(vectors, _SHELL)


def with_value(examples: list[Example], sources: Sources) -> list[Example]:
    """The examples, with value if the page stays small, else with a note."""
    if not any(holding.vectors for _, _, holding in sources):
        return examples
    room = _room(sources)
    size = _SHELL + sum(example.size for example in examples)
    size += sum(
        value_size(holding, len(sentence.labels), sentence.trace.config)
        for _, sentence, holding in sources
    )
    if size > room:
        note = _NO_VALUE.format(room=f"{room / 1e6:.1f} MB")
        return [example.with_blocks((), note) for example in examples]
    return [
        example.with_blocks(packed_values(sentence.vectors, holding, sentence.trace.config))
        for example, (_, sentence, holding) in zip(examples, sources, strict=True)
    ]
