"""A layer run point by point: what is written is read back, and everything after it follows."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from minibert.errors import EditError
from minibert.layers import attention
from minibert.loading import from_transformers
from minibert.trace import formulas, steps
from minibert.trace.edit import mean, replace, zero
from tests.editing import (
    FAMILIES,
    HEADS,
    LAYERS,
    LENGTH,
    NAMES,
    PER_HEAD,
    close,
    model_of,
    random_like,
    recomputed,
    sentences,
    theirs_of,
)
from tests.families import LABELS, VOCABULARY, hf_model

BOTH = ("scores", "probs")
# An edit of these begins after the scores: attention runs as one fused operation.
FUSED = [name for name in NAMES if name not in BOTH]


def same(value: Tensor) -> Tensor:
    return value


@pytest.fixture(params=FAMILIES)
def family(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def fused_layers(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Where attention ran as one fused operation: in a layer's forward, in steps, or on reading."""
    ran: list[str] = []
    for module in (attention, steps, formulas):
        original, name = module.fused_attention, module.__name__.rpartition(".")[2]

        def spy(*args: Any, original: Any = original, name: str = name, **options: Any) -> Tensor:
            ran.append(name)
            return original(*args, **options)

        monkeypatch.setattr(module, "fused_attention", spy)
    return ran


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("keep", [(), BOTH])
def test_what_is_written_is_read_back_and_the_rest_follows_from_it(
    family: str, name: str, keep: tuple[str, ...]
) -> None:
    model, tokens = model_of(family), sentences(family)
    plain = model.trace(tokens, keep=keep)
    written = random_like(getattr(plain[1], name))
    if name == "probs":
        written = written.softmax(-1)
    trace = model.trace(tokens, edit={(name, 1): written}, keep=keep)
    assert torch.equal(getattr(trace[1], name), written)
    assert not close(trace.logits, plain.logits, 1e-3)
    for layer in range(LAYERS):
        for other, expected in recomputed(trace, layer).items():
            if (other, layer) != (name, 1):
                assert close(getattr(trace[layer], other), expected), (layer, other)
    for other in NAMES:
        assert torch.equal(getattr(trace[0], other), getattr(plain[0], other))
    for other in NAMES[: NAMES.index(name)]:
        assert close(getattr(trace[1], other), getattr(plain[1], other))


@settings(max_examples=40)
@given(
    family=st.sampled_from(list(FAMILIES)),
    name=st.sampled_from(PER_HEAD),
    heads=st.sampled_from([1, (2,), (2, 0), (0, 1, 2)]),
)
def test_only_the_named_heads_are_written(family: str, name: str, heads: Any) -> None:
    model, tokens = model_of(family), sentences(family)
    plain = model.trace(tokens, keep=BOTH)
    chosen = [heads] if isinstance(heads, int) else list(heads)
    part = getattr(plain[1], name)[:, heads if isinstance(heads, int) else chosen]
    written = random_like(part)
    seen: list[torch.Size] = []

    def write(value: Tensor) -> Tensor:
        seen.append(value.shape)
        assert torch.equal(value, part)
        return written

    for edit in (written, write):
        trace = model.trace(tokens, edit={(name, 1, heads): edit}, keep=BOTH)
        expected = getattr(plain[1], name).clone()
        expected[:, heads if isinstance(heads, int) else chosen] = written
        assert torch.equal(getattr(trace[1], name), expected)
        for other, value in recomputed(trace, 1).items():
            assert other == name or close(getattr(trace[1], other), value)
    assert seen == [part.shape]


@pytest.mark.parametrize("where", ["embed", "logits"])
def test_what_has_no_layer_is_written_by_its_name_alone(family: str, where: str) -> None:
    model, tokens = model_of(family), sentences(family)
    plain = model.trace(tokens)
    written = random_like(getattr(plain, where))
    for key in (where, (where,)):
        trace = model.trace(tokens, edit={key: written})
        assert torch.equal(getattr(trace, where), written)
    if where == "logits":
        assert torch.equal(trace.stack("z"), plain.stack("z"))
    else:
        for layer in range(LAYERS):
            for name, expected in recomputed(trace, layer).items():
                assert close(getattr(trace[layer], name), expected), (layer, name)


