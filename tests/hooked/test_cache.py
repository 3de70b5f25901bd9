"""The cache's functions by their formulas, without TransformerLens."""

from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

import minibert
from minibert.errors import MinibertError, TokenizationError, TraceError
from minibert.transformer_lens import HookedTransformer
from tests.families import Sizes, hf_model
from tests.hooked.models import close, ids
from tests.rotary import theirs as rotary
from tests.rotary.classes import LANGUAGE
from tests.rotary.drawn import plain

LAYERS = 3


@cache
def hooked(family: str = "gpt2") -> HookedTransformer:
    theirs = (
        hf_model("gpt2", "GPT2LMHeadModel", Sizes(layers=LAYERS, heads=5, d_head=7, d_mlp=13))
        if family == "gpt2"
        else rotary.model_of(plain(family, 0), LANGUAGE[family])
    )
    dtype = next(theirs.parameters()).dtype
    return HookedTransformer.from_pretrained_no_processing("a test", hf_model=theirs, dtype=dtype)


@cache
def caches(family: str = "gpt2") -> tuple[Any, Any]:
    model = hooked(family)
    with torch.no_grad():
        _, filled = model.run_with_cache(ids())
        return filled, model.model.trace(ids()).to_transformer_lens()


FAMILIES = ["gpt2", "gpt_neox", "llama"]


@pytest.mark.parametrize("family", FAMILIES)
def test_both_caches_have_the_same_names_in_the_same_order(family: str) -> None:
    filled, read = caches(family)
    assert list(filled) == list(read) == list(read.cache_dict)
    for name in filled:
        close(filled[name], read[name], name)


@pytest.mark.parametrize("family", FAMILIES)
def test_parts_sum_to_the_stream(family: str) -> None:
    layers = hooked(family).cfg.n_layers
    for each in caches(family):
        for layer in range(layers + 1):
            stream = each["resid_pre", layer] if layer < layers else each["resid_post", -1]
            close(each.decompose_resid(layer).sum(0), stream)
            for neurons in (True, False):
                whole, labels = each.get_full_resid_decomposition(
                    layer, expand_neurons=neurons, return_labels=True
                )
                close(whole.sum(0), stream)
                assert len(labels) == len(set(labels)) == len(whole)
            if layer:
                for name in ("stack_head_results", "stack_neuron_results"):
                    close(getattr(each, name)(layer, incl_remainder=True).sum(0), stream, name)


@pytest.mark.parametrize("family", FAMILIES)
def test_parts_through_the_norm_sum_to_the_normed_stream(family: str) -> None:
    for each in caches(family):
        parts = each.get_full_resid_decomposition(apply_ln=True, pos_slice=-1)
        close(parts.sum(0), each["ln_final.hook_normalized"][:, -1])
        middle = each.decompose_resid(1, apply_ln=True)
        close(middle.sum(0), each["blocks.1.ln1.hook_normalized"])


def test_attributions_sum_to_the_logit() -> None:
    model = HookedTransformer(hooked().model)
    folded = type(model).from_pretrained("a test", hf_model=theirs_of_gpt2())
    with torch.no_grad():
        logits, cache = folded.run_with_cache(ids())
    parts = cache.get_full_resid_decomposition(expand_neurons=False)
    tokens = ids(9)
    attributed = cache.logit_attrs(parts, tokens).sum(0) + folded.b_U[tokens]
    close(attributed.detach(), logits.gather(-1, tokens[..., None])[..., 0])
    against = cache.logit_attrs(parts, 3, 5).sum(0) + (folded.b_U[3] - folded.b_U[5])
    close(against.detach(), logits[..., 3] - logits[..., 5])


@cache
def theirs_of_gpt2() -> Any:
    return hf_model("gpt2", "GPT2LMHeadModel", Sizes(layers=LAYERS, heads=5, d_head=7, d_mlp=13))


def test_projected_neurons_are_the_neurons_projected() -> None:
    width = hooked().cfg.d_model
    onto = torch.randn(width, 2, generator=torch.Generator().manual_seed(1))
    for each in caches():
        for apply_ln in (False, True):
            options = {"apply_ln": apply_ln, "incl_remainder": True, "pos_slice": [0, 4]}
            whole = each.stack_neuron_results(2, **options)
            cut = each.stack_neuron_results(2, **options, project_output_onto=onto)
            close(cut, whole @ onto)
            one = each.stack_neuron_results(2, **options, project_output_onto=onto[:, 0])
            close(one, whole @ onto[:, 0])


