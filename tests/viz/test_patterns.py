"""Names of heads on a page: what is taken, and what does not fit."""

from typing import Any

import pytest
from attention_pages import example_of

import minibert
from minibert.errors import AttentionError
from minibert.survey.patterns import patterns_of_attention
from minibert.viz import Page


@pytest.fixture(scope="module")
def trace() -> minibert.Trace:
    return minibert.load().trace("the horse turned.")


def patterns_on(page: Page) -> Any:
    return example_of(page)["patterns"]


def test_the_result_of_patterns_gives_the_heads_it_names_and_their_scores(
    trace: minibert.Trace,
) -> None:
    found = patterns_of_attention([trace.stack("probs")[:, 0]], trace.tokens.raw, causal=False)
    table = {each["name"]: each for each in patterns_on(trace.view(patterns=found))}
    named = {(*place, name) for place, names in found.named().items() for name in names}
    assert {(*head[:2], name) for name, each in table.items() for head in each["heads"]} == named
    assert table["next"]["says"] == "the next token"
    [[layer, head, score]] = table["next"]["heads"]
    assert score == pytest.approx(found.score["next"][layer, head], abs=1e-4)


def test_lists_of_heads_have_names_of_their_own_and_no_scores(trace: minibert.Trace) -> None:
    [mine] = patterns_on(trace.view(patterns={"my heads": [(0, 2), [3, 1]]}))
    assert mine["name"] == mine["label"] == "my heads"
    assert mine["heads"] == [[0, 2, None], [3, 1, None]]
    assert patterns_on(trace.view()) is None


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([(0, 1)], "patterns is list, expected what patterns"),
        ({"": [(0, 1)]}, "'' is no name of 1 to 60 characters"),
        ({"mine": 3}, r"patterns\['mine'\] is 3, expected what patterns"),
        ({"mine": [(0, 4)]}, r"has \(0, 4\); expected \(layer, head\) below \(4, 4\)"),
        ({"mine": [(0, 1.5)]}, r"has \(0, 1.5\)"),
        ({"mine": [(0, 1, 2)]}, r"has \(0, 1, 2\)"),
    ],
)
def test_what_does_not_fit_is_refused(trace: minibert.Trace, given: Any, message: str) -> None:
    with pytest.raises(AttentionError, match=message):
        trace.view(patterns=given)


def test_patterns_of_another_model_are_refused(trace: minibert.Trace) -> None:
    other = minibert.load().trace("the horse turned.").stack("probs")[:2, 0]
    found = patterns_of_attention([other], trace.tokens.raw, causal=False)
    with pytest.raises(AttentionError, match="of 2 layers of 4 heads, and the page is of one of 4"):
        trace.view(patterns=found)
