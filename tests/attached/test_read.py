"""What is read of a live model is what it computed."""

import pytest
import torch

import minibert
from minibert import TraceError
from minibert.attached.read import AttachedTrace
from tests.attached.live_models import bart, bert, gpt2, ids, llama


def test_probs_are_the_models_own_weights_and_z_is_what_its_projection_gets() -> None:
    model = llama()
    given: list[torch.Tensor] = []
    model.model.layers[2].self_attn.o_proj.register_forward_pre_hook(
        lambda _, x: given.append(x[0])
    )
    trace = minibert.attach(model).trace(input_ids=ids())
    model.set_attn_implementation("eager")
    with torch.no_grad():
        expected = model(ids(), output_attentions=True).attentions
    for layer, weights in zip(trace, expected, strict=True):
        assert (layer.probs - weights).abs().max() < 1e-5
    assert torch.equal(trace[2].z.transpose(1, 2).reshape(2, 7, 48), given[0])
    assert torch.equal(trace[2, 4].z, trace[2].z[:, 4])


def test_grouped_heads_read_their_own_key_and_scores_follow() -> None:
    trace = minibert.attach(llama()).trace(input_ids=ids())
    assert trace[1].key.shape == trace[1].value.shape == (2, 2, 7, 8)
    assert trace[1].query.shape == (2, 6, 7, 8)
    for head in range(6):
        mine = trace[1, head]
        assert torch.equal(mine.key, trace[1].key[:, head // 3])
        scores = mine.query @ mine.key.transpose(1, 2) / 8**0.5
        assert (mine.scores - scores).abs().max() < 1e-5
        assert (mine.probs @ mine.value - mine.z).abs().max() < 1e-5
    rows = trace[1, 4].window("probs", queries=slice(2, 4), keys=slice(0, 3))
    assert torch.allclose(rows, trace[1, 4].probs[:, 2:4, :3])


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
    with pytest.raises(AttributeError, match="'spread' is no statistic; there are lse"):
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
    with pytest.raises(AttributeError, match="query, key, value, scores, probs, z and statistics"):
        trace[0].quantity("mlp_out")
    with pytest.raises(AttributeError, match="returned no logits"):
        trace.logits  # noqa: B018
    with pytest.raises(TraceError, match="no head 4; expected 0 to 3"):
        trace[0, 4]
    with pytest.raises(TraceError, match="A text needs a tokenizer"):
        minibert.attach(bert()).trace("leaves fall")
    assert trace.stack("probs").shape == (3, 2, 4, 7, 7)
    assert not hasattr(trace, "hidden")


def test_a_page_shows_real_tokens_and_the_vectors_give_the_weights() -> None:
    mask = torch.ones(2, 7, dtype=torch.long)
    mask[0, :3] = 0
    page = minibert.attach(llama()).trace(ids(), attention_mask=mask).view(view="neuron")
    assert [len(one.about["tokens"]["text"]) for one in page.examples] == [4, 7]
    assert all(one.about["causal"] and not one.about["edited"] for one in page.examples)
    bert_page = minibert.attach(bert()).trace(ids()).view()
    assert not any(one.about["causal"] or one.about["edited"] for one in bert_page.examples)
    trace = minibert.attach(bart()).trace(input_ids=ids(), decoder_input_ids=ids(2, 5))
    assert len(trace.view(stack="decoder.self").examples) == 2
    with pytest.raises(TraceError, match="as many queries as keys"):
        trace.view(stack="decoder.cross")
