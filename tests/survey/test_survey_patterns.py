"""Heads named from the measures of a survey."""

import numpy as np

from minibert.survey.pattern_table import PATTERNS
from minibert.survey.patterns import MEASURES, patterns_of_survey


class Tables:
    """A survey of one layer of three heads that measured two things, one of them nowhere."""

    names = ("entropy", "to_next", "to_same_word_other_text")
    n_layers, n_heads = 1, 3

    def count(self, measure: str) -> int:
        return {"to_next": 5}.get(measure, 0)

    def table(self, measure: str) -> np.ndarray:
        assert measure == "to_next"
        return np.array([[0.9, 0.55, 0.1]])

    def interval(self, measure: str) -> np.ndarray:
        return self.table(measure)[..., None] + [-0.1, 0.15]


def test_measures_become_scores_and_what_was_not_measured_is_nan() -> None:
    found = patterns_of_survey(Tables())
    assert found.score["next"].tolist() == [[0.9, 0.55, 0.1]]
    # No share is above 1.
    np.testing.assert_allclose(found.high["next"], [[1.0, 0.7, 0.25]])
    # The second head's interval reaches below one half.
    assert found.named() == {(0, 0): ("next",)}
    assert {name for name, count in found.documents.items() if count} == {"next"}
    assert np.isnan(found.score["same_word_other_sentence"]).all()
    assert MEASURES.keys() < PATTERNS.keys()
    assert "previous" in str(found)
