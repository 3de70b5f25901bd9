"""Reading one stack of a live model's layers: a layer, or a head of it, by minibert's names."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor, nn

from minibert.attached.call import EVERY_ROW, Call, Mask
from minibert.attached.layout import READABLE
from minibert.errors import TraceError, check_index
from minibert.kernels.api import Attended, Statistics, attend
from minibert.layers.finite import check_computed
from minibert.quantities import Float
from minibert.trace.layer_view import AbsentError

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
            raise AbsentError(f"{name!r} is no statistic; there are {', '.join(NAMES)}.")
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


Rows = Float[Tensor, "batch *head query key"]


def _quantity(name: str, about: str) -> property:
    """The property of a layer that reads a quantity."""

    def read(layer: "AttachedLayer") -> Tensor:
        return layer.quantity(name)

    return property(read, doc=about)


class AttachedLayer:
    """The quantities of one layer of a live model, or of one head (then the head axis is gone).

    Each is computed when it is read. `key` and `value` of a layer have its key-value heads; of a
    head they are those that it reads.
    """

    query = _quantity("query", "(batch, head, position, d_head), as it enters the dot product.")
    key = _quantity("key", "(batch, kv_head, position, d_head), as it enters the dot product.")
    value = _quantity("value", "(batch, kv_head, position, d_head).")
    scores = _quantity("scores", "scale · query · keyᵀ, before soft cap, bias and mask.")
    probs = _quantity("probs", "The softmax of the masked scores: (batch, head, query, key).")
    z = _quantity("z", "probs · value: (batch, head, position, d_head).")
    head_out = _quantity(
        "head_out",
        "z · W_O: (batch, head, position, d_model); all heads and the bias are what is written.",
    )

    def __init__(self, stack: "StackTrace", layer: int, head: int | None) -> None:
        self.layer, self.head = layer, head
        self.module, self._call = stack.calls[layer]
        self._stack = stack
        self._heads = EVERY_ROW if head is None else slice(head, head + 1)

    @property
    def statistics(self) -> LazyStatistics:
        """Numbers about the rows of probs, without the matrix: `statistics.entropy`."""
        return LazyStatistics(self._call, self.head)

    @property
    def problem(self) -> str:
        """Why scores and probs cannot be read here; "" where they can."""
        return self._call.untrue

    def quantity(self, name: str) -> Tensor:
        """The quantity of that name.

        Raises AbsentError for another name, and TraceError where it is not known, with the reason.
        """
        if name not in (*READABLE, "head_out"):
            raise AbsentError(
                f"{name!r:.80} is not read from an attached model; there are "
                f"{', '.join(READABLE)}, head_out and statistics."
            )
        if self._stack.by_kv_head and name in ("key", "value") and self.head is not None:
            return self._call.read(name)[:, self.head]
        value = self._call.read(name, self._heads)
        if name == "probs":
            real = self._call.real_queries
            rows = value if real is None else value.transpose(1, 2)[real]
            check_computed(rows, f"probs of layer {self.layer}")
        return value if self.head is None else value[:, 0]

    def window(self, name: str, *, queries: slice = EVERY_ROW, keys: slice = EVERY_ROW) -> Rows:
        """scores or probs of some rows and columns; only those rows are computed."""
        if name not in ("scores", "probs"):
            raise TraceError(f"{name!r:.80} has no rows and columns; scores and probs have.")
        rows = self._call.read(name, self._heads, queries)[..., keys]
        return rows if self.head is None else rows[:, 0]

    def __repr__(self) -> str:
        head = "" if self.head is None else f", head {self.head}"
        return f"<layer {self.layer}{head} of {self._stack!r}, {self.module}>"


@dataclass(frozen=True)
class Tokens2D:
    """Which positions are tokens, (batch, position); `tokens` is None where all are."""

    batch: int
    position: int
    device: torch.device
    tokens: Tensor | None


@dataclass(frozen=True)
class StackTrace:
    """The layers of one stack in one pass: `stack[2].probs`, `stack[2, 5].z`."""

    name: str
    calls: Sequence[tuple[str, Call]]
    """Each with the name of its module."""
    model_name: str
    model: nn.Module | None = None
    by_kv_head: bool = False
    """Whether the heads of key and value are counted as key-value heads."""
    ids: Tensor | None = None
    """(batch, position), where they are known."""
    texts: tuple[str, ...] = ()
    tokenizer: Any = None

    def __len__(self) -> int:
        return len(self.calls)

    def __iter__(self) -> Iterator[AttachedLayer]:
        return (self[layer] for layer in range(len(self)))

    def __getitem__(self, where: int | tuple[int, int]) -> AttachedLayer:
        """The quantities of a layer, or of one head of a layer. Negative numbers count back."""
        if isinstance(where, tuple) and len(where) != 2:
            raise TraceError(f"trace[{where!r:.80}]: expected trace[layer] or trace[layer, head].")
        layer, head = where if isinstance(where, tuple) else (where, None)
        layer = check_index("layer", layer, len(self))
        if head is not None:
            head = check_index("head", head, self.calls[layer][1].n_heads)
        return AttachedLayer(self, layer, head)

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

    @property
    def records(self) -> Sequence[tuple[str, Call]]:
        """The calls: what makes this a trace to edits."""
        return self.calls

    @property
    def allowed(self) -> Tokens2D:
        """Which positions of its queries are tokens."""
        call = self.calls[0][1]
        batch, _, position, _ = call.query.shape
        return Tokens2D(batch, position, call.query.device, call.real_queries)
