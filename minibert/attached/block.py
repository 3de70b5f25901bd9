"""The block around each attention module: its streams and what is added to them.

In the first run every module is listened to. A block is the outermost numbered module (`layers.3`)
in which each stack attends once. Its steps are found by numbers: modules whose outputs, added to
the stream, give what a later module reads, or what leaves the block, within rounding.

    stream' = stream + factor · norm(write)        most models have no factor, and no norm here
    after a post-norm (BERT): the norm of that sum; in parallel (GPT-NeoX): both writes in one sum

Where no modules add up to what leaves a block, nothing of it is read. In later runs only the
modules that were found have hooks, which keep references to tensors. The sums are checked again, in
whole tensors, when something of a block is read.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import combinations
from threading import get_ident
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from minibert.errors import EditError, TraceError
from minibert.trace.edit import Places
from minibert.trace.layer_view import AbsentError

#: Why nothing of a block is read where the first run had none.
NO_BLOCK = "no numbered module, such as layers.3, was found around this attention in the first run"
#: Why nothing is read where the first run did not show what a module adds.
LOST = (
    "what a module adds was lost in rounding in the first run, so that it was not found: attach "
    "the model again and trace another text first"
)
#: The quantities of a block, in the order of the data.
OF_BLOCK = (
    "resid_pre", "attn_out", "resid_mid", "mlp_gate", "mlp_pre", "mlp_post", "mlp_out",
    "resid_post",
)  # fmt: skip
#: Those that only passes with gradients or edits keep, and recordings; another pass reads them.
WITHIN_MLP = frozenset({"mlp_gate", "mlp_pre", "mlp_post"})
# Rows that are compared when a block is looked for, spread over all positions.
_ROWS = 32
# Of a sum, in units of rounding of its terms.
_ROUNDINGS = 2
_MOST_STEPS = 4
# Of an activation.
_MOST_NUMBERS = 4


@dataclass(frozen=True, eq=False)
class Tap:
    """The first tensor that a module is given, or gives out, in its nth call within a block.

    There is one object of each place.
    """

    module: nn.Module
    given: bool
    nth: int = 0
    half: int | None = None
    """0 or 1: this half of the last axis, where one projection makes two quantities."""


@dataclass(frozen=True)
class Step:
    """One addition to the stream.

    write    what attention or the MLP gives
    added    the same after a norm of its own, where it has one (Gemma 2)
    factor   what that is multiplied by (Granite)
    total    where the sum stands; None where no module reads it (parallel blocks)
    stream   where the stream after it stands: the sum, or its norm in a post-norm block
    end      when the write was there
    """

    write: Tap
    added: Tap
    factor: float
    total: Tap | None
    stream: Tap | None
    end: int


Place = Tap | str
"""Where a quantity stands, or why it is absent."""


@dataclass(frozen=True, eq=False)
class Block:
    """A block whose steps are known; `places` are those of each stack, by its attention's id."""

    module: nn.Module
    steps: tuple[Step, ...]
    places: Mapping[int, Mapping[str, Place]]
    enters: Tap
    written: frozenset[Tap]
    """What the model itself writes over later, so that a copy is kept."""
    repeated: frozenset[nn.Module]
    """Modules that a run calls several times."""

    @cached_property
    def taps(self) -> dict[bool, list[tuple[nn.Module, bool, list[Tap]]]]:
        """The taps of each side of a module, without and with those in the MLP."""
        return {within_mlp: self._taps(within_mlp) for within_mlp in (False, True)}

    def _taps(self, within_mlp: bool) -> list[tuple[nn.Module, bool, list[Tap]]]:
        found: list[Place | None] = [*self.before]
        for each in self.places.values():
            found += [tap for name, tap in each.items() if within_mlp or name not in WITHIN_MLP]
        found += [tap for one in self.steps for tap in (one.added, one.total)]
        taps: dict[tuple[nn.Module, bool], list[Tap]] = {}
        for tap in dict.fromkeys(found):
            if isinstance(tap, Tap):
                taps.setdefault((tap.module, tap.given), []).append(tap)
        return [(module, given, of_side) for (module, given), of_side in taps.items()]

    @cached_property
    def before(self) -> tuple[Tap, ...]:
        """The stream that each step adds to; that of parallel steps enters the block."""
        return self.enters, *(one.stream or self.enters for one in self.steps[:-1])

    def place_to_edit(self, attention: int, name: str) -> Tap:
        """Where a quantity is edited. Raises EditError with the reason where it cannot be."""
        place = self.places[attention][name]
        if isinstance(place, str):
            raise EditError(f"{name} cannot be edited: {place}.")
        return place

    def edit_of(self, attention: int, name: str, change: "Change") -> tuple[Tap, "Change", bool]:
        """The tap that writes an edited quantity, what to write there, and whether as a sum.

        A stream that is only a sum has no module that writes it: what is added to it is changed so
        that the sum is the edited one.
        """
        place = self.place_to_edit(attention, name)
        for before, step in zip(self.before, self.steps, strict=True):
            if place is step.stream is step.total and place.module is not self.module:
                return step.added, partial(_adjusted, change, before, step.factor), True
        return place, change if place.half is None else partial(_half, change, place.half), False


