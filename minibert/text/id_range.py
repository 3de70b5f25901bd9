"""Whether ids and segments are in range: in Python, in a compiled model and in an exported one."""

import torch
from torch import Tensor

from minibert.errors import TokenizationError
from minibert.quantities import TokenIds

__all__ = ["in_range"]


def in_range(ids: TokenIds, size: int, what: str, where: str) -> TokenIds:
    """The ids, all of them from 0 to size - 1.

    Raises TokenizationError for any other, which calls it `what` and says that it is outside
    `where`. A compiled model raises it as well, without a break in its graph. An exported model
    has no minibert and raises RuntimeError.
    """
    if torch.compiler.is_exporting():
        inside = ((ids >= 0) & (ids < size)).all()
        torch._assert_async(inside, f"{what} outside {where}: expected 0 to {size - 1}.")
        return ids
    if torch.compiler.is_compiling():
        checked: Tensor = torch.ops.minibert.in_range(ids, size, what, where)
        return checked
    _check(ids, size, what, where)
    return ids


def _check(ids: Tensor, size: int, what: str, where: str) -> None:
    low, high = (int(bound) for bound in torch.aminmax(ids))
    if low < 0 or high >= size:
        wrong = low if low < 0 else high
        place = ", ".join(
            f"{axis} {n}"
            for axis, n in zip(
                ("row", "position"), (ids == wrong).nonzero()[0].tolist(), strict=False
            )
        )
        raise TokenizationError(
            f"{what} {wrong} is outside {where}: expected 0 to {size - 1}. It stands in {place}."
        )


@torch.library.custom_op("minibert::in_range", mutates_args=())
def _in_range(ids: Tensor, size: int, what: str, where: str) -> Tensor:
    """The check as one step of a compiled graph, which has to give a tensor of its own."""
    _check(ids, size, what, where)
    return ids.clone()


@_in_range.register_fake
def _(ids: Tensor, size: int, what: str, where: str) -> Tensor:
    return torch.empty_like(ids)
