"""Surveys with known numbers, made without a model."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

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
) -> Survey:
    """The survey of 100 documents with these means, (measure, layer, head).

    The measures of `absent` apply to no document.
    """
    there = np.array([name not in absent for name in names])
    documents = np.where(there, DOCUMENTS, 0)
    count = documents[:, None, None]
    _, layers, heads = means.shape
    offsets = np.arange(-reach, reach + 1)
    profile = np.broadcast_to(0.5 ** np.abs(offsets), (layers, heads, len(offsets)))
    empty = Sums.empty(len(names), layers, heads, reach)
    best = empty.best.copy()
    number = empty.best_document.copy()
    best[there] = means[there][..., None] + np.array([0.03, 0.02, 0.01])
    number[there] = np.arange(3)
    sums = Sums(
        rows=documents * 10.0,
        row_total=means * count * 10,
        documents=documents,
        total=means * count,
        squares=(means**2 + spread**2) * count,
        best=best,
        best_document=number,
        profile=profile * DOCUMENTS,
    )
    given = {
        "model": {"name": "made"},
        "corpus": {"sha256": "5eed", "documents": DOCUMENTS},
        "options": {"seed": 0},
    }
    names_of = {i: f"document {i}" for i in range(3)}
    return Survey(tuple(names), sums, names_of, given if manifest is None else manifest)
