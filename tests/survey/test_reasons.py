"""Who feeds whom over a corpus: the mean of `why_heads`, whatever interrupts it."""

from typing import Any

import numpy as np
import pytest
import torch

import minibert
from minibert.analysis import decompose, why_heads
from minibert.errors import SurveyError
from minibert.survey import reasons, survey
from minibert.survey.reasons import Reasons, survey_reasons
from minibert.survey.tables import Survey
from minibert.trace.edit import zero
from minibert.viz.survey_folder import survey_report
from tests.command_line import run

WORDS = " river window summer horse"
TEXTS = [WORDS + WORDS, "the horse ran away and the boy followed slowly", " window horse" * 9, "a"]


def same(found: Reasons, expected: Reasons) -> bool:
    """The same numbers to the last bit."""
    both = [(found.pairs, expected.pairs), (found.moved, expected.moved)]
    return all(
        a.keys() == b.keys() and all(np.array_equal(a[n].values, b[n].values) for n in a)
        for a, b in both
    )


@pytest.mark.parametrize("name", ["tiny-gpt2", "tiny-bert", "tiny-llama"])
def test_it_is_the_mean_of_why_heads_over_tokens(name):
    model = minibert.load(name, dtype=torch.float64)
    found = survey_reasons(model, TEXTS, {1: (0, 1, 2, 3), 2: (1,)})
    for layer, single in survey_reasons(
        minibert.load(name), TEXTS, {1: (0, 1), 2: (1,)}
    ).pairs.items():
        exact = found.pairs[layer].values[: len(single.values)]
        limit = 1e-4 * np.abs(exact).max((1, 2), keepdims=True)
        assert (np.abs(single.values - exact) <= limit).all()
    for layer, heads in ((1, [0, 1, 2, 3]), (2, [1])):
        traces = [model.trace(text) for text in TEXTS]
        lengths = [trace.tokens.lengths[0] for trace in traces]
        each = [
            why_heads(trace, layer).values * n for trace, n in zip(traces, lengths, strict=True)
        ]
        expected = (torch.stack(each).sum(0) / sum(lengths))[heads].numpy()
        np.testing.assert_allclose(found.pairs[layer].values, expected, rtol=0, atol=1e-9)
        np.testing.assert_allclose(found.moved[layer].values.sum(-1), 1, atol=1e-9)


def test_what_a_head_moves_is_what_was_written_at_the_tokens_that_it_read():
    model = minibert.load("tiny-gpt2", dtype=torch.float64)
    found = survey_reasons(model, TEXTS[:1], {1: (2,)})
    trace = model.trace(TEXTS[0])
    at, layer = trace[1], model.body.layers[1]
    x, gamma = at.resid_pre[0], layer.attention_norm.weight.detach()
    deviation = (x.var(-1, unbiased=False) + layer.attention_norm.eps).sqrt()[:, None]
    parts = decompose(trace, 1, point="resid_pre")
    z = trace[1, 2].z[0]
    for label in ("head 0-3", "mlp 0"):
        part = parts[label][0]
        value = (part - part.mean(-1, keepdim=True)) / deviation * gamma @ layer.attention.W_V[2]
        share = float(((trace[1, 2].probs[0] @ value) * z).sum() / z.square().sum())
        assert abs(found.moved[1].at(head=2, component=label) - share) < 1e-9


def test_an_interrupted_run_goes_on_to_the_same_bits(tmp_path, monkeypatch):
    model = minibert.load("tiny-gpt2")
    monkeypatch.setattr("minibert.survey.runs.DOCUMENTS", 2)
    expected = survey_reasons(model, TEXTS, {1: (2,)})
    asked = iter([True, True, True, False])
    inner = reasons.written_below

    def until(*given: Any) -> Any:
        if not next(asked):
            raise KeyboardInterrupt
        return inner(*given)

    monkeypatch.setattr(reasons, "written_below", until)
    with pytest.raises(KeyboardInterrupt):
        survey_reasons(model, TEXTS, {1: (2,)}, output=tmp_path)
    monkeypatch.setattr(reasons, "written_below", inner)
    with pytest.raises(SurveyError, match="other options"):
        survey_reasons(model, TEXTS, {1: (1,)}, output=tmp_path)
    with pytest.raises(SurveyError, match="started with other documents"):
        survey_reasons(model, TEXTS[1:], {1: (2,)}, output=tmp_path)
    found = survey_reasons(model, TEXTS, {1: (2,)}, output=tmp_path)
    assert same(found, expected)
    assert same(survey_reasons(model, TEXTS, {1: (2,)}, output=tmp_path), expected)
    assert same(Reasons.read(tmp_path), expected)
    with pytest.raises(SurveyError, match=r"other options \(heads\)"):
        survey_reasons(model, TEXTS, {1: (1,)}, output=tmp_path)
    other = minibert.Model.from_config(model.config, tokenizer=model.tokenizer)
    with pytest.raises(SurveyError, match="another model"):
        survey_reasons(other, TEXTS, {1: (2,)}, output=tmp_path)
    # A survey that begins anew takes what belonged to the old one away.
    survey(model, TEXTS, output=tmp_path)
    survey(model, TEXTS, output=tmp_path, resume=False)
    assert not list(tmp_path.glob("*why*"))


def test_the_command_names_the_previous_token_head_of_an_induction_head(tmp_path):
    corpus = tmp_path / "texts.txt"
    corpus.write_text("\n".join(f"{WORDS}{WORDS}{WORDS}" for _ in range(4)))
    out = tmp_path / "out"
    found = run(
        "survey", str(corpus), "-o", str(out), "--unit", "line", "--model", "tiny-gpt2",
        "--why", "1-2", "--measure", "entropy", "--pattern-documents", "0",
    )  # fmt: skip
    assert "head 1-2 looks by head 0-1 x head 0-3: +" in found.stdout, found.output
    model = minibert.load("tiny-gpt2")
    edges = Reasons.read(out).edges(model, 1)
    assert [edge.source for edge in edges if edge.side == "key"] == ["head 0-3"]
    assert all(0 < edge.weights < 1 for edge in edges if edge.source.startswith("head"))
    (row,) = survey_report(Survey.read(out), edges=edges[1:2]).header["edges"]
    assert row[:3] == ["key", "head 0-3", 1 * 4 + 2]


@pytest.mark.parametrize(
    "options", [{"heads": {}}, {"heads": {1: ()}}, {"heads": [1]}, {"limit": -1}, {"on_error": "x"},
                {"longest": 3}],
)  # fmt: skip
def test_wrong_arguments_are_named(options):
    with pytest.raises(SurveyError, match=next(iter(options))):
        survey_reasons(minibert.load("tiny-gpt2"), TEXTS, **{"heads": {1: (2,)}} | options)


def test_even_looks_leave_rounding_alone():
    model = minibert.load("tiny-gpt2", dtype=torch.float64)
    trace = model.trace(TEXTS[0], edit={"embed": zero})
    assert why_heads(trace, 1).values.abs().max() < 1e-9


@pytest.mark.parametrize("asked", ["x", "1-", "-1", "9", "1-9", "1.5"])
def test_wrong_heads_are_named_before_anything_is_read(asked, tmp_path):
    corpus = tmp_path / "texts.txt"
    corpus.write_text("the horse ran away")
    found = run("survey", str(corpus), "-o", str(tmp_path / "out"), f"--why={asked}")
    assert found.exit_code
    assert not (tmp_path / "out").exists()
