"""Doors: what a lower room asks of a higher one, by name.

Imports point one way, and a trace stands below its page, a result below its plot, a model below
the page that runs it. So each of them asks here, and the package itself, which knows every room,
says where the answer is (`minibert/__init__.py`). The room is imported when it is first asked.
"""

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypedDict, runtime_checkable

from minibert.errors import did_you_mean

if TYPE_CHECKING:
    import os

    from matplotlib.figure import Figure as Figure
else:
    # matplotlib is optional: a run-time type checker must not ask for it.
    Figure = object

View = Literal["head", "model", "neuron", "arithmetic", "map", "layers"]


class ViewOptions(TypedDict, total=False):
    """The options of `minibert.viz.view`, which says what they are."""

    view: View
    sentences: "Iterable[int] | None"
    layers: "Iterable[int] | None"
    heads: "Iterable[int] | None"
    vectors: bool
    exact: "bool | tuple[int, int] | Iterable[tuple[int, int]] | None"
    why: "bool | tuple[int, int] | Iterable[tuple[int, int]] | None"
    features: object
    lens: bool | None
    title: str | None


_homes: dict[str, tuple[str, str]] = {}


@runtime_checkable
class Page(Protocol):
    """Attention as one HTML file, which shows itself in a notebook; see `minibert.viz.Page`."""

    def pieces(self) -> Iterator[str]:
        """The text of the file, a part at a time."""

    @property
    def html(self) -> str:
        """The whole file as one text."""

    @property
    def size(self) -> int:
        """Bytes of the file."""

    def save(self, path: "str | os.PathLike[str]") -> Path:
        """The path of the file, now written whole or not at all."""


@runtime_checkable
class ScoreParts(Protocol):
    """One score as a sum over pairs of components; see `minibert.analysis.WhyScore`."""

    @property
    def total(self) -> float:
        """The sum of the parts."""

    def top(self, count: int = ...) -> list[tuple[str, str, float]]:
        """The largest pairs."""

    if TYPE_CHECKING:
        # The methods of WhyScore, which are declared there.
        def __getattr__(self, name: str) -> Callable[..., object]: ...


@runtime_checkable
class ServedPage(Protocol):
    """A page before a model, in a cell of a notebook, until `close()`."""

    height: int

    @property
    def address(self) -> str:
        """Where the page is, token included; a browser of this machine opens it."""

    def close(self) -> None:
        """End the server."""


Window = tuple[int, int] | None


@dataclass(frozen=True)
class PageSizes:
    """What a page asks of a config."""

    n_layers: int
    n_heads: int
    n_kv_heads: int
    d_head: int
    causal: bool
    scales: tuple[float, ...]
    windows: tuple[Window, ...]
    attention_soft_cap: float | None
    apart: str = ""
    """What the weights have beside query and key, where these do not give them; "" after edits."""

    def attention_scale(self, layer: int) -> float:
        """What the layer's dot products are multiplied by."""
        return self.scales[layer]

    def window(self, layer: int) -> Window:
        """How many keys before and after it a query of the layer sees; None: all."""
        return self.windows[layer]


def add_doors(module: str, names: Mapping[str, str]) -> None:
    """Declare doors into a module: the name of each door, and the name that it opens.

    The module is not imported before one of the doors is opened.
    """
    _homes.update({door: (module, name) for door, name in names.items()})


def opened(door: str) -> Any:
    """The object that a door opens, such as the function that makes a page of a trace."""
    module, name = _homes[door]
    return getattr(import_module(module), name)


def attributes(package: str, homes: Mapping[str, str]) -> Callable[[str], object]:
    """A package's `__getattr__`, which imports each name from its module when it is first used."""

    def attribute(name: str) -> object:
        if name not in homes:
            guess = did_you_mean(name, homes)
            raise AttributeError(f"module {package!r} has no attribute {name!r}{guess}")
        value = getattr(import_module(f"{package}.{homes[name]}"), name)
        setattr(sys.modules[package], name, value)
        return value

    return attribute
