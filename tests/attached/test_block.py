"""The block around attention is what transformers' own outputs and plain torch hooks see."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from transformers import (
    DynamicCache,
    Gemma2Config,
    Gemma2ForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    GraniteConfig,
    GraniteForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    Olmo2Config,
    Olmo2ForCausalLM,
    Phi3Config,
    Phi3ForCausalLM,
    T5Config,
    T5ForConditionalGeneration,
)

import minibert
from minibert import EditError, TraceError
from minibert.attached.block import OF_BLOCK
from minibert.trace.edit import zero
from tests.attached.live_models import bart, bert_mlm, gpt2, ids, llama, made

_SIZES = {
    "num_hidden_layers": 3, "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 8,
    "hidden_size": 48, "intermediate_size": 40, "initializer_range": 0.3, "pad_token_id": 0,
}  # fmt: skip


def gemma2() -> Any:
    return made(Gemma2ForCausalLM, Gemma2Config, _SIZES, {})


def gemma3() -> Any:
    return made(Gemma3ForCausalLM, Gemma3TextConfig, _SIZES, {})


def olmo2() -> Any:
    config = {name: one for name, one in _SIZES.items() if name != "head_dim"}
    return made(Olmo2ForCausalLM, Olmo2Config, config, {})


def granite() -> Any:
    scales = {"residual_multiplier": 0.22, "embedding_multiplier": 3.0, "logits_scaling": 2.0}
    return made(GraniteForCausalLM, GraniteConfig, _SIZES, scales)


def mixtral() -> Any:
    model = made(MixtralForCausalLM, MixtralConfig, _SIZES, {"num_local_experts": 4})
    # The grouped product has no float64.
    model.set_experts_implementation("eager")
    return model


def phi3() -> Any:
    return made(Phi3ForCausalLM, Phi3Config, _SIZES, {})


def neox(*, parallel: bool = True) -> Any:
    sizes = {
        "num_hidden_layers": 3, "num_attention_heads": 6, "hidden_size": 48,
        "intermediate_size": 40, "initializer_range": 0.3,
    }  # fmt: skip
    return made(GPTNeoXForCausalLM, GPTNeoXConfig, sizes, {"use_parallel_residual": parallel})


def t5() -> Any:
    sizes = {"d_model": 44, "d_kv": 11, "d_ff": 40, "num_layers": 3, "num_heads": 4}
    return made(T5ForConditionalGeneration, T5Config, sizes, {"initializer_factor": 3.0})


class Where(NamedTuple):
    """A block's modules by their names: > what one is given, < what it gives out."""

    build: Callable[[], Any]
    block: str
    at: dict[str, str]
    stack: str = "layers"


