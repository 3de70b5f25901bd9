"""Many edits side by side give what each gives alone."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from minibert.errors import EditError
from minibert.kernels.api import Attended
from minibert.kernels.call import Call
from minibert.layers import layer as table
from minibert.layers.parts import Layer
from minibert.model import from_transformers
from minibert.trace.edit import mean, noise, replace, zero
from tests.families import hf_model
from tests.small_traces import small_trace
from tests.trace.editing import (
    FAMILIES,
    HEADS,
    LAYERS,
    LENGTH,
    NAMES,
    PER_HEAD,
    model_of,
    sentences,
    whole,
)


def half(value: Tensor) -> Tensor:
    return 0.5 * value


def metric(logits: Tensor) -> Tensor:
    return logits.flatten(1)[:, ::3].sin().mean(1)


def in_a_loop(trace: Any, edits: list[Any], positions: list[int] | None = None) -> Tensor:
    logits = [trace.rerun(edit).logits for edit in edits]
    return torch.stack(
        [metric(each if positions is None else each[:, positions]) for each in logits]
    )


PLACES = st.sets(st.integers(0, LENGTH - 1), min_size=1, max_size=3).map(tuple)
POINTS = (
    st.sampled_from(["embed", "final_norm_scale", "logits"])
    | st.tuples(st.sampled_from(NAMES), st.integers(0, LAYERS - 1))
    | st.tuples(st.sampled_from(PER_HEAD), st.integers(0, LAYERS - 1), st.integers(0, HEADS - 1))
)
CHANGES = st.sampled_from(["zero", "half", "noise", "mean", "trace"]) | PLACES


@settings(max_examples=10)
@given(
    family=st.sampled_from(list(FAMILIES)),
    edits=st.lists(st.dictionaries(POINTS, CHANGES, max_size=3), min_size=1, max_size=7),
    size=st.sampled_from([1, 3, 7, 64]),
    single=st.booleans(),
    positions=st.none() | st.lists(st.integers(-LENGTH, LENGTH - 1), min_size=1, max_size=3),
)
def test_edits_side_by_side_give_what_each_gives_alone(
    family: str, edits: list[Any], size: int, single: bool, positions: list[int] | None
) -> None:
    model = model_of(family)
    tokens, other = whole(family), whole(family, seed=5)
    if single:
        tokens, other = tokens[0], other[0]
    trace, source = model.trace(tokens), model.trace(other)
    alone = model.trace(sentences(family)[0])
    values = {"zero": zero, "half": half, "noise": noise(3), "mean": mean(alone), "trace": source}
    absent = model.config.absent_quantities | ({"logits"} if positions is not None else set())

    def chosen_edit(key: Any, change: Any) -> Any:
        if isinstance(change, tuple):
            return replace(source, positions=list(change))
        # A scale of a norm is divided by, so 0 is refused and what is near it gives huge numbers.
        return half if "_scale" in str(key) else values[change]

    chosen = [
        {key: chosen_edit(key, change) for key, change in edit.items() if key not in absent}
        for edit in edits
    ]
    before = {name: trace.stack(name) for name in ("z", "resid_post", "query")}
    found = trace.rerun_each(chosen, metric, positions=positions, batch=size)
    expected = in_a_loop(trace, chosen, positions)
    assert found.shape == (len(chosen), len(tokens))
    assert (found - expected).abs().max() <= 1e-6
    assert all(torch.equal(trace.stack(name), value) for name, value in before.items())


@pytest.mark.parametrize(
    ("family", "name"),
    [
        ("bert", "BertForPreTraining"),
        ("bert", "BertForNextSentencePrediction"),
        ("electra", "ElectraForPreTraining"),
        ("roberta", "RobertaForSequenceClassification"),
        ("gpt2", "GPT2ForSequenceClassification"),
        ("gpt2", "GPT2Model"),
    ],
)
def test_every_task_head_is_swept(family: str, name: str) -> None:
    model = from_transformers(hf_model(family, name))
    edits = [{("z", layer, head): zero} for layer in range(LAYERS) for head in range(HEADS)]
    trace = model.trace(whole(family))
    found = trace.rerun_each(edits, metric)
    assert (found - in_a_loop(trace, edits)).abs().max() <= 1e-6
    if trace.logits.dim() == 3:
        found = trace.rerun_each(edits, metric, positions=[3, 0])
        assert (found - in_a_loop(trace, edits, [3, 0])).abs().max() <= 1e-6
    elif trace.logits.shape[1] != LENGTH:
        with pytest.raises(EditError, match="of whole texts; leave positions out"):
            trace.rerun_each(edits, metric, positions=[0])


def test_layers_below_an_edit_are_not_computed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    batches: list[int] = []
    original = table.compute

    def spy(call: Call, impl: str) -> Attended:
        batches.append(len(call.query))
        return original(call, impl)

    monkeypatch.setattr(table, "compute", spy)
    trace = model_of("gpt2").trace([[2, 3, 5, 7]])
    batches.clear()
    edits = [{("z", layer, head): zero} for layer in range(LAYERS) for head in range(HEADS)]
    trace.rerun_each(edits, metric)
    # Three heads at once: z of their layer is known, so attention runs in those above it.
    assert batches == [HEADS] * (LAYERS - 1) + [HEADS] * (LAYERS - 2)
    batches.clear()
    trace.rerun_each([{"logits": zero}, {}], metric)
    assert batches == []
    trace.rerun_each([{("resid_pre", 2): zero}] * 5, metric, batch=2)
    assert batches == [2, 2, 1]


def test_only_what_an_edit_can_reach_is_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[tuple[int, int, int]] = []
    original = table.compute
    half_text = [[2, 3, 5, 7, 11, 13, 17, 19]]
    edits = [{("resid_post", 0): replace(0.5, positions=[at])} for at in (5, 2, 7, 4)]
    trace = model_of("gpt2").trace(half_text)

    def spy(call: Call, impl: str) -> Attended:
        sizes.append((len(call.query), call.query.shape[2], call.key.shape[2]))
        return original(call, impl)

    monkeypatch.setattr(table, "compute", spy)
    # The last layer is computed for the positions that are read.
    trace.rerun_each(edits, metric, positions=[3])
    assert sizes == [(4, 8, 8)] * (LAYERS - 2) + [(4, 1, 8)]


def test_edits_of_the_trace_stay_out_of_its_sweep() -> None:
    model, tokens = model_of("gpt2"), whole("gpt2")
    plain, edits = model.trace(tokens), [{("z", 1, 0): zero}, {("mlp_out", 2): zero}, {}]
    expected = in_a_loop(plain, edits)
    for key in ("embed", ("z", 0), ("z", 1), ("resid_mid", 2), "logits"):
        found = model.trace(tokens, edit={key: zero}).rerun_each(edits, metric)
        assert (found - expected).abs().max() <= 1e-6


def test_a_gradient_reaches_each_edit_of_a_sweep() -> None:
    trace = model_of("gpt2", torch.float64).trace([[2, 3, 5, 7]])
    vectors = [torch.zeros(5, dtype=torch.float64, requires_grad=True) for _ in range(HEADS)]
    edits = [{("z", 1, head): vector} for head, vector in enumerate(vectors)]
    together = torch.autograd.grad(trace.rerun_each(edits, metric).sum(), vectors)
    alone = torch.autograd.grad(in_a_loop(trace, edits).sum(), vectors)
    for found, expected in zip(together, alone, strict=True):
        assert found.abs().max() > 0
        assert torch.allclose(found, expected, atol=1e-12)


def test_an_edit_that_writes_what_stands_there_costs_no_layer(monkeypatch) -> None:
    trace = small_trace(23, causal=True)
    # The same up to token 15.
    other = trace.model.trace([*trace.tokens.ids[0, :15].tolist(), *range(8)])
    computed: list[int] = []
    forward = Layer.forward

    def counted(layer: Any, at: Any) -> Tensor:
        out = forward(layer, at)
        computed.append(out.shape[0] * out.shape[1])
        return out

    edits = [
        {("resid_post", layer): replace(other, positions=position)}
        for layer in range(LAYERS)
        for position in range(23)
    ]
    expected = in_a_loop(trace, edits, [-1])
    monkeypatch.setattr(Layer, "forward", counted)
    torch.testing.assert_close(trace.rerun_each(edits, metric, positions=[-1]), expected)
    # Eight patches from token 15 on, which begin at layer 0, 1 and 2; of the last layer one row is
    # computed.
    tokens = 8 * 23
    assert sum(computed) == (tokens + tokens + 8) + (tokens + 8) + 8
    computed.clear()
    idle = [{("resid_post", 0): replace(other, positions=[3, 14])}, {}]
    both = trace.rerun_each(idle, metric, positions=[-1])
    assert computed == []
    torch.testing.assert_close(both, metric(trace.logits[:, [-1]]).expand(2, 1))
    trace.rerun_each([{("resid_post", 0): replace(other, positions=[3, 15])}], metric)
    assert computed


def test_an_edit_that_writes_what_stands_there_cuts_the_graph_all_the_same() -> None:
    trace = small_trace(7, causal=True)
    graded = trace.model.trace(trace.tokens, grad=True)
    value = graded.rerun_each([{("resid_post", 2): replace(trace, positions=[0])}], metric)
    assert not torch.autograd.grad(value.sum(), graded[2].resid_post, allow_unused=True)[0][
        0, 0
    ].any()