@settings(max_examples=40)
@given(
    family=st.sampled_from(list(FAMILIES)),
    where=st.sets(st.tuples(st.sampled_from(NAMES), st.integers(0, LAYERS - 1)), min_size=1),
    head=st.none() | st.integers(0, HEADS - 1),
    seed=st.integers(0, 99),
)
def test_writing_back_what_was_read_changes_nothing(
    family: str, where: set[tuple[str, int]], head: int | None, seed: int
) -> None:
    model, tokens = model_of(family), sentences(family, seed)
    plain = model.trace(tokens, keep=BOTH)
    keys = [(n, at) if head is None or n not in PER_HEAD else (n, at, head) for n, at in where]
    for value in (same, plain):
        trace = model.trace(tokens, edit=dict.fromkeys(keys, value), keep=BOTH)
        summed_again = any(name == "head_out" for name, _ in where)
        assert close(trace.logits, plain.logits, 3e-6)
        assert summed_again or torch.equal(trace.logits, plain.logits)
        for name in NAMES:
            found, expected = trace.stack(name), plain.stack(name)
            assert torch.equal(found, expected) or (summed_again and close(found, expected))


@pytest.mark.parametrize("name", FUSED)
def test_an_edit_that_needs_no_matrix_is_bit_for_bit_the_plain_pass(family: str, name: str) -> None:
    model, tokens = model_of(family), sentences(family)
    logits = model(tokens)
    trace = model.trace(tokens, edit={(name, 1): same})
    assert torch.equal(trace.logits, logits) or name == "head_out"
    assert close(trace.logits, logits, 3e-6)


@pytest.mark.parametrize("name", NAMES)
def test_only_an_edit_of_a_matrix_makes_a_matrix_and_in_its_layer_alone(
    name: str, fused_layers: list[str]
) -> None:
    model, tokens = model_of("bert"), sentences("bert")
    model.trace(tokens, edit={(name, 1): same})
    steps_alone = [] if name in BOTH else ["steps"]
    assert fused_layers == ["attention", *steps_alone, "attention"]


def test_a_rerun_takes_what_comes_before_its_edits_from_the_trace(fused_layers: list[str]) -> None:
    model = from_transformers(theirs_of("gpt2"))
    trace = model.trace(sentences("gpt2"))
    projected: list[int] = []
    for layer in model.body.layers:
        layer.attention.query.register_forward_hook(lambda *_: projected.append(1))
    # Of the two layers from the edit on: how many run attention, how many project anew.
    for name, runs, projections in [
        ("resid_pre", 2, 2),
        ("query", 2, 1),
        ("value", 2, 1),
        ("probs", 1, 1),
        ("z", 1, 1),
        ("attn_out", 1, 1),
        ("mlp_out", 1, 1),
        ("resid_post", 1, 1),
    ]:
        fused_layers.clear()
        projected.clear()
        trace.rerun({(name, 1): zero})
        assert (len(fused_layers), len(projected)) == (runs, projections), name


@settings(max_examples=30)
@given(
    family=st.sampled_from(list(FAMILIES)),
    where=st.sets(
        st.tuples(st.sampled_from(NAMES), st.integers(0, LAYERS - 1))
        | st.sampled_from(["embed", "logits"]),
        max_size=4,
    ),
    keep=st.sampled_from([(), BOTH, ("probs",)]),
    seed=st.integers(0, 99),
)
def test_a_rerun_is_the_edited_trace_bit_for_bit(
    family: str, where: set[Any], keep: tuple[str, ...], seed: int
) -> None:
    model, tokens = model_of(family), sentences(family, seed)
    edit = {key: (lambda value: 0.5 * value + 0.1) for key in where}
    plain = model.trace(tokens, keep=keep)
    before = {name: plain.stack(name) for name in NAMES}
    again = plain.rerun(edit, keep=keep)
    trace = model.trace(tokens, edit=edit, keep=keep)
    assert torch.equal(again.logits, trace.logits)
    assert torch.equal(again.embed, trace.embed)
    assert again.tokens is plain.tokens
    for name in NAMES:
        assert torch.equal(again.stack(name), trace.stack(name)), name
        assert torch.equal(plain.stack(name), before[name])


