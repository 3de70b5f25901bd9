"""Reading one layer of a trace, or one head of it.

Place: `trace[layer]` and `trace[layer, head]` give a LayerTrace, and `trace.grad[layer]` a
LayerView; the formulas are in formulas.py and gradients.py.
"""

import operator
from typing import Any

from torch import Tensor

from minibert.errors import TraceError
from minibert.layers.config import Config
from minibert.quantities import (
    QUANTITIES,
    Float,
    HeadVectors,
    Hidden,
    Matrix,
    Mlp,
    PerHeadHidden,
    Quantity,
)
from minibert.trace.formulas import EVERYTHING, FORMULAS

__all__ = ["AbsentError", "LayerTrace", "LayerView", "check_index", "layer_quantity", "place_of"]


class AbsentError(TraceError, AttributeError):
    """A name that cannot be read here; an AttributeError too, so that hasattr works."""


class LayerView:
    """The quantities of one layer, or of one head (then the head axis is gone), or their gradients.

    What a name means is for the `read` of the trace, or of the gradients, that this belongs to.
    """

    resid_pre: Hidden
    query: HeadVectors
    key: HeadVectors
    value: HeadVectors
    scores: Matrix
    probs: Matrix
    z: HeadVectors
    head_out: PerHeadHidden
    attn_out: Hidden
    resid_mid: Hidden
    mlp_pre: Mlp
    mlp_post: Mlp
    mlp_out: Hidden
    resid_post: Hidden

    def __init__(self, trace: Any, layer: int, head: int | None) -> None:
        self.trace = trace
        self.layer = layer
        self.head = head
        self._heads = EVERYTHING if head is None else slice(head, head + 1)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        quantity = layer_quantity(name)
        return self._drop_head(quantity, self.trace.read(name, self.layer, self._heads))

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *FORMULAS]

    def __repr__(self) -> str:
        where = (
            f"layer {self.layer}" if self.head is None else f"layer {self.layer}, head {self.head}"
        )
        return f"<{where} of {self.trace!r}>"

    def window(
        self, name: str, *, queries: slice = EVERYTHING, keys: slice = EVERYTHING
    ) -> Float[Tensor, "batch *head query key"]:
        """scores or probs of some rows and columns; only those rows are ever computed.

        Raises TraceError for a quantity that is no matrix.
        """
        quantity = layer_quantity(name)
        if "query" not in quantity.axes:
            raise TraceError(f"{name} has no rows and columns; scores and probs have.")
        _check_slice("queries", queries)
        _check_slice("keys", keys)
        rows = self.trace.read(name, self.layer, self._heads, queries)
        return self._drop_head(quantity, rows)[..., keys]

    def _drop_head(self, quantity: Quantity, value: Tensor) -> Tensor:
        return value[:, 0] if self.head is not None and quantity.per_head else value


class LayerTrace(LayerView):
    """The quantities of one layer of a trace, or of one head."""

    def product(self, query: int) -> Float[Tensor, "batch *head key d_head"]:
        """query[i] * key, element by element: what the dot product of each score sums up."""
        index = check_index("query", query, self.trace.allowed.position)
        rows = self.trace.read("query", self.layer, self._heads)[:, :, index, None]
        product = rows * self.trace.read("key", self.layer, self._heads)
        return self._drop_head(QUANTITIES["key"], product)


def layer_quantity(name: Any) -> Quantity:
    """The Quantity of that name; AbsentError for a name that no layer has."""
    if isinstance(name, str) and name in FORMULAS:
        return QUANTITIES[name]
    if isinstance(name, str) and name in QUANTITIES:
        raise AbsentError(f"{name} belongs to the whole trace: read trace.{name}.")
    raise AbsentError(f"{name!r} is no quantity of a layer; there are {', '.join(FORMULAS)}.")


def _check_slice(name: str, given: Any) -> None:
    try:
        if isinstance(given, slice) and (given.step or 1) > 0:
            given.indices(1)
            return
    except TypeError:
        pass
    raise TraceError(f"{name}={given!r:.80}: expected a slice of whole numbers, as slice(3, 5).")


def place_of(where: Any, config: Config) -> tuple[int, int | None]:
    """The layer and head of `trace[layer]` or `trace[layer, head]`, counted from the front."""
    if isinstance(where, tuple) and len(where) != 2:
        raise TraceError(
            f"trace[{', '.join(map(str, where))}]: expected trace[layer] or trace[layer, head]."
        )
    layer, head = where if isinstance(where, tuple) else (where, None)
    layer = check_index("layer", layer, config.n_layers)
    return layer, None if head is None else check_index("head", head, config.n_heads)


def check_index(what: str, given: Any, size: int) -> int:
    """The index, counted from the front; TraceError when it is none of 0 to size - 1."""
    try:
        # A bool counts as a number to Python, and one layer for True is nobody's wish.
        index = None if isinstance(given, bool) else operator.index(given)
    except TypeError:
        index = None
    if index is None:
        raise TraceError(f"{what} {given!r:.80}: expected a whole number from 0 to {size - 1}.")
    if not -size <= index < size:
        raise TraceError(f"There is no {what} {index}; expected 0 to {size - 1}.")
    return index % size