Change = Callable[[Tensor, "Run"], Tensor]
NormOf = tuple[nn.Module, Tensor, Tensor]
"""A norm, what it read and what it gave."""


def _adjusted(change: Change, before: Tap, factor: float, added: Tensor, run: "Run") -> Tensor:
    """What has to be added to the stream before it, so that the sum is the edited one."""
    old = run.values[before].reshape(added.shape)
    return (change(old + factor * added, run) - old) / factor


def _half(change: Change, half: int, value: Tensor, run: "Run") -> Tensor:
    """The value with one half of its last axis changed."""
    parts = [*value.chunk(2, -1)]
    parts[half] = change(parts[half], run)
    return torch.cat(parts, -1)


class Run:
    """One call of a block: what stands at its taps."""

    def __init__(self, block: Block, given: Tensor) -> None:
        self.block, self.values = block, dict[Tap, Tensor]()
        *rows, _ = given.shape
        self.batch = rows[0] if len(rows) > 1 else 1
        self.positions = math.prod(rows) // self.batch
        self.real: Tensor | None = None
        """True where a real token is, (batch, position)."""
        self.edits: dict[Tap, list[Change]] = {}
        """Of quantities; `adjust` is of streams, after what is added was kept."""
        self.adjust: dict[Tap, list[Change]] = {}
        self.versions: dict[Tap, int] = {}
        """How often each value had been written to."""
        self._counts = Counter[tuple[nn.Module, bool]]()
        self._problem: str | None = None

    def edit(self, attention: int, name: str, change: Change) -> None:
        """Change a quantity of the stack of this attention when it comes by."""
        tap, made, of_sum = self.block.edit_of(attention, name, change)
        (self.adjust if of_sum else self.edits).setdefault(tap, []).append(made)

    def passes(self, taps: Sequence[Tap], value: Tensor) -> Tensor:
        """Keep what stands at the taps of one side of a module; the value after edits."""
        module = taps[0].module
        if module in self.block.repeated:
            side = (module, taps[0].given)
            taps = [tap for tap in taps if tap.nth == self._counts[side]]
            self._counts[side] += 1
        if not self.edits and not self.adjust:
            for tap in taps:
                self.keep(tap, value)
            return value
        for changes in (self.edits, self.adjust):
            for tap in taps:
                for change in changes.get(tap, ()):
                    value = change(value, self)
                if changes is self.edits:
                    self.keep(tap, value)
        return value

    def keep(self, tap: Tap, value: Tensor) -> None:
        """Note what stands at a tap."""
        if self.block.written and tap in self.block.written:
            value = value.clone()
        self.values[tap] = value
        if not value.is_inference():
            self.versions[tap] = value._version

    def has(self, name: str, attention: int) -> bool:
        """False for what this pass did not keep, although the block has it."""
        place = self.block.places[attention][name]
        return isinstance(place, str) or place in self.values

    def shaped(self, value: Tensor) -> Tensor:
        """The value as (batch, position, width); itself where it is that, for its gradient."""
        shape = (self.batch, self.positions, value.shape[-1])
        return value if value.shape == shape else value.reshape(shape)

    def places(self, name: str) -> Places:
        """Where the positions of a quantity's sentences are, as far as the model was told."""
        return Places.of_mask(self.real, self.batch, self.positions)

    def read(self, name: str, attention: int) -> Tensor:
        """A quantity of the stack of this attention, (batch, position, width).

        Raises AbsentError with the reason where the block has none, and TraceError where the sums
        do not hold in this run.
        """
        place = self.block.places[attention][name]
        if isinstance(place, str):
            raise AbsentError(f"{name}: {place}.")
        if self._problem is None:
            # An edit writes what no sum gives.
            self._problem = "" if self.edits or self.adjust else self._misfit()
        if self._problem:
            raise TraceError(f"{name}: {self._problem}.")
        return self.shaped(self._intact(place))

    def as_added(self, name: str, attention: int, value: Tensor) -> Tensor:
        """A quantity as it is added to the stream: after its norm, and times its factor."""
        if not name.endswith("_out"):
            return value
        step = self._step(name, attention)
        return step.factor * self.shaped(self._intact(step.added))

    def way_of(self, name: str, attention: int) -> tuple[float, NormOf | None, NormOf | None]:
        """How attn_out or mlp_out gets into the stream: factor, its own norm, that of the sum."""
        step = self._step(name, attention)

        def norm(read: Tap | None, gave: Tap | None) -> NormOf | None:
            if read is None or gave is None or read is gave:
                return None
            return read.module, self.shaped(self._intact(read)), self.shaped(self._intact(gave))

        return step.factor, norm(step.write, step.added), norm(step.total, step.stream)

    def _step(self, name: str, attention: int) -> Step:
        place = self.block.places[attention][name]
        return next(step for step in self.block.steps if step.write is place)

    def _intact(self, tap: Tap) -> Tensor:
        value = self.values[tap]
        if tap in self.versions and value._version != self.versions[tap]:
            raise TraceError(
                f"What {type(tap.module).__name__} {'read' if tap.given else 'wrote'} was "
                "overwritten after it was computed. Trace again."
            )
        return value if tap.half is None else value.chunk(2, -1)[tap.half]

    @torch.no_grad()
    def _misfit(self) -> str:
        """What does not add up in this run; "" where everything does."""
        waiting: list[Tensor] = []
        for before, step in zip(self.block.before, self.block.steps, strict=True):
            waiting.append(step.factor * self.shaped(self._intact(step.added)))
            if step.total is None:
                continue
            total = self.shaped(self._intact(step.total))
            stream = self.shaped(self._intact(before))
            if not adds_up(total, stream, *waiting):
                return (
                    f"the parts of {type(self.block.module).__name__} do not add up to the stream "
                    "in this run, as they did in the first one (dropout does that: call "
                    "hf_model.eval(). Or the first run was unusual, as one of zeros is: attach the "
                    "model again and trace another text first)"
                )
            waiting = []
        return ""


