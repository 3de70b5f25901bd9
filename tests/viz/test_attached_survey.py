"""Patterns, report and example pages of live models, against numpy on transformers' attentions."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from attention_pages import packed_in, unpacked

import minibert
from minibert.analysis import repeated_ids
from minibert.errors import SurveyError, TraceError
from minibert.survey import collect, survey
from minibert.survey.patterns import patterns
from minibert.viz.survey_folder import write_survey_report
from tests.survey.live_models import (
    BACK,
    attentions,
    bart,
    gemma3,
    gpt2,
    tokenizer_of,
)

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


def first(ends: int, back: tuple[int | None, ...]) -> Callable[[Table], Table]:
    """The weight on the first token: over words that see it and are not it."""

    def of_one(probs: Table) -> Table:
        n = probs.shape[-1] - ends
        rows = [slice(1, n if far is None else min(far + 1, n)) for far in back]
        return np.stack([one[:, of, 0].mean(-1) for one, of in zip(probs, rows, strict=True)])

    return of_one


def entropy(probs: Table) -> Table:
    logs = np.log(np.where(probs > 0, probs, 1))
    return -(probs * logs).sum(-1).mean(-1)


CASES = {
    "BART's encoder": (bart, "tiny-bert", "encoder", "BartModel, encoder"),
    "BART's decoder": (bart, "tiny-bert", "decoder.self", "BartModel, decoder.self"),
    "GPT-2": (gpt2, "tiny-gpt2", None, "GPT2LMHeadModel"),
    "windows": (gemma3, "tiny-gpt2", None, "Gemma3ForCausalLM"),
}


@pytest.mark.parametrize("name", CASES)
def test_the_report_has_the_numbers_of_the_models_own_attentions(name: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    build, tokenizer, stack, title = CASES[name]
    live, vocabulary = build(), tokenizer_of(tokenizer)
    attached = minibert.attach(live, tokenizer=vocabulary)
    survey(attached, TEXTS, output=tmp_path, stack=stack)
    header = header_of(write_survey_report(tmp_path, attached, TEXTS, repeated=DRAWS))
    live.set_attn_implementation("eager")
    ids = [vocabulary(one, return_tensors="pt").input_ids for one in TEXTS]
    probs = [attentions(live, one, stack or "").numpy() for one in ids]
    size = probs[0].shape[:2]
    assert (header["title"], header["n_layers"], header["n_heads"]) == (title, *size)
    # [CLS] and [SEP] stand around the words of one vocabulary.
    ends = int(tokenizer == "tiny-bert")
    back = BACK["gemma3"] if name == "windows" else (None,) * size[0]
    expected = {
        ("measures", "entropy"): entropy,
        ("measures", "to_previous"): lambda one: np.trace(one, -1, 2, 3) / one.shape[-1],
        ("measures", "to_first"): lambda one: one[..., 0].mean(-1),
        ("patterns", "previous"): lambda one: np.stack(
            [one[..., row, row - 1] for row in range(1, one.shape[-1] - ends)]
        ).mean(0),
        ("patterns", "first"): first(ends, back),
    }
    for (kind, one), of_document in expected.items():
        [entry] = [each for each in header[kind] if each["name"] == one]
        found = np.reshape(entry["mean" if kind == "measures" else "score"], size)
        by_hand = np.mean([of_document(each) for each in probs], axis=0)
        np.testing.assert_allclose(found, by_hand, atol=1e-5, err_msg=one)
    pages_are_those_of((tmp_path / "examples.html").read_text(), header, probs)


def pages_are_those_of(html: str, header: dict[str, Any], probs: Sequence[Table]) -> None:
    """Each page that the report links to has the weights of its heads in its document."""
    assert header["links"]
    for document, layer, page, shown in header["links"]:
        weights = unpacked(SimpleNamespace(html=html), "probs", layer, index=page)
        expected = probs[int(header["documents"][document])][layer, shown]
        np.testing.assert_allclose(weights, expected, atol=4e-3)


def test_what_the_report_cannot_be_of_is_refused_before_anything_is_measured(
    tmp_path: Path,
) -> None:
    words = tokenizer_of("tiny-bert")
    attached = minibert.attach(bart(), tokenizer=words)
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
    with pytest.raises(SurveyError, match=r"several stacks; name one with stack="):
        patterns(attached, unread())
    with pytest.raises(SurveyError, match=r"'decoder.cross' cannot be .*head_view"):
        patterns(attached, unread(), stack="decoder.cross")
    with pytest.raises(TraceError, match=r"BartModel is attached.*See docs/attach.md"):
        collect(attached, unread(), [("z", 0)], output=tmp_path / "collected")
    assert sorted(tmp_path.iterdir()) == before
