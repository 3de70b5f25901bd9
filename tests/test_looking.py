"""The lesson's table is the committed result, and verdicts follow from what was measured."""

import numpy as np
from survey.made_surveys import distances_of, patterns_of, survey_of

from benchmarks.looking import cell, table, together, told_of
from benchmarks.looking_claims import CLAIMS
from benchmarks.looking_findings import Evidence, gradients_on_sep, on_a_neighbour, on_sep
from benchmarks.session import RESULTS
from minibert.bench.result_rows import read_rows
from minibert.survey.query_key_dimensions import QueryKeySums
from tests.packages import REPOSITORY


def made(**means: list[list[float]]) -> Evidence:
    """Evidence of a model whose heads have these means, (layer, head)."""
    values = np.array(list(means.values()))
    _, layers, heads = values.shape
    sums = QueryKeySums(layers, heads, 4)
    sums.documents = 1
    return Evidence(
        survey_of(values, tuple(means)), patterns_of({"next": values[0]}), sums.result(),
        distances_of(layers, heads), None, {},
    )  # fmt: skip


def test_the_table_of_the_lesson_is_the_committed_result() -> None:
    rows = together([read_rows(file) for file in sorted(RESULTS.glob("looking-*.jsonl"))])
    page = (REPOSITORY / "docs" / "lessons" / "looking.md").read_text(encoding="utf-8")
    shown = page.split("<!-- table -->\n")[1].split("\n<!-- end of table -->")[0]
    assert shown == table(rows)
    # Every claim, in the words that the code has now.
    words = [(row["source"], row["claim"], row["published"], row["holds_if"]) for row in rows]
    assert words == [(one.source, one.claim, one.published, one.holds_if) for one in CLAIMS]


def test_a_later_file_replaces_what_was_found_of_its_models() -> None:
    claim = {"source": "a", "claim": "b"}
    first = claim | {"found": {"one": 1, "other": 2}}
    assert together([[first], [claim | {"found": {"other": 3}}]]) == [
        claim | {"found": {"one": 1, "other": 3}}
    ]


def test_a_claim_with_a_threshold_holds_when_the_whole_interval_is_beyond_it() -> None:
    # Intervals of made surveys reach 0.002 to either side.
    find = on_a_neighbour("to_previous")
    surely = find(made(to_previous=[[0.1, 0.51], [0.6, 0.2]]))
    assert (surely.verdict, surely.value) == ("holds", 0.6)
    assert surely.where == "best head 1-0; over half: 1-0, 0-1"
    nearly = find(made(to_previous=[[0.1, 0.501], [0.3, 0.2]]))
    assert nearly.verdict == "does not hold"
    assert nearly.low is not None
    assert nearly.low < 0.5 < 0.501 == nearly.value


def test_attention_on_sep_has_to_be_over_half_in_a_late_layer() -> None:
    assert on_sep(made(to_sep=[[0.1, 0.1], [0.7, 0.5]])).verdict == "holds"
    assert on_sep(made(to_sep=[[0.7, 0.5], [0.1, 0.1]])).verdict == "does not hold"
    assert on_sep(made(to_sep=[[0.1, 0.1], [0.4, 0.5]])).verdict == "does not hold"
    # A model that predicts no words has no loss to differentiate.
    unasked = gradients_on_sep(made(to_sep=[[0.1, 0.1], [0.7, 0.5]]))
    assert unasked.verdict == "cannot be asked"
    assert cell(told_of(unasked), "share").startswith(
        "cannot be asked: the model predicts no words"
    )
