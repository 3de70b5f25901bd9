"""Reading the named quantities of one forward pass.

A trace keeps what the pass computed anyway: the residual streams, query, key, value and z.
Everything else is computed from what is nearest when it is asked for, for one layer, one head, or
a window of it. So a trace costs no second pass and O(position) memory.
"""

import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from minibert.errors import TraceError
from minibert.kernels.api import Statistics
from minibert.kernels.call import AllowedKeys
from minibert.kernels.requests import Want
from minibert.layers.config import Config
from minibert.layers.evaluation import EVERYTHING, Evaluation
from minibert.layers.layer import LayerPass
from minibert.quantities import AttentionMask, Float, Hidden, Logits, Matrix
from minibert.text.tokens import Tokens
from minibert.trace.file import open_trace, save_trace
from minibert.trace.gradients import Found, Gradients, differentiate, watch
from minibert.trace.layer_view import AbsentError, LayerTrace, layer_quantity, place_of
from minibert.trace.lens_names import TransformerLensCache
from minibert.trace.one_text import text_of
from minibert.trace.plan import Plan
from minibert.trace.record import record
from minibert.trace.run import Inputs, TracedModel
from minibert.trace.sweep import rerun_each

if TYPE_CHECKING:
    from minibert.viz import Page

__all__ = ["LayerTrace", "Trace", "check_grad", "check_keep", "check_statistics"]


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
        self,
        model: TracedModel,
        inputs: Inputs,
        evaluation: Evaluation,
        *,
        until: int | None = None,
        grad: bool = False,
    ) -> None:
        self.model = model
        self.inputs = inputs
        self.evaluation = evaluation
        self.until = until
        self.edited_from: int | None = None
        self.differentiable = grad
        self.collecting: Found | None = None
        self._found: Found | None = None
        self.records: list[dict[str, Tensor]] = []
        self.kept: dict[str, Tensor] = {}
        self.statistics: list[Statistics | None] = []
        self._tokens: Tokens | None = inputs.tokens

    @property
    def allowed(self) -> AllowedKeys:
        """Which keys each query may see, and the lengths of the sentences."""
        return self.evaluation.allowed

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
        layer, head = place_of(where, self.config)
        if layer >= len(self):
            raise TraceError(
                f"Layer {layer} was not computed: this trace was made with until={self.until}. "
                f"Trace again with until={layer} or without it."
            )
        return LayerTrace(self, layer, head)

    def stack(self, name: str) -> Float[Tensor, "layer batch *rest"]:
        """One quantity of all layers, the layer axis in front."""
        layer_quantity(name)
        return torch.stack([layer.quantity(name) for layer in self])

    def text(self, index: int) -> "Trace":
        """The trace of one sentence of the batch, without padding or neighbours.

        Its positions are the sentence's own: -1 is its last token. Nothing is computed again.
        """
        return text_of(self, index)

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
            raise AbsentError(f"{self.model_name} has no pooler.")
        return pooled

    @property
    def logits(self) -> Logits:
        """What the task head gives; the last hidden state for a model without one.

        Of packed sentences, for a head that reads each token, one row a token: (1, token, out).
        Sentences shorter than the batch have padding at the end; `text(i).logits` has none.
        """
        self._whole("logits")
        logits = self.kept["logits"]
        # For metrics, which cannot see where a sentence ends.
        logits.lengths = self.allowed.lengths  # type: ignore[attr-defined]
        return logits

    @property
    def next_sentence_logits(self) -> Float[Tensor, "batch label"]:
        """The second head of a model of task pre-training: is B the sentence after A, or not."""
        head = getattr(self.model.head, "next_sentence", None)
        if head is None:
            raise AbsentError(f"{self.model_name} has no next-sentence head beside another one.")
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

    def backward(self, scalar: Tensor) -> None:
        """Compute the gradients of one number; read them from `trace.grad`.

        For a trace made with `grad=True`, and one number computed from its quantities, such as
        `trace.logits[0, -1, token]`. It can be called again: the new gradients replace the old.

        Raises TraceError for what is no single number of this trace.
        """
        self._found = differentiate(self, scalar)

    @property
    def grad(self) -> Gradients:
        """The gradients of the number that `backward` was given, by the names of the trace."""
        if self._found is None:
            how = "" if self.differentiable else "make the trace with model.trace(..., grad=True), "
            raise AbsentError(
                f"There are no gradients yet: {how}call trace.backward(number) first, for instance "
                "with trace.logits[0, -1, token]."
            )
        return Gradients(self, self._found)

    def view(self, **options: Any) -> "Page":
        """The page of this trace; it shows itself in a notebook and has `.save(path)`.

        `options` are those of `minibert.viz.view`, which also puts several traces on one page.
        """
        from minibert.viz import view

        return view(self, **options)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """The path, now holding this trace as safetensors; see minibert/trace/file.py.

        Gradients are not saved. Raises TraceError when the file cannot be written.
        """
        return save_trace(self, path)

    @classmethod
    def load(cls, path: str | os.PathLike[str], model: TracedModel | None = None) -> "Trace":
        """The trace that `save` wrote, mapped: what is not read is not loaded.

        Without its model everything can be read that needs no weights; with it, everything.
        Raises TraceError for what is no whole trace file, and for another model's.
        """
        stored = open_trace(path, model)
        evaluation = Evaluation(stored.allowed)
        trace = cls(stored.model, stored.inputs, evaluation, until=stored.until)
        trace.records, trace.kept = stored.records, stored.kept
        trace.edited_from = stored.edited_from
        return trace

    def to_transformer_lens(self, *, attn_result: bool = False) -> TransformerLensCache:
        """The quantities by the names and axes of TransformerLens' cache, computed when read.

        `attn_result` adds what each head writes (`attn.hook_result`), d_model numbers a head.
        """
        return TransformerLensCache(self, attn_result=attn_result)

    def _whole(self, name: str) -> "Trace":
        if self.until is not None:
            raise AbsentError(
                f"{name} needs every layer, and this trace was made with until={self.until}. "
                "Trace again without it."
            )
        return self

    def rerun(self, edit: Mapping[Any, Any], *, keep: Collection[str] = ()) -> "Trace":
        """The trace of the same input with these edits; see `minibert.trace.edit`.

        The layers below the first edit are shared with this trace and not computed again. Edits
        that this trace was made with stay only there.

        Raises EditError before anything is computed, as `Model.trace` does.
        """
        check_keep(keep)
        plan = Plan.of(edit, self.config, self.allowed, dtype=self.embed.dtype, until=self.until)
        again = Trace(
            self.model, self.inputs, self.evaluation, until=self.until, grad=self.differentiable
        )
        again._tokens = self._tokens
        # Only what no edit has reached, of this trace or the next, is the same in both.
        intact = len(self.records) if self.edited_from is None else self.edited_from
        first = intact if plan.first_layer is None else min(intact, plan.first_layer)
        if "embed" not in plan.names(None) and self.edited_from != 0:
            again.kept["embed"] = self.embed
            again.records.extend(self.records[:first])
            again.statistics.extend(self.statistics[:first])
        same = "embed" in again.kept and first < intact
        record(again, keep=keep, plan=plan, known=self.records[first] if same else None)
        return again

    def rerun_each(
        self,
        edits: Sequence[Mapping[Any, Any]],
        metric: Callable[[Tensor], Tensor],
        *,
        positions: Sequence[int] | None = None,
        batch: int = 64,
    ) -> Float[Tensor, "edit batch"]:
        """What `metric` makes of the logits after each of many edits, which run side by side.

        `metric` is given logits (batch, position, vocab) and returns one number for each
        sentence. It never sees padding: sentences of different lengths are given to it one by one.
        `positions` are those of the logits that it reads, counted in each sentence: only they are
        computed, in this order. `batch` sentences run at once. Faster than `rerun` in a loop, with
        the same results up to rounding. Edits that this trace was made with stay only there. Of a
        trace with `grad=True` every edit's graph is held, unless torch.no_grad() is around the
        call.

        Raises EditError before anything is computed.
        """
        return rerun_each(self, edits, metric, positions=positions, batch=batch)

    def at(self, layer: int, heads: slice = EVERYTHING, queries: slice = EVERYTHING) -> LayerPass:
        """The table of one layer, to be read lazily for some heads and rows."""
        known = dict(self.records[layer]) if layer < len(self.records) else {}
        if "resid_pre" not in known:
            known["resid_pre"] = self.records[layer - 1]["resid_post"] if layer else self.embed
        return LayerPass(
            self.model.body.layers[layer],
            layer,
            self.evaluation,
            known=known,
            heads=heads,
            rows=queries,
            lazy=True,
        )

    def read(
        self, name: str, layer: int, heads: slice = EVERYTHING, queries: slice = EVERYTHING
    ) -> Tensor:
        """A quantity of one layer, its head axis still there, cut to the chosen heads and rows."""
        quantity = layer_quantity(name)
        if self.allowed.packed is not None and "query" in quantity.axes:
            raise TraceError(
                f"{name} of packed sentences is one matrix a sentence: read "
                f"trace.text(i)[layer, head].{name}."
            )
        at = self.at(layer, heads, queries)
        value: Tensor = getattr(at, name)
        if self.differentiable:
            watch(self, at, quantity, value)
        return value

    def layer_statistics(self, layer: int) -> Statistics:
        """The statistics that the pass gave for a layer; `trace[layer].statistics` reads them."""
        found = self.statistics[layer] if layer < len(self.statistics) else None
        if found is None:
            raise AbsentError(
                f"Layer {layer} has no statistics: name them when tracing, as in "
                'model.trace(text, statistics=("entropy", "received")).'
            )
        return found


