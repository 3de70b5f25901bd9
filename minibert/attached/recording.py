"""Recording the attention calls of a live model pass by pass, visiting them, and editing them.

A trace holds query, key, value and z of every layer. Code that needs only a number or two of each
layer visits the calls while the layers are computed: a whole corpus in the memory of one layer.

    attached.trace(text, edit={("z", 3, 5): zero, ("decoder.cross", "scores", 1): hide(0)})
    attached.trace(text, edit={("mlp_out", 3): zero})

A key of edits is (name, layer), (name, layer, head) or (name, layer, (head, head)), with the name
of the stack in front where a model has several. Heads of key and value are key-value heads. Checks
that need no batch are made before the pass, the others in each call, where it is known what the
model attends with.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from threading import get_ident

import torch
from torch import Tensor, nn

from minibert.attached.block import NO_BLOCK, OF_BLOCK, WITHIN_MLP, Block, Run, Tape
from minibert.attached.block import listening as listening_to_blocks
from minibert.attached.call import Call, attention_modules, form_of, misfit, silent
from minibert.attached.layout import READABLE, LayerReport, Report, Stack, names_of, pattern_of
from minibert.attached.listen import listening
from minibert.attached.projection import Projections
from minibert.attached.unembedding import Unembedding, unembedding_of
from minibert.errors import EditError, TraceError
from minibert.trace.edit import Point, in_layer
from minibert.trace.identity import Sources
from minibert.trace.plan import Entry, Named, Plan, Reach, check_hidden, check_values, named

# How the names of inputs end that have a batch axis and then positions, channels or frames.
_BATCHES = ("input_ids", "inputs_embeds", "pixel_values", "input_values", "input_features")
EditsOfLayer = Mapping[str, Named]
"""By the name of the quantity."""


@dataclass
class Edits:
    """The edits of a pass, by stack and layer, then by the name of the quantity."""

    at: dict[tuple[str, int], dict[str, Named]] = field(default_factory=dict)
    met: set[tuple[str, int]] = field(default_factory=set)
    """Where a pass has come by."""

    def __bool__(self) -> bool:
        return bool(self.at)

    def of(self, stack: str, layer: int) -> EditsOfLayer:
        """The edits of a layer, by name."""
        here = self.at.get((stack, layer), {})
        if here:
            self.met.add((stack, layer))
        return here

    def check_met(self) -> None:
        """Raise EditError for an edit of a layer that no pass came to."""
        for where in self.at.keys() - self.met:
            (point, _), *_ = next(iter(self.at[where].values()))
            raise EditError(
                f"{point}: no attention of stack {where[0]!r} and layer {where[1]} ran, so that "
                "nothing was edited. Give the inputs that make the model run it."
            )


def plan(edit: object, known: "Known", sources: Sources) -> Edits:
    """The edits of a mapping, in the order in which they are applied.

    Raises EditError for a place that does not exist or cannot be edited, for a value that fits no
    quantity, for a trace of another model or without the quantity, and for two edits of the same
    heads.
    """
    edits, stacks = Edits(), known.stacks
    for point, one in named({} if edit is None else edit, partial(_point, stacks=stacks), None,
                            sources):  # fmt: skip
        assert point.layer is not None
        stack = point.stack or next(iter(stacks))
        if point.name in OF_BLOCK:
            known.check_editable(point, stack)
        here = edits.at.setdefault((stack, point.layer), {})
        here.setdefault(point.name, []).append((point, one))
    return edits


def _point(key: object, stacks: Mapping[str, Stack]) -> Point:
    """The point that a key names; its stack where there are several."""
    parts = key if isinstance(key, tuple) else (key,)
    names = ", ".join(map(repr, stacks))
    if parts and isinstance(parts[0], str) and parts[0] in stacks:
        stack, parts = parts[0], parts[1:]
    elif len(stacks) == 1:
        stack = next(iter(stacks))
    else:
        raise EditError(f"{key!r:.80}: this model has several stacks; begin with one of {names}.")
    if not 2 <= len(parts) <= 3 or parts[0] not in (*READABLE, *OF_BLOCK):
        raise EditError(
            f"{key!r:.80} is not a point of stack {stack!r}; expected (name, layer) or (name, "
            f"layer, head) with one of {', '.join((*READABLE, *OF_BLOCK))}; the stacks are {names}."
        )
    known = stacks[stack]
    heads_of = partial(known.heads_of, parts[0])
    return in_layer(key, parts, len(known), heads_of, stack if len(stacks) > 1 else "")


def edited(name: str, value: Tensor, edits: EditsOfLayer, at: Call | Run) -> Tensor:
    """The quantity of a call or of a run of a block after its edits: (batch, ..., width)."""
    entries: list[Entry] = []
    of_call = isinstance(at, Call)
    for point, edit in edits.get(name, ()):
        places = at.places(name)
        reach = Reach.of(point, edit, places, at.places("key") if of_call else places)
        heads = point.heads if isinstance(point.heads, int) else point.head_list or slice(None)
        check_values(point, edit, reach, tuple((value[:, heads] if of_call else value).shape))
        entries.append((point, edit, reach))
    if not entries:
        return value
    if isinstance(at, Call):
        check_hidden(entries, at.mask_rows().allowed, (len(value), *value.shape[2:]))
    return Plan(tuple(entries)).apply(name, entries[0][0].layer, value)


class Known:
    """What is known from earlier runs of a model: names of its stacks, forms that were checked."""

    def __init__(self, model: nn.Module) -> None:
        self.names = {id(module): name for name, module in model.named_modules()}
        self.ids = {name: module for module, name in self.names.items()}
        self.stack_names: dict[str, str] = {}
        self.stacks: dict[str, Stack] = {}
        self.forms: dict[tuple[object, ...], str] = {}
        self.report = Report()
        self.projections = Projections(model)
        self.tape = Tape(model)
        self.unembedding: Unembedding | str = "the model has not run yet"
        """What the last stream goes through, or why that is not known."""
        self.ran, self._model = False, model

    @property
    def blocks(self) -> Mapping[int, Block | str]:
        """The block of each attention module by its id, or why there is none."""
        return self.tape.found

    def check_editable(self, point: Point, stack: str) -> None:
        """Raise EditError for a quantity of a block that cannot be written."""
        attention = self.ids[self.report.layers[stack, point.layer or 0].module]
        block = self.blocks.get(attention, NO_BLOCK)
        if isinstance(block, str):
            raise EditError(f"{point} cannot be edited: {block}.")
        block.place_to_edit(attention, point.name)

    def find_unembedding(self, output: object) -> None:
        """Find what led from the last stream to this output of the first run."""
        logits = getattr(output, "logits", None)
        self.unembedding = unembedding_of(self._model, self.tape.behind, logits)

    def refuse_dropout(self, call: Call) -> None:
        """Raise TraceError for a call that drops attention weights."""
        if call.options.get("dropout"):
            raise TraceError(
                f"{self.names[id(call.module)]} drops attention weights, dropout="
                f"{call.options['dropout']}: what is read would not be what the model computes. "
                "Call hf_model.eval() first."
            )

    def check(self, call: Call) -> None:
        """Note whether probs · value is z, computed once for each form of call."""
        form = form_of(call)
        if form not in self.forms:
            self.forms[form] = misfit(call)
        call.untrue = self.forms[form]


class Pass:
    """The calls of one forward pass, and what came out of it."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, Call]] = []
        """Each with the name of its module."""
        self.output: object = None
        self.done = False
        self.token_masks: dict[str, Tensor] = {}
        """The (batch, position) masks that the model was given, by keyword."""
        self.ids: dict[str, Tensor] = {}
        """The (batch, position) ids that the model was given, by keyword."""
        self._counts: dict[str, int] = {}

    def next_layer(self, pattern: str) -> int:
        """The layer that the next call of this pattern is of."""
        return self._counts.get(pattern, 0)

    def number(self, pattern: str) -> int:
        """The layer of this call of the pattern, the next one."""
        number = self.next_layer(pattern)
        self._counts[pattern] = number + 1
        return number

    def by_stack(self, names: Mapping[str, str]) -> dict[str, list[tuple[str, Call]]]:
        """The calls of each stack, in order."""
        found: dict[str, list[tuple[str, Call]]] = {}
        for name, call in self.calls:
            found.setdefault(names[pattern_of(name)], []).append((name, call))
        return found


