"""What is read of a live model is what it computed."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from torch import nn
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.integrations.sdpa_attention import sdpa_attention_forward

import minibert
from minibert import TraceError
from minibert.attached.call import Call
from minibert.attached.layout import READABLE
from minibert.attached.read import AttachedTrace
from tests.attached.live_models import bart, bert, gpt2, ids, llama


def test_left_padded_llama_equals_the_unpadded_one() -> None:
    attached, alone = minibert.attach(llama()), ids(1, 5)
    padded = torch.cat([torch.zeros(1, 3, dtype=torch.long), alone], 1)
    mask = torch.cat([torch.zeros(1, 3, dtype=torch.long), torch.ones_like(alone)], 1)
    short = attached.trace(input_ids=alone)
    long = attached.trace(input_ids=padded, attention_mask=mask)
    assert not attached.report.problems
    for layer in range(3):
        assert (long[layer].probs[:, :, 3:, 3:] - short[layer].probs).abs().max() < 1e-5
        assert float(long[layer].probs[:, :, 3:, :3].abs().max()) == 0
        assert (long[layer].z[:, :, 3:] - short[layer].z).abs().max() < 1e-5
        for name in ("entropy", "max_prob", "lse"):
            one, other = (getattr(t[layer].statistics, name) for t in (long, short))
            assert (one[:, :, 3:] - other).abs().max() < 1e-5, name
        received = long[layer].statistics.received
        assert (received[:, :, 3:] - short[layer].statistics.received).abs().max() < 1e-5
        assert float(received[:, :, :3].abs().max()) == 0


def test_statistics_are_those_of_probs() -> None:
    trace = minibert.attach(bert()).trace(ids())
    probs = trace[2].probs.double()
    entropy = -(probs * probs.log()).sum(-1)
    assert (trace[2].statistics.entropy - entropy).abs().max() < 1e-5
    assert (trace[2, 3].statistics.received - probs[:, 3].sum(1)).abs().max() < 1e-5
    found = trace[2].statistics(("max_prob", ("key_mass", (0, 4))))
    assert (found.max_prob - probs.amax(-1)).abs().max() < 1e-5
    assert (found.key_mass - probs[..., [0, 4]]).abs().max() < 1e-5
    with pytest.raises(AttributeError, match="'spread' is not a statistic; there are lse"):
        trace[2].statistics.spread  # noqa: B018


def test_stacks_of_an_encoder_and_a_decoder_are_named() -> None:
    attached = minibert.attach(bart())
    trace = attached.trace(input_ids=ids(), decoder_input_ids=ids(2, 5))
    assert trace.stacks == ("encoder", "decoder.self", "decoder.cross")
    assert trace.stack("decoder.cross")[2].probs.shape == (2, 2, 5, 7)
    assert "decoder.self: 3 layers x 2 heads" in repr(attached)
    with pytest.raises(TraceError, match=r"several stacks, 'encoder', 'decoder.self', 'decoder"):
        trace[0]
    with pytest.raises(TraceError, match="no stack 'vision'; there are 'encoder'"):
        trace.stack("vision")


def test_generation_is_a_trace_a_pass() -> None:
    model = gpt2()
    attached = minibert.attach(model)
    with attached.recording() as passes:
        written = model.generate(ids(1), max_new_tokens=4, do_sample=False, pad_token_id=0)
    whole = attached.trace(written[:, :-1])
    assert [one[0].probs.shape[2:] for one in passes] == [(7, 7), (1, 8), (1, 9), (1, 10)]
    for step, one in enumerate(passes[1:], start=7):
        for layer in range(2):
            expected = whole[layer].probs[:, :, step : step + 1, : step + 1]
            assert (one[layer].probs - expected).abs().max() < 1e-5


def test_a_static_cache_makes_the_keys_of_earlier_passes_stale_and_reading_says_so() -> None:
    model = llama()
    options = {"max_new_tokens": 4, "do_sample": False, "pad_token_id": 0}
    with minibert.attach(model).recording() as passes:
        model.generate(ids(1), cache_implementation="static", **options)
    with pytest.raises(TraceError, match=r"key is stale.*static cache"):
        passes[0][0].probs  # noqa: B018
    with pytest.raises(TraceError, match="key is stale"):
        passes[0][0].statistics.entropy  # noqa: B018
    assert passes[0][0].z.shape == (1, 6, 7, 8)
    # Nothing was written after the last pass.
    assert float((passes[-1][0].probs.sum(-1) - 1).abs().max()) < 1e-5


def test_inference_mode_reads_what_each_pass_saw() -> None:
    model = llama()
    attached = minibert.attach(model)
    with torch.inference_mode(), attached.recording() as passes:
        model.generate(ids(1), max_new_tokens=3, do_sample=False, pad_token_id=0,
                       cache_implementation="static")  # fmt: skip
    with torch.no_grad():
        plain = attached.trace(ids(1))
    assert (passes[0][2].probs[..., :7] - plain[2].probs).abs().max() < 1e-5


def test_what_is_not_read_says_what_is() -> None:
    trace: AttachedTrace = minibert.attach(bert()).trace(ids())
    with pytest.raises(
        AttributeError, match=r"z, head_out, resid_pre, .* resid_post and statistics"
    ):
        trace[0].quantity("mlp_norm_scale")
    with pytest.raises(AttributeError, match="returned no logits"):
        trace.logits  # noqa: B018
    with pytest.raises(TraceError, match="no head 4; expected 0 to 3"):
        trace[0, 4]
    with pytest.raises(TraceError, match="A text needs a tokenizer"):
        minibert.attach(bert()).trace("leaves fall")
    assert trace.stack("probs").shape == (3, 2, 4, 7, 7)
    assert not hasattr(trace, "pooled")


@pytest.mark.parametrize("build", [bert, gpt2, llama])
def test_heads_write_what_zeroing_their_columns_takes_away(build: Callable[[], Any]) -> None:
    attached = minibert.attach(build())
    trace = attached.trace(ids())
    # The linear module whose input is z, found here by its name.
    names = {
        "bert": "encoder.layer.1.attention.output.dense",
        "gpt2": "transformer.h.1.attn.c_proj",
    }
    projection = attached.model.get_submodule(
        names.get(build.__name__, "model.layers.1.self_attn.o_proj")
    )
    with torch.no_grad():
        z = trace[1].z.transpose(1, 2)
        whole = projection(z.flatten(2))
        for head in range(z.shape[2]):
            without = z.clone()
            without[:, :, head] = 0
            expected = whole - projection(without.flatten(2))
            assert (trace[1, head].head_out - expected).abs().max() < 1e-5
            assert torch.equal(trace[1].head_out[:, head], trace[1, head].head_out)
            assert not trace[1, head].head_out.requires_grad
            for name in READABLE:
                of_layer = trace[1].quantity(name)
                of_head = of_layer[:, head * of_layer.shape[1] // z.shape[2]]
                torch.testing.assert_close(trace[1, head].quantity(name), of_head)
        projection.weight.mul_(2)
    with pytest.raises(TraceError, match="were changed after this pass"):
        trace[1].head_out  # noqa: B018
    with pytest.raises(TraceError, match="were changed after this trace"):
        trace.rerun({})
    assert trace.stack("z").shape[0] == len(trace)


class Doubled(nn.Module):
    """Around an output projection: what is written, or what is given, times two."""

    def __init__(self, projection: nn.Module, *, before: bool) -> None:
        super().__init__()
        self.projection, self.before = projection, before

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        return self.projection(2 * given) if self.before else 2 * self.projection(given)


@pytest.mark.parametrize(
    ("before", "message"),
    [(True, "no module of the model is given z alone"), (False, "changes what its output")],
)
def test_heads_that_do_not_write_alone_are_refused(before: bool, message: str) -> None:
    model = llama()
    attention = model.model.layers[1].self_attn
    attention.o_proj = Doubled(attention.o_proj, before=before)
    trace = minibert.attach(model).trace(ids())
    with pytest.raises(TraceError, match=message):
        trace[1].head_out  # noqa: B018
    assert trace[0].head_out.shape == (2, 6, 7, 48)
    assert trace[1].z.shape == (2, 6, 7, 8)


@settings(max_examples=40, phases=[Phase.generate])
@given(data=st.data())
def test_probs_are_those_of_the_formula_whatever_is_added(data: st.DataObject) -> None:
    """Soft cap, position bias, mask and sinks, of some rows and heads, by hand."""
    torch.manual_seed(data.draw(st.integers(0, 99)))
    query, key, value = torch.randn(3, 2, 4, 5, 7, dtype=torch.float64).unbind()
    key, value = key[:, :2], value[:, :2]
    cap = data.draw(st.sampled_from([None, 0.7]))
    bias, finite = (torch.randn(shape, dtype=torch.float64) for shape in ((4, 5, 5), (2, 1, 5, 5)))
    seen = (torch.rand(2, 1, 5, 5) < 0.6) | torch.eye(5, dtype=torch.bool)
    mask, added, allowed = data.draw(
        st.sampled_from(
            [
                (None, 0.0, torch.ones_like(seen)),
                (seen, 0.0, seen),
                (seen.long(), 0.0, seen),
                (finite.masked_fill(~seen, -torch.inf), finite, seen),
            ]
        )
    )
    biased = data.draw(st.sampled_from([None, bias, bias[None], bias[None, :1]]))
    sinks = data.draw(st.sampled_from([None, torch.randn(4, dtype=torch.float64)]))
    options = {"softcap": cap, "position_bias": biased, "s_aux": sinks}
    call = Call(nn.Module(), "eager", query, key, value, mask, options)
    call.settle()
    scores = query @ key.repeat_interleave(2, 1).mT / 7**0.5
    shaped = scores if cap is None else cap * (scores / cap).tanh()
    shaped = (shaped + (0 if biased is None else biased) + added).masked_fill(~allowed, -torch.inf)
    weights = shaped.exp()
    total = weights.sum(-1, keepdim=True)
    total = total if sinks is None else total + sinks[:, None, None].exp()
    for rows, heads in ((slice(None), slice(None)), (torch.tensor([3, 1]), slice(1, 3))):
        expected = (weights / total)[:, heads][:, :, rows]
        torch.testing.assert_close(call.probs(rows, heads), expected)
        torch.testing.assert_close(call.scores(rows, heads), scores[:, heads][:, :, rows])
    if sinks is not None:
        sinks.add_(1)
        with pytest.raises(TraceError, match="sinks is stale"):
            call.probs()


@pytest.mark.parametrize("queries", [1, 5])
@pytest.mark.parametrize("asked", [None, True, False])
@pytest.mark.parametrize("own", [None, True, False])
def test_order_without_a_mask_is_that_of_transformers_own_sdpa(
    queries: int, asked: bool | None, own: bool | None
) -> None:
    module = nn.Module()
    if own is not None:
        module.is_causal = own
    query, key, value = torch.randn(3, 2, 3, 5, 7, dtype=torch.float64).unbind()
    query = query[:, :, :queries]
    options = {} if asked is None else {"is_causal": asked}
    call = Call(module, "sdpa", query, key, value, None, options)
    expected, _ = sdpa_attention_forward(module, query, key, value, None, **options)
    # In float64, so that a softmax in float32 shows.
    found = (call.probs() @ value).transpose(1, 2)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-13)


def test_one_text_needs_no_padding_token() -> None:
    folder = Path(minibert.__file__).parent / "embedded" / "tiny-gpt2"
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.pad_token = None
    live = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    attached = minibert.attach(live, tokenizer=tokenizer)
    assert attached.trace("The horse ran")[0].probs.shape[0] == 1
    with pytest.raises(ValueError, match="pad"):
        attached.trace(["The horse ran", "home"])
