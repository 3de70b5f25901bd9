"""The five patterns that heads are known by everywhere, each declared once.

`head_scores` (patterns.py), the scores of one matrix (matrix_scores.py) and the table of
`minibert.survey.patterns`, which has further ones, read them here.
"""

from dataclasses import dataclass

__all__ = ["KINDS", "PatternKind"]

_VIG, _CLARK = "Vig 2019, Deconstructing BERT, part 1", "Clark et al. 2019, section 3"


@dataclass(frozen=True)
class PatternKind:
    """What one kind of head looks at: the key of each query.

    words    "heads that look at ..."
    source   who described it
    offset   the key stands so far behind the query
    behind   the key stands so far behind an earlier occurrence of the query's token; measured on
             sequences that come twice

    Without offset and behind the keys are the delimiters.
    """

    name: str
    words: str
    source: str
    offset: int | None = None
    behind: int | None = None

    def offset_in(self, length: int) -> int:
        """How far the key stands behind the query, of a sequence of `length` that comes twice."""
        if self.behind is not None:
            return self.behind - length
        if self.offset is None:
            raise ValueError(f"{self.name} is no offset: its keys are the delimiters")
        return self.offset


_ALL = (
    PatternKind("previous", "the previous token", f"{_VIG}; {_CLARK}.1", offset=-1),
    PatternKind("next", "the next token", f"{_VIG}; {_CLARK}.1", offset=1),
    PatternKind(
        "duplicate",
        "an earlier occurrence of this token",
        "Wang et al. 2022, section 3",
        behind=0,
    ),
    PatternKind(
        "induction",
        "the token behind an earlier occurrence of this one",
        "Olsson et al. 2022, prefix matching",
        behind=1,
    ),
    PatternKind("delimiter", "delimiters ([SEP])", f"{_VIG}; {_CLARK}.2"),
)
KINDS = {kind.name: kind for kind in _ALL}
