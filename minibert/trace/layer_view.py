"""Reading one layer of a trace, or one head of it, and the same of its gradients.

What a norm divided by may have been written by an edit and then does not follow from the stream, so
whoever computes with a norm of a trace asks `divisors_of_layer` or `divisors_of_final`.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

from torch import Tensor

from minibert.errors import TraceError, check_index, did_you_mean, within_memory
from minibert.kernels.allowed_keys import AllowedKeys
from minibert.kernels.api import Statistics
from minibert.layers.config import Config
from minibert.layers.evaluation import EVERYTHING, Rows
from minibert.layers.layer import LayerPass, LayerQuantities, absent_because, layer_quantities
from minibert.layers.norms import Divisors, Norm, divisor, normed
from minibert.quantities import QUANTITIES, AttentionMask, Float, NormScale, Quantity
from minibert.trace.run import TracedModel

#: What type checkers accept and complete; a test holds it to the table.
LayerNames = Literal[
    "resid_pre", "attention_norm_scale", "query_input", "query_unrotated", "query", "key_input",
    "key_unrotated", "key", "value_input", "value", "scores", "probs", "z", "head_out", "attn_out",
    "attention_output_norm_scale", "resid_mid", "mlp_norm_scale", "mlp_gate", "mlp_pre", "mlp_post",
    "mlp_out", "mlp_output_norm_scale", "resid_post",
]  # fmt: skip

if TYPE_CHECKING:
    LayerName = LayerNames
    MatrixName = Literal["scores", "probs"]
else:
    # Checked below, with an error that lists the names; a run-time type checker must not get in
    # before it.
    LayerName = MatrixName = object


class AbsentError(TraceError, AttributeError):
    """A name that cannot be read here; an AttributeError too, so that hasattr works."""


@runtime_checkable
class Readable(Protocol):
    """What a view reads from: a trace, or its gradients."""

    @property
    def config(self) -> Config:
        """The model's sizes and choices."""

    def read(self, name: str, layer: int, heads: slice = ..., queries: slice = ...) -> Tensor:
        """A quantity of one layer, its head axis still there, cut to the chosen heads and rows."""


@runtime_checkable
class ReadableTrace(Readable, Protocol):
    """A trace as its layers and its gradients see it."""

    model: TracedModel
    records: list[dict[str, Tensor]]
    kept: dict[str, Tensor]
    differentiable: bool

    @property
    def allowed(self) -> AllowedKeys:
        """Which keys each query may see."""

    def layer_statistics(self, layer: int) -> Statistics:
        """The statistics that the pass gave for a layer."""

    def at(self, layer: int, heads: slice = ..., queries: Rows = ...) -> LayerPass:
        """One layer of the trace, to be read lazily."""

    def as_made(self) -> AbstractContextManager[object]:
        """torch.autocast as it was when the pass ran."""


class LayerView(LayerQuantities):
    """The quantities of one layer, or of one head (then the head axis is gone), or their gradients.

    What a name means is for the `read` of the trace, or of the gradients, that this belongs to.
    """

    def __init__(self, trace: Any, layer: int, head: int | None) -> None:
        self.trace = trace
        self.layer = layer
        self.head = head
        self._heads = EVERYTHING if head is None else slice(head, head + 1)

    @within_memory
    def read_quantity(self, quantity: Quantity[Tensor]) -> Tensor:
        """The quantity, read from the trace."""
        if quantity.name in self.trace.config.absent_in(self.layer):
            raise AbsentError(absent_because(quantity.name, self.trace.config))
        return self._drop_head(quantity, self.trace.read(quantity.name, self.layer, self._heads))

    def quantity(self, name: str) -> Tensor:
        """The quantity of that name."""
        return self.read_quantity(layer_quantity(name))

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            if name.startswith("_"):
                raise AttributeError(name)
            known = getattr(type(self), name, None)
            # A property is asked again for what it says about being absent.
            return known.__get__(self) if isinstance(known, property) else self.quantity(name)

    def __dir__(self) -> list[str]:
        here = set(layer_quantities(self.trace.config)) - self.trace.config.absent_in(self.layer)
        return [*super().__dir__(), *here]

    def __repr__(self) -> str:
        where = (
            f"layer {self.layer}" if self.head is None else f"layer {self.layer}, head {self.head}"
        )
        return f"<{where} of {self.trace!r}>"

    @within_memory
    def window(
        self, name: MatrixName, *, queries: slice = EVERYTHING, keys: slice = EVERYTHING
    ) -> Float[Tensor, "batch *head query key"]:
        """scores or probs of some rows and columns; only those rows are ever computed.

        Raises TraceError for a quantity that is not a matrix.
        """
        quantity = layer_quantity(name)
        if "query" not in quantity.axes:
            raise TraceError(f"{name} has no rows and columns; scores and probs have.")
        _check_slice("queries", queries)
        _check_slice("keys", keys)
        rows = self.trace.read(name, self.layer, self._heads, queries)
        return self._drop_head(quantity, rows)[..., keys]

    def _drop_head(self, quantity: Quantity[Tensor], value: Tensor) -> Tensor:
        return value[:, 0] if self.head is not None and quantity.per_head else value


