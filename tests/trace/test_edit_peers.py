"""Ablation and patching give what hooks on transformers and TransformerLens give."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import minibert
from minibert.loading import from_transformers
from minibert.model import Model
from minibert.trace.edit import hide, replace, zero
from tests.families import VOCABULARY, hf_model
from tests.trace.editing import (
    FAMILIES,
    HEADS,
    LAYERS,
    LENGTH,
    PER_HEAD,
    close,
    model_of,
    sentences,
    theirs_of,
    whole,
)
from tests.transformer_lens_models import hooked as hooked_model
from tests.transformer_lens_models import lens_model

families = st.sampled_from(list(FAMILIES))
layers, heads = st.integers(0, LAYERS - 1), st.integers(0, HEADS - 1)
places = st.sets(st.integers(0, LENGTH - 1), min_size=1, max_size=5).map(list)


# Where transformers computes a point, in the order of the layers. ALBERT calls one module for
# all of them.
THEIRS = {
    "z": r"attention\.(output\.)?dense$|attention\.out_lin$|attn\.c_proj$",
    "value": r"attention\.self\.value$|attention\.v_lin$|attention\.value$",
    "mlp_post": r"layer\.\d+\.output\.dense$|ffn\.lin2$|ffn_output$|mlp\.c_proj$",
    "resid_post": r"(encoder\.layer|transformer\.layer|albert_layers|transformer\.h)\.\d+$",
}
READ_AS_INPUT = ("z", "mlp_post")


@contextmanager
def hooked(theirs: Any, name: str, layer: int, change: Callable[[Tensor], None]) -> Iterator[None]:
    """transformers with that quantity changed in place, by hooks as people write them."""
    calls = 0

    def edited(value: Any) -> Any:
        nonlocal calls
        calls += 1
        tensor = value[0] if isinstance(value, tuple) else value
        if calls == layer + 1:
            tensor = tensor.clone()
            change(tensor)
        return (tensor, *value[1:]) if isinstance(value, tuple) else tensor

    found = [module for path, module in theirs.named_modules() if re.search(THEIRS[name], path)]
    assert found
    if name in READ_AS_INPUT:
        handles = [m.register_forward_pre_hook(lambda _, args: edited(args)) for m in found]
    else:
        handles = [m.register_forward_hook(lambda _, args, out: edited(out)) for m in found]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
    assert calls == LAYERS


def their_inputs(family: str, tokens: minibert.Tokens) -> dict[str, Tensor]:
    inputs = {"input_ids": tokens.ids, "attention_mask": tokens.mask.long()}
    if model_of(family).config.n_segments > 1:
        inputs["token_type_ids"] = tokens.segments
    return inputs


def their_logits(
    family: str, tokens: minibert.Tokens, name: str, layer: int, change: Any
) -> Tensor:
    theirs = theirs_of(family)
    with hooked(theirs, name, layer, change), torch.no_grad():
        return theirs(**their_inputs(family, tokens)).logits


def agree(found: Tensor, expected: Tensor, tokens: minibert.Tokens) -> bool:
    return close(found[tokens.mask], expected[tokens.mask])


@settings(max_examples=8)
@given(family=families, layer=layers, head=heads, seed=st.integers(0, 99))
def test_ablation_of_a_head_is_that_of_transformers(
    family: str, layer: int, head: int, seed: int
) -> None:
    def change(merged: Tensor) -> None:
        merged.unflatten(-1, (HEADS, -1))[:, :, head] = 0

    tokens = sentences(family, seed)
    expected = their_logits(family, tokens, "z", layer, change)
    trace = model_of(family).trace(tokens, edit={("z", layer, head): zero})
    assert agree(trace.logits, expected, tokens)
    assert not agree(model_of(family)(tokens), expected, tokens)


@settings(max_examples=8)
@given(family=families, name=st.sampled_from(["resid_post", "mlp_post"]), layer=layers, at=places)
def test_patching_of_positions_is_that_of_transformers(
    family: str, name: str, layer: int, at: list[int]
) -> None:
    tokens, other = whole(family), model_of(family).trace(whole(family, seed=7))
    source = getattr(other[layer], name)

    def change(hidden: Tensor) -> None:
        hidden[:, at] = source[:, at]

    expected = their_logits(family, tokens, name, layer, change)
    for value in (other, source, source[:, at]):
        edit = {(name, layer): replace(value, positions=at)}
        assert agree(model_of(family).trace(tokens, edit=edit).logits, expected, tokens)


@pytest.mark.parametrize("family", ["bert", "albert"])
def test_a_key_hidden_everywhere_is_one_that_transformers_masks(family: str) -> None:
    model, tokens = model_of(family), whole(family, 3)
    edit = {("scores", layer): hide(2) for layer in range(LAYERS)}
    found = model.trace(tokens, edit=edit).logits
    inputs = their_inputs(family, tokens)
    inputs["attention_mask"][:, 2] = 0
    with torch.no_grad():
        expected = theirs_of(family)(**inputs).logits
    assert agree(found, expected, tokens)
    assert not agree(model(tokens), expected, tokens)


LENS_POINTS = {
    "query": "attn.hook_q",
    "key": "attn.hook_k",
    "value": "attn.hook_v",
    "scores": "attn.hook_attn_scores",
    "probs": "attn.hook_pattern",
    "z": "attn.hook_z",
    "head_out": "attn.hook_result",
    "resid_pre": "hook_resid_pre",
    "attn_out": "hook_attn_out",
    "resid_mid": "hook_resid_mid",
    "mlp_pre": "mlp.hook_pre",
    "mlp_post": "mlp.hook_post",
    "mlp_out": "hook_mlp_out",
    "resid_post": "hook_resid_post",
}


MATRICES = ("scores", "probs")
# In BERT these stand before the LayerNorm there and behind it here: other points.
ELSEWHERE = {"gpt2": (), "bert": ("resid_mid", "resid_post")}


@cache
def lens_pair(family: str) -> tuple[Model, Any]:
    """A random model here and in TransformerLens; of BERT, 4.3 is no reference."""
    theirs = hf_model(family, {"gpt2": "GPT2LMHeadModel", "bert": "BertForPreTraining"}[family])
    peer = (lens_model if family == "gpt2" else hooked_model)(theirs)
    return from_transformers(theirs), peer


@pytest.mark.parametrize("family", ELSEWHERE)
def test_transformer_lens_gets_the_same_logits_from_the_same_edit(family: str) -> None:
    model, peer = lens_pair(family)
    ids = torch.randint(2, VOCABULARY, (3, LENGTH))

    def ours(value: Tensor) -> Tensor:
        value[:, 3:5] *= 0.5
        return value

    with torch.no_grad():
        plain = model(ids)
        assert close(plain, peer(ids))
        for name in LENS_POINTS.keys() - ELSEWHERE[family]:
            # 3.9 is told when it is made; 4.3 computes what heads write on request.
            getattr(peer, "set_use_attn_result", lambda _: None)(name == "head_out")
            key: tuple[Any, ...] = (name, 1, 1) if name in PER_HEAD else (name, 1)
            hooks = [(f"blocks.1.{LENS_POINTS[name]}", halved(name))]
            expected = peer.run_with_hooks(ids, fwd_hooks=hooks)
            assert close(model.trace(ids, edit={key: ours}).logits, expected), name
            assert not close(plain, expected), name


def halved(name: str) -> Callable[[Tensor, Any], Tensor]:
    """Positions 3 and 4 of a quantity of theirs, of its head 1 where it has heads, times 0.5."""
    per_head = name in PER_HEAD

    def change(value: Tensor, hook: Any) -> Tensor:
        # Their vectors have the head behind the position, their matrices before it.
        rows = value if name in MATRICES or not per_head else value.transpose(1, 2)
        (rows[:, 1] if per_head else rows)[:, 3:5] *= 0.5
        return value

    return change
