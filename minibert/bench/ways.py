"""How vectors are laid out for a user's function, and how what it gives is read.

A layout is a word of letters, one an axis: b sentence, h head, n position, d a number of a vector.
Axes in brackets are one axis, "(bh)nd"; a letter that is missing is one call each, "nd". Behind a
comma stands the layout of z where it is another one: "bhnd,bn(hd)".
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from math import prod
from typing import Any

import numpy as np
import torch
from torch import Tensor

from minibert.errors import MinibertError
from minibert.kernels.call import wide
from minibert.kernels.check.problem import Problem

_ORDER = "bhnd"
_NAMES = {"b": "batch", "h": "head", "n": "position", "d": "d_head", "k": "key", "1": "1"}
#: What is given beside z, as sent to the judge before anybody knows what it is.
OTHER = "output "


@dataclass(frozen=True)
class Other:
    """What an output beside z is: its name, its axes, and what it is multiplied by; "" for none."""

    name: str = ""
    axes: str = ""
    factor: float = 1.0


@dataclass(frozen=True)
class Way:
    """What a convention leaves open about a call.

    layout  of query, key and value
    z       layout of z; "" for that of the vectors
    mask    "allowed" (True is allowed) or "added" (0, or the lowest number, is added to the
            scores), or "either", and the axes of a mask, such as "allowed bhqk" or "added bk"
    arrays  NumPy arrays are handed over
    others  what each output beside z is; None: not known yet
    """

    layout: str = _ORDER
    z: str = ""
    mask: str = "allowed bhqk"
    arrays: bool = False
    others: tuple[Other, ...] | None = None

    @classmethod
    def of(cls, fields: Mapping[str, Any]) -> "Way":
        """The way that `fields` describes."""
        others = fields.get("others")
        made = None if others is None else tuple(Other(**one) for one in others)
        return cls(**{**fields, "others": made})

    def told(self, layout: str) -> "Way":
        """The same in a layout that a user names. Raises MinibertError for what is none."""
        vectors, _, z = layout.partition(",")
        for one in filter(None, (vectors, z)):
            letters = "".join(axes_of(one))
            whole = re.fullmatch(r"(?:[bhnd]|\([bhnd]{2,}\))+", one)
            if not whole or len({*letters}) < len(letters) or not {"n", "d"} <= {*letters}:
                raise MinibertError(
                    f"layout {layout!r:.40}: expected the letters b (sentence), h (head), n "
                    "(position) and d once each, such as bhnd, bnhd, (bh)nd or nd, and that of z "
                    "behind a comma where it differs, such as bhnd,bn(hd)"
                )
        return replace(self, layout=vectors, z=z)

    def fields(self) -> dict[str, Any]:
        """It as plain values."""
        return asdict(self)

    def said(self) -> list[str]:
        """What it differs by from (batch, head, position, d_head), True for allowed and tensors."""
        z, (form, axes) = self.z or self.layout, self.mask.split()
        found = [] if self.layout == _ORDER else [f"with {axes_named(self.layout)}"]
        found += [] if z == self.layout else [f"z as {axes_named(z)}"]
        if self.mask != "allowed bhqk":
            found.append(f"mask {form} ({', '.join(axes)})")
        return found + ["with NumPy arrays"] * self.arrays

    def read(self, results: Sequence[object], problem: Problem) -> dict[str, Tensor]:
        """z and the other outputs that are known, from what each call gave."""
        if len(results) == 1 and type(results[0]) is dict:
            if self.z or self.arrays:
                raise MinibertError("gave a dictionary, whose z has the axes of the query")
            return results[0]
        parts = [_parts(one) for one in results]
        sizes = dict(zip(_ORDER, problem.z_shape, strict=True))
        columns = list(zip(*parts, strict=True))
        z = torch.stack([one for one in columns[0] if one is not None])
        z = back(z, self.z or self.layout, sizes)
        # NumPy widens float32 where a number of float64 takes part.
        numpy = isinstance(_first(results[0]), np.ndarray)
        found = {"z": z.to(problem.query.dtype) if numpy else z}
        for number, column in enumerate(columns[1:]):
            given = [one for one in column if one is not None]
            if not given or (self.others is not None and number >= len(self.others)):
                continue
            if self.others is None:
                found[f"{OTHER}{number + 2}"] = torch.stack(given)
            elif (one := self.others[number]).name:
                found[one.name] = other_output(torch.stack(given), one, problem)
        return found


#: (batch, head, position, d_head), True is allowed.
USUAL = Way()


def axes_named(layout: str) -> str:
    """(batch, head, position, d_head) of the letters of a layout."""
    named = (" x ".join(_NAMES[letter] for letter in group) for group in axes_of(layout))
    return f"({', '.join(named)})"


def axes_of(layout: str) -> list[str]:
    """The letters of each axis."""
    return [one or two for one, two in re.findall(r"\((\w+)\)|(\w)", layout)]


def laid(numbers: Tensor, layout: str, order: str = _ORDER) -> Iterator[Tensor]:
    """A tensor of axes `order` in a layout, once for each call."""
    groups = axes_of(layout)
    letters = "".join(groups)
    alone = [one for one in order if one not in letters]
    turned = numbers.permute([order.index(one) for one in (*alone, *letters)])
    sizes = dict(zip(order, numbers.shape, strict=True))
    shape = [prod(sizes[one] for one in group) for group in groups]
    calls = prod(sizes[one] for one in alone)
    if len(groups) == len(letters) and len(alone) < 2:
        # A view, so that new numbers in the same memory arrive.
        yield from turned.unbind(0) if alone else (turned,)
    else:
        yield from turned.reshape(calls, *shape).unbind(0)


def back(numbers: Tensor, layout: str, sizes: Mapping[str, int], order: str = _ORDER) -> Tensor:
    """The tensor (call, axes of the layout) in the order (batch, head, position, d_head).

    Raises MinibertError for another shape.
    """
    groups = axes_of(layout)
    letters = "".join(groups)
    shape = tuple(prod(sizes[one] for one in group) for group in groups)
    if tuple(numbers.shape[1:]) != shape:
        raise MinibertError(
            f"gave z of shape {tuple(numbers.shape[1:])}; expected {shape}, {axes_named(layout)}"
        )
    there = [*(one for one in order if one not in letters), *letters]
    whole = numbers.reshape([sizes[one] for one in there])
    return whole.permute([there.index(one) for one in order])


def other_output(numbers: Tensor, one: Other, problem: Problem) -> Tensor:
    """An output beside z (call, its axes) as (batch, head, query) or (batch, head, query, key).

    Raises MinibertError for another shape.
    """
    B, H, Q, _ = problem.query.shape
    sizes = {"b": B, "h": H, "n": Q, "k": problem.n_keys, "1": 1}
    order = "bhnk" if "k" in one.axes else "bhn"
    numbers = back(numbers, one.axes, sizes, order + "1" * ("1" in one.axes))
    numbers = numbers.squeeze(-1) if "1" in one.axes else numbers
    dtype = problem.query.dtype
    return (numbers * one.factor).to(dtype if "k" in one.axes else wide(dtype))


def _first(result: object) -> object:
    return result[0] if isinstance(result, tuple | list) and result else result


def _parts(result: object) -> tuple[Tensor | None, ...]:
    """z, and what came beside it where that is a tensor."""
    found = tuple(result) if isinstance(result, tuple | list) and result else (result,)
    z = _tensor(found[0])
    if z is None:
        raise MinibertError(
            f"gave a {type(found[0]).__name__}; expected a plain dictionary with z, or z, a plain "
            "tensor or NumPy array"
        )
    return (z, *map(_tensor, found[1:]))


def _tensor(one: object) -> Tensor | None:
    if isinstance(one, np.ndarray) and type(one) is np.ndarray and one.dtype.kind in "fiub":
        return torch.from_numpy(np.ascontiguousarray(one))
    # A subclass can put off its work until it is read.
    plain = type(one) in (Tensor, torch.nn.Parameter)
    return one if plain and isinstance(one, Tensor) else None
