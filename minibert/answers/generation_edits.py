"""Edits of a text that grows: of its prompt in the first pass, then of each new token."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from minibert.errors import EditError
from minibert.kernels.allowed_keys import AllowedKeys
from minibert.layers.config import Config
from minibert.quantities import QUANTITIES
from minibert.trace.edit import Edit, as_edit
from minibert.trace.places import indices_of
from minibert.trace.plan import Plan
from minibert.trace.point import Point, as_point

__all__ = ["GenerationEdits"]

Places = dict[int, list[int]]


class GenerationEdits:
    """The plan of each pass of a generation.

    Positions are those of a text as it stands: 0 is its first token, -1 its newest one, in every
    pass anew. A position that is not written yet is edited once it is.
    """

    def __init__(
        self,
        mapping: Mapping[Any, Any],
        config: Config,
        lengths: Sequence[int],
        capacity: int,
        *,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        if not isinstance(mapping, Mapping):
            raise EditError(
                f"edit={type(mapping).__name__}: expected a dictionary such as "
                '{("z", 9, 6): zero, ("resid_post", 3): function}.'
            )
        self._config, self._dtype, self._device = config, dtype, device
        self._edits = [
            (key, as_point(key, config), as_edit(value)) for key, value in mapping.items()
        ]
        for _, point, edit in self._edits:
            _check(point, edit, min(lengths), capacity)
        self.prompt = self.whole(lengths)
        self.newest = self._plan([range(length - 1, length) for length in lengths], rows=1)

    def whole(self, lengths: Sequence[int]) -> Plan:
        """The plan of a pass that computes all tokens of each text."""
        return self._plan([range(length) for length in lengths], rows=max(lengths))

    def grow(self, lengths: Sequence[int]) -> Plan:
        """The plan of a pass that computes the last token of each text alone."""
        if self._edits:
            self.newest = self._plan([range(length - 1, length) for length in lengths], rows=1)
        return self.newest

    def _plan(self, computed: Sequence[range], *, rows: int) -> Plan:
        """The edits where they reach one of the positions that a pass computes of each text."""
        lengths = tuple(len(each) for each in computed)
        ragged = lengths if min(lengths) < rows else None
        allowed = AllowedKeys(len(lengths), rows, self._device, causal=True, lengths=ragged)
        found: list[Any] = []
        for key, _, edit in self._edits:
            for limited in _limited(edit, computed):
                options: dict[str, Any] = {"dtype": self._dtype}
                found += Plan.of({key: limited}, self._config, allowed, **options).edits
        return Plan(tuple(found))


def _limited(edit: Edit, computed: Sequence[range]) -> Iterator[Edit]:
    """The edit at the rows of a pass that it reaches; one for texts that have the same rows."""
    if edit.positions is None:
        yield edit
        return
    texts = indices_of(edit.sentences, len(computed), "sentence", EditError, "edit: ")
    rows: dict[tuple[int, ...], list[int]] = {}
    for text in texts:
        span = computed[text]
        reached = tuple(row for row, p in enumerate(span) if _reaches(edit.positions, p, span.stop))
        rows.setdefault(reached, []).append(text)
    for reached, same in rows.items():
        if reached:
            yield edit.at(positions=list(reached), sentences=same)


def _reaches(chosen: Any, position: int, length: int) -> bool:
    """Whether a position of a text of this length is among those chosen."""
    if isinstance(chosen, slice):
        return position in range(length)[chosen]
    listed = chosen.tolist() if isinstance(chosen, Tensor) or hasattr(chosen, "tolist") else chosen
    wanted = listed if isinstance(listed, list | tuple | range) else [listed]
    return position in wanted or position - length in wanted


def _check(point: Point, edit: Edit, shortest: int, capacity: int) -> None:
    """Raise EditError for what cannot be done to tokens that come one by one."""
    if "query" in QUANTITIES[point.name].axes:
        raise EditError(
            f"{point}: a generation computes one row of {point.name} at a time and keeps none; "
            "edit query, key, value or z, which give and read it."
        )
    if edit.drawn:
        raise EditError(
            f"{point}: noise is drawn for all positions of a text together, and tokens come one by "
            "one here. Draw a vector yourself and add it: lambda z: z + vector."
        )
    if edit.traces and not edit.averages:
        later = range(shortest, capacity)
        if edit.positions is None or any(_reaches(edit.positions, p, p + 1) for p in later):
            raise EditError(
                f"{point}: a trace has no values for tokens that are not written yet; give "
                "positions of the prompt, counted from its front: replace(trace, positions=...)."
            )
