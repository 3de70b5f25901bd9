"""Reading the named quantities of one forward pass.

A trace keeps what the pass computed anyway: the residual streams, query, key, value and z.
Everything else has a formula (minibert/formulas.py) and is computed from what is nearest when it
is asked for, for one layer, one head, or a window of it. So a trace costs no second pass and
O(position) memory.
"""

import operator
from collections.abc import Collection, Iterator
from typing import Any

import torch
from torch import Tensor

from minibert.axes import (
    QUANTITIES,
    AttentionMask,
    Float,
    HeadVectors,
    Hidden,
    Logits,
    Matrix,
    Mlp,
    PerHeadHidden,
    Quantity,
)
from minibert.config import Config
from minibert.errors import TraceError
from minibert.formulas import EVERYTHING, FORMULAS, Place
from minibert.mask import AllowedKeys
from minibert.tokens import Tokens

__all__ = ["LayerTrace", "Trace"]


class _AbsentError(TraceError, AttributeError):
    """A name that cannot be read here; an AttributeError too, so that hasattr works."""


class Trace:
    """Every quantity of one forward pass, by name, layer and head.

    What the pass kept stays as it was. What has a formula is computed when it is read, from the
    weights as they are then: after a training step or a change of a weight, trace again.

    >>> import minibert
    >>> trace = minibert.load().trace("leaves fall in autumn")
    >>> trace[1, 3].probs.sum(-1).allclose(torch.ones(()))
    True
    """

    def __init__(
        self, model: Any, inputs: Any, allowed: AllowedKeys, *, until: int | None = None
    ) -> None:
        self.model = model
        self.inputs = inputs
        self.allowed = allowed
        self.until = until
        self.records: list[dict[str, Tensor]] = []
        self.kept: dict[str, Tensor] = {}
        self._tokens: Tokens | None = inputs.tokens

    @property
    def config(self) -> Config:
        """The model's sizes and choices."""
        return self.model.config

    @property
    def model_name(self) -> str:
        """What the model was loaded as."""
        return self.model.name

    @property
    def tokens(self) -> Tokens:
        """What was read, as ids and as strings."""
        if self._tokens is None:
            self._tokens = self.inputs.as_tokens(self.model.tokenizer)
        return self._tokens

    @property
    def words(self) -> tuple[tuple[int | None, ...], ...]:
        """The word each token belongs to, in its own text; None for special tokens."""
        return self.tokens.words

    def __len__(self) -> int:
        """Layers that can be read."""
        return self.config.n_layers if self.until is None else self.until + 1

    def __iter__(self) -> Iterator["LayerTrace"]:
        return (self[layer] for layer in range(len(self)))

    def __repr__(self) -> str:
        batch, position = self.allowed.batch, self.allowed.position
        return (
            f"Trace({self.model_name}: {len(self)} layers x {self.config.n_heads} heads, "
            f"batch {batch}, {position} positions; trace[layer, head].probs)"
        )

    def __getitem__(self, where: int | tuple[int, int]) -> "LayerTrace":
        """The quantities of a layer, or of one head of a layer. Negative numbers count back."""
        if isinstance(where, tuple) and len(where) != 2:
            raise TraceError(
                f"trace[{', '.join(map(str, where))}]: expected trace[layer] or trace[layer, head]."
            )
        layer, head = where if isinstance(where, tuple) else (where, None)
        layer = check_index("layer", layer, self.config.n_layers)
        if layer >= len(self):
            raise TraceError(
                f"Layer {layer} was not computed: this trace was made with until={self.until}. "
                f"Trace again with until={layer} or without it."
            )
        if head is not None:
            head = check_index("head", head, self.config.n_heads)
        return LayerTrace(self, layer, head)

    def stack(self, name: str) -> Float[Tensor, "layer batch *rest"]:
        """One quantity of all layers, the layer axis in front."""
        _layer_quantity(name)
        return torch.stack([getattr(layer, name) for layer in self])

    @property
    def embed(self) -> Hidden:
        """What enters layer 0."""
        return self.kept["embed"]

    @property
    def hidden(self) -> Hidden:
        """The last hidden state, which the task head reads (GPT-2: after the last LayerNorm)."""
        return self.model.body.final(self._whole("hidden")[-1].resid_post)

    @property
    def pooled(self) -> Float[Tensor, "batch d_model"]:
        """tanh(W·hidden[0] + b), where the model has a pooler."""
        pooled = self.model.pool(self.hidden)
        if pooled is None:
            raise _AbsentError(f"{self.model_name} has no pooler.")
        return pooled

    @property
    def logits(self) -> Logits:
        """What the task head gives; the last hidden state for a model without one."""
        self._whole("logits")
        return self.kept["logits"]

    @property
    def next_sentence_logits(self) -> Float[Tensor, "batch label"]:
        """The second head of a model of task pre-training: is B the sentence after A, or not."""
        head = getattr(self.model.head, "next_sentence", None)
        if head is None:
            raise _AbsentError(f"{self.model_name} has no next-sentence head beside another one.")
        return head(self.pooled)

    @property
    def mask(self) -> AttentionMask:
        """True where attention is allowed: (batch, 1, query, key)."""
        return self.allowed.full()

    @property
    def attentions(self) -> tuple[Matrix, ...]:
        """probs of each layer, in the form of transformers' `output_attentions`."""
        return tuple(layer.probs for layer in self._whole("attentions"))

    @property
    def hidden_states(self) -> tuple[Hidden, ...]:
        """embed and resid_post of each layer, in the form of transformers' `output_hidden_states`.

        As there, the last one is what the task head reads (GPT-2: after the last LayerNorm).
        """
        posts = [layer.resid_post for layer in self._whole("hidden_states")]
        return (self.embed, *posts[:-1], self.hidden)

    def view(self, **options: Any) -> Any:
        """The page of this trace; it shows itself in a notebook and has `.save(path)`."""
        from minibert.viz import head_page

        return head_page(self, **options)

    def _whole(self, name: str) -> "Trace":
        if self.until is not None:
            raise _AbsentError(
                f"{name} needs every layer, and this trace was made with until={self.until}. "
                "Trace again without it."
            )
        return self

    def read(
        self, name: str, layer: int, heads: slice = EVERYTHING, queries: slice = EVERYTHING
    ) -> Tensor:
        """A quantity of one layer, its head axis still there, cut to the chosen heads and rows."""
        return Place(self, layer, heads, queries)[name]


