"""What is measured: programs, views, sizes, and what a page holds."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

MINIBERT, BERTVIZ = "minibert", "BertViz"

# What a page of minibert holds: what `trace.view()` puts in without options (query and key, and
# value while the file stays below 8 MB), or what was asked for. BertViz' always hold weights.
DEFAULT = "default"
WEIGHTS = "weights only"
THUMBNAILS = "thumbnails"

SIZES = ((12, 12), (24, 16))
LENGTHS = (16, 64, 128, 256, 512)
# From this length on the small page is one of thumbnails, and no longer one of weights.
LONG = 512
QUICK_SIZES, QUICK_LENGTHS = ((2, 3),), (8, 16)

COMPARED = ("head", "model")
OTHERS = ("map", "text", "neuron", "arithmetic")


@dataclass(frozen=True)
class Shape:
    """How much attention there is."""

    layers: int
    heads: int
    tokens: int

    @property
    def weights(self) -> int:
        """Numbers that are given."""
        return self.layers * self.heads * self.tokens**2

    def __str__(self) -> str:
        """As rows are named: 12x12 T128."""
        return f"{self.layers}x{self.heads} T{self.tokens}"


@dataclass(frozen=True)
class Case:
    """One row: a view of a program's page at a size."""

    program: str
    view: str
    shape: Shape
    holds: str

    def __str__(self) -> str:
        """What --rows is matched against."""
        return f"{self.program} {self.view} {self.shape} {self.holds}"

    @property
    def file(self) -> tuple[str, str, Shape, str]:
        """Cases of one file are equal in this: minibert's page has all views, BertViz' has one."""
        return (self.program, self.view if self.program == BERTVIZ else "", self.shape, self.holds)


def cases(
    *,
    quick: bool = False,
    sizes: tuple[tuple[int, int], ...] | None = None,
    lengths: tuple[int, ...] | None = None,
    wanted: re.Pattern[str] | None = None,
) -> list[Case]:
    """All rows in the order they are measured: short texts first, what fails there fails early."""
    sizes = sizes or (QUICK_SIZES if quick else SIZES)
    lengths = lengths or (QUICK_LENGTHS if quick else LENGTHS)
    planned = [
        case
        for layers, heads in sizes
        for tokens in sorted(lengths)
        for case in of_shape(Shape(layers, heads, tokens))
    ]
    return [case for case in planned if wanted is None or wanted.search(str(case))]


def of_shape(shape: Shape) -> Iterator[Case]:
    """The rows of one size, those of one file together."""
    for view in (*COMPARED, *OTHERS):
        yield Case(MINIBERT, view, shape, DEFAULT)
    if shape.tokens >= LONG:
        yield Case(MINIBERT, "model", shape, THUMBNAILS)
    else:
        for view in COMPARED:
            yield Case(MINIBERT, view, shape, WEIGHTS)
    for view in COMPARED:
        yield Case(BERTVIZ, view, shape, WEIGHTS)
