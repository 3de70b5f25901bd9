"""Where an edit reaches: its sentences, and in each of them its positions and hidden keys."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from minibert.errors import EditError
from minibert.trace.edit import Edit
from minibert.trace.places import Chosen, Places, indices_of
from minibert.trace.point import Point

__all__ = ["Reach"]

Index = tuple[Any, ...]


@dataclass(frozen=True)
class Reach:
    """The places of one edit in a batch.

    sentences   their numbers
    positions   of each of these sentences, counted from its front; None: all, padding included
    keys        of each of these sentences those that are hidden; None: none
    all_of      True where the sentences are all there are
    """

    places: Places
    sentences: tuple[int, ...]
    positions: tuple[tuple[int, ...], ...] | None
    keys: tuple[tuple[int, ...], ...] | None
    all_of: bool

    @classmethod
    def of(cls, point: Point, edit: Edit, places: Places) -> "Reach":
        """The reach of an edit of this quantity.

        Raises EditError for sentences and positions that are not there.
        """
        if edit.positions is not None and not point.has_positions:
            these = "these logits are" if point.of_text else f"{point.name} is"
            have = "have" if point.of_text else "has"
            raise EditError(f"{point}: {these} of whole texts and {have} no positions.")
        count = len(places.lengths)
        sentences = indices_of(edit.sentences, count, "sentence", EditError, f"{point}: ")

        def in_each(chosen: Chosen, what: str) -> tuple[tuple[int, ...], ...]:
            where = f"{point}: "
            return tuple(
                tuple(places.positions(sentence, chosen, what, EditError, where))
                for sentence in sentences
            )

        return cls(
            places,
            tuple(sentences),
            None if edit.positions is None else in_each(edit.positions, "position"),
            None if edit.hidden is None else in_each(edit.hidden, "key"),
            edit.sentences is None,
        )

    @property
    def everywhere(self) -> bool:
        """True where nothing limits the edit."""
        return self.positions is None and self.all_of

    @property
    def first(self) -> int:
        """The first position that is reached in any sentence."""
        return 0 if self.positions is None else min(map(min, self.positions))

    def shape(self, axes: tuple[str, ...], whole: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of what is reached; of one sentence, where they differ in their number."""
        sizes = dict(zip(axes, whole, strict=True))
        if self.places.starts is None:
            sizes["batch"] = len(self.sentences)
        if self.positions is not None:
            sizes[_row_axis(axes)] = len(self.positions[0])
        return tuple(sizes.values())

    def indices(self, axes: tuple[str, ...], part: Tensor) -> list[Index]:
        """One index of a quantity's tensor, or one a sentence where their places differ."""
        axis = None if self.positions is None else axes.index(_row_axis(axes))
        same = self.positions is None or len(set(self.positions)) == 1
        if same and self.places.starts is None:
            limits = {} if self.all_of else {0: list(self.sentences)}
            if axis is not None and self.positions is not None:
                limits[axis] = list(self.positions[0])
            return [_grid(part, limits)]
        found = []
        for number, sentence in enumerate(self.sentences):
            chosen = (
                range(self.places.lengths[sentence])
                if self.positions is None
                else self.positions[number]
            )
            row, where = self.places.index(sentence, chosen)
            rows_at = axes.index(_row_axis(axes)) if axis is None else axis
            between = [slice(None)] * (rows_at - 1)
            found.append((slice(row, row + 1), *between, where))
        return found

    def hidden_cells(self, scores: Tensor) -> Tensor:
        """True at the hidden keys of the rows that are reached: (batch, [head], query, key)."""
        assert self.keys is not None
        B, *_, Q, K = scores.shape
        hidden = torch.zeros(B, Q, K, dtype=torch.bool, device=scores.device)
        for number, sentence in enumerate(self.sentences):
            rows = slice(None) if self.positions is None else list(self.positions[number])
            lines = hidden[sentence, rows]
            lines[:, list(self.keys[number])] = True
            hidden[sentence, rows] = lines
        return hidden if scores.dim() == 3 else hidden.unsqueeze(1)


def _row_axis(axes: tuple[str, ...]) -> str:
    return "query" if "query" in axes else "position"


def _grid(part: Tensor, limits: dict[int, list[int]]) -> Index:
    """An index that keeps the axes in their order, however many of them are limited."""
    if len(limits) == 1:
        [(axis, places)] = limits.items()
        return (*[slice(None)] * axis, places)
    # Every axis spelled out, so that two lists mean rows x columns and not pairs.
    chosen = [limits.get(axis, list(range(size))) for axis, size in enumerate(part.shape)]
    grids = torch.meshgrid(
        *[torch.tensor(places, device=part.device) for places in chosen], indexing="ij"
    )
    return tuple(grids)