def adds_up(total: Tensor, *terms: Tensor) -> bool:
    """True where the terms are the total, but for the rounding of each entry."""
    eps = max(torch.finfo(one.dtype).eps for one in (total, *terms))
    wide = torch.promote_types(total.dtype, torch.float32)
    whole = [one.to(wide) for one in terms]
    sizes = sum(one.abs() for one in whole)
    off = (sum(whole) - total.to(wide)).abs()
    # NaN and infinity, as of padding, have no sum to compare.
    return bool(((off <= _ROUNDINGS * eps * sizes) | ~total.isfinite()).all())


def first_tensor(given: Iterable[Any]) -> Tensor | None:
    """The first tensor of floats among what a module is given, or gives out."""
    for one in given:
        if isinstance(one, Tensor) and one.is_floating_point():
            return one
    return None


def _outputs(output: Any) -> Iterable[Any]:
    if isinstance(output, Tensor):
        return (output,)
    if isinstance(output, Mapping):
        return output.values()
    return output if isinstance(output, tuple | list) else ()


def _replaced(output: Any, old: Tensor, new: Tensor) -> Any:
    """The output with its first tensor replaced."""
    if output is old:
        return new
    if isinstance(output, dict):
        # An output of transformers; some of its entries may be there under two names.
        for key, one in [*output.items()]:
            if one is old:
                output[key] = new
        return output
    return type(output)(new if one is old else one for one in output)