class Recording:
    """The listener of a model: it keeps the calls of each pass, checks them, and edits them."""

    keeps = True

    def __init__(self, known: Known, edits: Edits, *, within_mlp: bool = True) -> None:
        self.known, self.edits = known, edits
        self._within_mlp = within_mlp or any(
            not WITHIN_MLP.isdisjoint(at) for at in edits.at.values()
        )
        self.passes: list[Pass] = []
        self.called = False
        """True once a pass of the model has begun."""
        self._thread, self._inside = get_ident(), False
        self._ran: dict[str, str] = {}
        self._of_first_pass = ExitStack()
        """What the first pass of a model hears alone: hooks of every module slow a pass."""
        self._of_call: tuple[Call | None, EditsOfLayer] = (None, {})
        self._open: list[Run] = []
        """The blocks that are running."""

    @contextmanager
    def of(self, model: nn.Module, interface: type) -> Iterator[None]:
        """Record the passes of the model in this thread while the block runs."""
        with ExitStack() as undo:
            begin = model.register_forward_pre_hook(self._begin, with_kwargs=True)
            undo.callback(begin.remove)
            end = model.register_forward_hook(self._end, always_call=True)
            undo.callback(end.remove)
            undo.callback(self._of_first_pass.close)
            if not self.known.ran:
                for name, module in attention_modules(model):
                    hook = module.register_forward_pre_hook(self._note(name))
                    self._of_first_pass.callback(hook.remove)
                self._of_first_pass.enter_context(self.known.projections.listening())
                if self.keeps:
                    self._of_first_pass.enter_context(self.known.tape.listening())
            found = self.known.blocks.values() if self.keeps else ()
            undo.enter_context(
                listening_to_blocks(
                    dict.fromkeys(one for one in found if isinstance(one, Block)),
                    self._opened, self._closed, self._running, within_mlp=self._within_mlp,
                )
            )  # fmt: skip
            undo.enter_context(listening(interface, self))
            yield

    def _note(self, name: str) -> Callable[[nn.Module, object], None]:
        def ran(module: nn.Module, inputs: object) -> None:
            if get_ident() == self._thread:
                self._ran[name] = type(module).__name__

        return ran

    def _begin(
        self, model: nn.Module, inputs: tuple[object, ...], keywords: Mapping[str, object]
    ) -> None:
        # A hook of the model is called in every thread that runs it.
        if get_ident() != self._thread:
            return
        self._inside = self.called = True
        self._open.clear()
        self.passes.append(one := Pass())
        first = {getattr(model, "main_input_name", "input_ids"): inputs[0]} if inputs else {}
        for name, given in {**first, **keywords}.items():
            if isinstance(given, Tensor) and name.endswith(_BATCHES) and 0 in given.shape[:2]:
                raise TraceError(
                    f"{name} has the shape {tuple(given.shape)}: there is nothing to run. Expected "
                    "a batch of one or more, none of them empty."
                )
            if not isinstance(given, Tensor) or given.dim() != 2:
                continue
            if name.endswith("attention_mask"):
                one.token_masks[name] = given.bool()
            elif name.endswith("input_ids") and not given.is_floating_point():
                one.ids[name] = given
        if all(bool(mask.all()) for mask in one.token_masks.values()):
            one.token_masks.clear()

    def _end(self, model: nn.Module, inputs: object, output: object) -> None:
        if get_ident() != self._thread:
            return
        self._inside = False
        self.passes[-1].output, self.passes[-1].done = output, True
        # Nothing came out of a pass that an error ended; the layers above are not known then.
        if output is not None:
            self.settle(self.passes[-1])

    def _opened(self, block: Block, given: Tensor) -> Run | None:
        """The run of a block that begins, with the edits of its layer."""
        if _in_backward():
            return None
        current, known = self._current(), self.known
        self._open.append(run := Run(block, given))
        for attention in block.places if known.stack_names else ():
            pattern = pattern_of(known.names[attention])
            stack = known.stack_names.get(pattern, "")
            own = _own(current.token_masks, stack)
            run.real = _fitting(own, run.batch, run.positions, given.device)
            here = self.edits.of(stack, current.next_layer(pattern)) if self.edits else {}
            for name in OF_BLOCK:
                if name in here:
                    run.edit(attention, name, partial(_changed, name, here))
        return run

    def _closed(self) -> None:
        self._open.pop()

    def _running(self) -> Run | None:
        return self._open[-1] if self._open else None

    def _current(self) -> Pass:
        """The pass of the call; one of its own for an encoder that runs by itself."""
        if not self._inside and (not self.passes or self.passes[-1].done):
            self.passes.append(Pass())
        return self.passes[-1]

    def hears(self, module: nn.Module) -> bool:
        """True for the modules of the model, but for what a backward pass computes again."""
        again = _in_backward() and not self.edits
        return id(module) in self.known.names and not again

    def before(self, call: Call) -> None:
        """Keep the call; change query, key and value where there are edits."""
        if _in_backward():
            raise EditError(
                "Gradient checkpointing computes layers again in the backward pass, last layer "
                "first, where edits are not made. Call hf_model.gradient_checkpointing_disable() "
                "first."
            )
        current, name = self._current(), self.known.names[id(call.module)]
        self.known.refuse_dropout(call)
        pattern = pattern_of(name)
        layer = current.number(pattern)
        current.calls.append((name, call))
        if not self.known.ran:
            self.known.tape.called(pattern, call)
        runs = (one for one in reversed(self._open) if id(call.module) in one.block.places)
        call.block = next(runs, call.block)
        stack = self.known.stack_names.get(pattern, "")
        _note_real(call, current.token_masks, stack)
        here = self.edits.of(stack, layer) if stack and self.edits else {}
        self._of_call = (call, here)
        for quantity in ("query", "key", "value"):
            if quantity in here:
                setattr(call, quantity, edited(quantity, getattr(call, quantity), here, call))

    def instead(self, call: Call) -> Tensor | None:
        """z of a call whose scores or probs are edited."""
        here = self._edits_of(call)
        if not {"scores", "probs"} & here.keys():
            return None
        if call.implementation and (why := self.known.forms.get(form_of(call), "")):
            raise EditError(f"scores and probs of {self.known.names[id(call.module)]}: {why}.")
        scores = edited("scores", call.scores(), here, call)
        if "scores" in here:
            call.matrices["scores"] = scores
        call.matrices["probs"] = edited("probs", call.softmax(scores), here, call)
        return call.weighted(call.matrices["probs"])

    def after(self, call: Call) -> None:
        """Check what the model computed, where its form is new; change z where it is edited."""
        here = self._edits_of(call)
        if not call.matrices:
            self.known.check(call)
        if "z" in here:
            z = edited("z", call.out.transpose(1, 2), here, call)
            call.out = z.transpose(1, 2).contiguous()
        if not self.known.ran:
            self.known.projections.expect(call)

    def _edits_of(self, call: Call) -> EditsOfLayer:
        known, here = self._of_call
        return here if known is call else {}

    def settle(self, one: Pass) -> None:
        """Give the stacks of a pass their names, and note what was found."""
        if not one.calls:
            return
        known = self.known
        patterns = [pattern_of(name) for name, _ in one.calls]
        known.stack_names = names_of(patterns, known.stack_names)
        for _, call in one.calls:
            call.projected_by(known.projections.of(call.module))
            if isinstance(call.block, str):
                found = known.blocks.get(id(call.module), NO_BLOCK)
                call.block = found if isinstance(found, str) else "its block did not run as a whole"
        for stack, calls in one.by_stack(known.stack_names).items():
            known.stacks[stack] = Stack.of(stack, [call for _, call in calls])
            for _, call in calls if one.token_masks else ():
                _note_real(call, one.token_masks, stack)
            known.report.note(
                LayerReport(stack, layer, name, call.untrue)
                for layer, (name, call) in enumerate(calls)
                if call.untrue or (stack, layer) not in known.report.layers
            )
        if not known.ran:
            quiet = silent(self._ran, {name for name, _ in one.calls})
            known.report.silent |= {name: self._ran[name] for name in quiet}
            known.find_unembedding(one.output)
            known.ran = True
            self._of_first_pass.close()

    def silent_modules(self) -> str:
        """The attention modules that ran, for a message."""
        kinds = sorted(set(self._ran.values()))
        return ", ".join(kinds) or "none ran"


