"""Heads named from what a survey measured: the same result without another pass.

A survey has the measures of Clark et al. 2019, which count every row, special tokens included; so
scores differ a little from those of `patterns`, induction and duplicate are those of the corpus,
and there are no baselines and no rows as examples. A head is named above half of its attention.
"""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from minibert.survey.head_patterns import HeadPatterns
from minibert.survey.pattern_table import PATTERNS

__all__ = ["MEASURES", "SurveyTables", "patterns_of_survey"]

#: The measure of a survey that says how far heads follow a pattern.
MEASURES = {
    "next": "to_next",
    "previous": "to_previous",
    "first": "to_first",
    "delimiter": "rest_to_sep",
    "same_word": "to_same_word",
    "same_word_other_sentence": "to_same_word_other_text",
    "induction": "to_induction",
    "duplicate": "to_duplicate",
}


@runtime_checkable
class SurveyTables(Protocol):
    """What is read of a survey, as `Survey.read(folder)` gives it."""

    @property
    def names(self) -> Sequence[str]:
        """The measures."""

    @property
    def n_layers(self) -> int:
        """The layers of the model."""

    @property
    def n_heads(self) -> int:
        """The heads of a layer."""

    def table(self, measure: str) -> NDArray[np.float64]:
        """(layer, head): the mean over documents."""

    def interval(self, measure: str) -> NDArray[np.float64]:
        """(layer, head, 2): its 95 % confidence interval."""

    def count(self, measure: str) -> int:
        """The documents that the measure applies to."""


def patterns_of_survey(survey: SurveyTables) -> HeadPatterns:
    """What every head does by a survey's measures; nan for what it did not measure."""
    nothing = np.full((survey.n_layers, survey.n_heads), np.nan)
    score, low, high = (dict.fromkeys(PATTERNS, nothing) for _ in range(3))
    documents = dict.fromkeys(PATTERNS, 0)
    for name, measure in MEASURES.items():
        if measure in survey.names and survey.count(measure):
            documents[name] = survey.count(measure)
            score[name] = survey.table(measure)
            ends = np.clip(survey.interval(measure), 0.0, 1.0)
            low[name], high[name] = ends[..., 0], ends[..., 1]
    baseline = dict.fromkeys(PATTERNS, nothing)
    return HeadPatterns(score, low, high, baseline, documents, kept={})
