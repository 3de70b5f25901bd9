"""`attach`: the quantities of any live transformers model whose attention uses the interface.

attached = minibert.attach(hf_model, tokenizer=tokenizer)
trace = attached.trace("leaves fall in autumn")
trace[3, 5].probs
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from minibert.attached.layout import Report, Stack
from minibert.attached.listen import attention_interface, listening
from minibert.attached.read import AttachedTrace, StackTrace
from minibert.attached.recording import Edits, Known, Pass, Recording, Visit, Visits, plan
from minibert.errors import TraceError, check_flag
from minibert.layers.finite import check_logits, check_stream
from minibert.trace.identity import Sources, Unchanged

Listens = TypeVar("Listens", bound=Recording)


def attach(model: Any, *, tokenizer: Any = None) -> "Attached":
    """query, key, value, scores, probs and z of every head of a live transformers model.

    `model` is any model of transformers, or a module around one, whose attention goes through
    transformers' attention interface under "eager", "sdpa" or "minibert". Its config, modules and
    results do not change. `tokenizer` is transformers' own, for texts instead of ids.

    The first run checks every layer: where probs · value is not what the model computed, scores
    and probs are refused, and `attached.report` says so.

    Raises TraceError for a model that is not of transformers, and for a compiled one.
    """
    interface = attention_interface(model)
    if interface is None:
        kind = type(model)
        raise TraceError(
            f"{kind.__module__}.{kind.__qualname__} is not a model of transformers 4.48 or later, "
            "and does not contain one; expected a live one, as AutoModel.from_pretrained(...) "
            "gives. For a name, a folder or a model of minibert use minibert.load."
        )
    if hasattr(model, "_orig_mod") or getattr(model, "_compiled_call_impl", None) is not None:
        raise TraceError(
            f"{type(model).__name__} is compiled, and its attention calls are not seen; attach to "
            "the model as it was before torch.compile (compiled._orig_mod)."
        )
    return Attached(model, interface, tokenizer)


class Attached:
    """A live model whose attention can be read and edited; see `attach`."""

    def __init__(self, model: nn.Module, interface: type, tokenizer: Any) -> None:
        self.model, self.tokenizer = model, tokenizer
        self._interface, self._known = interface, Known(model)

    @property
    def name(self) -> str:
        """The name that the model was loaded by, or its class."""
        config = getattr(self.model, "config", None)
        name = getattr(config, "_name_or_path", "") or type(self.model).__name__
        # Of a folder the last part: results are passed on to others.
        return Path(name).name if Path(name).is_dir() else name

    @property
    def report(self) -> Report:
        """The result of the checks so far: which layers hold, which attention is not read."""
        return self._known.report

    @property
    def stacks(self) -> Mapping[str, Stack]:
        """The stacks of layers that have run, by name."""
        return dict(self._known.stacks)

    def __repr__(self) -> str:
        stacks = "; ".join(map(str, self._known.stacks.values())) or "not run yet"
        count = len(self.report.problems)
        problems = f"; {count} problem{'s' if count > 1 else ''}, see .report" if count else ""
        return f"Attached({self.name}: {stacks}{problems})"

    def trace(
        self,
        *inputs: object,
        edit: Mapping[Any, object] | None = None,
        grad: bool = False,
        **keywords: Any,
    ) -> AttachedTrace:
        """The attention of one forward pass: `trace[layer, head].probs`.

        `inputs` and `keywords` are the model's own, or one text or several where there is a
        tokenizer (texts are padded). Each quantity is computed when it is read; the pass itself
        costs what it costs without.

        `edit={("z", 3, 5): zero}` writes quantities, by the functions of `minibert.trace.edit`;
        with several stacks ("decoder.cross", "z", 3, 5). Positions of edits are those of real
        tokens, as attention_mask says. The first edited trace of a model runs it twice.
        `grad=True` lets gradients flow; else the pass runs under `torch.no_grad()`.

        What runs the inputs again (`rerun`, `text`, and the first mlp_pre, mlp_gate or mlp_post
        that is read) refuses tensors that were changed since.

        Raises TraceError where no attention goes through the interface, and EditError.
        """
        check_flag("grad", grad, TraceError)
        inputs, keywords, texts = self._encoded(inputs, keywords)
        given = _Given(inputs, keywords)
        inputs, keywords = given.inputs, given.keywords
        if edit and not self._known.ran:
            given.check()
            self._run(inputs, keywords, Edits(), grad=False)
        edits = plan(edit, self._known, Sources(self.model))
        unchanged = Unchanged(self.model)
        # An edit may have state, and dropout is random: another pass would have other numbers.
        within_mlp = grad or bool(edits) or self.model.training or bool(given.extended)
        one = self._run(inputs, keywords, edits, grad=grad, within_mlp=within_mlp)
        if not within_mlp:

            @cache
            def whole() -> Pass:
                unchanged.check()
                given.check()
                return self._run(inputs, keywords, edits, grad=False, within_mlp=True)

            for n, (_, call) in enumerate(one.calls):
                call.again = lambda n=n: whole().calls[n][1]

        def again(edit: Mapping[Any, object]) -> AttachedTrace:
            unchanged.check()
            given.check()
            return self.trace(*inputs, edit=edit, grad=grad, **keywords)

        def of_text(index: int) -> AttachedTrace:
            given.check()
            return self.trace(edit=edit, grad=grad, **_of_sentence(one, inputs, keywords, index))

        return self._trace(one, again, texts, unchanged, edited=bool(edit), of_text=of_text)

    @contextmanager
    def recording(
        self, edit: Mapping[Any, object] | None = None
    ) -> "Iterator[list[AttachedTrace]]":
        """Record the passes inside: call the model freely, then read a trace of each one.

            with attached.recording() as passes:
                hf_model.generate(**inputs)
            passes[-1][3, 5].probs

        The list is filled when the block ends, and stays empty if it raises. The traces keep what
        the model's passes held, such as the keys of the whole text at each step. Call `trace` once
        before you use `edit`.
        """
        if edit and not self._known.ran:
            raise TraceError(
                "recording(edit=...): the layers of this model are not known yet. Call "
                "attached.trace(...) once before."
            )
        traces: list[AttachedTrace] = []
        edits = plan(edit, self._known, Sources(self.model))
        with self.listener(lambda known: Recording(known, edits)) as recording:
            yield traces
        unchanged = Unchanged(self.model)
        for one in recording.passes:
            recording.settle(one)
            if one.calls:
                traces.append(self._trace(one, None, [], unchanged, edited=bool(edit)))
        if not traces:
            raise self.nothing(recording)
        recording.edits.check_met()

    def visit(self, stack: str, visit: Visit, run: Callable[[], object]) -> int:
        """Call `run`, and within it `visit(layer, call)` for each attention call of a stack.

        `run` calls the model or a part of it. `stack` is one of `stacks`, so the model must have
        been traced before. Nothing of the pass is kept. Returns the number of calls.
        """
        if stack not in self._known.stacks:
            raise TraceError(
                f"There is no stack {stack!r:.80}; there are {', '.join(self._known.stacks)}."
            )
        visits = Visits(self._known, stack, visit)
        with listening(self._interface, visits), torch.no_grad():
            run()
        return visits.n_calls

    def _run(
        self,
        inputs: tuple[object, ...],
        keywords: dict[str, object],
        edits: Edits,
        *,
        grad: bool,
        within_mlp: bool = False,
    ) -> Pass:
        recording = Recording(self._known, edits, within_mlp=within_mlp)
        gradients = nullcontext() if grad else torch.no_grad()
        with recording.of(self.model, self._interface), gradients:
            self.model(*inputs, **keywords)
        one = recording.passes[-1]
        if not one.calls:
            raise self.nothing(recording)
        edits.check_met()
        return one

    @contextmanager
    def listener(self, of: Callable[[Known], Listens]) -> Iterator[Listens]:
        """Let the listener that `of` makes from what is known of the model hear its passes."""
        heard = of(self._known)
        with heard.of(self.model, self._interface):
            yield heard

    def nothing(self, recording: Recording) -> TraceError:
        """The error for a model none of whose attention was seen."""
        if not recording.called:
            return TraceError(
                f"{type(self.model).__name__} was not called in this thread inside the with block, "
                "so that there is nothing to read."
            )
        return TraceError(
            f"No attention of {type(self.model).__name__} went through transformers' attention "
            f"interface (attention modules that ran: {recording.silent_modules()}), so that there "
            "is nothing to read. minibert.load reads the families that it has written itself."
        )

    def _trace(
        self,
        one: Pass,
        again: Callable[[Mapping[Any, object]], AttachedTrace] | None,
        texts: Sequence[str],
        unchanged: Unchanged,
        *,
        edited: bool,
        of_text: Callable[[int], AttachedTrace] | None = None,
    ) -> AttachedTrace:
        for _, call in one.calls[-1:]:
            z = call.out if call.real_queries is None else call.out[call.real_queries]
            check_stream(z)
        if isinstance(logits := getattr(one.output, "logits", None), Tensor):
            check_logits(logits)
        stacks = {}
        for name, calls in one.by_stack(self._known.stack_names).items():
            ids = one.ids.get("decoder_input_ids" if name.startswith("decoder.") else "input_ids")
            known = {"ids": ids, "texts": tuple(texts), "tokenizer": self.tokenizer}
            stacks[name] = StackTrace(name, calls, self.name, self.model, **known)
        found = self._known.unembedding
        return AttachedTrace(
            stacks, one.output, self.name, again, found, unchanged, edited=edited, of_text=of_text
        )

    def _encoded(
        self, inputs: tuple[Any, ...], keywords: dict[str, object]
    ) -> tuple[tuple[object, ...], dict[str, object], list[str]]:
        """The model's inputs: texts become what the tokenizer makes of them."""
        if inputs and isinstance(inputs[0], list | tuple) and not inputs[0]:
            raise TraceError(f"{inputs[0]!r} holds no text; expected one or more.")
        if not inputs or not _is_text(inputs[0]):
            return inputs, keywords, []
        if self.tokenizer is None:
            raise TraceError(
                "A text needs a tokenizer: minibert.attach(model, tokenizer=AutoTokenizer..."
                "from_pretrained(...)), or give input_ids=."
            )
        texts = [inputs[0]] if isinstance(inputs[0], str) else list(inputs[0])
        encoded = self.tokenizer(texts, return_tensors="pt", padding=len(texts) > 1)
        parameter = next(self.model.parameters(), torch.empty(0))
        moved = {
            name: one.to(parameter.device) if isinstance(one, Tensor) else one
            for name, one in encoded.items()
        }
        return inputs[1:], {**moved, **keywords}, texts


