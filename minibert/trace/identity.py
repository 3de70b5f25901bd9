"""Which model a trace is of: the values of an edit come from the model that it is made in.

A model is its weights and its config. One that was loaded twice is the same model. One whose
weights changed is another, also for the traces that it made before (`Unchanged`).
"""

import hashlib
import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from operator import attrgetter, is_
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from minibert.errors import EditError, TraceError
from minibert.layers.config import Config
from minibert.layers.linear import Weight, held, values_of


class Sources:
    """What traces may be read from in edits of a model; each other model is compared once."""

    def __init__(self, model: object) -> None:
        self._model = model
        self._compared: dict[int, bool] = {id(model): True}
        # So that no other model gets the number of one that was compared.
        self._kept: list[object] = []

    def check_each(self, traces: Iterable[Any], where: str) -> None:
        """Raise EditError for a trace of another model."""
        for trace in traces:
            unchanged = getattr(trace, "unchanged_model", None)
            self.check(trace.model if unchanged is None else unchanged(), trace.model_name, where)

    def check(
        self, theirs: object, name: str, where: str, asking: str = "pass other_model=True"
    ) -> None:
        """Raise EditError for the model of a trace whose weights or config are others.

        `asking` says in the error how such a trace is read all the same.
        """
        if id(theirs) not in self._compared:
            self._compared[id(theirs)] = same_model(self._model, theirs)
            self._kept.append(theirs)
        if not self._compared[id(theirs)]:
            raise EditError(
                f"{where}: the trace to read from is of another model, {name}: its weights or its "
                f"config differ. If that is meant, {asking}."
            )


def same_model(one: object, other: object) -> bool:
    """True for two models with equal weights and configs."""
    if one is other:
        return True
    ours, theirs = (getattr(each, "config", None) for each in (one, other))
    # Of transformers' models they differ in the implementation too.
    if isinstance(ours, Config) and ours != theirs:
        return False
    if not isinstance(one, nn.Module) or not isinstance(other, nn.Module):
        return False
    mine, yours = ([*held(model)] for model in (one, other))
    return len(mine) == len(yours) and all(
        a is b or (a.shape == b.shape and a.dtype == b.dtype and torch.equal(a, b.to(a.device)))
        for a, b in zip(mine, yours, strict=True)
    )


class _Part:
    """Some modules of a model: what stands in them, and how often their weights were written to."""

    def __init__(self, modules: Iterable[nn.Module]) -> None:
        kinds = ("_parameters", "_modules", "_forward_hooks", "_forward_pre_hooks")
        self._places = [getattr(one, kind) for one in modules for kind in kinds]
        self._there = self._standing()
        weights = [one for one in self._there if isinstance(one, Tensor)]
        # Writes to the others are not counted; nobody can make them outside of inference mode.
        self._counted = [one for one in weights if not one.is_inference()]
        self._placed = [one for one in weights if _has_memory(one)]

    def _standing(self) -> list[object]:
        return list(chain.from_iterable(map(dict.values, self._places)))

    def stands(self) -> bool:
        """True while no module, weight or hook is another."""
        now = self._standing()
        return len(now) == len(self._there) and all(map(is_, now, self._there))

    def state(self) -> list[int]:
        """How often each weight was written to, and where its memory is."""
        return [*map(attrgetter("_version"), self._counted), *map(Tensor.data_ptr, self._placed)]

    def memory(self) -> list[Tensor]:
        """What keeps memory from being given to another weight; `Weight` counts such changes."""
        return [one.detach() for one in self._placed if type(one) is not Weight]


def _has_memory(weight: Tensor) -> bool:
    try:
        weight.data_ptr()
    except RuntimeError:
        return False
    return True


_PARTS: WeakKeyDictionary[nn.Module, dict[nn.Module | None, _Part]] = WeakKeyDictionary()
"""Those of the last trace of each model."""