_GATED = {"mlp_gate": "<mlp.gate_proj", "mlp_pre": "<mlp.up_proj", "mlp_post": ">mlp.down_proj"}
_LLAMA = {"attn_out": "<self_attn", "mlp_out": "<mlp", "resid_mid": ">post_attention_layernorm"}
_FFN = {"mlp_pre": "<fc1", "mlp_post": ">fc2", "mlp_out": "<fc2"}
_NEOX = {
    "attn_out": "<attention", "mlp_out": "<mlp", "mlp_pre": "<mlp.dense_h_to_4h",
    "mlp_post": ">mlp.dense_4h_to_h",
}  # fmt: skip
_T5 = {
    "attn_out": "<layer.0.SelfAttention", "mlp_out": "<layer.1.DenseReluDense",
    "mlp_pre": "<layer.1.DenseReluDense.wi", "mlp_post": ">layer.1.DenseReluDense.wo",
    "resid_mid": ">layer.1.layer_norm",
}  # fmt: skip
FAMILIES = {
    "gpt2": Where(partial(gpt2, n_layer=3), "transformer.h", {
        "attn_out": "<attn", "mlp_out": "<mlp", "resid_mid": ">ln_2", "mlp_pre": "<mlp.c_fc",
        "mlp_post": ">mlp.c_proj"}),
    "bert": Where(bert_mlm, "bert.encoder.layer", {
        "attn_out": "<attention.output.dense", "resid_mid": "<attention.output.LayerNorm",
        "mlp_pre": "<intermediate.dense", "mlp_post": ">output.dense",
        "mlp_out": "<output.dense"}, "encoder"),
    "llama": Where(llama, "model.layers", _LLAMA | _GATED),
    "gemma2": Where(gemma2, "model.layers", _LLAMA | _GATED | {
        "resid_mid": ">pre_feedforward_layernorm"}),
    "granite": Where(granite, "model.layers", _LLAMA | _GATED),
    "mixtral": Where(mixtral, "model.layers", _LLAMA),
    "phi3": Where(phi3, "model.layers", _LLAMA | {
        "mlp_gate": ">mlp.activation_fn", "mlp_post": ">mlp.down_proj"}),
    "neox": Where(neox, "gpt_neox.layers", _NEOX),
    "neox, serial": Where(partial(neox, parallel=False), "gpt_neox.layers", _NEOX | {
        "resid_mid": ">post_attention_layernorm"}),
    "t5": Where(t5, "encoder.block", _T5, "encoder"),
    "bart": Where(partial(bart, encoder_layers=3), "encoder.layers", _FFN | {
        "attn_out": "<self_attn", "resid_mid": "<self_attn_layer_norm"}, "encoder"),
}  # fmt: skip
LAYER = 1


def inputs_of(where: Where) -> dict[str, Tensor]:
    two = where.stack == "encoder" and where.build is not bert_mlm
    return {"input_ids": ids()} | ({"decoder_input_ids": ids(2, 5)} if two else {})


def numbers(output: Any) -> Tensor:
    return output[0] if not hasattr(output, "logits") else output.logits


@contextmanager
def hooked(
    model: nn.Module, where: Where, name: str, change: Callable[[Tensor], Tensor | None]
) -> Iterator[None]:
    """A plain hook on what a module of layer 1 is given, or gives out."""
    place = {"resid_pre": ">", "resid_post": "<"}.get(name) or where.at[name]
    module = model.get_submodule(f"{where.block}.{LAYER}{'.' * bool(place[1:])}{place[1:]}")

    def given(module: nn.Module, inputs: Any, keywords: dict[str, Any]) -> Any:
        rest = (*inputs, *keywords.values())
        if (new := change(rest[0])) is None:
            return None
        if inputs:
            return (new, *inputs[1:]), keywords
        return (), {**keywords, next(iter(keywords)): new}

    def out(module: nn.Module, inputs: Any, output: Any) -> Any:
        whole = isinstance(output, Tensor)
        new = change(output if whole else output[0])
        return new if whole or new is None else (new, *output[1:])

    with ExitStack() as undo:
        if place[0] == ">":
            undo.callback(module.register_forward_pre_hook(given, with_kwargs=True).remove)
        else:
            undo.callback(module.register_forward_hook(out).remove)
        yield


@contextmanager
def sum_edited(model: nn.Module, where: Where, family: str) -> Iterator[None]:
    """sin of a sum that two read: the norm of the MLP, and the sum with what the MLP gives."""
    kept: list[Tensor] = []
    last = {"gemma2": "<post_feedforward_layernorm"}.get(family, where.at["mlp_out"])
    factor = 0.22 if family == "granite" else 1.0

    def read(stream: Tensor) -> Tensor:
        kept.append(stream)
        return stream.sin()

    def added(value: Tensor) -> Tensor:
        return value + (kept[0].sin() - kept[0]) / factor

    of_mlp = where._replace(at={"added": last})
    with hooked(model, where, "resid_mid", read), hooked(model, of_mlp, "added", added):
        yield