def test_the_last_norm_of_a_stack_gives_the_logit_lens() -> None:
    model = hooked()
    for each in caches():
        stack = each.accumulated_resid(apply_ln=True)
        with torch.no_grad():
            close(model.unembed(stack[-1]), model(ids()))
            close(stack[1], model.ln_final(each["resid_pre", 1]))


def test_a_cache_moves_and_loses_the_axis_of_sentences() -> None:
    model = hooked()
    trace = model.model.trace(ids(sentences=1)).to_transformer_lens()
    with torch.no_grad():
        _, filled = model.run_with_cache(ids(sentences=1))
    for each in (trace, filled):
        with_axis = each["q", 0]
        assert each.to("cpu") is each
        assert each.remove_batch_dim() is each
        assert torch.equal(each["q", 0], with_axis[0])
        assert dict(each.items()).keys() == each.cache_dict.keys()
    for each in caches():
        with pytest.raises(TraceError, match="expected one"):
            each.remove_batch_dim()
    cut = caches()[0].apply_slice_to_batch_dim(1)
    assert torch.equal(cut["resid_pre", 0], caches()[0]["resid_pre", 0][1])


def test_autodiff_is_switched_for_all_of_torch() -> None:
    with torch.enable_grad():
        for each in caches():
            each.toggle_autodiff()
            assert not torch.is_grad_enabled()
            each.toggle_autodiff(mode=True)
            assert torch.is_grad_enabled()


def test_head_results_are_there_when_they_were_not_kept() -> None:
    with torch.no_grad():
        _, cache = hooked().run_with_cache(ids(), names_filter=["blocks.1.attn.hook_z"])
    assert "blocks.1.attn.hook_result" not in list(cache)
    result = hooked().model.trace(ids())[1].head_out.transpose(1, 2)
    close(cache["result", 1].detach(), result.detach())
    with pytest.raises(KeyError, match="names_filter"):
        cache["result", 0]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda cache: cache.accumulated_resid(LAYERS + 1), "not in the model"),
        (lambda cache: cache.accumulated_resid(mlp_input=True), "no MLP behind"),
        (lambda cache: cache.decompose_resid(mode="both"), "expected one of all"),
        (lambda cache: cache.decompose_resid(0, incl_embeds=False), "nothing was added"),
        (lambda cache: cache.stack_activation("resid_post", 0), "expected 1 to"),
        (lambda cache: cache.get_neuron_results(LAYERS), "expected one from 0"),
        (lambda cache: cache.decompose_resid(pos_slice="a"), "is no slice"),
        (
            lambda cache: cache.get_neuron_results(0, project_output_onto=torch.ones(2, 2, 2)),
            "d_mod",
        ),
        (lambda cache: cache.logit_attrs(cache.decompose_resid(), 41), "outside the vocabulary"),
        (lambda cache: cache.logit_attrs(cache.decompose_resid(), 1.5), "whole numbers"),
        (lambda cache: cache.logit_attrs(cache.decompose_resid(), " a"), "no tokenizer"),
        (lambda cache: cache.logit_attrs(cache.decompose_resid(), ids(), 3), "the same shape"),
    ],
)
def test_what_is_wrong_is_an_error_that_says_so(call: Any, message: str) -> None:
    for each in caches():
        with pytest.raises(MinibertError, match=message):
            call(each)


def test_a_stream_that_is_no_sum_is_refused() -> None:
    bert = minibert.load("tiny-bert").trace("a horse ran").to_transformer_lens()
    with pytest.raises(TraceError, match="no sum of what they add"):
        bert.decompose_resid()
    gemma = rotary.model_of(plain("gemma2", 0), LANGUAGE["gemma2"])
    cache = minibert.load(gemma).trace(ids()).to_transformer_lens()
    close(cache.decompose_resid().sum(0), cache["resid_post", -1])
    with pytest.raises(TraceError, match="norm stands behind each block"):
        cache.stack_head_results()
    parallel = caches("gpt_neox")[0]
    with pytest.raises(TraceError, match="reads the stream that attention"):
        parallel.decompose_resid(0, mlp_input=True)
    with pytest.raises(KeyError):
        parallel.accumulated_resid(incl_mid=True)


def test_a_string_that_is_several_tokens_is_refused() -> None:
    cache = minibert.load("tiny-gpt2").trace("The river was").to_transformer_lens()
    stack: Tensor = cache.decompose_resid()
    assert cache.logit_attrs(stack, " the").shape == stack.shape[:-1]
    with pytest.raises(TokenizationError, match="not a single token"):
        cache.logit_attrs(stack, " the river was wide")