@settings(max_examples=30)
@given(
    before=st.tuples(st.sampled_from(NAMES), st.integers(0, LAYERS - 1))
    | st.sampled_from(["embed", "logits"]),
    after=st.tuples(st.sampled_from(NAMES), st.integers(0, LAYERS - 1))
    | st.sampled_from(["embed", "logits"]),
)
def test_edits_of_the_first_trace_stay_out_of_a_rerun(before: Any, after: Any) -> None:
    model, tokens = model_of("bert"), sentences("bert")
    edited = model.trace(tokens, edit={before: lambda value: 0.5 * value + 0.1})
    for edit in ({after: zero}, {}):
        again, expected = edited.rerun(edit), model.trace(tokens, edit=edit)
        assert torch.equal(again.logits, expected.logits)
        for name in NAMES:
            assert torch.equal(again.stack(name), expected.stack(name)), name


@pytest.mark.parametrize("first", range(LAYERS))
def test_a_rerun_shares_the_layers_below_its_first_edit(first: int) -> None:
    trace = model_of("bert").trace(sentences("bert"))
    again = trace.rerun({("mlp_pre", first): zero, ("z", LAYERS - 1): zero})
    assert again.embed is trace.embed
    for layer in range(first):
        assert again.records[layer] is trace.records[layer]
    for name in ("query", "key", "value", *(["z"] if first < LAYERS - 1 else [])):
        assert again.records[first][name] is trace.records[first][name]


@settings(max_examples=30)
@given(
    family=st.sampled_from(list(FAMILIES)),
    until=st.integers(0, LAYERS - 1),
    name=st.sampled_from(NAMES),
)
def test_an_edited_trace_may_stop_early(family: str, until: int, name: str) -> None:
    model, tokens = model_of(family), sentences(family)
    key: Any = (name, until - 1) if until else "embed"
    edit = {key: (lambda value: 2 * value)}
    whole = model.trace(tokens, edit=edit)
    for short in (
        model.trace(tokens, edit=edit, until=until),
        model.trace(tokens, until=until).rerun(edit),
    ):
        assert len(short) == until + 1
        for other in NAMES:
            for layer in range(until + 1):
                found, expected = getattr(short[layer], other), getattr(whole[layer], other)
                assert close(found, expected), (other, layer)


LOGITS = {
    ("bert", "BertModel"): (3, LENGTH, 15),
    ("bert", "BertForMaskedLM"): (3, LENGTH, VOCABULARY),
    ("bert", "BertForPreTraining"): (3, LENGTH, VOCABULARY),
    ("bert", "BertForNextSentencePrediction"): (3, 2),
    ("bert", "BertForSequenceClassification"): (3, LABELS),
    ("bert", "BertForTokenClassification"): (3, LENGTH, LABELS),
    ("bert", "BertForQuestionAnswering"): (3, LENGTH, 2),
    ("electra", "ElectraForPreTraining"): (3, LENGTH),
    ("gpt2", "GPT2ForSequenceClassification"): (3, LABELS),
}


@pytest.mark.parametrize("which", LOGITS)
def test_logits_of_each_task_are_written_in_their_shape(which: tuple[str, str]) -> None:
    model, tokens = from_transformers(hf_model(*which)), sentences(which[0])
    plain = model.trace(tokens)
    assert plain.logits.shape == LOGITS[which]
    value = torch.rand_like(plain.logits)
    assert torch.equal(model.trace(tokens, edit={"logits": value}).logits, value)
    over = model.trace(tokens, edit={"logits": mean(plain)}).logits
    per_text = len(LOGITS[which]) == 2 and LENGTH not in LOGITS[which]
    rows = plain.logits if per_text else plain.logits[tokens.mask]
    assert torch.allclose(over, rows.mean(0).expand_as(over), atol=1e-6)
    with pytest.raises(EditError, match="does not fit"):
        model.trace(tokens, edit={"logits": torch.zeros(*value.shape[:-1], 53)})
    limited = {"logits": replace(9.0, positions=[1])}
    if per_text:
        with pytest.raises(EditError, match="of whole texts and have no positions"):
            model.trace(tokens, edit=limited)
    else:
        changed = model.trace(tokens, edit=limited).logits
        assert (changed[:, 1] == 9).all()
        assert torch.equal(changed[:, 2:], plain.logits[:, 2:])