def check_keep(names: Collection[str]) -> None:
    """Raise TraceError for a name that cannot be kept."""
    # Arrays and tensors count as collections, of numbers.
    if not isinstance(names, list | tuple | set | frozenset | dict):
        raise TraceError(
            f'keep={names!r:.80}: expected several names, as keep=("scores", "probs").'
        )
    for name in names:
        if not isinstance(name, str) or name not in ("scores", "probs"):
            raise TraceError(
                f"keep={name!r}: only scores and probs can be kept on top of what a trace keeps "
                "by itself; everything else is computed when it is read."
            )


def check_grad(grad: bool, until: int | None) -> None:
    """Raise TraceError where a trace with gradients cannot be made."""
    if grad and until is not None:
        raise TraceError(
            f"grad=True with until={until}: gradients need the whole pass; leave until out."
        )
    if grad and torch.is_inference_mode_enabled():
        raise TraceError(
            "grad=True inside torch.inference_mode(): nothing can be differentiated there. Use "
            "torch.no_grad() around the rest, or trace outside."
        )


def check_statistics(want: Want) -> None:
    """Raise TraceError for what is no statistic but a matrix."""
    for name in ("scores", "probs"):
        if name in want:
            raise TraceError(
                f'statistics={name!r}: that is a matrix; ask for it as keep=("{name}",).'
            )