class LayerTrace:
    """The quantities of one layer, or of one head: then the head axis is gone."""

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

    def __init__(self, trace: Trace, layer: int, head: int | None) -> None:
        self.trace = trace
        self.layer = layer
        self.head = head
        self._heads = EVERYTHING if head is None else slice(head, head + 1)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        quantity = _layer_quantity(name)
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
        quantity = _layer_quantity(name)
        if "query" not in quantity.axes:
            raise TraceError(f"{name} has no rows and columns; scores and probs have.")
        if not isinstance(queries, slice) or not isinstance(keys, slice):
            raise TraceError(f"queries={queries}, keys={keys}: expected slices, as slice(3, 5).")
        rows = self.trace.read(name, self.layer, self._heads, queries)
        return self._drop_head(quantity, rows)[..., keys]

    def product(self, query: int) -> Float[Tensor, "batch *head key d_head"]:
        """query[i] * key, element by element: what the dot product of each score sums up."""
        index = check_index("query", query, self.trace.allowed.position)
        rows = self.trace.read("query", self.layer, self._heads)[:, :, index, None]
        product = rows * self.trace.read("key", self.layer, self._heads)
        return self._drop_head(QUANTITIES["key"], product)

    def _drop_head(self, quantity: Quantity, value: Tensor) -> Tensor:
        return value[:, 0] if self.head is not None and quantity.per_head else value


def check_keep(names: Collection[str]) -> None:
    """Raise TraceError for a name that cannot be kept."""
    for name in names:
        if name not in ("scores", "probs"):
            raise TraceError(
                f"keep={name!r}: only scores and probs can be kept on top of what a trace keeps "
                "by itself; everything else is computed when it is read."
            )


def _layer_quantity(name: str) -> Quantity:
    if name in FORMULAS:
        return QUANTITIES[name]
    if name in QUANTITIES:
        raise _AbsentError(f"{name} belongs to the whole trace: read trace.{name}.")
    raise _AbsentError(f"{name!r} is no quantity of a layer; there are {', '.join(FORMULAS)}.")


def check_index(what: str, index: Any, size: int) -> int:
    """The index, counted from the front; TraceError when it is none of 0 to size - 1."""
    # A bool counts as a number to Python, and one layer for True is nobody's wish.
    if isinstance(index, bool) or not hasattr(index, "__index__"):
        raise TraceError(f"{what} {index!r}: expected a whole number from 0 to {size - 1}.")
    index = operator.index(index)
    if not -size <= index < size:
        raise TraceError(f"There is no {what} {index}; expected 0 to {size - 1}.")
    return index % size
