"""The best examples of what each head does: rows of attention that follow a pattern most."""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from minibert.quantities import Bool, Float
from minibert.survey.marks import Marks

__all__ = ["EXAMPLES", "BestExamples", "Example"]

EXAMPLES = 3


class Example(NamedTuple):
    """One row of attention that follows a pattern.

    document    its id
    query, key  the tokens, at query_position and key_position; of several keys that the pattern
                means, the one most looked at
    weight      the attention on this key
    score       the score of the row, with all keys that the pattern means
    """

    document: str
    query_position: int
    query: str
    key_position: int
    key: str
    weight: float
    score: float


class BestExamples:
    """The rows with the highest scores of each (pattern, layer, head), one for each two tokens."""

    def __init__(self, size: tuple[int, int, int]) -> None:
        self.kept: dict[tuple[int, int, int], list[Example]] = {}
        # What a row must exceed to be kept.
        self._least = np.zeros(size)

    def find(
        self,
        place: tuple[int, int],
        probs: Float[Tensor, "head query key"],
        scores: Float[Tensor, "head query"],
        cells: Bool[Tensor, "query key"],
        marks: Marks,
        *,
        first: int,
        document: str,
    ) -> None:
        """Keep what is better than the best so far, of the queries from `first` on.

        `place` is the pattern and layer; `scores` are -1 in rows that do not count.
        """
        best, rows = scores.topk(min(EXAMPLES, scores.shape[1]))
        better = (best[:, 0].double().numpy() > self._least[place]).nonzero()[0]
        for head in better.tolist():
            for score, row in zip(best[head].tolist(), rows[head].tolist(), strict=True):
                if score <= self._least[(*place, head)]:
                    break
                weights = torch.where(cells[row], probs[head, row], -1.0)
                key = int(weights.argmax())
                query = first + row
                two = (query, marks.strings[query], key, marks.strings[key])
                self.offer((*place, head), Example(document, *two, float(weights[key]), score))

    def offer(self, place: tuple[int, int, int], example: Example) -> None:
        """Put an example in its place; of equal ones the first stays."""
        kept = self.kept.setdefault(place, [])
        alike = [each for each in kept if (each.query, each.key) == (example.query, example.key)]
        if alike and alike[0].score >= example.score:
            return
        kept = [each for each in kept if each not in alike] + [example]
        kept.sort(key=lambda each: -each.score)
        self.kept[place] = kept[:EXAMPLES]
        if len(kept) >= EXAMPLES:
            self._least[place] = kept[EXAMPLES - 1].score