@pytest.mark.parametrize("family", FAMILIES)
def test_a_block_is_what_hooks_and_hidden_states_see(family: str) -> None:
    where = FAMILIES[family]
    model, inputs = where.build().double(), inputs_of(where)
    attached = minibert.attach(model)
    # transformers puts hooks of its own in for it, which stay.
    model(**inputs, output_hidden_states=True)
    for trace in (attached.trace(**inputs), attached.trace(**inputs)):
        layer = trace.stack(where.stack)[LAYER]
        for name in where.at:
            seen: list[Tensor] = []
            with torch.no_grad(), hooked(model, where, name, seen.append):
                output = model(**inputs, output_hidden_states=True)
            assert torch.equal(layer.quantity(name), seen[0].reshape(2, 7, -1)), name
        states = output.encoder_hidden_states if len(inputs) > 1 else output.hidden_states
        assert torch.equal(layer.resid_pre, states[LAYER])
        assert torch.equal(layer.resid_post, states[LAYER + 1])
        for name in {*OF_BLOCK} - {*where.at, "resid_pre", "resid_post", "mlp_gate", "mlp_pre"}:
            assert not hasattr(layer, name), name


@pytest.mark.parametrize("family", FAMILIES)
def test_an_edit_of_a_block_is_a_hook(family: str) -> None:
    where = FAMILIES[family]
    model, inputs = where.build().double(), inputs_of(where)
    attached, prefix = minibert.attach(model), (where.stack,) * (len(inputs_of(where)) > 1)
    plain = attached.trace(**inputs)
    for name in ("resid_pre", *where.at, "resid_post"):
        edit = {(*prefix, name, LAYER): lambda value: value.sin()}
        trace = attached.trace(**inputs, edit=edit)
        with torch.no_grad(), ExitStack() as hooks:
            if name == "resid_mid" and where.at[name][0] == ">":
                hooks.enter_context(sum_edited(model, where, family))
            else:
                hooks.enter_context(hooked(model, where, name, torch.sin))
            expected = numbers(model(**inputs))
        assert (numbers(trace.output) - expected).abs().max() < 1e-11, name
        assert not torch.equal(numbers(plain.output), expected), name
        written = trace.stack(where.stack)[LAYER].quantity(name)
        assert (written - plain.stack(where.stack)[LAYER].quantity(name).sin()).abs().max() < 1e-11


@pytest.mark.parametrize("build", [gpt2, bert_mlm, llama, gemma2, neox])
def test_a_block_is_that_of_the_same_weights_loaded(build: Callable[[], Any]) -> None:
    live = build().double()
    own, trace = minibert.load(live).trace(ids()), minibert.attach(live).trace(ids())
    for ours, wanted in zip(trace, own, strict=True):
        for name in OF_BLOCK:
            assert hasattr(ours, name) == hasattr(wanted, name) or name == "resid_mid", name
            if hasattr(ours, name):
                # transformers rotates in float32.
                off = (ours.quantity(name) - wanted.quantity(name)).abs().max()
                assert off < 1e-4, (name, off)
        assert (ours.head_out.sum(1) - ours.attn_out).std((0, 1)).max() < 1e-11


def test_two_attentions_of_a_block_share_it() -> None:
    model, inputs = t5().double(), {"input_ids": ids(), "decoder_input_ids": ids(2, 5)}
    trace = minibert.attach(model).trace(**inputs)
    own, cross = trace.stack("decoder.self")[1], trace.stack("decoder.cross")[1]
    assert torch.equal(own.resid_post, cross.resid_post)
    assert (own.resid_pre + own.attn_out - cross.resid_pre).abs().max() < 1e-13
    assert (cross.resid_pre + cross.attn_out - cross.resid_mid).abs().max() < 1e-13
    assert (cross.resid_mid + cross.mlp_out - cross.resid_post).abs().max() < 1e-13
    with pytest.raises(TraceError, match="another attention follows before the MLP"):
        own.resid_mid  # noqa: B018
    edited = minibert.attach(model).trace(**inputs, edit={("decoder.cross", "resid_pre", 1): zero})
    assert edited.stack("decoder.cross")[1].resid_pre.abs().max() < 1e-13


