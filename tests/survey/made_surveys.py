"""Surveys with known numbers, made without a model."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from minibert.analysis.patterns import PATTERNS
from minibert.survey.patterns import Example, HeadPatterns
from minibert.survey.sums import Sums
from minibert.survey.tables import Survey

#: Half of the documents of a made survey lie this much above each mean, half below.
SPREAD = 0.01
DOCUMENTS = 100


def survey_of(
    means: np.ndarray,
    names: Sequence[str],
    *,
    manifest: Mapping[str, Any] | None = None,
    absent: Sequence[str] = (),
    spread: float = SPREAD,
    reach: int = 3,
    documents: Sequence[str] = ("document 0", "document 1", "document 2"),
) -> Survey:
    """The survey of 100 documents with these means, (measure, layer, head).

    The measures of `absent` apply to no document. `documents` are the best three of all heads.
    """
    there = np.array([name not in absent for name in names])
    _, layers, heads = means.shape
    counts = np.where(there, DOCUMENTS, 0)
    count = counts[:, None, None]
    offsets = np.arange(-reach, reach + 1)
    profile = np.broadcast_to(0.5 ** np.abs(offsets), (layers, heads, len(offsets)))
    empty = Sums.empty(len(names), layers, heads, reach)
    best = empty.best.copy()
    number = empty.best_document.copy()
    best[there] = means[there][..., None] + np.array([0.03, 0.02, 0.01])
    number[there] = np.arange(3)
    sums = Sums(
        rows=counts * 10.0,
        row_total=means * count * 10,
        documents=counts,
        total=means * count,
        squares=(means**2 + spread**2) * count,
        best=best,
        best_document=number,
        profile=profile * DOCUMENTS,
    )
    given = {
        "model": {"name": "made"},
        "corpus": {"sha256": "5eed", "documents": DOCUMENTS},
        "options": {"longest": 128, "impl": "sdpa"},
    }
    ids = dict(enumerate(documents))
    return Survey(tuple(names), sums, ids, given if manifest is None else manifest)


def patterns_of(scores: Mapping[str, np.ndarray], examples: Sequence[Example] = ()) -> HeadPatterns:
    """Patterns of heads with these scores, (layer, head); of all others no text has rows.

    Intervals are 0.02 wide and the baselines 0.1; `examples` are those of all heads.
    """
    shape = next(iter(scores.values())).shape
    none = np.full(shape, np.nan)
    score = {name: scores.get(name, none) for name in PATTERNS}
    return HeadPatterns(
        score=score,
        low={name: one - 0.01 for name, one in score.items()},
        high={name: one + 0.01 for name, one in score.items()},
        baseline={name: one * 0 + 0.1 for name, one in score.items()},
        documents={name: DOCUMENTS * (name in scores) for name in PATTERNS},
        kept={(name, *place): tuple(examples) for name in scores for place in np.ndindex(shape)},
    )
