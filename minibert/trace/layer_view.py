"""Reading one layer of a trace, or one head of it, and the same of its gradients.

What a norm divided by may have been written by an edit and then does not follow from the stream, so
code that computes with a norm of a trace asks `divisors_of_layer` or `divisors_of_final`.

Autograd gives the gradients of what the forward pass held, in one backward pass and O(position)
memory. scores, probs and head_out are larger than that; their gradients are declared beside them
(layers/layer.py) and computed when they are read, for one layer or one head alone. A number may
also be made of quantities that are computed when they are read, such as one cell of probs. Then a
hook on what was read sees that direct part, and it is added.
"""

from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

import torch
from torch import Tensor

from minibert.errors import TraceError, check_index, did_you_mean, within_memory
from minibert.kernels.allowed_keys import AllowedKeys
from minibert.kernels.api import Statistics
from minibert.layers.config import Config
from minibert.layers.evaluation import EVERYTHING, Rows, cut
from minibert.layers.finite import check_computed
from minibert.layers.layer import (
    LayerGradients,
    LayerPass,
    LayerQuantities,
    absent_because,
    layer_quantities,
)
from minibert.layers.parts import Divisors, Norm, divisor, normed
from minibert.layers.readers import unread
from minibert.quantities import (
    QUANTITIES,
    AttentionMask,
    Float,
    Hidden,
    Logits,
    NormScale,
    Pooled,
    Quantity,
)
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
class ReadableTrace(Protocol):
    """A trace as its layers and its gradients see it."""

    records: list[dict[str, Tensor]]
    kept: dict[str, Tensor]
    differentiable: bool
    of_differentiable: bool
    collecting: "Found | None"

    def unchanged_model(self) -> TracedModel:
        """The model, as it was in the pass."""

    @property
    def config(self) -> Config:
        """The model's sizes and choices."""

    @property
    def allowed(self) -> AllowedKeys:
        """Which keys each query may see."""

    def read(self, name: str, layer: int, heads: slice = ..., queries: slice = ...) -> Tensor:
        """A quantity of one layer, its head axis still there, cut to the chosen heads and rows."""

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
        return Statistics(
            **{name: n if n is None else n[:, self.head] for name, n in vars(found).items()}
        )

    @property
    def mask(self) -> AttentionMask:
        """True where this layer allows attention, its window included: (batch, 1, query, key)."""
        allowed = self.trace.allowed
        if allowed.packed is not None:
            raise TraceError("mask of packed sentences: read trace.text(i)[layer].mask.")
        return replace(allowed, window=self.trace.config.window(self.layer)).full()


