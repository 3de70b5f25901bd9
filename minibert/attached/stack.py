"""Reading one stack of a live model's layers: a layer, or a head of it, by minibert's names."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor, nn

from minibert.attached.call import EVERY_ROW, Call, Mask
from minibert.attached.layout import READABLE
from minibert.errors import EditError, TraceError
from minibert.kernels.api import Attended, Statistics, attend
from minibert.layers.finite import check_computed
from minibert.quantities import Float, Quantity
from minibert.trace.edit import Point, in_layers
from minibert.trace.layer_view import AbsentError, LayerView, place_in
from minibert.trace.places import Places

NAMES = ("lse", *(each.name for each in fields(Statistics)))


class LazyStatistics:
    """The statistics of a layer or a head, each computed when it is read.

    `statistics.entropy` is one of them; `statistics(("entropy", ("key_mass", (0,))))` computes
    several in one pass and takes parameters, as `minibert.attend(want=...)` does. What each is
    says `minibert.kernels.api.Statistics`; of one head they have no head axis. `lse` is there too.

    Rows of padding, where the model was given an attention_mask, count as rows without a key.
    Raises TraceError where an edit changed scores or probs: read `probs` there.
    """

    def __init__(self, call: Call, head: int | None) -> None:
        self._call, self._head = call, head

    def __call__(self, want: Iterable[object]) -> Statistics:
        """Those that `want` names."""
        found = attended(self._call, want).statistics or Statistics()
        numbers = {each.name: getattr(found, each.name) for each in fields(found)}
        return Statistics(**{name: self._of_head(one) for name, one in numbers.items()})

    def __getattr__(self, name: str) -> Tensor:
        if name == "lse":
            return self._of_head(attended(self._call, ()).lse)
        if name not in NAMES:
            raise AbsentError(f"{name!r} is not a statistic; there are {', '.join(NAMES)}.")
        return self._of_head(getattr(attended(self._call, (name,)).statistics, name))

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *NAMES]

    def _of_head(self, numbers: Any) -> Any:
        return numbers if numbers is None or self._head is None else numbers[:, self._head]


def attended(call: Call, want: Iterable[object]) -> Attended:
    """What `minibert.attend` gives for a call of a live model."""
    if call.matrices:
        raise TraceError(
            f"{' and '.join(call.matrices)} were edited here, and statistics are those of query "
            "and key. Compute what you need from .probs."
        )
    query, key, value = (call.read(name).detach() for name in ("query", "key", "value"))
    call.read("probs", rows=slice(0, 0))
    # Causal order that is all of a mask is a word to a kernel, and no N x N tensor.
    causal = call.mask is None and call.softens and query.shape[-2] == key.shape[-2]
    scale, mask = call.scale, Mask() if causal else call.mask_rows()
    if isinstance(scale, Tensor):
        query, scale = query * scale, 1.0
    allowed, bias = _four(mask.allowed), _four(mask.bias)
    if (more := _four(call.position_bias)) is not None:
        more = more[..., : key.shape[-2]]
        bias = more if bias is None else bias + more
    if call.real_queries is not None:
        real = call.real_queries[:, None, :, None]
        allowed = real if allowed is None else allowed & real
    sinks = call.sinks
    if sinks is not None:
        sinks = (sinks[0, :, 0, 0] if sinks.dim() == 4 else sinks).detach().flatten().to(query)
    bias = None if bias is None else bias.detach().to(query.dtype)
    batch = max(one.shape[0] for one in (query, key))
    query, key, value = (one.expand(batch, -1, -1, -1) for one in (query, key, value))
    with torch.no_grad():
        return attend(
            query, key, value, want=want, causal=causal, scale=float(scale),
            soft_cap=call.soft_cap, mask=allowed, bias=bias, sinks=sinks,
        )  # fmt: skip


def _four(matrix: Tensor | None) -> Tensor | None:
    return None if matrix is None else matrix[(None,) * (4 - matrix.dim())]


class AttachedLayer(LayerView):
    """The quantities of one layer of a live model, or of one head (then the head axis is gone).

    query, key, value, scores, probs, z and head_out, each computed when it is read. `key` and
    `value` of a layer have its key-value heads; of a head they are those that it reads.
    """

    trace: "StackTrace"

    @property
    def module(self) -> str:
        """The name of the attention module."""
        return self.trace.calls[self.layer][0]

    @property
    def statistics(self) -> LazyStatistics:
        """Numbers about the rows of probs, without the matrix: `statistics.entropy`."""
        return LazyStatistics(self.trace.calls[self.layer][1], self.head)

    @property
    def problem(self) -> str:
        """Why scores and probs cannot be read here; "" where they can."""
        return self.trace.calls[self.layer][1].untrue

    def read_quantity(self, quantity: Quantity[Tensor]) -> Tensor:
        """The quantity, read from the calls; the stack says what is not there."""
        found = self.trace.read(quantity.name, self.layer, self._heads)
        return self._drop_head(quantity, found)

    def __dir__(self) -> list[str]:
        return [*object.__dir__(self), *READABLE, "head_out"]

    def __repr__(self) -> str:
        return f"{super().__repr__()[:-1]}, {self.module}>"


@dataclass(frozen=True)
class StackTrace:
    """The layers of one stack in one pass: `stack[2].probs`, `stack[2, 5].z`."""

    name: str
    calls: Sequence[tuple[str, Call]]
    """Each with the name of its module."""
    model_name: str
    model: nn.Module | None = None
    ids: Tensor | None = None
    """(batch, position), where they are known."""
    texts: tuple[str, ...] = ()
    tokenizer: object = None

    def __len__(self) -> int:
        return len(self.calls)

    def __iter__(self) -> Iterator[AttachedLayer]:
        return (self[layer] for layer in range(len(self)))

    def __getitem__(self, where: int | tuple[int, int]) -> AttachedLayer:
        """The quantities of a layer, or of one head of a layer. Negative numbers count back."""
        place = place_in(where, len(self), lambda layer: self.calls[layer][1].n_heads)
        return AttachedLayer(self, *place)

    def read(
        self, name: str, layer: int, heads: slice = EVERY_ROW, queries: slice = EVERY_ROW
    ) -> Tensor:
        """A quantity of one layer, its head axis still there, cut to the chosen heads and rows.

        Raises AbsentError for another name, and TraceError where it is not known, with the reason.
        """
        if name not in (*READABLE, "head_out"):
            raise AbsentError(
                f"{name!r:.80} is not read from an attached model; there are "
                f"{', '.join(READABLE)}, head_out and statistics."
            )
        call = self.calls[layer][1]
        value = call.read(name, heads, queries)
        if name == "probs" and queries == EVERY_ROW:
            real = call.real_queries
            rows = value if real is None else value.transpose(1, 2)[real]
            check_computed(rows, f"probs of layer {layer}")
        return value

    def __repr__(self) -> str:
        query = self.calls[0][1].query
        return (
            f"{self.name} of {self.model_name}: {len(self)} layers x {query.shape[1]} heads, "
            f"batch {query.shape[0]}, {query.shape[2]} positions"
        )

    def stack(self, name: str) -> Float[Tensor, "layer batch *rest"]:
        """One quantity of all layers, the layer axis in front."""
        return torch.stack([layer.quantity(name) for layer in self])

    @property
    def attentions(self) -> tuple[Tensor, ...]:
        """probs of each layer, (batch, head, query, key): what BertViz' functions take."""
        return tuple(layer.probs.detach() for layer in self)

    def value_at(self, point: Point) -> Tensor:
        """The quantity at a point of an edit; a head of keys is a key-value head."""
        return in_layers(self, point)

    def shape_at(self, point: Point) -> tuple[int, ...]:
        """Its shape. Raises EditError where this trace has no such layer."""
        if point.layer is None or point.layer >= len(self):
            raise EditError(f"{point}: the trace to read from has {len(self)} layers.")
        return self.calls[point.layer][1].shape_of(point.name, point.heads)

    def places_at(self, point: Point) -> Places:
        """Which of its positions are tokens."""
        return self.calls[point.layer or 0][1].places(point.name)
