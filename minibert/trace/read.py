"""Reading the named quantities of one forward pass.

A trace keeps what the pass computed anyway: the residual streams, query, key, value and z.
Everything else is computed from what is nearest when it is asked for, for one layer, one head, or
a window of it. So a trace costs no second pass and O(position) memory.
"""

import os
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

import torch
from torch import Tensor

from minibert.doors import Page, ScoreParts, ViewOptions, opened
from minibert.errors import EditError, TraceError, did_you_mean, within_memory
from minibert.layers.layer import absent_because
from minibert.layers.parts import divisor
from minibert.quantities import (
    QUANTITIES,
    AttentionMask,
    Float,
    Hidden,
    Logits,
    Matrix,
    NormScale,
    Pooled,
)
from minibert.trace.edit import Chosen, EditMapping, Places, Point, in_layers, indices_of
from minibert.trace.file import open_trace, save_trace
from minibert.trace.identity import Sources
from minibert.trace.layer_view import (
    AbsentError,
    Gradients,
    LayerName,
    LayerTrace,
    differentiate,
    divisors_of_final,
    layer_quantity,
    place_of,
    without_gradients,
)
from minibert.trace.plan import Plan, shape_of
from minibert.trace.record import PassRecord, check_keep, rerun, text_of
from minibert.trace.run import TracedModel
from minibert.trace.sweep import rerun_each


