"""Patterns, report and example pages of live models, against numpy on transformers' attentions."""

import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from attention_pages import packed_in, unpacked

import minibert
from minibert.analysis import repeated_ids
from minibert.errors import SurveyError, TraceError
from minibert.survey import collect, survey
from minibert.survey.patterns import patterns
from minibert.viz.survey_folder import write_survey_report
from tests.survey.live_models import attentions, bart, gemma3, gpt2, tokenizer_of

pytest.importorskip("pyarrow.parquet")

TEXTS = [
    "the horse ran home, and the horse slept.",
    "the wind turned, and the wind was cold.",
    "it was dark there",
]
DRAWS = repeated_ids(200, length=11, draws=3, low=100)
Table = np.ndarray


def header_of(path: Path) -> dict[str, Any]:
    return dict(json.loads(packed_in(path.read_text(), "header")))


CASES = {
    "BartModel, decoder.self": (bart, "tiny-bert", "decoder.self"),
    "Gemma3ForCausalLM": (gemma3, "tiny-gpt2", None),
}


@pytest.mark.parametrize("title", CASES)
def test_the_report_has_the_numbers_of_the_survey_and_pages_of_the_models_own_attentions(
    title, tmp_path
):
    """The numbers themselves are beside those attentions in tests/survey."""
    build, tokenizer, stack = CASES[title]
    live, vocabulary = build(), tokenizer_of(tokenizer)
    attached = minibert.attach(live, tokenizer=vocabulary)
    measured = survey(attached, TEXTS, output=tmp_path, stack=stack)
    named = patterns(attached, TEXTS, repeated=DRAWS, stack=stack)
    header = header_of(write_survey_report(tmp_path, attached, TEXTS, repeated=DRAWS))
    live.set_attn_implementation("eager")
    ids = [vocabulary(one, return_tensors="pt").input_ids for one in TEXTS]
    probs = [attentions(live, one, stack or "").numpy() for one in ids]
    assert (header["title"], header["n_layers"], header["n_heads"]) == (title, *probs[0].shape[:2])
    for one in header["measures"]:
        found = np.array(one["mean"], float).reshape(probs[0].shape[:2])
        np.testing.assert_allclose(found, measured.table(one["name"]), rtol=5e-7)
    for one in header["patterns"]:
        found = np.array(one["score"], float).reshape(probs[0].shape[:2])
        np.testing.assert_allclose(found, named.score[one["name"]], rtol=5e-7)
    pages_are_those_of((tmp_path / "examples.html").read_text(), header, probs)


def pages_are_those_of(html: str, header: dict[str, Any], probs: Sequence[Table]) -> None:
    """Each page that the report links to has the weights of its heads in its document."""
    assert header["links"]
    for document, layer, page, shown in header["links"]:
        weights = unpacked(SimpleNamespace(html=html), "probs", layer, index=page)
        expected = probs[int(header["documents"][document])][layer, shown]
        np.testing.assert_allclose(weights, expected, atol=4e-3)


def test_what_the_report_cannot_be_of_is_refused_before_anything_is_measured(tmp_path):
    words = tokenizer_of("tiny-bert")
    attached = minibert.attach(bart(), tokenizer=words)
    with pytest.raises(SurveyError, match="no finished run"):
        write_survey_report(tmp_path, attached, TEXTS)
    assert not list(tmp_path.iterdir())
    survey(attached, TEXTS, output=tmp_path, stack="encoder")
    before = sorted(tmp_path.iterdir())

    def unread() -> Any:
        raise AssertionError("a document was read")
        yield ""

    changed = bart()
    changed.encoder.layers[0].fc1.weight.data += 1
    for model, message in {
        minibert.load(): "of a live transformers.models.bart",
        minibert.attach(changed, tokenizer=words): "another: weights differ",
        minibert.attach(gpt2(), tokenizer=tokenizer_of("tiny-gpt2")): "stack='encoder'",
    }.items():
        with pytest.raises(SurveyError, match=message):
            write_survey_report(tmp_path, model, unread)
    with pytest.raises(SurveyError, match="reads them twice"):
        write_survey_report(tmp_path, attached, iter(TEXTS))
    with pytest.raises(TraceError, match=r"BartModel is attached.*See docs/attach.md"):
        collect(attached, unread(), [("z", 0)], output=tmp_path / "collected")
    assert sorted(tmp_path.iterdir()) == before
