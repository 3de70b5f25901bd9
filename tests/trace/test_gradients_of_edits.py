"""Gradients go through edits; of what is edited, the value after it has one."""

from typing import Any

import pytest
import torch

from minibert.trace.edit import mean, replace, zero
from tests.explicit_forward import Explicit
from tests.families import LAYER_NAMES
from tests.trace.gradient_models import (
    MODELS,
    close,
    exact,
    padded,
    weighted,
)

EDITS: dict[str, dict[Any, Any]] = {
    "probs": {("probs", 1): lambda probs: probs * 0.5},
    "scores of a head": {("scores", 1, 2): lambda scores: scores * 2 + 1},
    "z": {("z", 1, 0): zero},
    "head_out": {("head_out", 1, 1): lambda out: -out},
    "attn_out": {("attn_out", 1): lambda out: out.tanh()},
    "resid_mid": {("resid_mid", 1): lambda mid: mid * 3},
    "mlp_post": {("mlp_post", 1): lambda post: post.relu()},
    "mlp_pre": {("mlp_pre", 1): lambda pre: pre + 1},
    "resid_post": {("resid_post", 1): lambda post: post * 0.3},
    "query": {("query", 1): lambda query: query.sin()},
    "resid_pre": {("resid_pre", 1): lambda pre: pre.cos()},
    "attention_norm_scale, before": {("attention_norm_scale", 1): lambda scale: scale**2},
    "attention_norm_scale, behind": {("attention_norm_scale", 1): lambda scale: scale**2},
    "mlp_norm_scale, before": {("mlp_norm_scale", 1): lambda scale: scale.exp()},
    "mlp_norm_scale, behind": {("mlp_norm_scale", 1): lambda scale: scale.exp()},
    "query_input": {("query_input", 1): lambda x: x.sin()},
    "key_input of a head": {("key_input", 1, 2): lambda x: 2 * x + 1},
    "value_input of a head": {("value_input", 1, 0): zero},
    "value_input": {("value_input", 1): lambda x: x.tanh()},
    "behind both norms": {("mlp_out", 1): lambda out: 2 * out, ("attn_out", 1): lambda out: -out},
}


class Edited(Explicit):
    """The explicit pass with an edit; what is read at the edit is the value after it."""

    def __init__(self, trace: Any, edit: dict[Any, Any]) -> None:
        self.edit = edit
        super().__init__(trace)

    def note(self, layer: int, name: str, value: torch.Tensor) -> torch.Tensor:
        for (edited, at, *heads), change in self.edit.items():
            if (edited, at) == (name, layer):
                value = value.clone()
                part = heads[0] if heads else slice(None)
                chosen = value[:, part].clone() if heads else value.clone()
                new = torch.zeros_like(chosen) if change is zero else change(chosen)
                if heads:
                    value[:, part] = new
                else:
                    value = new
        return super().note(layer, name, value)


@pytest.mark.parametrize("edit", EDITS)
def test_gradients_go_through_edits(edit: str) -> None:
    number = list(EDITS).index(edit)
    family = ("bert", "gpt2")[number % 2]
    model = exact(family, MODELS[family])
    if number % 3:
        trace = model.trace(padded(family), grad=True).rerun(EDITS[edit])
    else:
        trace = model.trace(padded(family), grad=True, edit=EDITS[edit])
    trace.backward(weighted(trace.logits))
    explicit = Edited(trace, EDITS[edit])
    assert close(trace.logits, explicit.logits)
    expected = explicit.gradients(weighted(explicit.logits))
    assert close(trace.grad.embed, expected["embed"])
    for layer, at in enumerate(trace.grad):
        for name in LAYER_NAMES:
            assert close(getattr(at, name), expected[layer, name]), (layer, name)


@pytest.mark.parametrize("point", [("resid_post", 1), ("probs", 1), "embed"])
def test_a_constant_cuts_the_gradient_off_and_has_one_itself(point: Any) -> None:
    model = exact("bert", "BertForMaskedLM")
    plain = model.trace(padded("bert"))
    value = plain.embed if point == "embed" else getattr(plain[1], point[0])
    trace = model.trace(padded("bert"), grad=True, edit={point: replace(value * 0.9)})
    trace.backward(weighted(trace.logits))
    if point == "embed":
        assert (trace.grad.embed != 0).any()
        return
    assert (getattr(trace.grad[1], point[0]) != 0).any()
    assert (trace.grad[2].query != 0).any()
    if point[0] == "probs":
        assert (trace.grad[1].query == 0).all()
        assert (trace.grad[1].value != 0).any()
    else:
        assert (trace.grad.embed == 0).all()


@pytest.mark.parametrize("edit", [mean, replace])
def test_a_value_of_another_trace_is_a_number_that_no_gradient_passes(edit: Any) -> None:
    model = exact("gpt2", "GPT2LMHeadModel")
    source = model.trace([[2, 3, 5, 7]], grad=True)
    edits = {
        ("z", 1): edit(source),
        (
            "mlp_out",
            0,
        ): replace(source, positions=[2]),
    }
    fresh, again = model.trace([[2, 3, 5, 7]], edit=edits, grad=True), source.rerun(edits)
    for trace in (fresh, again):
        trace.backward(trace.logits[0, -1, 5])
    assert close(again.grad.embed, fresh.grad.embed)
    assert fresh.grad.embed.abs().max() > 0


def test_a_trace_made_in_inference_mode_can_be_read_from() -> None:
    model = exact("gpt2", "GPT2LMHeadModel")
    with torch.inference_mode():
        source = model.trace([[11, 3, 5, 7]])
    trace = model.trace([[2, 3, 5, 7]], edit={("z", 1): source}, grad=True)
    trace.backward(trace.logits[0, -1, 5])
    assert trace.grad[1].z.abs().max() > 0
