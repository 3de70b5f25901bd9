"""The glossary: what a quantity is, the axes it can have, and the register of all of them.

A quantity is declared once, with its name, axes, formula in words, function and, where autograd
would hold N x N, its gradient. The quantities of a layer are declared in layers/layer.py. The same
name is used on a trace, in an edit, in a gradient, in a file, on a page and on the command line.

Axes
    batch      sentences that are computed together
    position   tokens of a sentence, in reading order
    query      the position that looks; the rows of an attention matrix
    key        the position that is looked at; its columns
    head       attention heads of one layer
    kv_head    its key-value heads, which are fewer where several heads share one
    d_model    the width of the residual stream
    d_head     the width of one head's query, key and value
    d_mlp      the width inside the feed-forward block
    vocab      entries of the vocabulary, padding entries included
    1          one number, which stands for all of an axis: the quantity divides or multiplies it

A boolean mask is True where attention is allowed.

Shapes stand in signatures as jaxtyping annotations. They are checked when jaxtyping is
imported before minibert, as the tests do; otherwise they cost nothing, and jaxtyping need
not be installed.
"""

import sys
from collections.abc import Callable
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Generic,
    Protocol,
    TypeVar,
    overload,
    runtime_checkable,
)

from torch import Tensor

import minibert.vector_math as _first_calls_of_torch  # noqa: F401 - for what its import does

if TYPE_CHECKING:
    # What jaxtyping's names are to a type checker, which then need not find jaxtyping.
    from typing import Annotated as Bool
    from typing import Annotated as Float
    from typing import Annotated as Int
    from typing import Annotated as Shaped
elif "jaxtyping" in sys.modules:
    from jaxtyping import Bool, Float, Int, Shaped
else:

    class _Unchecked:
        """Reads `Float[Tensor, "..."]` as `Tensor`, with the names of its axes beside it."""

        def __class_getitem__(cls, item: tuple[type, str]) -> Any:
            return Annotated[item]

    Bool = Float = Int = Shaped = _Unchecked

# Checked by jaxtyping where it is; the other names are declared below.
__all__ = ["Bool", "Float", "Int", "Shaped"]

TokenIds = Int[Tensor, "batch position"]
TokenMask = Bool[Tensor, "batch position"]
AttentionMask = Bool[Tensor, "#batch 1 #query key"]
Hidden = Float[Tensor, "batch position d_model"]
Mlp = Float[Tensor, "batch position d_mlp"]
HeadVectors = Float[Tensor, "batch head position d_head"]
KeyVectors = Float[Tensor, "batch kv_head position d_head"]
PerHeadHidden = Float[Tensor, "batch head position d_model"]
PerKeyHeadHidden = Float[Tensor, "batch kv_head position d_model"]
NormScale = Float[Tensor, "batch position 1"]
Pooled = Float[Tensor, "batch d_model"]
Matrix = Float[Tensor, "batch head query key"]
Logits = Float[Tensor, "batch *position out"]


QUANTITIES: dict[str, "Quantity[Any]"] = {}

Value = TypeVar("Value")
#: How a quantity, or its gradient, is computed in a `LayerPass` or in its gradients.
Compute = Callable[[Any], Value]


@runtime_checkable
class Reader(Protocol):
    """An object that has quantities as attributes: a layer of a pass, a trace or its gradients."""

    def read_quantity(self, quantity: "Quantity[Any]") -> Tensor:
        """The value of the quantity here."""


class Quantity(Generic[Value]):
    """One named quantity: where it lives, what it is, and how it is computed.

    As an attribute of a class it gives the value: `trace[2, 1].probs`.

    name         in every place where it can be read or written
    axes         as above; per_head is True when there is one value a head
    formula      the same in words
    compute      its function of the quantities before it, in one layer of one pass
    kept         a trace keeps what the pass computed; the others are computed when read
    of_keys      its positions are those that are looked at (key, value), not those that look
    per_layer    False for what belongs to the whole pass
    gradient     how much a number grows with it, from the gradient of the first quantity after it
                 that is in `gradient_from`; None where autograd gives it, at no cost to a pass
    """

    def __init__(
        self,
        axes: tuple[str, ...],
        formula: str,
        compute: Compute[Value] | None = None,
        *,
        name: str = "",
        kept: bool = False,
        of_keys: bool = False,
        per_layer: bool = True,
    ) -> None:
        self.axes = axes
        self.per_head = "head" in axes or "kv_head" in axes
        self.formula = formula
        self.compute = compute
        self.kept = kept
        self.of_keys = of_keys
        self.per_layer = per_layer
        self.gradient: Compute[Tensor] | None = None
        self.gradient_from: tuple[str, ...] = ()
        self.name = name
        if name:
            QUANTITIES[name] = self

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name
        QUANTITIES[name] = self

    def gradient_of(self, *others: str) -> Callable[[Compute[Tensor]], None]:
        """Declare the gradient, a function of those of quantities after it up to one of `others`.

        Which of them it is depends on the model: the first one after the quantity.
        """

        def declare(function: Compute[Tensor]) -> None:
            self.gradient, self.gradient_from = function, others

        return declare

    @overload
    def __get__(self, reader: None, owner: type) -> "Quantity[Value]": ...

    @overload
    def __get__(self, reader: Reader, owner: type) -> Value: ...

    def __get__(self, reader: Reader | None, owner: type) -> Any:
        return self if reader is None else reader.read_quantity(self)

    def __repr__(self) -> str:
        return f"Quantity({self.name}: {', '.join(self.axes)}; {self.formula})"


def quantity(
    formula: str, *, kept: bool = False, of_keys: bool = False
) -> Callable[[Compute[Value]], Quantity[Value]]:
    """The declaration of a quantity of a layer; the function below it is how it is computed.

    Its axes are those of what the function returns.
    """

    def declare(compute: Compute[Value]) -> Quantity[Value]:
        shape = _shape_of(compute.__annotations__["return"])
        assert shape is not None, "a quantity says its axes in what it returns"
        return Quantity(tuple(shape.split()), formula, compute, kept=kept, of_keys=of_keys)

    return declare


def _shape_of(hint: object) -> str | None:
    """The shape that stands in an annotation, in either of its forms."""
    shape = getattr(hint, "dim_str", None) or next(iter(getattr(hint, "__metadata__", ())), None)
    return shape if isinstance(shape, str) else None