class Unchanged:
    """A model as it was when this was made: `check` raises once its weights are others.

    Seen are writes into weights, as torch counts them, and weights, modules and hooks that were
    put in or taken away. `apart` are modules that can be checked one by one.
    """

    def __init__(self, model: object, apart: Sequence[nn.Module] = (), what: str = "trace") -> None:
        self._model, self._apart, self._what = model, apart, what
        self._parts = _parts_of(model, apart) if isinstance(model, nn.Module) else {}
        self._states = {module: part.state() for module, part in self._parts.items()}
        self._memory = [part.memory() for part in self._parts.values()]

    def __reduce__(self) -> tuple[object, ...]:
        """A copy is of the copied model, or refuses everything where this one would."""
        stale = [module for module in self._parts if self._differs(module)]
        return _copied, (self._model, self._apart, self._what, bool(stale))

    def _differs(self, module: nn.Module | None) -> bool:
        part = self._parts.get(module)
        return part is None or not part.stands() or part.state() != self._states[module]

    def check(self, module: nn.Module | None = None) -> None:
        """Raise TraceError where the model is another now, or this module of `apart`."""
        for each in self._parts if module is None else (module,):
            if self._parts and self._differs(each):
                raise TraceError(
                    f"The model's weights, modules or hooks were changed after this {self._what} "
                    f"was made{self._where(each)}, so what is computed now would mix old and new "
                    "weights. Trace the text again, as model.trace(trace.tokens) does; what this "
                    "one kept can still be read."
                )

    def _where(self, module: nn.Module | None) -> str:
        assert isinstance(self._model, nn.Module)
        names = [name for name, one in self._model.named_modules() if one is module]
        return f" (in {names[0]})" if names else ""


def _parts_of(model: nn.Module, apart: Sequence[nn.Module]) -> dict[nn.Module | None, _Part]:
    """The parts of a model: each module of `apart`, and the rest under None."""
    made = _PARTS.get(model, {})
    if not made or not all(part.stands() for part in made.values()):
        # Not of a model of others, which is left as it is.
        for weight in held(model) if apart else ():
            if type(weight) is nn.Parameter:
                weight.__class__ = Weight
        inside = {module: list(module.modules()) for module in dict.fromkeys(apart)}
        known = set(chain.from_iterable(inside.values()))
        made = {module: _Part(modules) for module, modules in inside.items()}
        made[None] = _Part(one for one in model.modules() if one not in known)
        _PARTS[model] = made
    return made


def _copied(model: object, apart: Sequence[nn.Module], what: str, stale: bool) -> Unchanged:
    made = Unchanged(model, apart, what)
    if stale:
        made._states = {module: [] for module in made._states}
    return made


def weights_digest(model: torch.nn.Module) -> str:
    """A SHA-256 of every parameter and buffer: its name, type, shape and the SHA-256 of its values.

    The values are read by as many threads as there are cores.
    """
    named: dict[int, tuple[str, Tensor]] = {}
    for place, module in model.named_modules():
        for name, tensor in (*dict.items(module._parameters), *module._buffers.items()):
            if tensor is not None:
                named.setdefault(id(tensor), (f"{place}.{name}", tensor))
    digest = hashlib.sha256()
    with ThreadPoolExecutor(os.cpu_count()) as threads:
        each = threads.map(_values_digest, [tensor for _, tensor in named.values()])
        for (name, tensor), values in zip(named.values(), each, strict=True):
            digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)} {values}\n".encode())
    return digest.hexdigest()


def _values_digest(tensor: Tensor) -> str:
    values = values_of(tensor)
    digest = hashlib.sha256()
    for part in _in_order(values.cpu()):
        digest.update(part.view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _in_order(values: Tensor) -> Iterator[Tensor]:
    """The values row by row, flat."""
    if values.dim() != 2 or values.is_contiguous() or not values.t().is_contiguous():
        yield values.reshape(-1)
        return
    # A matrix that lies the other way round, as GPT-2's do, is turned inside the processor's cache.
    for rows in values.split(64):
        yield rows.t().contiguous().t().reshape(-1)
