"""The pooled output: what a pooler gives for each text, edited and differentiated."""

from pathlib import Path
from typing import Any

import pytest
import torch

from minibert.errors import EditError, TraceError
from minibert.loading import from_transformers
from minibert.trace.edit import mean, noise, replace
from minibert.trace.read import Trace
from tests.families import Sizes, as_tokens, batch, difference, hf_model, run_transformers
from tests.trace.editing import model_of, random_like, sentences

NAMES = [
    ("bert", "BertForSequenceClassification"),
    ("bert", "BertForNextSentencePrediction"),
    ("albert", "AlbertForSequenceClassification"),
]
TOLERANCE = 1e-10


def both(family: str, name: str) -> tuple[Any, Any, Any]:
    theirs = hf_model(family, name, Sizes(), torch.float64)
    return theirs, from_transformers(theirs), batch(family)


def pooler_of(theirs: Any, family: str) -> Any:
    # ALBERT applies tanh behind its linear pooler.
    body = getattr(theirs, family)
    return body.pooler_activation if family == "albert" else body.pooler


@pytest.mark.parametrize(("family", "name"), NAMES)
def test_an_edit_is_a_hook_on_the_pooler_of_transformers(family: str, name: str) -> None:
    theirs, ours, inputs = both(family, name)
    trace = ours.trace(as_tokens(inputs))
    seen: list[Any] = []

    def hook(module: Any, given: Any, out: torch.Tensor) -> torch.Tensor:
        seen.append(out)
        out = out.clone()
        out[[0, 2]] = out[[0, 2]].cos() / 2
        return out

    handle = pooler_of(theirs, family).register_forward_hook(hook)
    expected = run_transformers(theirs, inputs).logits
    handle.remove()
    assert difference(trace.pooled, seen[0]) <= TOLERANCE
    edit = {"pooled": [replace(trace.pooled[0].cos() / 2, sentences=[0]), limited_cosine]}
    for edited in (trace.rerun(edit), ours.trace(as_tokens(inputs), edit=edit)):
        assert difference(edited.logits, expected) <= TOLERANCE
        assert difference(edited.pooled[1], trace.pooled[1]) == 0
        assert difference(edited.pooled[2], trace.pooled[2].cos() / 2) <= TOLERANCE
    assert difference(expected[0], trace.logits[0]) > 1e-6
    for same in (trace, lambda pooled: pooled, trace.pooled):
        assert torch.equal(trace.rerun({"pooled": same}).logits, trace.logits)


def limited_cosine(pooled: torch.Tensor) -> torch.Tensor:
    """Another pooled output for the last text."""
    pooled[2] = pooled[2].cos() / 2
    return pooled


def test_its_gradient_is_the_row_of_the_classifier() -> None:
    theirs, ours, inputs = both("bert", "BertForSequenceClassification")
    trace = ours.trace(as_tokens(inputs), grad=True)
    trace.backward(trace.logits[1, 2])
    expected = torch.zeros_like(trace.pooled)
    expected[1] = theirs.classifier.weight[2]
    assert difference(trace.grad.pooled, expected) <= TOLERANCE
    # Through an edit, to what the pooler reads: the derivative of 3 · tanh(W·h + b).
    edited = trace.rerun({"pooled": lambda pooled: 3 * pooled})
    edited.backward(edited.logits[1, 2])
    assert difference(edited.grad.pooled, expected) <= TOLERANCE
    slope = 3 * expected[1] * (1 - trace.pooled[1].detach() ** 2)
    back = slope @ theirs.bert.pooler.dense.weight
    assert difference(edited.grad[2].resid_post[1, 0], back) <= TOLERANCE
    # A constant cuts the rest off.
    cut = trace.rerun({"pooled": replace(trace.pooled.detach())})
    cut.backward(cut.logits[1, 2])
    assert difference(cut.grad.pooled, expected) <= TOLERANCE
    assert cut.grad.embed.count_nonzero() == 0
    # A number made of it directly.
    trace.backward(trace.pooled[0].square().sum() / 2)
    assert difference(trace.grad.pooled[0], trace.pooled[0].detach()) <= TOLERANCE


def test_the_second_head_of_pre_training_reads_the_edited_one() -> None:
    theirs, ours, inputs = both("bert", "BertForPreTraining")
    trace = ours.trace(as_tokens(inputs))
    value = random_like(trace.pooled)
    edited = trace.rerun({"pooled": value})
    assert difference(edited.next_sentence_logits, theirs.cls.seq_relationship(value)) <= TOLERANCE
    assert torch.equal(edited.logits, trace.logits)
    # A body alone has a pooler, too, and nothing behind it.
    body = from_transformers(hf_model("bert", "BertModel", Sizes(), torch.float64))
    alone = body.trace(as_tokens(inputs), edit={"pooled": value})
    assert torch.equal(alone.pooled, value)
    assert torch.equal(alone.logits, body.trace(as_tokens(inputs)).logits)


def test_sweeps_single_texts_means_and_files_have_it(tmp_path: Path) -> None:
    _, ours, inputs = both("bert", "BertForSequenceClassification")
    trace = ours.trace(as_tokens(inputs))
    edits: list[Any] = [
        {"pooled": replace(trace.pooled.sin())},
        {"pooled": noise(3)},
        {"pooled": mean(trace), ("z", 1, 0): 0.0},
    ]
    swept = trace.rerun_each(edits, lambda logits: logits[:, 1])
    for edit, found in zip(edits, swept, strict=True):
        assert difference(found, trace.rerun(edit).logits[:, 1]) <= TOLERANCE
    averaged = trace.rerun(edits[2]).pooled
    assert difference(averaged, trace.pooled.mean(0, keepdim=True).expand(3, -1)) <= TOLERANCE
    edited = trace.rerun(edits[0])
    assert torch.equal(edited.text(1).pooled, edited.pooled[1:2])
    stored = Trace.load(edited.save(tmp_path / "a.trace"))
    assert torch.equal(stored.pooled, edited.pooled)


def test_what_cannot_be_pooled_is_refused_in_its_own_words() -> None:
    _, ours, inputs = both("bert", "BertForSequenceClassification")
    tokens = as_tokens(inputs)
    for edit, match, options in (
        ({("pooled", 1): 0.0}, "pooled has no layers", {}),
        ({"pooled": replace(0.0, positions=0)}, "pooled is of whole texts and has no", {}),
        ({"pooled": 0.0}, "a trace with until=1 has no pooled", {"until": 1}),
        ({"pooled": 0.0}, "packed sentences share a row", {"packed": True}),
        ({"pooled": torch.zeros(3, 4, dtype=torch.float64)}, r"does not fit \(3, 15\)", {}),
    ):
        with pytest.raises(EditError, match=match):
            ours.trace(tokens, edit=edit, **options)
    with pytest.raises(EditError, match="pooled: this gpt2 has no pooler"):
        model_of("gpt2").trace(sentences("gpt2"), edit={"pooled": 0.0})
    with pytest.raises(TraceError, match="pooled: this gpt2 has no pooler"):
        _ = model_of("gpt2").trace(sentences("gpt2")).pooled
