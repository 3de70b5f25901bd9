"""Looking at the calls of one stack while a live model runs; nothing of the pass is kept.

A trace holds query, key, value and z of every layer. Whoever needs a number or two of each layer
takes them here, as each layer is computed, of a whole corpus in the memory of one layer.
"""

from collections.abc import Callable
from threading import get_ident

from torch import Tensor, nn

from minibert.attached.call import Call
from minibert.attached.check import form_of, misfit
from minibert.attached.recording import Known
from minibert.attached.stacks import pattern_of
from minibert.errors import TraceError

__all__ = ["Visit", "Visits"]

Visit = Callable[[int, Call], None]


class Visits:
    """A listener that hands the calls of one stack to a function, with the number of the layer."""

    def __init__(self, known: Known, stack: str, visit: Visit) -> None:
        self.known, self.stack, self.visit = known, stack, visit
        self.n_calls, self._thread = 0, get_ident()

    def hears(self, module: nn.Module) -> bool:
        """True for the modules of the stack."""
        name = self.known.names.get(id(module))
        return name is not None and self.known.stack_names.get(pattern_of(name)) == self.stack

    def before(self, call: Call) -> None:
        """Refuse a call that drops weights."""
        if call.options.get("dropout"):
            raise TraceError(
                f"{self.known.names[id(call.module)]} drops attention weights, dropout="
                f"{call.options['dropout']}. Call hf_model.eval() first."
            )

    def instead(self, call: Call) -> Tensor | None:
        """The model computes z itself."""

    def after(self, call: Call) -> None:
        """Check the call, where its form is new, and hand it on."""
        form = form_of(call)
        if form not in self.known.forms:
            self.known.forms[form] = misfit(call)
        call.untrue = self.known.forms[form]
        call.projected_by(self.known.projections.of(call.module))
        self.n_calls += 1
        self.visit(self.n_calls - 1, call)