class LayerTrace(LayerView):
    """The quantities of one layer of a trace, or of one head."""

    trace: ReadableTrace

    @property
    def statistics(self) -> Statistics:
        """What the pass gave beside z, as `model.trace(..., statistics=...)` asked.

        The fields are described in `minibert.kernels.api.Statistics`; of one head they have no
        head axis. Raises AbsentError for a trace that was made without statistics.
        """
        found = self.trace.layer_statistics(self.layer)
        if self.head is None:
            return found
        numbers = {each.name: getattr(found, each.name) for each in fields(found)}
        return Statistics(
            **{name: n if n is None else n[:, self.head] for name, n in numbers.items()}
        )

    @property
    def mask(self) -> AttentionMask:
        """True where this layer allows attention, its window included: (batch, 1, query, key)."""
        allowed = self.trace.allowed
        if allowed.packed is not None:
            raise TraceError("mask of packed sentences: read trace.text(i)[layer].mask.")
        return replace(allowed, window=self.trace.config.window(self.layer)).full()

    def product(self, query: int) -> Float[Tensor, "batch *head key d_head"]:
        """query[i] * key, element by element: what the dot product of each score sums up."""
        if self.trace.allowed.packed is not None:
            raise TraceError("product of packed sentences: read trace.text(i)[layer].product(i).")
        index = check_index("query", query, self.trace.allowed.position)
        heads = slice(0, self.trace.config.n_heads) if self.head is None else self._heads
        rows = self.trace.read("query", self.layer, heads)[:, :, index, None]
        product = rows * self.trace.read("key", self.layer, heads)
        return self._drop_head(QUANTITIES["key"], product)


def layer_quantity(name: object) -> Quantity[Tensor]:
    """The Quantity of that name; AbsentError for a name that no layer has."""
    found = QUANTITIES.get(name) if isinstance(name, str) else None
    if found is None:
        names = ", ".join(layer_quantities())
        raise AbsentError(
            f"{name!r} is not a quantity of a layer{did_you_mean(name, QUANTITIES)}; there are "
            f"{names}. "
            "See docs/reading.md#the-names"
        )
    if not found.per_layer:
        raise AbsentError(f"{name} belongs to the whole trace: read trace.{name}.")
    return found


def _check_slice(name: str, given: object) -> None:
    try:
        if isinstance(given, slice) and (given.step or 1) > 0:
            given.indices(1)
            return
    except TypeError:
        pass
    raise TraceError(f"{name}={given!r:.80}: expected a slice of whole numbers, as slice(3, 5).")


def place_of(where: object, config: Config) -> tuple[int, int | None]:
    """The layer and head of `trace[layer]` or `trace[layer, head]`, counted from the front."""
    return place_in(where, config.n_layers, lambda layer: config.n_heads)


def place_in(
    where: object, n_layers: int, heads_of: Callable[[int], int]
) -> tuple[int, int | None]:
    """The same in so many layers; `heads_of` a layer says how many heads it has."""
    if isinstance(where, tuple) and len(where) != 2:
        raise TraceError(
            f"trace[{', '.join(map(str, where))}]: expected trace[layer] or trace[layer, head]."
        )
    layer, head = where if isinstance(where, tuple) else (where, None)
    layer = check_index("layer", layer, n_layers)
    return layer, None if head is None else check_index("head", head, heads_of(layer))


Stream = Float[Tensor, "batch position width"]


def kept_scale(at: LayerTrace, norm: str) -> NormScale | None:
    """What this norm of a layer divided by, where the pass kept it, as it does for an edit."""
    records = at.trace.records
    return records[at.layer].get(f"{norm}_scale") if at.layer < len(records) else None


def divisors_of_layer(at: LayerTrace, norm: str, x: Stream) -> Divisors | None:
    """What this norm divided x by, and what it would have; None where both are the same."""
    scale = kept_scale(at, norm)
    return None if scale is None else (scale, divisor(_norm(at, norm), x))


def divisors_of_final(trace: ReadableTrace, last: Stream) -> Divisors | None:
    """The same of the norm behind the layers, of the last resid_post."""
    # Asked first: without an edit a stored trace needs no weights here.
    if (scale := trace.kept.get("final_norm_scale")) is None:
        return None
    norm = trace.model.body.final_norm
    assert norm is not None, "only a model with this norm keeps its scale"
    return scale, divisor(norm, last)


def normed_in_layer(at: LayerTrace, norm: str, x: Stream) -> Stream:
    """x as this norm of the layer gave it on."""
    return normed(_norm(at, norm), x, divisors_of_layer(at, norm, x))


def _norm(at: LayerTrace, name: str) -> Norm:
    norm: Norm = getattr(at.trace.model.body.layers[at.layer], name)
    return norm
