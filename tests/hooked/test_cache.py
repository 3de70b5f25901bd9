"""Every function of the cache: its formulas, and TransformerLens' own on the same weights."""

from functools import cache
from typing import Any

import pytest
import torch

from minibert.errors import MinibertError, TokenizationError, TraceError
from minibert.transformer_lens import HookedTransformer
from tests.hooked.models import FAMILIES, close, ids, lens_of, ours_of, transformers_model

LAYERS = 2
every_family = pytest.mark.parametrize("family", FAMILIES)


@cache
def filled(family: str = "gpt2") -> Any:
    """The cache of our hooked model."""
    with torch.no_grad():
        return ours_of(transformers_model(family)).run_with_cache(ids())[1]


@cache
def theirs(family: str) -> Any:
    """TransformerLens' cache of the same weights; a test without it is skipped."""
    lens = lens_of(transformers_model(family))
    with torch.no_grad():
        return lens.run_with_cache(ids())[1]


@every_family
def test_parts_sum_to_the_stream_and_to_what_a_norm_makes_of_it(family: str) -> None:
    each = filled(family)
    for layer in range(LAYERS + 1):
        stream = each["resid_pre", layer] if layer < LAYERS else each["resid_post", -1]
        close(each.decompose_resid(layer).sum(0), stream)
        if layer < LAYERS and family != "gpt_neox":
            parts = each.decompose_resid(layer, mlp_input=True)
            close(parts.sum(0), each["resid_mid", layer])
        close(each.stack_head_results(layer, incl_remainder=True).sum(0), stream)
    middle = each.decompose_resid(1, apply_ln=True)
    close(middle.sum(0), each["blocks.1.ln1.hook_normalized"])


def test_attributions_sum_to_the_logit_and_the_last_norm_gives_the_lens() -> None:
    folded = HookedTransformer.from_pretrained("a test", hf_model=transformers_model("gpt2"))
    with torch.no_grad():
        logits, cache = folded.run_with_cache(ids())
    parts, tokens = cache.decompose_resid(), ids(9)
    attributed = cache.logit_attrs(parts, tokens).sum(0) + folded.b_U[tokens]
    close(attributed.detach(), logits.gather(-1, tokens[..., None])[..., 0])
    against = cache.logit_attrs(parts, 3, 5).sum(0) + (folded.b_U[3] - folded.b_U[5])
    close(against.detach(), logits[..., 3] - logits[..., 5])
    model = ours_of(transformers_model("gpt2"))
    stack = filled().accumulated_resid(apply_ln=True)
    with torch.no_grad():
        close(model.unembed(stack[-1]), model(ids()))
        close(stack[1], model.ln_final(filled()["resid_pre", 1]))


def test_a_cache_moves_and_loses_the_axis_of_sentences() -> None:
    model = ours_of(transformers_model("gpt2"))
    with torch.no_grad():
        _, each = model.run_with_cache(ids(sentences=1))
    with_axis = each["q", 0]
    assert each.to("cpu") is each
    assert each.remove_batch_dim() is each
    assert not each.has_batch_dim
    assert torch.equal(each["q", 0], with_axis[0])
    assert dict(each.items()).keys() == each.cache_dict.keys()
    with pytest.raises(TraceError, match="expected one"):
        filled().remove_batch_dim()


def test_head_results_are_there_when_they_were_not_kept() -> None:
    model = ours_of(transformers_model("gpt2"))
    with torch.no_grad():
        _, cache = model.run_with_cache(ids(), names_filter=["blocks.1.attn.hook_z"])
    assert "blocks.1.attn.hook_result" not in list(cache)
    assert ("result", 1) in cache
    close(cache["result", 1], model.model.trace(ids())[1].head_out.transpose(1, 2))
    with pytest.raises(KeyError, match="names_filter"):
        cache["result", 0]
    model.set_use_attn_result(False)
    with torch.no_grad():
        _, late = model.run_with_cache(ids())
    assert "blocks.0.attn.hook_result" not in list(late)
    late.compute_head_results()
    assert "blocks.0.attn.hook_result" in list(late)


def gpt_neox() -> Any:
    return filled("gpt_neox")


def gemma() -> Any:
    return filled("gemma2")


