"""What the functions of this package ask of a model."""

from typing import Any, Protocol, runtime_checkable

from minibert.quantities import Logits
from minibert.text.inputs import Inputs
from minibert.text.tokens import Tokens
from minibert.trace.read import Trace
from minibert.trace.run import TracedModel

__all__ = ["AnsweringModel"]


@runtime_checkable
class AnsweringModel(TracedModel, Protocol):
    """A model that can be traced and called: `minibert.model.Model` is one."""

    impl: str

    def __call__(self, text: Tokens, /) -> Logits:
        """The logits of the task head for these tokens."""

    def inputs(self, text: Any, pair: Any = None) -> Inputs:
        """The batch of what a user passed: text, Tokens or ids, checked by the model."""

    def trace(self, text: Tokens, *, until: int | None = None) -> Trace:
        """The trace of one forward pass, up to layer `until`."""