def test_half_of_what_a_projection_gives_is_edited() -> None:
    trace = minibert.attach(phi3()).trace(ids(), edit={("mlp_pre", 1): zero})
    assert float(trace[1].mlp_pre.abs().max()) == float(trace[1].mlp_out.abs().max()) == 0
    assert float(trace[1].mlp_gate.abs().max()) > 0


def test_a_generation_has_the_block_of_each_step() -> None:
    model = llama().double()
    attached = minibert.attach(model)
    attached.trace(ids(1))
    options = {"max_new_tokens": 3, "do_sample": False, "pad_token_id": 0}
    with attached.recording(edit={("mlp_out", 2): zero}) as passes:
        written = model.generate(ids(1), **options)
    whole = attached.trace(written[:, :-1], edit={("mlp_out", 2): zero})
    assert [tuple(one[1].mlp_post.shape) for one in passes] == [(1, 7, 40), (1, 1, 40), (1, 1, 40)]
    for step, one in enumerate(passes[1:], start=7):
        assert (one[2].resid_post - whole[2].resid_post[:, step : step + 1]).abs().max() < 1e-5
        assert torch.equal(one[2].resid_mid, one[2].resid_post)


def test_gradients_reach_what_is_read_of_a_block() -> None:
    attached, small = minibert.attach(gpt2().double()), 1e-5
    whole = attached.trace(ids(1), grad=True)
    direction = torch.randn(1, 7, 44, dtype=torch.float64)
    for name in ("resid_pre", "attn_out", "resid_mid", "mlp_out", "resid_post"):
        quantity = whole[0].quantity(name)
        (slope,) = torch.autograd.grad(whole.logits[0, -1, 7], quantity, retain_graph=True)
        ends = [
            attached.trace(ids(1), edit={(name, 0): lambda x, by=by: x + by * direction}).logits
            for by in (small, -small)
        ]
        measured = float((ends[0] - ends[1])[0, -1, 7]) / (2 * small)
        assert abs(float((slope * direction).sum()) - measured) < 1e-6 * abs(measured)


def test_what_does_not_add_up_is_refused() -> None:
    model = llama(attention_dropout=0.0)
    plain = model.model.layers[1].mlp.forward
    model.model.layers[1].mlp.forward = lambda x: plain(x).tanh()
    model.model.layers[2].forward = _gating(model.model.layers[2])
    trace = minibert.attach(model).trace(ids())
    assert torch.equal(trace[1].resid_mid + trace[1].mlp_out, trace[1].resid_post)
    for name in OF_BLOCK:
        with pytest.raises(TraceError, match=r"no modules of model\.layers\.2 add up"):
            trace[2].quantity(name)
    with pytest.raises(EditError, match=r"no modules of model\.layers\.2 add up"):
        trace.rerun({("mlp_out", 2): zero})
    with pytest.raises(EditError, match="mlp_gate cannot be edited: the MLP has no gate"):
        minibert.attach(gpt2()).trace(ids(), edit={("mlp_gate", 1): zero})
    # Dropout between a module and the sum, which the first run did not have.
    model = bart()
    attached = minibert.attach(model)
    attached.trace(ids(), decoder_input_ids=ids(2, 5))
    model.train()
    for each in model.modules():
        each.attention_dropout = each.dropout = 0.0
    model.encoder.layers[1].dropout = 0.5
    trace = attached.trace(ids(), decoder_input_ids=ids(2, 5)).stack("encoder")
    assert trace[0].mlp_out.shape == (2, 7, 44)
    with pytest.raises(TraceError, match="do not add up to the stream in this run"):
        trace[1].mlp_out  # noqa: B018


