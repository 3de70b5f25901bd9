"""Every logit is the sum of what the components wrote into it, and each value is its own part."""

from collections.abc import Callable
from typing import Any

import jaxtyping
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F
from transformers.activations import ACT2FN
from vocabulary_models import (
    ROTARY_CLASSES,
    VOCABULARY_CLASSES,
    both,
    induction_gpt2,
    planted_sequence,
    previous_token_bert,
    previous_token_gpt2,
)

from minibert.analysis.attribution import LogitAttribution, logit_attribution
from minibert.analysis.stream import decompose
from minibert.errors import TraceError
from minibert.trace.edit import zero
from tests.families import VOCABULARY, Sizes, sizes

FAMILIES = pytest.mark.parametrize(("family", "name"), VOCABULARY_CLASSES + ROTARY_CLASSES)
TOKENS = st.integers(0, VOCABULARY - 1)


def gap(found: LogitAttribution) -> float:
    """How far the sum is from the logit, in units of the largest value (at least 1)."""
    size = max(1.0, found.values.abs().max().item())
    return (found.total - found.logit).abs().max().item() / size


@FAMILIES
@pytest.mark.parametrize(("dtype", "limit"), [(torch.float32, 1e-5), (torch.float64, 1e-10)])
@settings(max_examples=2)
@given(chosen=sizes, token=TOKENS, other=TOKENS)
def test_values_add_up_to_the_logit(
    family: str, name: str, dtype: Any, limit: float, chosen: Any, token: int, other: int
) -> None:
    _, model, _, tokens = both(family, name, chosen, dtype)
    trace, last = model.trace(tokens), torch.tensor([12, 6, 0])
    logits = model(tokens)[torch.arange(3), last]
    alone = [logit_attribution(trace, one, sentence=None) for one in (token, other)]
    for found, one in zip(alone, (token, other), strict=True):
        shown = capped(model, found.logit)
        torch.testing.assert_close(shown, logits[:, one], atol=limit, rtol=limit)
    pair = logit_attribution(trace, token, against=other, sentence=None)
    difference = alone[0].logit - alone[1].logit
    torch.testing.assert_close(pair.logit, difference, atol=limit, rtol=limit)
    for found in (*alone, pair):
        assert gap(found) <= limit
        assert torch.equal(found.positions, last)


def capped(model: Any, logits: torch.Tensor) -> torch.Tensor:
    """What the model answers where these are its logits before the soft cap."""
    cap = model.config.logit_soft_cap
    return logits if cap is None else cap * torch.tanh(logits / cap)


class Frozen:
    """A model's path from the stream to the logits by hand, every standard deviation held.

    Each component is multiplied by a scale that starts at 1; the gradient of a logit by that
    scale is the component's value, since with norms and gates held the logit is linear in it.
    """

    def __init__(self, trace: Any, activation: Callable[[torch.Tensor], torch.Tensor]) -> None:
        self.trace, self.model, self.activation = trace, trace.model, activation
        self.scales: dict[str, torch.Tensor] = {}

    def scaled(self, label: str, part: torch.Tensor) -> torch.Tensor:
        self.scales[label] = torch.ones((), dtype=part.dtype, requires_grad=True)
        return self.scales[label] * part

    def norm(self, label: str, module: Any, x: torch.Tensor) -> torch.Tensor:
        if self.trace.config.norm == "rms":
            size = (x.square().mean(-1, keepdim=True) + module.eps).sqrt().detach()
            return x / size * (module.weight + float(self.trace.config.norm_plus_one))
        deviation = (x.var(-1, correction=0, keepdim=True) + module.eps).sqrt().detach()
        normed = (x - x.mean(-1, keepdim=True)) / deviation * module.weight
        return normed if module.bias is None else normed + self.scaled(label, module.bias)

    def stream(self, sentence: int, position: int) -> torch.Tensor:
        x = self.scaled("embed", self.trace.embed[sentence, position])
        place = self.trace.config.norm_place
        for n, here in enumerate(self.trace):
            weights, wrote = self.model.body.layers[n], torch.zeros_like(x)
            for h, part in enumerate(here.head_out[sentence, :, position]):
                wrote = wrote + self.scaled(f"head {n}-{h}", part)
            if weights.attention.output.bias is not None:
                bias = weights.attention.output.bias
                wrote = wrote + self.scaled(f"attention bias {n}", bias)
            if place in ("output", "both"):
                wrote = self.norm("", weights.attention_output_norm, wrote)
            x = x + wrote
            if place == "after":
                x = self.norm(f"attention norm bias {n}", weights.attention_norm, x)
            wrote = self.scaled(f"mlp {n}", here.mlp_out[sentence, position])
            if place in ("output", "both"):
                wrote = self.norm("", weights.mlp_output_norm, wrote)
            x = x + wrote
            if place == "after":
                x = self.norm(f"mlp norm bias {n}", weights.mlp_norm, x)
        return x

    def logits(self, sentence: int, position: int) -> torch.Tensor:
        x, head = self.stream(sentence, position), self.model.head
        if self.trace.config.pre_norm:
            x = self.norm("final norm bias", self.model.body.final_norm, x)
        if head.transform is not None:
            pre = F.linear(x, head.transform.weight)
            if head.transform.bias is not None:
                pre = pre + self.scaled("transform bias", head.transform.bias)
            held = (self.activation(pre) / pre).detach()
            x = self.norm("transform norm bias", head.norm, held * pre)
        logits = F.linear(x, head.decoder.weight) / self.trace.config.logits_divisor
        if head.decoder.bias is None:
            return logits
        return logits + self.scaled("unembedding bias", head.decoder.bias)


