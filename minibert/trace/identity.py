"""The identity of a traced model: what a trace's file says of it, and how a model is compared.

`stand_in` is used in place of a model when a trace is loaded without one.
"""

import hashlib
import os
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from minibert.errors import TraceError
from minibert.layers.bodies import Body
from minibert.layers.config import Config
from minibert.layers.parts import Layer
from minibert.trace.run import TracedModel

__all__ = ["check_model", "identity_of", "stand_in", "weights_digest"]


class WeightsNeededError(TraceError, AttributeError):
    """A quantity needs weights that are not there; an AttributeError too, so that hasattr works."""


class Weightless:
    """A model, or a part of one, as a file knows it: it has no weights, and says so when asked."""

    def __init__(self, reason: str, **known: Any) -> None:
        self._reason = reason
        self.__dict__.update(known)

    def __getattr__(self, name: str) -> Any:
        # copy and pickle ask for private names before __init__ has set the reason.
        raise AttributeError(name) if name.startswith("_") else WeightsNeededError(self._reason)

    def __call__(self, *_: Any, **__: Any) -> Any:
        raise WeightsNeededError(self._reason)


class WeightlessBody(Weightless, Body):
    """A body without weights."""

    @property
    def layers(self) -> tuple[Layer, ...]:
        """Layers without weights; each knows its attention scale."""
        return self.__dict__["stand_ins"]


class WeightlessLayer(Weightless, Layer):
    """A layer without weights."""


def identity_of(model: TracedModel) -> dict[str, Any]:
    """Name, config, type and digest of the weights, ready for JSON."""
    if isinstance(model, Weightless):
        # A trace that was loaded without its model is saved with the identity from its file.
        return dict(model.identity)
    if not isinstance(model, torch.nn.Module):
        raise TraceError(
            f"{model.name} is a {type(model).__name__}: expected a torch module, whose weights "
            "identify the model in a trace's file."
        )
    return {
        "name": model.name,
        "config": asdict(model.config),
        "dtype": _dtype(model),
        "weights": weights_digest(model),
    }


def _dtype(model: TracedModel) -> str:
    return str(model.body.word.weight.dtype).removeprefix("torch.")


def weights_digest(model: torch.nn.Module) -> str:
    """A SHA-256 of every parameter and buffer: its name, type, shape and the SHA-256 of its values.

    The values are read by as many threads as there are cores.
    """
    named: dict[int, tuple[str, Tensor]] = {}
    for place, module in model.named_modules():
        for name, tensor in (*module._parameters.items(), *module._buffers.items()):
            if tensor is not None:
                named.setdefault(id(tensor), (f"{place}.{name}", tensor))
    digest = hashlib.sha256()
    with ThreadPoolExecutor(os.cpu_count()) as threads:
        each = threads.map(_values_digest, [tensor for _, tensor in named.values()])
        for (name, tensor), values in zip(named.values(), each, strict=True):
            digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)} {values}\n".encode())
    return digest.hexdigest()


def _values_digest(tensor: Tensor) -> str:
    # Not tensor.detach(): a packed layer answers that by dropping its packed copy.
    values = torch.Tensor.detach(tensor)
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


def stand_in(config: Config, identity: Mapping[str, Any], path: Path) -> TracedModel:
    """A model without weights, for a trace that was loaded without its model."""
    name = str(identity["name"])
    reason = (
        f"{path} was loaded without its model, and this is computed from the weights. Give the "
        f"model, {name!r}: Trace.load(path, model=minibert.load(...)). Without it you can read "
        "query, key, value, scores, probs, z, the residual streams and logits."
    )
    layers = tuple(
        WeightlessLayer(reason, attention=Weightless(reason, **_attention(config, layer)))
        for layer in range(config.n_layers)
    )
    needed = Weightless(reason)
    # Some models have nothing between the last layer and the task head.
    final = needed if config.final_norm else lambda hidden, divisors=None: hidden
    body = WeightlessBody(reason, stand_ins=layers, final=final, embed=needed)
    known = {"config": config, "name": name, "tokenizer": None, "identity": identity}
    model: Any = Weightless(
        reason, body=body, head=needed, inputs=needed, task_logits=needed, pool=needed, **known
    )
    return cast(TracedModel, model)


def _attention(config: Config, layer: int) -> dict[str, Any]:
    """What a layer's attention is, without its weights."""
    return {
        "scale": config.attention_scale(layer),
        "soft_cap": config.attention_soft_cap,
        "window": config.window(layer),
        "rotary": config.rotary_of(layer),
        "n_heads": config.n_heads,
        "n_kv_heads": config.n_kv_heads,
        "group": config.n_heads // config.n_kv_heads,
    }


def check_model(
    model: TracedModel, config: Config, identity: Mapping[str, Any], path: Path
) -> None:
    """Raise TraceError, saying what differs, where a file is a trace of another model."""
    if not (
        isinstance(model, torch.nn.Module) and isinstance(getattr(model, "config", None), Config)
    ):
        raise TraceError(
            f"model={type(model).__name__}: expected the minibert model that {path} is a trace of."
        )
    ours, theirs = asdict(model.config), asdict(config)
    differing = [name for name in ours if ours[name] != theirs[name]]
    about = f"{path} is a trace of {identity['name']!r}, and {model.name!r} is another model"
    if differing:
        shown = ", ".join(f"{name} {theirs[name]!r} and {ours[name]!r}" for name in differing)
        raise TraceError(f"{about}: {shown}. Give the model that was traced.")
    dtype = _dtype(model)
    if dtype != identity["dtype"]:
        raise TraceError(
            f"{about}: the trace is in {identity['dtype']}, the model in {dtype}. Load it with "
            f"dtype=torch.{identity['dtype']}."
        )
    if weights_digest(model) != identity["weights"]:
        raise TraceError(
            f"{about}: the weights differ. They were changed after the trace was saved, or "
            "belong to another training of the same architecture. Give the model that was traced."
        )
