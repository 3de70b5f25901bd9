"""Reading the attention of one forward pass of a live model."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from torch import Tensor, nn

from minibert.attached.layout import READABLE
from minibert.attached.page_trace import PageTrace, page_trace
from minibert.attached.stack import AttachedLayer, StackTrace
from minibert.doors import Page, opened
from minibert.errors import EditError, TraceError
from minibert.text.tokens import Tokens
from minibert.trace.edit import Point
from minibert.trace.layer_view import AbsentError
from minibert.trace.places import Places


class AttachedTrace:
    """The attention of one forward pass of a live model.

    `trace[3, 5].probs` where the model has one stack of layers, else
    `trace.stack("decoder.cross")[3, 5].probs`. `trace.output` is what the model returned.
    """

    def __init__(
        self,
        stacks: Mapping[str, StackTrace],
        output: object,
        model_name: str,
        again: "Callable[[Mapping[object, object]], AttachedTrace] | None",
    ) -> None:
        self._stacks, self.output, self.model_name = dict(stacks), output, model_name
        self._again = again

    @property
    def model(self) -> nn.Module | None:
        """The live model; None where no attention ran in this pass."""
        return next((stack.model for stack in self._stacks.values()), None)

    @property
    def stacks(self) -> tuple[str, ...]:
        """The names of the stacks of layers, in the order in which they ran."""
        return tuple(self._stacks)

    def of_stack(self, name: str) -> StackTrace:
        """The layers of one stack."""
        if name not in self._stacks:
            raise TraceError(f"There is no stack {name!r:.80}; there are {self._names}.")
        return self._stacks[name]

    def stack(self, name: str) -> Any:
        """The stack of that name; of the only one, a quantity of all layers: `stack("probs")`."""
        if name in (*READABLE, "head_out") and name not in self._stacks:
            return self.only().stack(name)
        return self.of_stack(name)

    @property
    def _names(self) -> str:
        return ", ".join(map(repr, self._stacks)) or "none: no attention ran in this pass"

    def only(self) -> StackTrace:
        """The stack of a model that has one."""
        if len(self._stacks) != 1:
            raise TraceError(
                f"This pass has several stacks, {self._names}: read trace.stack(name)[layer, head]."
                if self._stacks
                else "No attention ran in this pass."
            )
        return next(iter(self._stacks.values()))

    def __getitem__(self, where: int | tuple[int, int]) -> AttachedLayer:
        """The quantities of a layer, or of one head of it, of a model with one stack."""
        return self.only()[where]

    def __len__(self) -> int:
        return len(self.only())

    def __iter__(self) -> Iterator[AttachedLayer]:
        return iter(self.only())

    def _at(self, point: Point) -> StackTrace:
        """The stack of a point of an edit."""
        if point.stack and point.stack not in self._stacks:
            raise EditError(
                f"{point}: the trace to read from has no stack {point.stack!r}; it has "
                f"{self._names}."
            )
        return self._stacks[point.stack] if point.stack else self.only()

    def value_at(self, point: Point) -> Tensor:
        """The quantity at a point of an edit; a head of keys is a key-value head."""
        return self._at(point).value_at(point)

    def shape_at(self, point: Point) -> tuple[int, ...]:
        """Its shape. Raises EditError where this trace has no such stack or layer."""
        return self._at(point).shape_at(point)

    def places_at(self, point: Point) -> Places:
        """Which of its positions are tokens."""
        return self._at(point).places_at(point)

    @property
    def logits(self) -> Tensor:
        """The model's logits, as it returned them."""
        logits = getattr(self.output, "logits", None)
        if logits is None:
            raise AbsentError(
                f"{self.model_name} returned no logits, but {type(self.output).__name__}: read "
                "trace.output."
            )
        return logits

    def rerun(self, edit: Mapping[object, object]) -> "AttachedTrace":
        """The trace of the same inputs with these edits; the whole model runs again."""
        if self._again is None:
            raise TraceError(
                "A recorded pass cannot run again; call attached.trace(..., edit=...)."
            )
        return self._again(edit)

    def view(self, *, stack: str | None = None, **options: object) -> Page:
        """The page of a stack, the only one by default; `options` are those of `minibert.viz.view`.

        Raises TraceError where a stack has no page: one whose queries are not its keys.
        """
        shown: Page = opened("view")(self.paged(stack), **options)
        return shown

    def paged(self, stack: str | None = None) -> PageTrace:
        """A stack, the only one by default, as pages read a trace: padding left out."""
        return page_trace(self.only() if stack is None else self.of_stack(stack))

    @property
    def attentions(self) -> tuple[Tensor, ...]:
        """probs of each layer of the only stack, with the padding that the model was given."""
        return self.only().attentions

    @property
    def tokens(self) -> Tokens:
        """The tokens of the only stack: words where ids and tokenizer are known, else numbers."""
        return self.paged().tokens

    def __repr__(self) -> str:
        return f"AttachedTrace({'; '.join(map(repr, self._stacks.values()))})"