def _gating(layer: Any) -> Callable[..., Tensor]:
    def forward(x: Tensor, **options: Any) -> Tensor:
        return type(layer).forward(layer, x, **options).sin()

    return forward


def test_what_is_read_later_is_of_the_same_pass() -> None:
    model, tokens = llama(), ids()
    attached = minibert.attach(model)
    attached.trace(tokens)
    expected = attached.trace(tokens, grad=True)[1].mlp_post
    cache = DynamicCache(config=model.config)
    attached.trace(tokens[:, :4], past_key_values=cache)
    trace = attached.trace(tokens[:, 4:], past_key_values=cache)
    assert (trace[1].mlp_post - expected[:, 4:]).abs().max() < 1e-5
    assert cache.get_seq_length() == 7
    with pytest.raises(TraceError, match="past_key_values is a cache"):
        trace.rerun({("z", 1): zero})
    with pytest.raises(TraceError, match="past_key_values is a cache"):
        minibert.attach(model).trace(tokens, past_key_values=cache, edit={("z", 1): zero})
    with torch.inference_mode():
        untracked = tokens.clone()
        trace = attached.trace(untracked)
        untracked.fill_(5)
        assert torch.equal(trace[1].mlp_post, expected)
    trace = attached.trace(input_ids=tokens)
    tokens[0, 0] = 5 if tokens[0, 0] != 5 else 6
    for again in (lambda: trace[1].mlp_post, lambda: trace.rerun({}), lambda: trace.text(0)):
        with pytest.raises(TraceError, match="input_ids was changed after the pass"):
            again()
    trace = attached.trace(tokens, edit={("mlp_out", 0): torch.rand_like})
    assert torch.equal(model.model.layers[1].mlp.down_proj(trace[1].mlp_post), trace[1].mlp_out)


@pytest.mark.parametrize("name", ["mlp_out", "attn_out"])
@pytest.mark.parametrize("family", ["llama", "granite", "neox", "bert"])
def test_what_the_first_run_did_not_show_is_refused_or_right(family: str, name: str) -> None:
    where = FAMILIES[family]
    model = where.build().double()
    attached = minibert.attach(model)
    with hooked(model, where, name, torch.zeros_like):
        attached.trace(ids())
    lost = {*where.at} - {"attn_out"} if name == "mlp_out" else {"resid_mid"}
    if (family, name) == ("bert", "mlp_out"):
        # The norm of that sum reads it all the same.
        lost = set()
    for edited in ("resid_pre", *where.at, "resid_post"):
        edit = {(edited, LAYER): torch.sin}
        if edited in lost:
            with pytest.raises(EditError, match="lost in rounding in the first run"):
                attached.trace(ids(), edit=edit)
            continue
        with torch.no_grad(), hooked(model, where, edited, torch.sin):
            expected = numbers(model(ids()))
        found = numbers(attached.trace(ids(), edit=edit).output)
        assert (found - expected).abs().max() < 1e-11, edited


def test_a_block_without_an_mlp_is_read() -> None:
    model = llama()
    model.model.layers[1].mlp = nn.Threshold(torch.inf, 0.0)
    trace = minibert.attach(model).trace(ids())
    assert torch.equal(trace[1].resid_mid, trace[1].resid_post)
    with pytest.raises(TraceError, match="the block has no MLP"):
        trace[1].mlp_out  # noqa: B018


def test_a_batch_without_tokens_is_refused() -> None:
    attached = minibert.attach(gpt2())
    for _ in range(2):
        for shape in ((0, 7), (1, 0)):
            for options in (
                {"input_ids": torch.zeros(shape, dtype=torch.long)},
                {"inputs_embeds": torch.zeros(*shape, 44)},
            ):
                with pytest.raises(TraceError, match=rf"has the shape \({shape[0]}, {shape[1]}"):
                    attached.trace(**options)
        with pytest.raises(TraceError, match=r"\[\] holds no text"):
            attached.trace([])
        attached.trace(ids())
