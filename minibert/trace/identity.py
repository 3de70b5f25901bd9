"""Whose trace a file holds: the identity of a model, and what stands in for one that is not there.

Place: trace_file.py writes the identity into a trace's file and compares it with the model that
is given when the file is loaded.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from minibert.errors import TraceError
from minibert.layers.bodies import Body
from minibert.layers.config import Config
from minibert.layers.parts import Layer

__all__ = ["check_model", "identity_of", "stand_in", "weights_digest"]


class WeightsNeededError(TraceError, AttributeError):
    """What was read is computed from weights; an AttributeError too, so that hasattr works."""


class Weightless:
    """Stands where a model would: it has what a file knows of one, and no weights."""

    def __init__(self, reason: str, **known: Any) -> None:
        self._reason = reason
        self.__dict__.update(known)

    def __getattr__(self, name: str) -> Any:
        # copy and pickle look for names of their own before there is a reason.
        raise AttributeError(name) if name.startswith("_") else WeightsNeededError(self._reason)

    def __call__(self, *_: Any, **__: Any) -> Any:
        raise WeightsNeededError(self._reason)


class WeightlessBody(Weightless, Body):
    """Stands where the weights of a body would be."""

    @property
    def layers(self) -> tuple[Layer, ...]:
        """Stand-ins, each of which knows its scale."""
        return self.__dict__["stand_ins"]


class WeightlessLayer(Weightless, Layer):
    """Stands where a layer's weights would be."""


def identity_of(model: Any) -> dict[str, Any]:
    """Name, config, type and digest of the weights, ready for JSON."""
    if isinstance(model, Weightless):
        # A loaded trace that is saved again stays the trace of the model it came from.
        return dict(model.identity)
    return {
        "name": model.name,
        "config": asdict(model.config),
        "dtype": _dtype(model),
        "weights": weights_digest(model),
    }


def _dtype(model: Any) -> str:
    return str(model.body.word.weight.dtype).removeprefix("torch.")


def weights_digest(model: torch.nn.Module) -> str:
    """A SHA-256 of every parameter and buffer: its name, type, shape and values."""
    digest = hashlib.sha256()
    seen: set[int] = set()
    for place, module in model.named_modules():
        for name, tensor in (*module._parameters.items(), *module._buffers.items()):
            if tensor is None or id(tensor) in seen:
                continue
            seen.add(id(tensor))
            digest.update(f"{place}.{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
            # torch.Tensor.detach and not the method: packed layers stay packed.
            values: Any = torch.Tensor.detach(tensor)
            digest.update(values.cpu().reshape(-1).view(torch.uint8).numpy())
    return digest.hexdigest()


def stand_in(config: Config, identity: Mapping[str, Any], path: Path) -> Weightless:
    """What a trace without its model has in the model's place."""
    name = str(identity["name"])
    reason = (
        f"{path} was loaded without its model, and this is computed from the weights. Give the "
        f"model: Trace.load(path, model=minibert.load(...)), where the trace was of {name!r}. "
        "Without it there are query, key, value, scores, probs, z, the residual streams and logits."
    )
    layers = tuple(
        WeightlessLayer(reason, attention=Weightless(reason, scale=config.attention_scale(layer)))
        for layer in range(config.n_layers)
    )
    needed = Weightless(reason)
    # Post-norm models have nothing between the last layer and the task head.
    final = needed if config.pre_norm else lambda hidden: hidden
    body = WeightlessBody(reason, stand_ins=layers, final=final, embed=needed)
    known = {"config": config, "name": name, "tokenizer": None, "identity": identity}
    return Weightless(
        reason, body=body, head=needed, inputs=needed, task_logits=needed, pool=needed, **known
    )


def check_model(model: Any, config: Config, identity: Mapping[str, Any], path: Path) -> None:
    """Raise TraceError where the model is not the one a file is a trace of, saying what differs."""
    if not isinstance(getattr(model, "config", None), Config):
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
            f"{about}: its weights differ. They were changed after the trace was saved, or it is "
            "another training of the same architecture. Give the model that was traced."
        )