def tiny() -> Any:
    model = HookedTransformer.from_pretrained_no_processing("tiny-gpt2")
    return model.run_with_cache("The river was")[1]


WRONG: dict[str, Any] = {
    "not in the model": lambda cache: cache.accumulated_resid(LAYERS + 1),
    "no MLP after": lambda cache: cache.accumulated_resid(mlp_input=True),
    "expected one of all": lambda cache: cache.decompose_resid(mode="both"),
    "outside the vocabulary": lambda cache: cache.logit_attrs(cache.decompose_resid(), 41),
    "the same shape": lambda cache: cache.logit_attrs(cache.decompose_resid(), ids(), 3),
    "norm follows each block": lambda cache: gemma().stack_head_results(),
    "reads the stream that attention": lambda cache: gpt_neox().decompose_resid(0, mlp_input=True),
    "resid_mid": lambda cache: gpt_neox().accumulated_resid(incl_mid=True),
    "not a single token": lambda cache: tiny().logit_attrs(
        tiny().decompose_resid(), " the river was wide"
    ),
}


@pytest.mark.parametrize("message", WRONG)
def test_what_is_wrong_is_an_error_that_says_so(message: str) -> None:
    with pytest.raises(MinibertError, match=message) as error:
        WRONG[message](filled())
    assert isinstance(error.value, TokenizationError | TraceError)
    close(gemma().decompose_resid().sum(0), gemma()["resid_post", -1])


STACKS: dict[str, list[dict[str, Any]]] = {
    "accumulated_resid": [
        {},
        {"layer": 0},
        {"apply_ln": True},
        {"layer": 1, "apply_ln": True, "pos_slice": (2, 7)},
        {"pos_slice": [1, 4]},
        {"incl_mid": True},
        {"layer": 1, "mlp_input": True, "apply_ln": True},
    ],
    "decompose_resid": [
        {},
        {"layer": 1, "mode": "attn"},
        {"mode": "mlp", "incl_embeds": False},
        {"apply_ln": True, "pos_slice": -1},
        {"layer": 1, "mlp_input": True, "apply_ln": True},
    ],
    "stack_head_results": [
        {},
        {"layer": 1, "incl_remainder": True},
        {"pos_slice": [0, 3], "apply_ln": True, "incl_remainder": True},
        {"layer": 0},
    ],
    "stack_activation": [
        {"activation_name": "resid_post"},
        {"activation_name": "pattern", "layer": 1},
        {"activation_name": "scale", "layer": 1, "sublayer_type": "ln2"},
    ],
}


@every_family
def test_names_stacks_and_labels_are_those_of_transformer_lens(family: str) -> None:
    wanted = theirs(family)
    each = filled(family)
    assert set(each) == set(wanted.keys())
    for name in wanted:
        close(each[name], wanted[name], name)
    for name, options in ((name, some) for name, several in STACKS.items() for some in several):
        if family == "gpt_neox" and {"incl_mid", "mlp_input"} & set(options):
            # A parallel model has no stream between attention and MLP.
            continue
        if name != "stack_activation":
            options = options | {"return_labels": True}
        expected, found = (getattr(cache, name)(**options) for cache in (wanted, each))
        if name != "stack_activation":
            (expected, labels), (found, own) = expected, found
            assert own == labels
        close(found, expected, f"{name} {options}")


@every_family
def test_attributions_and_norms_of_stacks_are_those_of_transformer_lens(family: str) -> None:
    wanted = theirs(family)
    stack, several, others = wanted.decompose_resid(), ids(7)[:, 0], ids(8)[:, 0]
    calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
        ("logit_attrs", (stack, 7), {}),
        ("logit_attrs", (stack[:, :, -1], several, others), {"pos_slice": -1}),
        ("logit_attrs", (stack, ids(7), ids(8)), {}),
        ("logit_attrs", (stack[:, 0], 7), {"batch_slice": 0, "has_batch_dim": False}),
        ("apply_ln_to_stack", (stack, 1), {"batch_slice": [1]}),
        ("apply_ln_to_stack", (stack,), {"recompute_ln": True}),
    ]
    for name, arguments, options in calls:
        result = getattr(wanted, name)(*arguments, **options)
        close(getattr(filled(family), name)(*arguments, **options), result, f"{name} {options}")
