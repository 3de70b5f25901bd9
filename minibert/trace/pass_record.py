"""What one forward pass left behind, and the lazy read of everything else."""

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn

from minibert.errors import TraceError
from minibert.kernels.allowed_keys import AllowedKeys
from minibert.kernels.api import Statistics
from minibert.layers.config import Config
from minibert.layers.evaluation import EVERYTHING, Evaluation
from minibert.layers.layer_pass import LayerPass
from minibert.layers.packing import describe
from minibert.text.inputs import Inputs
from minibert.text.tokens import Tokens
from minibert.trace.gradients import Found, watch
from minibert.trace.layer_view import AbsentError, layer_quantity
from minibert.trace.run import TracedModel

__all__ = ["PassRecord"]


class PassRecord:
    """The model, its input, and by layer what the pass kept: the part of a trace that is data."""

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
        self.stored_backends: dict[str, str] | None = None
        self._tokens: Tokens | None = inputs.tokens
        self.autocast = _autocast_dtype(inputs.ids.device.type)

    def as_made(self) -> AbstractContextManager[object]:
        """torch.autocast as it was when the pass ran, so that late reads are numbers of that pass.

        Weights and what the pass kept may have different dtypes otherwise.
        """
        device = self.allowed.device.type
        now = _autocast_dtype(device)
        if now == self.autocast:
            return nullcontext()
        return torch.autocast(device, dtype=self.autocast or now, enabled=self.autocast is not None)

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
    def backends(self) -> dict[str, str]:
        """What computed it: the implementation of attention, and the linear back end and its rule.

        The same back ends and input give the same bits.
        """
        if self.stored_backends is not None:
            return self.stored_backends
        linear = describe(self.model) if isinstance(self.model, nn.Module) else "unknown"
        return {"attention": self.evaluation.impl, "linear": linear}

    @property
    def tokens(self) -> Tokens:
        """What was read, as ids and as strings."""
        if self._tokens is None:
            self._tokens = self.inputs.as_tokens(self.model.tokenizer)
        return self._tokens

    def at(self, layer: int, heads: slice = EVERYTHING, queries: slice = EVERYTHING) -> LayerPass:
        """The table of one layer, to be read lazily for some heads and rows."""
        known = dict(self.records[layer]) if layer < len(self.records) else {}
        if "resid_pre" not in known:
            known["resid_pre"] = (
                self.records[layer - 1]["resid_post"] if layer else self.kept["embed"]
            )
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
        with self.as_made():
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


def _autocast_dtype(device: str) -> torch.dtype | None:
    """What torch.autocast multiplies in now; None where it is off."""
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None