def layer_quantity(name: object) -> Quantity[Tensor]:
    """The Quantity of that name; AbsentError for a name that no layer has."""
    found = QUANTITIES.get(name) if isinstance(name, str) else None
    if found is None:
        names = ", ".join(layer_quantities())
        raise AbsentError(
            f"{name!r} is not a quantity of a layer{did_you_mean(name, QUANTITIES)}; there are "
            f"{names}. See docs/reading.md#the-names"
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
    """This place in a model of so many layers; `heads_of` gives the number of heads of a layer."""
    if isinstance(where, tuple) and len(where) != 2:
        raise TraceError(f"trace[{', '.join(map(str, where))}]: expected [layer] or [layer, head].")
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
    """The divisors of the norm after the layers, which reads the last resid_post."""
    # Asked first: without an edit a stored trace needs no weights here.
    if (scale := trace.kept.get("final_norm_scale")) is None:
        return None
    norm = trace.unchanged_model().body.final_norm
    assert norm is not None, "only a model with this norm keeps its scale"
    return scale, divisor(norm, last)


def normed_in_layer(at: LayerTrace, norm: str, x: Stream) -> Stream:
    """x as this norm of the layer gave it on."""
    return normed(_norm(at, norm), x, divisors_of_layer(at, norm, x))


def _norm(at: LayerTrace, name: str) -> Norm:
    norm: Norm = getattr(at.trace.unchanged_model().body.layers[at.layer], name)
    return norm


@dataclass(frozen=True, eq=False)
class Found:
    """What one backward pass found: gradients by name, of the whole trace and of these layers."""

    kept: dict[str, Tensor]
    records: list[dict[str, Tensor]]
    layers: Collection[int]
    direct: dict[tuple[int, str], Tensor] = field(default_factory=dict)
    """What the number has of a quantity by itself, not by way of what is computed from it."""

    def add_direct(self, place: "_Place", quantity: Quantity[Tensor], gradient: Tensor) -> None:
        """Add the direct part of a quantity that was read at this place."""
        where = place.layer, quantity.name
        if where not in self.direct:
            self.direct[where] = gradient.new_zeros(place.size)
        cut(self.direct[where], quantity, place.heads, place.rows, place.group).add_(gradient)


@dataclass(frozen=True)
class _Place:
    """Where in a layer something was read; `size` is that of the whole quantity.

    `group` heads share a key-value head.
    """

    layer: int
    heads: slice
    rows: Rows
    size: tuple[int, ...]
    group: int

    @classmethod
    def of(cls, at: LayerPass, quantity: Quantity[Tensor], value: Tensor) -> "_Place":
        """The place of a value that was read from a quantity."""
        attention = at.choices
        whole = {"head": attention.n_heads, "query": at.evaluation.allowed.position}
        whole["kv_head"] = attention.n_kv_heads
        sizes = zip(quantity.axes, value.shape, strict=True)
        size = tuple(whole.get(axis, n) for axis, n in sizes)
        return cls(at.index, at.heads, at.rows, size, attention.group)


class Gradients:
    """The gradient of a number by the names of a trace: `trace.grad[layer, head].probs`.

    Each quantity counts as a variable of its own: its gradient is how much the number grows with
    one entry of it when everything computed from it follows and nothing else does. So the
    gradient of probs, dz·valueᵀ, is there for masked entries too, as it would tell what attending
    there would do; that of scores is 0 there. Of an edited quantity it is the value after the
    edit that counts. Nothing here has a gradient of its own. Reading raises MinibertError for NaN
    and infinity.
    """

    def __init__(self, trace: ReadableTrace, found: Found) -> None:
        self.trace = trace
        self.found = found

    @property
    def config(self) -> Config:
        """The model's sizes and choices."""
        return self.trace.config

    @property
    def embed(self) -> Hidden:
        """The gradient of what enters layer 0."""
        return self._kept("embed")

    @property
    def logits(self) -> Logits:
        """The gradient of what the task head gives."""
        return self._kept("logits")

    @property
    def pooled(self) -> Pooled:
        """The gradient of what the pooler gives."""
        return self._kept("pooled")

    @property
    def final_norm_scale(self) -> NormScale:
        """The gradient of what the last norm divides by."""
        return self._kept("final_norm_scale")

    def _kept(self, name: str) -> Tensor:
        if name in self.config.absent_quantities:
            raise AbsentError(absent_because(name, self.config))
        if name == "embed":
            self._check_asked(0, "embed")
        if name not in self.found.kept:
            raise AbsentError(
                f"The gradient of {name} of packed sentences is one a sentence; trace without "
                "packed=True to read it."
            )
        check_computed(self.found.kept[name], f"gradient of {name}")
        return self.found.kept[name]

    def __len__(self) -> int:
        return len(self.found.records)

    def __iter__(self) -> Iterator[LayerView]:
        return (self[layer] for layer in range(len(self)))

    def __repr__(self) -> str:
        return f"<gradients of {self.trace!r}>"

    def __getitem__(self, where: int | tuple[int, int]) -> LayerView:
        """The gradients of a layer, or of one head of a layer. Negative numbers count back."""
        layer, head = place_of(where, self.config)
        self._check_asked(layer, f"layer {layer}")
        return LayerView(self, layer, head)

    def _check_asked(self, layer: int, what: str) -> None:
        if layer not in self.found.layers:
            raise AbsentError(
                f"There are no gradients of {what}: backward was called for layers "
                f"{', '.join(map(str, self.found.layers))}. Name {layer} in "
                "trace.backward(number, layers=...), or leave layers out."
            )

    def stack(self, name: LayerName) -> Float[Tensor, "layer batch *rest"]:
        """The gradients of one quantity of all layers, the layer axis in front."""
        return torch.stack([layer.quantity(name) for layer in self])

    def read(
        self, name: str, layer: int, heads: slice = slice(None), queries: slice = slice(None)
    ) -> Tensor:
        """A gradient in one layer, its head axis still there, cut to the heads and rows."""
        if self.trace.allowed.packed is not None and "query" in QUANTITIES[name].axes:
            raise TraceError(
                f"The gradient of {name} of packed sentences is one matrix a sentence; trace "
                "without packed=True to read it."
            )
        with torch.no_grad():
            with self.trace.as_made():
                at = _AtLayer(self, self.trace.at(layer, heads, queries))
                value: Tensor = getattr(at, name)
            check_computed(value, f"gradient of {name} of layer {layer}")
            return value


class _AtLayer(LayerGradients):
    """The gradients of one layer, next to the quantities themselves."""

    def __init__(self, gradients: Gradients, values: LayerPass) -> None:
        self.gradients = gradients
        self.values = values

    def read_quantity(self, quantity: Quantity[Tensor]) -> Tensor:
        """What autograd found, or the declared gradient and the direct part."""
        found, values = self.gradients.found, self.values
        held = found.records[values.index].get(quantity.name)
        if held is not None:
            return cut(held, quantity, values.heads, values.rows, values.choices.group)
        if quantity.gradient is None:
            raise AbsentError(
                f"There is no gradient of {quantity.name}: nothing is computed from it in layer "
                f"{values.index}, and the number does not depend on it."
            )
        gradient = quantity.gradient(self)
        direct = self.direct(quantity.name)
        return gradient if direct is None else gradient + direct

    def of_all_heads(self) -> "_AtLayer":
        """The gradients of all heads."""
        return _AtLayer(self.gradients, self.values.of_all_heads())

    def direct(self, name: str) -> Tensor | None:
        """The part that hooks on what was read saw, at the heads and rows here."""
        values = self.values
        direct = self.gradients.found.direct.get((values.index, name))
        if direct is None:
            return None
        group = values.choices.group
        return cut(direct, QUANTITIES[name], values.heads, values.rows, group)

    def below(self) -> Hidden:
        """The gradient of what left the layer below, or of the embeddings."""
        index = self.values.index
        return self.gradients.read("resid_post", index - 1) if index else self.gradients.embed


def held_for_gradients(config: Config, layer: int, edited: frozenset[str]) -> frozenset[str]:
    """The quantities of a layer that have to be part of the graph, where these are edited.

    All but those with a declared gradient. That one follows from the gradient of a quantity after
    it, which does not tell what an edit between the two does.
    """
    order = layer_quantities(config)
    names = list(order)
    held = set(names) - {"resid_pre"}
    for name, quantity in order.items():
        if quantity.gradient is None or name == "resid_pre":
            continue
        behind = names[names.index(name) :]
        last = min(behind.index(other) for other in quantity.gradient_from if other in behind)
        if edited.isdisjoint(behind[: last + 1]):
            held.discard(name)
    return frozenset(held) - config.absent_in(layer)


def watch(trace: ReadableTrace, at: LayerPass, quantity: Quantity[Tensor], value: Tensor) -> None:
    """Have the direct part of a quantity seen, if a number is made of what was read here."""
    held = trace.records[at.index]
    if not value.requires_grad or quantity.name == "resid_pre" or quantity.name in held:
        return

    # Of `at` only the place: it holds the value, which would hold itself by way of its hook.
    place = _Place.of(at, quantity, value)

    def remember(gradient: Tensor) -> None:
        if trace.collecting is not None:
            trace.collecting.add_direct(place, quantity, gradient)

    value.register_hook(remember)


def differentiate(
    trace: ReadableTrace, scalar: Tensor, layers: Collection[int] | None = None
) -> Found:
    """The gradients of a number with respect to what a trace kept, 0 where it does not depend.

    With `layers` autograd goes no further back than what enters the lowest of them.

    Raises TraceError for what is not a number, or does not come from this trace.
    """
    _check(trace, scalar)
    whole: dict[str, Tensor] = {}
    records: list[dict[str, Tensor]] = [{} for _ in trace.records]
    alone = [unread(trace.config, layer) for layer in range(len(records))]
    layers = range(len(records)) if layers is None else layers

    def is_asked(layer: int, name: str) -> bool:
        # What enters a layer is what left the one below, or embed.
        if name in ("embed", "resid_post") and layer + 1 in layers:
            return True
        return layer in layers or (layer == -1 and name != "embed")

    variables = [
        (found, name, value, name in idle)
        for layer, kept, found, idle in (
            (-1, trace.kept, whole, frozenset[str]()),
            *zip(range(len(records)), trace.records, records, alone, strict=True),
        )
        for name, value in kept.items()
        if value.requires_grad and is_asked(layer, name)
    ]
    trace.collecting = result = Found(whole, records, layers)
    try:
        gradients = _backward(scalar, [value for _, _, value, _ in variables])
    finally:
        trace.collecting = None
    for (found, name, value, idle), gradient in zip(variables, gradients, strict=True):
        if gradient is not None or not idle:
            found[name] = torch.zeros_like(value) if gradient is None else gradient
    return result


def _backward(scalar: Tensor, variables: list[Tensor]) -> tuple[Tensor | None, ...]:
    try:
        # Retained: the next number's gradients come from the same pass.
        gradients = torch.autograd.grad(scalar, variables, retain_graph=True, allow_unused=True)
    except RuntimeError as error:
        if "second time" not in str(error):
            raise
        raise TraceError(
            "This trace's graph was freed by another backward(). Trace again, and use "
            "trace.backward alone, or backward(retain_graph=True) before it."
        ) from error
    if all(gradient is None for gradient in gradients):
        raise TraceError(
            "This number does not come from this trace: compute it from trace.logits or from "
            "other quantities of the same trace; with layers=, of the lowest of them or above."
        )
    return gradients


def without_gradients(trace: ReadableTrace) -> str:
    """Why a trace that cannot be differentiated has no gradients, and what to do."""
    if trace.of_differentiable:
        return (
            "A text of a batch has no gradients of its own: call backward of the trace that text() "
            "was called on, and read that trace's grad."
        )
    return "This trace has no gradients: make it with model.trace(..., grad=True)."


def _check(trace: ReadableTrace, scalar: Tensor) -> None:
    if not trace.differentiable:
        raise TraceError(without_gradients(trace))
    if not isinstance(scalar, Tensor):
        raise TraceError(
            f"backward({type(scalar).__name__}): expected a tensor of one number, computed from "
            "this trace, such as trace.logits[0, -1, token]; .item() cuts the connection."
        )
    if scalar.numel() != 1:
        raise TraceError(
            f"backward: expected one number, found shape {tuple(scalar.shape)}. Pick an entry, or "
            "sum over several: sentences of a batch do not mix."
        )
    # A view that was made without gradients says that it requires one, and has no history.
    if not scalar.requires_grad or (scalar.grad_fn is None and scalar._is_view()):
        raise TraceError(
            f"backward: this number ({scalar.dtype}) has no connection to a trace: it was computed "
            "under torch.no_grad(), detached, or is not a floating-point number."
        )
