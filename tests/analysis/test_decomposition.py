"""The parts of the residual stream add up to it, in every family and at every point."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small_traces import small_trace
from vocabulary_models import ROTARY_CLASSES, VOCABULARY_CLASSES, both

from minibert.analysis.stream import decompose
from minibert.errors import TraceError
from minibert.trace.edit import replace, zero
from tests.families import Sizes, sizes
from tests.rotary import classes

FAMILIES = pytest.mark.parametrize(("family", "name"), VOCABULARY_CLASSES + ROTARY_CLASSES)
POINTS = ("resid_pre", "resid_mid", "resid_post")


@FAMILIES
@pytest.mark.parametrize(("dtype", "limit"), [(torch.float32, 1e-5), (torch.float64, 1e-10)])
@settings(max_examples=2)
@given(chosen=sizes, point=st.sampled_from(POINTS), heads=st.booleans(), data=st.data())
def test_parts_add_up_to_the_stream(
    family: str,
    name: str,
    dtype: Any,
    limit: float,
    chosen: Any,
    point: str,
    heads: bool,
    data: Any,
) -> None:
    _, model, _, tokens = both(family, name, chosen, dtype)
    trace = model.trace(tokens)
    layer = data.draw(st.integers(0, model.config.n_layers - 1))
    found = decompose(trace, layer, point=point, heads=heads)
    stream = getattr(trace[layer], point)
    size = max(1.0, found.values.abs().max().item())
    assert (found.total - stream).abs().max() <= limit * size
    torch.testing.assert_close(found.cumulative[-1], found.total)
    assert (
        len(set(found.labels["component"])) == len(found.labels["component"]) == len(found.values)
    )
    biases = 0 if model.config.pre_norm else 1
    blocks = layer + (point != "resid_pre"), layer + (point == "resid_post")
    bias = family not in classes.LANGUAGE or family == "gpt_neox"
    attention = (model.config.n_heads + bias if heads else 1) + biases
    assert len(found.values) == 1 + blocks[0] * attention + blocks[1] * (1 + biases)


def test_gpt2_parts_are_what_was_written_and_their_sums_the_streams_below() -> None:
    _, model, _, tokens = both("gpt2", "GPT2LMHeadModel", Sizes(layers=5))
    trace = model.trace(tokens)
    found = decompose(trace)
    assert torch.equal(found["embed"], trace.embed)
    # Products of one head, and of some rows at a time, may be rounded otherwise.
    torch.testing.assert_close(found["head 3-1"], trace[3, 1].head_out, rtol=0, atol=1e-14)
    torch.testing.assert_close(found["mlp 2"], trace[2].mlp_out, rtol=0, atol=1e-14)
    for layer in range(5):
        upto = found.labels["component"].index(f"mlp {layer}")
        torch.testing.assert_close(found.cumulative[upto], trace[layer].resid_post)
        bias = found.labels["component"].index(f"attention bias {layer}")
        torch.testing.assert_close(found.cumulative[bias], trace[layer].resid_mid)


def test_bert_parts_are_the_derivatives_by_what_was_written_with_norms_held() -> None:
    theirs, model, _, tokens = both("bert", "BertForMaskedLM", Sizes(layers=2))
    trace = model.trace(tokens)
    found = decompose(trace)
    layers = theirs.bert.encoder.layer

    def norm(module: Any, x: torch.Tensor, part: torch.Tensor) -> torch.Tensor:
        deviation = (x.var(-1, correction=0, keepdim=True) + module.eps).sqrt()
        return module.weight * (part - part.mean(-1, keepdim=True)) / deviation

    with torch.no_grad():
        last = layers[1]
        after_attention = trace[1].resid_pre + trace[1].attn_out
        after_mlp = trace[1].resid_mid + trace[1].mlp_out
        mlp = norm(last.output.LayerNorm, after_mlp, trace[1].mlp_out)
        head = norm(last.attention.output.LayerNorm, after_attention, trace[1, 2].head_out)
        head = norm(last.output.LayerNorm, after_mlp, head)
    torch.testing.assert_close(found["mlp 1"], mlp)
    torch.testing.assert_close(found["head 1-2"], head)
    bias = last.output.LayerNorm.bias.detach().expand_as(mlp)
    torch.testing.assert_close(found["mlp norm bias 1"], bias)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("until", [None, 1])
def test_chosen_positions_give_the_same_as_all_of_them(causal: bool, until: int | None) -> None:
    trace = small_trace(causal=causal)
    trace = trace.model.trace(torch.randint(0, 41, (3, 11)), until=until)
    whole, some = decompose(trace, 1), decompose(trace, 1, positions=[9, -11])
    assert some.positions == ((9, 0),) * 3
    torch.testing.assert_close(some.values, whole.values[:, :, [9, 0]], atol=1e-5, rtol=1e-5)
    assert decompose(trace, 1, positions=4).values.shape[2] == 1


def test_heads_left_together_are_attn_out() -> None:
    trace = small_trace(causal=True)
    found = decompose(trace, 0, heads=False)
    assert tuple(found.labels["component"]) == ("embed", "attention 0", "mlp 0")
    torch.testing.assert_close(found["attention 0"], trace[0].attn_out)
    assert "'resid_post 0' of component 3," in repr(found)


WRITTEN = ("embed", "query", "probs", "z", "head_out", "mlp_post", "mlp_out")


@pytest.mark.parametrize("causal", [True, False])
def test_an_edited_trace_adds_up_or_is_refused(causal: bool) -> None:
    def changed(x: torch.Tensor) -> torch.Tensor:
        return 2 * x + 0.1

    trace = small_trace(causal=causal)
    for name in WRITTEN:
        edited = trace.rerun({name if name == "embed" else (name, 1): changed})
        found = decompose(edited)
        torch.testing.assert_close(found.total, edited[-1].resid_post, atol=1e-4, rtol=1e-4)
        assert not torch.allclose(found.total, trace[-1].resid_post, atol=1e-2)
    for name in ("attn_out", "resid_pre", "resid_mid", "resid_post"):
        edited = trace.rerun({(name, 1): changed})
        with pytest.raises(TraceError, match=r"edited where none of them writes.*heads=False"):
            decompose(edited)
        below = decompose(edited, 0, point="resid_mid")
        torch.testing.assert_close(below.total, trace[0].resid_mid)
    edited = trace.rerun({("attn_out", 1): changed})
    found = decompose(edited, heads=False)
    torch.testing.assert_close(found.total, edited[-1].resid_post, atol=1e-4, rtol=1e-4)


def test_an_edit_at_one_position_leaves_the_sums_of_the_others() -> None:
    trace = small_trace(causal=True)
    edited = trace.rerun({("resid_post", 1): replace(0.5, positions=4)})
    torch.testing.assert_close(
        decompose(edited, 1, positions=3).total, trace[1].resid_post[:, 3:4], atol=1e-4, rtol=1e-4
    )
    with pytest.raises(TraceError, match="resid_post 1 of this trace is not the sum"):
        decompose(edited, 1, positions=[3, 4])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_in_half_precision_an_edited_trace_is_refused_for_no_rounding(dtype: Any) -> None:
    _, model, _, tokens = both("gpt2", "GPT2LMHeadModel", Sizes(layers=5), dtype)
    trace = model.trace(tokens)
    decompose(trace.rerun({("z", 1): zero}))
    with pytest.raises(TraceError, match="edited where none of them writes"):
        decompose(trace.rerun({("resid_mid", 1): zero}))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"layer": 3}, "no layer 3"),
        ({"layer": True}, "expected a whole number"),
        ({"point": "z"}, "'z' is no residual stream"),
        ({"positions": 11}, "no position 11"),
        ({"positions": ()}, "at least one"),
    ],
)
def test_wrong_requests_are_refused(options: Any, words: str) -> None:
    with pytest.raises(TraceError, match=words):
        decompose(small_trace(), **options)


def test_a_layer_that_was_not_computed_and_an_unknown_component_are_refused() -> None:
    trace = small_trace()
    with pytest.raises(TraceError, match="was not computed"):
        decompose(trace.model.trace(trace.tokens, until=0), 2)
    with pytest.raises(TraceError, match=r"has no 'head 0-9'; there are embed"):
        decompose(trace)["head 0-9"]