@contextmanager
def listening(
    blocks: Iterable[Block],
    opened: Callable[[Block, Tensor], Run | None],
    closed: Callable[[], object],
    current: Callable[[], Run | None],
    *,
    within_mlp: bool,
) -> Iterator[None]:
    """Keep what stands at the taps of these blocks, in this thread, while the block runs."""
    thread = get_ident()

    def given(
        block: Block,
        taps: Sequence[Tap],
        module: nn.Module,
        inputs: tuple[Any, ...],
        keywords: dict[str, Any] | None = None,
    ) -> Any:
        # torch gives a hook that another thread removed no keywords.
        if get_ident() != thread or keywords is None:
            return None
        value = first_tensor((*inputs, *keywords.values()))
        if value is None:
            return None
        run = opened(block, value) if module is block.module else current()
        if run is None or run.block is not block:
            return None
        new = run.passes(taps, value)
        if new is value:
            return None
        named = {name: new if one is value else one for name, one in keywords.items()}
        return tuple(new if one is value else one for one in inputs), named

    def out(
        block: Block, taps: Sequence[Tap], module: nn.Module, inputs: object, output: Any
    ) -> Any:
        run = current() if get_ident() == thread else None
        value = first_tensor(_outputs(output))
        if value is None or run is None or run.block is not block:
            return None
        new = run.passes(taps, value)
        if module is block.module:
            closed()
        return None if new is value else _replaced(output, value, new)

    with ExitStack() as undo:
        for block in blocks:
            for module, before, taps in block.taps[within_mlp]:
                hook: Any = partial(given if before else out, block, taps)
                add: Any = (
                    module.register_forward_pre_hook if before else module.register_forward_hook
                )
                undo.callback(add(hook, **({"with_kwargs": True} if before else {})).remove)
        yield


@runtime_checkable
class Attends(Protocol):
    """A call of an attention."""

    module: nn.Module
    block: "Run | str"


@dataclass(eq=False)
class Event:
    """One call of a module in a block: when it began and ended, its first tensors, some rows."""

    module: nn.Module
    start: int
    given: Tensor | None
    read: Tensor | None
    """Rows of what it was given."""
    end: int = 0
    out: Tensor | None = None
    wrote: Tensor | None = None
    versions: dict[bool, int] = field(default_factory=dict)

    @cached_property
    def weights(self) -> set[int]:
        """The numbers of axes that its weights have."""
        return {one.dim() for one in self.module.parameters()}

    @property
    def is_norm(self) -> bool:
        """True for a norm, or another module that only scales what it reads."""
        named = "norm" in type(self.module).__name__.lower()
        return self.weights == {1} or (named and not self.weights)

    @property
    def is_function(self) -> bool:
        """True where it computes other numbers of the same shape, as an activation does."""
        read, wrote = self.read, self.wrote
        if read is None or wrote is None or read.shape != wrote.shape:
            return False
        named = "norm" in type(self.module).__name__.lower()
        # An activation may have a number or two that were learned.
        few = sum(one.numel() for one in self.module.parameters()) <= _MOST_NUMBERS
        return few and not named and not torch.equal(read, wrote)