def _in_backward() -> bool:
    """True inside a backward pass, in which gradient checkpointing computes layers again."""
    return torch._C._current_graph_task_id() != -1


def _note_real(call: Call, masks: Mapping[str, Tensor], stack: str) -> None:
    """Note which queries and keys of a call are tokens, as far as the model was told."""
    if not masks:
        return
    own = _own(masks, stack)
    seen = masks.get("attention_mask") if stack.endswith("cross") else own
    call.real_queries = _fitting(own, len(call.query), call.query.shape[2], call.query.device)
    call.real_keys = _fitting(seen, len(call.key), call.key.shape[2], call.key.device, last=False)
    if isinstance(run := call.block, Run):
        run.real = _fitting(own, run.batch, run.positions, call.query.device)


def _own(masks: Mapping[str, Tensor], stack: str) -> Tensor | None:
    """The mask of a stack's own tokens: the decoder of two has one, and the encoder's keys."""
    return masks.get("decoder_attention_mask" if stack.startswith("decoder.") else "attention_mask")


def _fitting(
    mask: Tensor | None, batch: int, n: int, device: torch.device, *, last: bool = True
) -> Tensor | None:
    """The mask of n positions: of the last ones where a cache holds those before."""
    if mask is None or mask.shape[0] != batch or mask.shape[1] < n:
        return None
    return None if mask.shape[1] > n and not last else mask[:, -n:].to(device)


def _changed(name: str, edits: EditsOfLayer, value: Tensor, run: Run) -> Tensor:
    """What stands at a tap of a block, after the edits of the quantity that it is."""
    return edited(name, run.shaped(value), edits, run).reshape(value.shape)


Visit = Callable[[int, Call], None]


class Visits:
    """A listener that hands the calls of one stack to a function, with the number of the layer."""

    keeps = True

    def __init__(self, known: Known, stack: str, visit: Visit) -> None:
        self.known, self.stack, self.visit = known, stack, visit
        self.n_calls, self._thread = 0, get_ident()

    def hears(self, module: nn.Module) -> bool:
        """True for the modules of the stack."""
        name = self.known.names.get(id(module))
        return name is not None and self.known.stack_names.get(pattern_of(name)) == self.stack

    def before(self, call: Call) -> None:
        """Refuse a call that drops weights."""
        self.known.refuse_dropout(call)

    def instead(self, call: Call) -> Tensor | None:
        """The model computes z itself."""

    def after(self, call: Call) -> None:
        """Check the call, where its form is new, and hand it on."""
        self.known.check(call)
        call.projected_by(self.known.projections.of(call.module))
        self.n_calls += 1
        self.visit(self.n_calls - 1, call)
