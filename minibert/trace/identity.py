"""Which model a trace is of: the values of an edit come from the model that it is made in.

A model is its weights and its config. One that was loaded twice is the same model.
"""

import hashlib
import os
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor, nn

from minibert.errors import EditError
from minibert.layers.config import Config
from minibert.layers.linear import held, values_of


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
            self.check(trace.model, trace.model_name, where)

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
        raw: Any = part.view(torch.uint8).numpy()
        digest.update(raw)
    return digest.hexdigest()


def _in_order(values: Tensor) -> Iterator[Tensor]:
    """The values row by row, flat."""
    if values.dim() != 2 or values.is_contiguous() or not values.t().is_contiguous():
        yield values.reshape(-1)
        return
    # A matrix that lies the other way round, as GPT-2's do, is turned inside the processor's cache.
    for rows in values.split(64):
        yield rows.t().contiguous().t().reshape(-1)