@dataclass(eq=False)
class Frame:
    """A numbered module that is running, which may be a block."""

    name: str
    own: Event
    events: list[Event] = field(default_factory=list)
    calls: list[tuple[int, str, Attends]] = field(default_factory=list)
    """When each attention in it was called, the pattern of its name, and the call."""

    @property
    def is_several(self) -> bool:
        """True where a stack attended several times: it holds several blocks."""
        return len({pattern for _, pattern, _ in self.calls}) < len(self.calls)

    def rows(self, value: Tensor | None) -> Tensor | None:
        """Some rows of a tensor that has as many as the stream."""
        stream = self.own.given
        if value is None or stream is None or value.dim() < 2 or stream.dim() < 2:
            return None
        count = stream.shape[:-1].numel()
        if value.shape[:-1].numel() != count or not count:
            return None
        chosen = torch.linspace(0, count - 1, min(count, _ROWS), device=value.device).long()
        return value.detach().reshape(count, -1)[chosen.unique()]


class Tape:
    """The listener of a first run: it finds the block of every attention that is called."""

    def __init__(self, model: nn.Module) -> None:
        self.found: dict[int, Block | str] = {}
        """By the id of the attention module: its block, or why there is none."""
        self._names = {id(module): name for name, module in model.named_modules()}
        self._model, self._thread, self._tick = model, 0, 0
        self._frames: list[Frame] = []
        self.behind: Frame | None = None
        """What ran after the last block, with what left that as the stream that it is given."""

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Listen to every module in this thread while the block runs."""
        self._thread = get_ident()
        with ExitStack() as undo:
            undo.callback(self._forget)
            for module in self._model.modules():
                begin = module.register_forward_pre_hook(self._begin, with_kwargs=True)
                undo.callback(begin.remove)
                undo.callback(module.register_forward_hook(self._end).remove)
            yield

    @property
    def _listening(self) -> list[Frame]:
        """The modules that take notes: at the end of a model the last block."""
        if self._frames:
            return [one for one in self._frames if not one.is_several]
        return [] if self.behind is None else [self.behind]

    def _forget(self) -> None:
        self._frames, self.behind = [], None

    def called(self, pattern: str, call: Attends) -> None:
        """Note a call of an attention."""
        self._tick += 1
        for frame in self._frames:
            frame.calls.append((self._tick, pattern, call))
            if frame.is_several:
                # What ran in it is not held until it ends.
                frame.events.clear()

    def _begin(
        self, module: nn.Module, inputs: tuple[Any, ...], keywords: dict[str, Any] | None = None
    ) -> None:
        # torch gives a hook that was removed during the call no keywords.
        if get_ident() != self._thread or keywords is None:
            return
        self._tick += 1
        given = first_tensor((*inputs, *keywords.values()))
        for frame in self._listening:
            event = Event(module, self._tick, given, frame.rows(given))
            if given is not None and not given.is_inference():
                event.versions[True] = given._version
            frame.events.append(event)
        name = self._names.get(id(module), "")
        if name.rpartition(".")[2].isdigit():
            own = Event(module, self._tick, given, None)
            own.read = Frame(name, own).rows(given)
            self._frames.append(Frame(name, own))

    def _end(self, module: nn.Module, inputs: object, output: Any) -> None:
        if get_ident() != self._thread:
            return
        self._tick += 1
        out = first_tensor(_outputs(output))
        while self._frames and self._frames[-1].own.module is module:
            self._close(self._frames.pop(), out)
        for frame in self._listening:
            opened = (one for one in reversed(frame.events) if one.module is module and not one.end)
            if (event := next(opened, None)) is None:
                continue
            event.end, event.out, event.wrote = self._tick, out, frame.rows(out)
            if out is not None and not out.is_inference():
                event.versions[False] = out._version

    def _close(self, frame: Frame, out: Tensor | None) -> None:
        """Look for the block that a numbered module is, where each stack attends once in it."""
        inside = all(call.module is not frame.own.module for _, _, call in frame.calls)
        if not frame.calls or not inside or frame.is_several:
            return
        frame.own.end, frame.own.out, frame.own.wrote = self._tick, out, frame.rows(out)
        found = _Search(frame).block()
        if isinstance(found, str):
            for _, _, call in frame.calls:
                self.found.setdefault(id(call.module), found)
            return
        run = _run_of(found, frame)
        own = frame.own
        self.behind = Frame(frame.name, Event(own.module, self._tick, own.out, own.wrote))
        for _, _, call in frame.calls:
            self.found[id(call.module)], call.block = found, run


def _run_of(block: Block, frame: Frame) -> Run:
    """The run that the search has seen."""
    assert frame.own.given is not None
    run = Run(block, frame.own.given)
    events = [frame.own, *frame.events]
    for module, given, taps in block.taps[True]:
        of_module = [one for one in events if one.module is module]
        of_module.sort(key=lambda one: one.start if given else one.end)
        for tap in taps:
            event = of_module[tap.nth]
            value = event.given if given else event.out
            assert value is not None
            run.values[tap] = value
            if (version := event.versions.get(given)) is not None:
                run.versions[tap] = version
    return run


class _Search:
    """What adds up to what leaves a block."""

    def __init__(self, frame: Frame) -> None:
        self.frame, self.own = frame, frame.own
        self.taps: dict[tuple[Event, bool, int | None], Tap] = {}
        self.events = [one for one in frame.events if one.end]
        shape = None if self.own.read is None else self.own.read.shape
        self.readers = [e for e in self.events if e.read is not None and e.read.shape == shape]
        self.writers: list[list[Event]] = []
        """Events that wrote the same, the last one last."""
        for event in sorted(self.events, key=lambda one: one.end):
            if event.wrote is None or event.wrote.shape != shape:
                continue
            same = (each for each in self.writers if torch.equal(_of(each[0]), event.wrote))
            if (group := next(same, None)) is None:
                self.writers.append([event])
            else:
                group.append(event)

    def tap(self, event: Event, *, given: bool, half: int | None = None) -> Tap:
        """The tap of what an event read or wrote."""
        where = (event, given, half)
        if where not in self.taps:
            of_module = [one for one in (self.own, *self.events) if one.module is event.module]
            of_module.sort(key=lambda one: one.start if given else one.end)
            self.taps[where] = Tap(event.module, given, of_module.index(event), half)
        return self.taps[where]

    def block(self) -> Block | str:
        """The block, or why it is none."""
        own, name = self.own, self.frame.name
        if own.read is None or own.wrote is None or own.read.shape != own.wrote.shape:
            return f"what enters and what leaves {name} do not have one shape"
        if adds_up(own.wrote, own.read):
            return LOST
        for scaled in (False, True):
            steps = self.steps(own.read, 0, scaled=scaled)
            if steps is not None:
                break
        else:
            return f"no modules of {name} add up to what leaves it"
        attends: dict[int, int] = {}
        for tick, _, call in self.frame.calls:
            later = (n for n, step in enumerate(steps) if step.end > tick)
            attends[id(call.module)] = next(later, -1)
        if -1 in attends.values() or len(set(attends.values())) < len(attends):
            return f"what each attention of {name} adds to the stream was not found"
        enters = self.tap(own, given=True)
        unsure = self.unsure(steps, enters)
        places = {
            of: {
                name: LOST if place in unsure else place
                for name, place in self.places(steps, at, attends.values()).items()
            }
            for of, at in attends.items()
        }
        written = frozenset(tap for where, tap in self.taps.items() if _is_written(*where[:2]))
        calls = Counter(one.module for one in (own, *self.events))
        repeated = frozenset(module for module, count in calls.items() if count > 1)
        return Block(own.module, tuple(steps), places, enters, written, repeated)

    def steps(
        self, stream: Tensor, after: int, *, scaled: bool, depth: int = 0
    ) -> list[Step] | None:
        """The additions that lead from a stream to what leaves the block, or None."""
        if depth == _MOST_STEPS:
            return None
        left, leaves = _of(self.own), self.tap(self.own, given=False)
        for group in self.writers:
            write = group[-1]
            if write.end <= after:
                continue
            factor = factor_of(stream, _of(write), left, scaled=scaled)
            if factor is not None:
                return [self.step(group, factor, leaves, leaves)]
            for reader in self.readers:
                assert reader.read is not None
                if reader.start < write.end or self.attends_between(write.end, reader.start):
                    continue
                factor = factor_of(stream, _of(write), reader.read, scaled=scaled)
                if factor is None:
                    continue
                total = self.tap(reader, given=True)
                rest = self.steps(reader.read, reader.start, scaled=scaled, depth=depth + 1)
                if rest is not None:
                    return [self.step(group, factor, total, total), *rest]
                if reader.wrote is None or not reader.is_norm:
                    continue
                if torch.equal(reader.wrote, left):
                    return [self.step(group, factor, total, leaves)]
                rest = self.steps(reader.wrote, reader.end, scaled=scaled, depth=depth + 1)
                same = [
                    each[-1] for each in self.writers if torch.equal(_of(each[0]), reader.wrote)
                ]
                if rest is not None and same:
                    normed = self.tap(same[0], given=False)
                    return [self.step(group, factor, total, normed), *rest]
        for one, other in combinations(self.writers, 2):
            if one[-1].end > after and adds_up(left, stream, _of(one[-1]), _of(other[-1])):
                return [self.step(one, 1.0, None, None), self.step(other, 1.0, leaves, leaves)]
        return None

    def attends_between(self, end: int, start: int) -> bool:
        """True where an attention ran between; what is lost in rounding there adds up anywhere."""
        return any(end < tick < start for tick, _, _ in self.frame.calls)

    def unsure(self, steps: Sequence[Step], before: Tap) -> set[Place]:
        """The streams inside the block to which nothing was added that this run shows."""
        rows = {
            tap: event.read if given else event.wrote
            for (event, given, _), tap in self.taps.items()
        }
        found: set[Place] = set()
        for step in steps[:-1]:
            if step.total is None or step.stream is None:
                continue
            stream, total = rows[before], rows[step.total]
            assert stream is not None
            assert total is not None
            if adds_up(total, stream):
                found.add(step.stream)
            before = step.stream
        return found

    def lost(self, steps: Sequence[Step]) -> bool:
        """True where a module with matrices wrote to no sum after the last step that was found."""
        return any(
            event.end > steps[-1].end
            and max(event.weights, default=0) >= 2
            and not torch.equal(_of(event), _of(self.own))
            for group in self.writers
            for event in group
        )

    def step(
        self, group: Sequence[Event], factor: float, total: Tap | None, stream: Tap | None
    ) -> Step:
        """The step that adds what the events of a group wrote."""
        added = write = self.tap(group[-1], given=False)
        for event in group:
            if event.is_norm and event.read is not None and event.read.shape == _of(event).shape:
                write = self.tap(event, given=True)
                break
        return Step(write, added, factor, total, stream, group[-1].end)

    def places(self, steps: Sequence[Step], at: int, attends: Iterable[int]) -> dict[str, Place]:
        """Where the quantities of the stack whose attention is this step stand."""
        enters, leaves = (self.tap(self.own, given=given) for given in (True, False))
        found: dict[str, Place] = {"attn_out": steps[at].write, "resid_post": leaves}
        found["resid_pre"] = (steps[at - 1].stream if at else None) or enters
        others = sorted(set(range(len(steps))) - set(attends))
        why = "the block has no MLP" if not others else "several modules add to the stream here"
        found |= dict.fromkeys(("mlp_gate", "mlp_pre", "mlp_post", "mlp_out"), why)
        if self.lost(steps):
            lost = ("resid_mid", "mlp_gate", "mlp_pre", "mlp_post", "mlp_out")
            return found | dict.fromkeys(lost, LOST)
        if others:
            found["resid_mid"] = "no MLP follows this attention"
        else:
            found["resid_mid"] = steps[at].stream or leaves
        if len(others) != 1:
            return found
        mlp = others[0]
        found["mlp_out"] = steps[mlp].write
        found |= self.inside(steps[mlp - 1].end if mlp else 0, steps[mlp].end)
        if mlp == at + 1:
            parallel = "attention and MLP are added at once, and no module reads a sum between them"
            found["resid_mid"] = steps[at].stream or parallel
        elif mlp > at:
            found["resid_mid"] = (
                "another attention follows before the MLP; what is between them is the resid_pre "
                "of its stack, and the stream before the MLP its resid_mid"
            )
        return found

    def inside(self, start: int, end: int) -> dict[str, Place]:
        """Where the activation of the MLP that ran in this time stands, and what it is given."""
        events = [e for e in self.events if start < e.end <= end]
        acts = [e for e in events if e.is_function]
        found: list[dict[str, Place]] = []
        for act in acts:
            post = _of(act)
            for down in events:
                if down.start < act.end or 2 not in down.weights or down.read is None:
                    continue
                if down.read.shape != post.shape:
                    continue
                whole = self.tap(down, given=True)
                pre = self.tap(act, given=True)
                if torch.equal(down.read, post):
                    why = "the MLP has no gate; mlp_pre enters the activation"
                    found.append({"mlp_pre": pre, "mlp_post": whole, "mlp_gate": why})
                elif (up := self.gated(act, down, events)) is not None:
                    found.append({"mlp_pre": up, "mlp_post": whole, "mlp_gate": pre})
                else:
                    continue
                break
        if len(found) == 1:
            return found[0]
        why = (
            "no module of the MLP is its activation, one for all positions, whose output a "
            "projection reads (experts, for example, have one for each)"
        )
        return dict.fromkeys(("mlp_gate", "mlp_pre", "mlp_post"), why)

    def gated(self, act: Event, down: Event, events: Sequence[Event]) -> Tap | None:
        """What the activation is multiplied by to give what the last projection reads."""
        assert down.read is not None
        for up in events:
            wrote = up.wrote
            if wrote is None or 2 not in up.weights or up.end > down.start:
                continue
            whole = self.tap(up, given=False)
            if wrote.shape == down.read.shape and adds_up(down.read, _of(act) * wrote):
                return whole
            if wrote.shape[-1] != 2 * down.read.shape[-1]:
                continue
            for half, part in enumerate(wrote.chunk(2, -1)):
                if adds_up(down.read, _of(act) * part):
                    return self.tap(up, given=False, half=half)
        return None


def _of(event: Event) -> Tensor:
    assert event.wrote is not None, "only events that wrote rows are compared"
    return event.wrote


def _is_written(event: Event, given: bool) -> bool:
    """True where the model wrote over what a module read or wrote, before its block ended."""
    value, version = event.given if given else event.out, event.versions.get(given)
    return value is not None and version is not None and value._version != version


def factor_of(stream: Tensor, write: Tensor, total: Tensor, *, scaled: bool = True) -> float | None:
    """The number with total = stream + number · write: 1, or any where `scaled`; None without."""
    if adds_up(total, stream, write):
        return 1.0
    # With one row any norm is a factor.
    if not scaled or len(write) < 2:
        return None
    wide = write.double()
    size = float(wide.square().sum())
    factor = float(((total.double() - stream.double()) * wide).sum()) / size if size else 0.0
    return factor if abs(factor) > 1e-3 and adds_up(total, stream, factor * write) else None
