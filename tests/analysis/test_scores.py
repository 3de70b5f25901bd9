"""The table of every head's scores."""

import json

import pytest
import torch

from minibert.analysis.patterns import PATTERNS, HeadScores
from minibert.errors import TraceError

N_LAYERS, N_HEADS = 2, 3


def some_scores(**changes: torch.Tensor) -> HeadScores:
    table = torch.arange(N_LAYERS * N_HEADS).view(N_LAYERS, N_HEADS) / 10
    return HeadScores.of(dict.fromkeys(PATTERNS, table) | changes)


def unmeasured() -> torch.Tensor:
    return torch.full((N_LAYERS, N_HEADS), torch.nan)


def test_the_best_head_is_named_by_layer_and_head_from_zero() -> None:
    induction = torch.tensor([[0.1, torch.nan, 0.25], [0.75, 0.2, 0.0]])
    scores = some_scores(induction=induction)
    assert scores.best("induction") == (1, 0, 0.75)
    assert scores.best("previous") == (1, 2, pytest.approx(0.5))


def test_there_is_no_best_head_of_what_was_not_measured() -> None:
    with pytest.raises(TraceError, match="No head has a score for 'next'"):
        some_scores(next=unmeasured()).best("next")
    with pytest.raises(TraceError, match=r"'attention' is no pattern.*previous, next, duplicate"):
        some_scores().best("attention")


def test_the_dictionary_is_plain_json_with_null_where_nothing_was_measured() -> None:
    scores = some_scores(next=unmeasured()).by_pattern()
    assert tuple(scores) == PATTERNS
    assert json.loads(json.dumps(scores, allow_nan=False)) == scores
    assert scores["previous"] == [[0.0, 0.1, 0.2], [0.3, 0.4, 0.5]]
    assert scores["next"] == [[None] * N_HEADS] * N_LAYERS


def test_the_printed_table_names_the_highest_heads_first() -> None:
    lines = str(some_scores(next=unmeasured())).splitlines()
    assert [line.split()[0] for line in lines] == ["pattern", *PATTERNS]
    assert lines[1].split()[1:] == ["1-2", "0.50", "1-1", "0.40", "1-0", "0.30"]
    assert lines[2].split()[1:] == ["-", "not", "measured"]
