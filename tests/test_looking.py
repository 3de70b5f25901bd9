"""The lesson's table is the committed result, and verdicts follow from what was measured."""

import numpy as np
import pytest
import torch
from survey.made_surveys import distances_of, patterns_of, survey_of

import minibert
from benchmarks.looking import cell, table, told_of
from benchmarks.looking_claims import CLAIMS
from benchmarks.looking_findings import Evidence, gradients_on_sep, on_a_neighbour, on_sep
from benchmarks.looking_gradients import sep_gradients
from benchmarks.session import RESULTS
from minibert.bench.result_rows import read_rows
from minibert.survey import Document
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
    rows = read_rows(sorted(RESULTS.glob("looking-*.jsonl"))[-1])
    page = (REPOSITORY / "docs" / "lessons" / "looking.md").read_text(encoding="utf-8")
    shown = page.split("<!-- table -->\n")[1].split("\n<!-- end of table -->")[0]
    assert shown == table(rows)
    # Every claim, in the words that the code has now.
    words = [(row["source"], row["claim"], row["published"], row["holds_if"]) for row in rows]
    assert words == [(one.source, one.claim, one.published, one.holds_if) for one in CLAIMS]


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


def test_gradients_on_sep_are_what_a_small_change_of_attention_does_to_the_loss() -> None:
    model = minibert.load("tiny-bert")
    pair = Document("0", "the horse ran away", pair="it was late")
    found = sep_gradients(model, [pair])
    assert found is not None
    tokens = model.tokenize(pair.text, pair.pair)
    ids = tokens.ids.clone()
    special = torch.tensor(tokens.special[0])
    places = (~special).nonzero()[:, 0][3::7]
    right = ids[0, places]
    ids[0, places] = model.tokenizer.mask_id
    trace = model.trace(minibert.Tokens.from_ids(ids, segments=tokens.segments))
    layer, step = 3, 1e-2

    def loss(trace: minibert.Trace) -> float:
        logits = trace.logits[0, places].double()
        return -float(logits.log_softmax(-1).gather(1, right[:, None]).sum())

    sizes = []
    for head in range(model.config.n_heads):
        for query in range(ids.shape[1]):
            for key in (tokens.ids[0] == model.tokenizer.sep_id).nonzero()[:, 0].tolist():
                moved = []
                for sign in (1, -1):
                    change = torch.zeros(1, ids.shape[1], ids.shape[1])
                    change[0, query, key] = sign * step
                    edited = trace.rerun(
                        {("probs", layer, head): lambda probs, by=change: probs + by}
                    )
                    moved.append(loss(edited))
                sizes.append(abs(moved[0] - moved[1]) / (2 * step))
    assert found[0, layer] == pytest.approx(np.mean(sizes), rel=2e-2)