def head_activation(family: str, chosen: Any) -> Any:
    fixed = family in ("roberta", "electra", "modernbert")
    return ACT2FN["gelu" if fixed else chosen.activation]


@FAMILIES
@settings(max_examples=2)
@given(chosen=sizes, token=TOKENS, other=TOKENS, position=st.integers(0, 6))
def test_values_are_the_gradients_by_each_component_with_norms_held(
    family: str, name: str, chosen: Any, token: int, other: int, position: int
) -> None:
    _, model, _, tokens = both(family, name, chosen)
    trace = model.trace(tokens)
    found = logit_attribution(trace, token, against=other, sentence=1, position=position)
    by_hand = Frozen(trace, head_activation(family, chosen))
    logits = by_hand.logits(1, position)
    shown = capped(model, logits.detach())
    torch.testing.assert_close(shown, trace.logits[1, position], atol=1e-9, rtol=1e-9)
    labels = list(by_hand.scales)
    scales = [by_hand.scales[label] for label in labels]
    values = torch.autograd.grad(logits[token] - logits[other], scales, allow_unused=True)
    expected = [torch.zeros(()) if value is None else value for value in values]
    assert sorted(labels) == sorted(found.labels["component"])
    for label, value in zip(labels, expected, strict=True):
        assert abs(found[label].item() - value.item()) <= 1e-9 * max(1.0, abs(value.item())), label


@settings(max_examples=2)
@given(chosen=sizes, token=TOKENS)
def test_gpt2_values_follow_from_transformers_attentions_and_weights(
    chosen: Any, token: int
) -> None:
    theirs, model, inputs, tokens = both("gpt2", "GPT2LMHeadModel", chosen)
    body, position = theirs.transformer, 12
    with torch.no_grad():
        out = theirs(**inputs, output_hidden_states=True, output_attentions=True)
        stream, parts = out.hidden_states[0], {"embed": out.hidden_states[0]}
        for n, block in enumerate(body.h):
            width = stream.shape[-1]
            value = block.attn.c_attn(block.ln_1(stream))[..., 2 * width :]
            per_head = value.unflatten(-1, (chosen.heads, -1))
            z = torch.einsum("bhqk,bkhd->bqhd", out.attentions[n], per_head)
            rows = block.attn.c_proj.weight.unflatten(0, (chosen.heads, -1))
            for h in range(chosen.heads):
                parts[f"head {n}-{h}"] = z[:, :, h] @ rows[h]
            parts[f"attention bias {n}"] = block.attn.c_proj.bias.expand_as(stream)
            stream = stream + sum(parts[f"head {n}-{h}"] for h in range(chosen.heads))
            stream = stream + block.attn.c_proj.bias
            parts[f"mlp {n}"] = block.mlp(block.ln_2(stream))
            stream = stream + parts[f"mlp {n}"]
        scale = (stream.var(-1, correction=0) + body.ln_f.eps).sqrt()[0, position]
        direction = body.ln_f.weight * theirs.lm_head.weight[token]
        found = logit_attribution(model.trace(tokens), token, position=position)
        for label, part in parts.items():
            row = part[0, position]
            expected = (row - row.mean()) @ direction / scale
            assert abs(found[label].item() - expected.item()) <= 1e-10 * max(1, abs(expected))
        assert abs(found["final norm bias"] - body.ln_f.bias @ theirs.lm_head.weight[token]) < 1e-10
        assert len(found.labels["component"]) == len(parts) + 1