class Trace(PassRecord):
    """Every quantity of one forward pass, by name, layer and head.

    Quantities that the pass kept do not change. Quantities that are computed from weights when they
    are read need the weights of the pass. After a training step or a change of a weight they are
    refused, so trace again.

    >>> import minibert
    >>> trace = minibert.load().trace("leaves fall in autumn")
    >>> trace[1, 3].probs.sum(-1).allclose(torch.ones(()))
    True
    """

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> object:
            known = getattr(type(self), name, None)
            if name.startswith("_"):
                raise AttributeError(name)
            # A property is asked again for what it says about being absent.
            if hasattr(known, "__get__"):
                return known.__get__(self)
            if name in QUANTITIES:
                raise AbsentError(f"{name} belongs to a layer: read trace[layer].{name}.")
            public = [one for one in dir(type(self)) if not one.startswith("_")]
            guess = did_you_mean(name, (*QUANTITIES, *public))
            raise AbsentError(f"A trace has no {name!r}{guess}. See docs/reading.md#the-names")

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
            f"batch {batch}, {position} positions; attention {self.backends['attention']}, "
            f"linear {self.backends['linear']}; trace[layer, head].probs)"
        )

    def __getitem__(self, where: int | tuple[int, int]) -> "LayerTrace":
        """The quantities of a layer, or of one head of a layer. Negative numbers count back."""
        layer, head = place_of(where, self.config)
        if layer >= len(self):
            raise TraceError(
                f"Layer {layer} was not computed: this trace was made with until={self.until}. "
                f"Trace again with until={layer} or without it."
            )
        return LayerTrace(self, layer, head)

    def value_at(self, point: Point) -> Tensor:
        """The quantity at a point of an edit; a head of keys is a key-value head."""
        found: Tensor = getattr(self, point.name) if point.layer is None else in_layers(self, point)
        return found

    def shape_at(self, point: Point) -> tuple[int, ...]:
        """The shape of the quantity. Raises EditError where this trace lacks it."""
        there = f"{point}: the trace to read from has"
        if point.behind_layers and self.until is not None:
            raise EditError(f"{there} until={self.until}, so it has no {point.name}.")
        if point.layer is not None and point.layer >= len(self):
            raise EditError(f"{there} {len(self)} layers.")
        return shape_of(point, self.config, self.allowed)

    def places_at(self, point: Point) -> Places:
        """Where the positions of its sentences are."""
        return Places.of(self.allowed)

    @within_memory
    def stack(self, name: LayerName) -> Float[Tensor, "layer batch *rest"]:
        """One quantity of all layers, the layer axis in front."""
        layer_quantity(name)
        return torch.stack([layer.quantity(name) for layer in self])

    def text(self, index: int) -> "Trace":
        """The trace of one sentence of the batch, without padding or neighbours.

        Its positions are the sentence's own: -1 is its last token. Nothing is computed again. To
        differentiate a number of it, call `backward` of this trace, and read this trace's `grad`.
        """
        return text_of(self, index)

    @property
    def embed(self) -> Hidden:
        """The input of layer 0."""
        return self.kept["embed"]

    @property
    def hidden(self) -> Hidden:
        """The last hidden state, which the task head reads (GPT-2: after the last LayerNorm)."""
        last = self._whole("hidden")[-1].resid_post
        with self.as_made():
            return self.unchanged_model().body.final(last, divisors_of_final(self, last))

    @property
    def final_norm_scale(self) -> NormScale:
        """The number that the norm after the layers divides each position by, if there is one."""
        last = self._whole("final_norm_scale")[-1]
        if "final_norm_scale" in self.config.absent_quantities:
            raise AbsentError(absent_because("final_norm_scale", self.config))
        if "final_norm_scale" in self.kept:
            return self.kept["final_norm_scale"]
        norm = self.unchanged_model().body.final_norm
        assert norm is not None, "the config says that there is one"
        with self.as_made():
            return divisor(norm, last.resid_post)

    @property
    def pooled(self) -> Pooled:
        """tanh(W·hidden[0] + b), where the model has a pooler."""
        self._whole("pooled")._of_one_row_each("pooled")
        if "pooled" in self.kept:
            return self.kept["pooled"]
        if "pooled" in self.config.absent_quantities:
            raise AbsentError(absent_because("pooled", self.config))
        with self.as_made():
            pooled = self.unchanged_model().pool(self.hidden)
        assert pooled is not None, "the config says that there is a pooler"
        return pooled

    @property
    def logits(self) -> Logits:
        """The output of the task head; the last hidden state for a model without one.

        Of packed sentences, for a head that reads each token, one row a token: (1, token, out).
        Sentences shorter than the batch have padding at the end; `text(i).logits` has none.
        """
        self._whole("logits")
        return self.kept["logits"]

    @property
    def next_sentence_logits(self) -> Float[Tensor, "batch label"]:
        """The second head of a model of task pre-training: is B the sentence after A, or not."""
        head = getattr(self.unchanged_model().head, "next_sentence", None)
        if head is None:
            raise AbsentError(f"{self.model_name} has no next-sentence head beside another one.")
        with self.as_made():
            return head(self.pooled)

    @property
    @within_memory
    def mask(self) -> AttentionMask:
        """True where attention is allowed, without the windows of layers: (batch, 1, query, key).

        With a layer's window: `trace[layer].mask`.
        """
        self._of_one_row_each("mask")
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

    @within_memory
    def backward(self, scalar: Tensor, *, layers: Chosen = None) -> None:
        """Compute the gradients of one number; read them from `trace.grad`.

        For a trace made with `grad=True`, and one number computed from its quantities, such as
        `trace.logits[0, -1, token]`. It can be called again: the new gradients replace the old.

        `layers`, such as 9 or [8, 9], are those whose gradients will be read, by default all. The
        layers below the lowest of them are not differentiated, which saves their time.

        Raises TraceError for anything but a single number of this trace.
        """
        self.unchanged.check()
        chosen = None if layers is None else indices_of(layers, len(self), "layer")
        self._found = differentiate(self, scalar, chosen)

    @property
    def grad(self) -> Gradients:
        """The gradients of the number that was passed to `backward`, by the names of the trace."""
        if self._found is None:
            if not self.differentiable:
                raise AbsentError(without_gradients(self))
            raise AbsentError(
                "There are no gradients yet: call trace.backward(number) first, for instance with "
                "trace.logits[0, -1, token]."
            )
        return Gradients(self, self._found)

    def view(self, **options: Unpack[ViewOptions]) -> Page:
        """The page of this trace; it shows itself in a notebook and has `.save(path)`.

        `options` are those of `minibert.viz.view`, which also puts several traces on one page.
        """
        page: Page = opened("view")(self, **options)
        return page

    @within_memory
    def save(self, path: str | os.PathLike[str]) -> Path:
        """Save this trace as safetensors (minibert/trace/file.py); returns the path.

        Gradients are not saved. Raises TraceError when the file cannot be written.
        """
        return save_trace(self, path)

    @classmethod
    def load(cls, path: str | os.PathLike[str], model: TracedModel) -> "Trace":
        """The trace of this model that `save` wrote, mapped: only what is read is loaded.

        Before that the file is read once, in small parts, to compare its digest. Raises TraceError
        for anything but a whole trace file of this model.
        """
        return open_trace(cls, path, model)

    def why(
        self,
        layer: int,
        head: int,
        query: int | str,
        key: int | str,
        *,
        against: int | str | None = None,
        neurons: int = 0,
        features: object = None,
        strongest: int = 16,
        sentence: int = 0,
    ) -> ScoreParts:
        """The score of a query and a key as a sum of what components wrote.

        See `minibert.analysis.why`, which this calls.
        """
        found: ScoreParts = opened("why")(
            self,
            layer,
            head,
            query,
            key,
            against=against,
            neurons=neurons,
            features=features,
            strongest=strongest,
            sentence=sentence,
        )
        return found

    def _of_one_row_each(self, name: str) -> None:
        """Raise TraceError for packed sentences, which share a row of the batch."""
        if self.allowed.packed is not None:
            raise TraceError(f"{name} of packed sentences is one each: read trace.text(i).{name}.")

    def _whole(self, name: str) -> "Trace":
        if self.until is not None:
            raise AbsentError(f"{name} needs every layer: trace without until={self.until}.")
        return self

    @within_memory
    def rerun(self, edit: EditMapping, *, keep: Collection[str] = ()) -> "Trace":
        """The trace of the same input with these edits; see `minibert.trace.edit`.

        The layers below the first edit are shared with this trace and not computed again. Edits
        that this trace was made with are not repeated.

        Raises EditError before anything is computed, as `Model.trace` does.
        """
        check_keep(keep, packed=self.allowed.packed is not None)
        plan = Plan.of(
            edit,
            self.config,
            self.allowed,
            dtype=self.embed.dtype,
            until=self.until,
            sources=Sources(self.unchanged_model()),
        )
        return rerun(self, plan, keep=keep)

    @within_memory
    def rerun_each(
        self,
        edits: Sequence[EditMapping],
        metric: Callable[[Tensor], Tensor],
        *,
        positions: Sequence[int] | None = None,
        batch: int = 64,
    ) -> Float[Tensor, "edit batch"]:
        """The metric of the logits after each of many edits, which run side by side.

        `metric` is given logits (batch, position, vocab) and returns one number for each
        sentence. It never sees padding: sentences of different lengths are given to it one by one.
        `positions` are those of the logits that it reads, counted in each sentence: only they are
        computed, in this order. `batch` sentences run at once. Faster than `rerun` in a loop, with
        the same results up to rounding. Edits that this trace was made with are not repeated. With
        `grad=True` the graph of every edit is held, unless torch.no_grad() is around the call.

        Raises EditError before anything is computed.
        """
        with self.as_made():
            return rerun_each(self, edits, metric, positions=positions, batch=batch)
