"""Every function of the cache, against TransformerLens' own on the same weights.

Two caches of ours: the one that a hooked model fills, and the one that reads a trace.
"""

from functools import cache
from typing import Any

import pytest
import torch

from tests.hooked.models import FAMILIES, close, ids, lens_of, ours_of, transformers_model

pytest.importorskip("transformer_lens")

STACKS: list[tuple[str, dict[str, Any]]] = [
    *(
        ("accumulated_resid", options)
        for options in (
            {},
            {"layer": 1},
            {"layer": 0},
            {"apply_ln": True},
            {"layer": 1, "apply_ln": True, "pos_slice": (2, 7)},
            {"pos_slice": -1, "apply_ln": True},
            {"pos_slice": [1, 4]},
            {"incl_mid": True},
            {"layer": 1, "mlp_input": True, "apply_ln": True},
        )
    ),
    *(
        ("decompose_resid", options)
        for options in (
            {},
            {"layer": 1, "mode": "attn"},
            {"mode": "mlp", "incl_embeds": False},
            {"apply_ln": True, "pos_slice": -1},
            {"layer": 1, "mlp_input": True, "apply_ln": True},
            {"layer": 0, "pos_slice": (0, 3)},
        )
    ),
    *(
        ("stack_head_results", options)
        for options in (
            {},
            {"layer": 1, "incl_remainder": True},
            {"pos_slice": -1, "apply_ln": True},
            {"pos_slice": [0, 3], "apply_ln": True, "incl_remainder": True},
            {"layer": 0},
        )
    ),
    *(
        ("stack_neuron_results", {"layer": -1} | options)
        for options in (
            {},
            {"layer": 1, "incl_remainder": True},
            {"neuron_slice": (3, 8), "pos_slice": -1, "apply_ln": True},
            {"project_output_onto": 1},
            {"project_output_onto": 3, "apply_ln": True, "incl_remainder": True},
        )
    ),
    *(
        ("get_full_resid_decomposition", options)
        for options in (
            {},
            {"layer": 1, "expand_neurons": False},
            {"apply_ln": True, "pos_slice": -1},
            {"project_output_onto": 2, "apply_ln": True},
            {"project_output_onto": 1, "expand_neurons": False},
        )
    ),
]


@cache
def caches(family: str) -> tuple[Any, Any, Any]:
    """The cache of our hooked model, of our trace, and TransformerLens'."""
    theirs = transformers_model(family)
    lens = lens_of(theirs)
    ours = ours_of(theirs)
    with torch.no_grad():
        _, wanted = lens.run_with_cache(ids())
        _, got = ours.run_with_cache(ids())
        trace = ours.model.trace(ids()).to_transformer_lens(attn_result=True)
    return got, trace, wanted


def onto(options: dict[str, Any], wanted: Any) -> dict[str, Any]:
    """The options, with random directions in the place of how many there are."""
    count = options.get("project_output_onto")
    if count is None:
        return options
    like = wanted["resid_post", 0]
    generator = torch.Generator().manual_seed(3)
    drawn = torch.randn(like.shape[-1], count, generator=generator).to(like.dtype)
    return options | {"project_output_onto": drawn[:, 0] if count == 1 else drawn}


@pytest.mark.parametrize("family", FAMILIES)
def test_a_hooked_model_caches_the_same_names_in_the_same_numbers(family: str) -> None:
    got, _, wanted = caches(family)
    assert set(got) == set(wanted.keys())
    for name in wanted:
        close(got[name], wanted[name], name)


@pytest.mark.parametrize(("name", "options"), STACKS)
@pytest.mark.parametrize("family", FAMILIES)
def test_stacks_and_labels_are_the_same(family: str, name: str, options: dict[str, Any]) -> None:
    *ours, wanted = caches(family)
    if family == "gpt_neox" and ({"incl_mid", "mlp_input"} & set(options)):
        pytest.skip("a parallel model has no stream between attention and MLP")
    if (
        family != "gpt2"
        and name == "get_full_resid_decomposition"
        and options.get("project_output_onto") == 1
    ):
        pytest.skip("TransformerLens 3.9 multiplies float32 with float64 here")
    options = onto(options, wanted) | {"return_labels": True}
    stack, labels = getattr(wanted, name)(**options)
    for each in ours:
        got, got_labels = getattr(each, name)(**options)
        close(got, stack, name)
        assert got_labels == labels


@pytest.mark.parametrize("family", FAMILIES)
def test_the_rest_of_the_cache_is_the_same(family: str) -> None:
    got, trace, wanted = caches(family)
    stack = wanted.decompose_resid()
    several, others = ids(7)[:, :1].flatten(), ids(8)[:, :1].flatten()
    calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
        ("logit_attrs", (stack, 7), {}),
        ("logit_attrs", (stack, 7, 9), {}),
        ("logit_attrs", (stack[:, :, -1], several, others), {"pos_slice": -1}),
        ("logit_attrs", (stack, ids(7), ids(8)), {}),
        ("logit_attrs", (stack, 7), {"batch_slice": 1}),
        ("logit_attrs", (stack[:, 0], 7), {"batch_slice": 0, "has_batch_dim": False}),
        ("apply_ln_to_stack", (stack, 1), {}),
        ("apply_ln_to_stack", (stack,), {"recompute_ln": True}),
        ("apply_ln_to_stack", (stack, 1), {"mlp_input": True, "batch_slice": [1]}),
        ("stack_activation", ("resid_post",), {}),
        ("stack_activation", ("scale", 1, "ln2"), {}),
        ("stack_activation", ("pattern",), {"layer": 1}),
        ("get_neuron_results", (1,), {}),
        ("get_neuron_results", (0, 4), {"pos_slice": -1}),
        ("get_neuron_results", (0, [1, 2], (2, 5)), {}),
    ]
    for name, arguments, options in calls:
        if family == "gpt_neox" and options.get("mlp_input"):
            continue
        result = getattr(wanted, name)(*arguments, **options)
        for each in (got, trace):
            close(getattr(each, name)(*arguments, **options), result, f"{name} {options}")


@pytest.mark.parametrize("family", FAMILIES)
def test_without_the_axis_of_sentences_it_is_the_same(family: str) -> None:
    theirs = transformers_model(family)
    lens, ours = lens_of(theirs), ours_of(theirs)
    one = ids(sentences=1)
    with torch.no_grad():
        _, wanted = lens.run_with_cache(one, remove_batch_dim=True)
        _, got = ours.run_with_cache(one, remove_batch_dim=True)
        _, later = ours.run_with_cache(one)
        trace = ours.model.trace(one).to_transformer_lens(attn_result=True)
    for each in (got, later.remove_batch_dim(), trace.remove_batch_dim()):
        assert not each.has_batch_dim
        for name in wanted:
            close(each[name], wanted[name], name)
        for name, options in (
            ("accumulated_resid", {"apply_ln": True}),
            ("decompose_resid", {"apply_ln": True, "pos_slice": -1}),
            ("stack_head_results", {"apply_ln": True}),
            ("get_full_resid_decomposition", {"apply_ln": True, "pos_slice": 3}),
        ):
            close(getattr(each, name)(**options), getattr(wanted, name)(**options), name)
        stack = wanted.decompose_resid()
        attributed = wanted.logit_attrs(stack, 5, has_batch_dim=False)
        close(each.logit_attrs(stack, 5, has_batch_dim=False), attributed)
