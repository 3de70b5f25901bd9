"""Sweeps of edits: the same numbers as one edited pass after the other."""

from typing import Any

import pytest
import torch
from torch import Tensor

from minibert.analysis import (
    Effects,
    ablate_heads,
    logit_difference,
    patch_heads,
    patch_positions,
)
from minibert.errors import EditError, TraceError
from minibert.layers.config import Config
from minibert.model import Model
from minibert.text.tokens import Tokens
from minibert.trace.edit import replace, zero

LAYERS, HEADS, LENGTH, VOCABULARY = 3, 2, 7, 41


def gpt2() -> Model:
    config = Config(
        family="gpt2",
        task="causal-lm",
        vocab_size=VOCABULARY,
        n_positions=LENGTH,
        n_layers=LAYERS,
        n_heads=HEADS,
        d_model=10,
        d_mlp=13,
        causal=True,
    )
    model = Model.from_config(config, seed=1)
    generator = torch.Generator().manual_seed(2)
    for parameter in model.parameters():
        parameter.normal_(0, 0.4, generator=generator)
    return model.double()


def ids(seed: int, batch: int = 1) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(VOCABULARY, (batch, LENGTH), generator=generator)


METRIC = logit_difference(5, 11)


def one_by_one(model: Model, text: Tensor, edits: list[dict[Any, Any]]) -> Tensor:
    return torch.cat([METRIC(model.trace(text, edit=edit)) for edit in edits])


def test_the_logit_difference_is_read_at_the_last_position() -> None:
    logits = torch.zeros(1, 2, VOCABULARY)
    logits[0, 0, 5], logits[0, 1, 5], logits[0, 1, 11] = 9.0, 3.0, 1.0
    assert METRIC(logits, lengths=[2]).tolist() == [2.0]
    assert METRIC(logits, lengths=[1]).tolist() == [9.0]


def test_ablating_each_head_equals_one_ablated_pass_after_the_other() -> None:
    model, text = gpt2(), ids(1)
    sweep = ablate_heads(model.trace(text), METRIC)
    edits = [{("z", n, h): zero} for n in range(LAYERS) for h in range(HEADS)]
    assert torch.allclose(sweep.values.flatten(), one_by_one(model, text, edits), atol=1e-12)
    assert sweep.sizes == {"layer": LAYERS, "batch": 1, "head": HEADS}
    assert sweep.clean.item() == pytest.approx(float(METRIC(model.trace(text))), abs=1e-12)


def test_a_head_without_output_weights_changes_nothing_when_it_is_ablated() -> None:
    model, text = gpt2(), ids(1)
    d_head = model.config.d_head
    model.body.layers[1].attention.output.weight[:, d_head:] = 0
    change = ablate_heads(model.trace(text), METRIC).mean
    assert change[1, 1].abs() < 1e-12
    assert change[1, 0].abs() > 1e-3


@pytest.mark.parametrize("name", ["query", "key", "value", "scores", "probs", "z", "head_out"])
def test_patching_each_head_equals_one_patched_pass_after_the_other(name: str) -> None:
    model, text = gpt2(), ids(1)
    source = model.trace(ids(2))
    sweep = patch_heads(model.trace(text), source, METRIC, name=name, batch=3)
    edits = [{(name, n, h): replace(source)} for n in range(LAYERS) for h in range(HEADS)]
    assert torch.allclose(sweep.values.flatten(), one_by_one(model, text, edits), atol=1e-12)


@pytest.mark.parametrize("name", ["resid_pre", "attn_out", "mlp_post", "mlp_out", "resid_post"])
def test_patching_each_position_equals_one_patched_pass_after_the_other(name: str) -> None:
    model, text = gpt2(), ids(1)
    source = model.trace(ids(2))
    sweep = patch_positions(model.trace(text), source, METRIC, name=name, positions=[-1])
    edits = [
        {(name, n): replace(source, positions=p)} for n in range(LAYERS) for p in range(LENGTH)
    ]
    assert torch.allclose(sweep.values.flatten(), one_by_one(model, text, edits), atol=1e-12)
    assert sweep.axes == ("layer", "batch", "position")


def test_the_last_layer_at_the_last_position_recovers_everything_and_others_nothing() -> None:
    model = gpt2()
    sweep = patch_positions(model.trace(ids(1)), model.trace(ids(2)), METRIC)
    recovered = sweep.recovered[-1]
    expected = torch.tensor([0.0] * (LENGTH - 1) + [1.0])
    assert torch.allclose(recovered, expected.double(), atol=1e-12)


def test_the_largest_changes_come_first() -> None:
    values = torch.tensor([[[1.0, 5.0]], [[2.0, -7.0]]])
    sweep = Effects(values, "layer batch head", clean=torch.ones(1))
    assert sweep.largest(2) == [(1, 1, -8.0), (0, 1, 4.0)]
    with pytest.raises(EditError, match="recover"):
        _ = sweep.recovered


def test_what_cannot_be_patched_is_an_error() -> None:
    model = gpt2()
    trace, short = (model.trace(t) for t in (ids(1), ids(1)[:, :4]))
    with pytest.raises(EditError, match="7 and 4 tokens"):
        patch_positions(trace, short, METRIC)
    with pytest.raises(EditError, match="no heads"):
        patch_heads(trace, trace, METRIC, name="mlp_out")
    with pytest.raises(EditError, match="no positions"):
        patch_positions(trace, trace, METRIC, name="probs")
    mask = torch.tensor([[True, True, True], [True, True, False]])
    ragged = model.trace(Tokens.from_ids([[3, 4, 5], [6, 7, 0]], mask=mask))
    with pytest.raises(EditError, match="3, 2 tokens"):
        patch_positions(ragged, ragged, METRIC)
    with pytest.raises(EditError, match="1 entries for 2 sentences"):
        patch_positions(ragged, ragged, METRIC, aligned={"end": [-1]})


@pytest.mark.parametrize("key", [("z", 0, 1), "logits"])
def test_a_trace_with_edits_is_refused_since_its_sweep_would_lose_them(key: Any) -> None:
    model = gpt2()
    edited, plain = model.trace(ids(1), edit={key: zero}), model.trace(ids(2))
    for sweep in (ablate_heads, lambda *both: patch_heads(both[0], plain, both[1])):
        with pytest.raises(TraceError, match="made with edits"):
            sweep(edited, METRIC)
    assert patch_heads(plain, edited, METRIC).values.shape == (LAYERS, 1, HEADS)


def test_padding_is_not_patched_and_has_no_column() -> None:
    model = gpt2()
    mask = torch.tensor([[True] * 5 + [False] * 2])
    trace, source = (model.trace(Tokens.from_ids(ids(seed), mask=mask)) for seed in (1, 2))
    sweep = patch_positions(trace, source, METRIC, positions=[4])
    assert sweep.values.shape == (LAYERS, 1, 5)
    whole = [model.trace(ids(seed)[:, :5]) for seed in (1, 2)]
    assert torch.allclose(sweep.values, patch_positions(*whole, METRIC).values)
    assert len(sweep.largest(LAYERS * 5)) == LAYERS * 5


def test_the_embeddings_have_no_layers_to_patch() -> None:
    with pytest.raises(EditError, match="resid_pre"):
        patch_positions(gpt2().trace(ids(1)), gpt2().trace(ids(2)), METRIC, name="embed")