class _Given:
    """What a pass was given, and whether another pass would be given the same."""

    def __init__(self, inputs: Sequence[object], keywords: Mapping[str, object]) -> None:
        self.inputs = tuple(map(_counted, inputs))
        self.keywords = {name: _counted(one) for name, one in keywords.items()}
        named = {f"input {n}": one for n, one in enumerate(self.inputs)} | self.keywords
        self.extended = [name for name, one in named.items() if hasattr(one, "get_seq_length")]
        """The caches, which a pass writes to."""
        self._tensors = [
            (name, leaf, leaf._version)
            for name, one in named.items()
            for leaf in tree_leaves(one)
            if isinstance(leaf, Tensor) and not leaf.is_inference() and name not in self.extended
        ]

    def check(self) -> None:
        """Raise TraceError where the inputs cannot be run again."""
        for name in self.extended:
            raise TraceError(
                f"{name} is a cache, which each pass writes to, and this takes the same pass "
                "twice. Call attached.trace(..., edit=...) with a cache as it was before the pass, "
                "after one trace without edits."
            )
        for name, tensor, version in self._tensors:
            if tensor._version != version:
                raise TraceError(f"{name} was changed after the pass. Trace again.")


def _counted(given: object) -> object:
    """An input; a copy of a tensor of inference mode, which does not count its changes."""
    return given.clone() if isinstance(given, Tensor) and given.is_inference() else given


def _of_sentence(
    one: Pass, inputs: Sequence[object], keywords: Mapping[str, object], index: int
) -> dict[str, object]:
    """The keywords of one sentence of a pass; padding stays, which some models count."""
    ids = one.ids.get("input_ids")
    tensors = {name: each for name, each in keywords.items() if isinstance(each, Tensor)}
    others = [name for name, each in tensors.items() if ids is None or each.shape != ids.shape]
    if ids is None or others or len(inputs) > 1:
        raise TraceError(
            f"This pass was given more than texts ({', '.join(others) or 'no input_ids'}), and "
            "what runs its sentences one by one needs input_ids, and tensors of their shape."
        )
    row = slice(index, index + 1)
    rows = {name: each[row] for name, each in tensors.items()}
    return {**keywords, **rows, "input_ids": ids[row]}


def _is_text(given: Any) -> bool:
    several = isinstance(given, Sequence) and not isinstance(given, str) and len(given) > 0
    return isinstance(given, str) or (several and all(isinstance(one, str) for one in given))