@FAMILIES
def test_values_are_the_parts_of_the_stream_read_by_the_frozen_head(family: str, name: str) -> None:
    _, model, _, tokens = both(family, name)
    trace = model.trace(tokens)
    found = logit_attribution(trace, 5)
    whole = decompose(trace)
    by_hand = Frozen(trace, head_activation(family, Sizes()))
    direction = torch.autograd.functional.jacobian(
        lambda x: _read(by_hand, x), whole.total[0, 12], vectorize=True
    )
    read = whole.values[:, 0, 12] @ direction
    torch.testing.assert_close(read, found.values[: len(read)], atol=1e-9, rtol=1e-9)
    assert whole.labels["component"] == found.labels["component"][: len(read)]


def _read(by_hand: Frozen, x: torch.Tensor) -> torch.Tensor:
    by_hand.stream = lambda sentence, position: x  # type: ignore[method-assign]
    return by_hand.logits(0, 12)[5]


def test_tables_hold_the_values_of_their_components() -> None:
    _, model, _, tokens = both("bert", "BertForMaskedLM", Sizes(layers=5, heads=3))
    found = logit_attribution(model.trace(tokens), 7, sentence=None)
    assert found.by_head().shape == (3, 5, 3)
    assert torch.equal(found.by_head()[:, 4, 2], found["head 4-2"])
    assert torch.equal(found.by_layer("mlp")[:, 3], found["mlp 3"])
    torch.testing.assert_close(found.by_layer("head"), found.by_head().sum(-1))
    without_layer = [n for n, c in enumerate(found.components) if c.layer is None]
    rest = found.values[:, without_layer].sum(-1)
    torch.testing.assert_close(found.by_layer().sum(-1) + rest, found.total)
    names = [name for name, _ in found.top(len(found.labels["component"]))]
    assert sorted(names) == sorted(found.labels["component"])
    sizes = [abs(value) for _, value in found.top(99)]
    assert sizes == sorted(sizes, reverse=True)
    assert found.top(1)[0][0] in str(found)


@pytest.mark.parametrize("count", ["a", 0, -1, 1.5, True])
def test_a_ranking_of_no_count_is_refused(count: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    _, model, _, tokens = both("gpt2", "GPT2LMHeadModel", Sizes(layers=1))
    found = logit_attribution(model.trace(tokens), 7)
    with pytest.raises(TraceError, match=r"count=.*: expected a whole number from 1"):
        found.top(count)


@pytest.mark.parametrize("name", ["BertForMaskedLM", "GPT2LMHeadModel"])
def test_a_sentence_gives_the_same_alone_in_a_batch_and_without_padding(name: str) -> None:
    _, model, _, tokens = both("gpt2" if name.startswith("GPT2") else "bert", name)
    whole = logit_attribution(
        model.trace(tokens), [3, 5, 7], against=[4, 4, 1], position=[-2, 1, 0], sentence=None
    )
    for n, (token, against, position) in enumerate([(3, 4, 11), (5, 4, 1), (7, 1, 0)]):
        one = logit_attribution(
            model.trace(tokens), token, against=against, position=position, sentence=n
        )
        torch.testing.assert_close(one.values, whole.values[n])
        alone = logit_attribution(model.trace(tokens[n]), token, against=against, position=position)
        torch.testing.assert_close(alone.values, whole.values[n], atol=1e-9, rtol=1e-9)
        assert torch.equal(one.token, whole.token[n])
        assert one.values.dim() == 1


def test_an_ablated_head_has_no_value_and_the_sum_is_the_new_logit() -> None:
    _, model, _, tokens = both("bert", "BertForMaskedLM")
    trace = model.trace(tokens).rerun({("z", 1, 2): zero, ("mlp_out", 0): zero})
    found = logit_attribution(trace, 9)
    assert found["head 1-2"] == 0
    assert found["mlp 0"] == 0
    assert gap(found) <= 1e-10
    assert found.logit == trace.logits[0, 12, 9]


def test_a_planted_head_holds_the_whole_difference() -> None:
    ids = planted_sequence()
    position = 60
    cases = (
        (previous_token_gpt2(), ids[position - 1], "head 0-0"),
        (induction_gpt2(), ids[position + 1], "head 1-1"),
        (previous_token_bert(), ids[position - 1], "head 0-0"),
    )
    for model, token, label in cases:
        others = set(ids.tolist()) - set(ids[position - 2 : position + 2].tolist())
        found = logit_attribution(
            model.trace(ids), int(token), against=min(others), position=position
        )
        assert found.top(1)[0][0] == label
        assert found[label] > 0.99 * found.logit > 0
        rest = found.values.abs().sum() - found[label].abs()
        assert rest < 0.01 * found[label]
