"""The parts of a live model that compute a stack: an encoder, the model without its head, all."""

import inspect
from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor, nn

__all__ = ["FAILURES", "LivePart", "parts_of"]

#: What models raise for inputs that they do not take.
FAILURES = (TypeError, ValueError, RuntimeError, AttributeError, LookupError)


class LivePart:
    """A module that is called with those of the inputs that it takes, and without a cache."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        parameters = inspect.signature(module.forward).parameters
        every = any(one.kind is one.VAR_KEYWORD for one in parameters.values())
        self.names = None if every and "input_ids" not in parameters else frozenset(parameters)
        self.options = {"use_cache": False} if "use_cache" in parameters else {}

    def __call__(self, inputs: Mapping[str, Tensor]) -> None:
        """Run it."""
        taken = {n: one for n, one in inputs.items() if self.names is None or n in self.names}
        self.module(**taken, **self.options)


def parts_of(model: nn.Module, *, decodes: bool) -> Iterator[LivePart]:
    """Parts that may be enough, the smallest first; `decodes`: the stack is one of a decoder."""
    config = getattr(model, "config", None)
    found: list[Any] = []
    if getattr(config, "is_encoder_decoder", False) and not decodes:
        encoder = getattr(model, "get_encoder", None)
        found.append(encoder() if callable(encoder) else None)
    found.append(getattr(model, "base_model", None))
    for one in found:
        if isinstance(one, nn.Module) and one is not model:
            yield LivePart(one)
