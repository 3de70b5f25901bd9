"""Ablation and patching sweeps give TransformerLens' numbers, where that is installed."""

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

from minibert.analysis import ablate_heads, logit_difference, patch_heads, patch_positions
from minibert.analysis.patching import Effects
from minibert.loading import from_transformers
from minibert.model import Model
from minibert.trace.edit import mean
from tests.families import VOCABULARY, Sizes, hf_model
from tests.transformer_lens_models import bridge, hooked, lens_model, transformer_lens

pytest.importorskip("transformer_lens")

LENGTH = 11
METRIC = logit_difference(7, 13)
CLASSES = {"gpt2": "GPT2LMHeadModel", "bert": "BertForPreTraining"}


@cache
def pair(family: str) -> tuple[Model, Any]:
    """The same random model here and there; of BERT, 4.3 is no reference."""
    theirs = hf_model(family, CLASSES[family], Sizes(seed=5))
    return from_transformers(theirs), (lens_model if family == "gpt2" else hooked)(theirs)


def texts() -> tuple[Tensor, Tensor]:
    """Two texts of the same length without padding."""
    generator = torch.Generator().manual_seed(2)
    ids = torch.randint(2, VOCABULARY, (2, 1, LENGTH), generator=generator)
    return ids[0], ids[1]


def number(logits: Tensor) -> Tensor:
    """The metric, which there is of one text."""
    return METRIC(logits, lengths=[LENGTH])[0]


def assert_same(found: Effects, expected: Tensor) -> None:
    assert (found.values - expected).abs().max() <= 1e-5
    # Effects a hundred times the tolerance: a sweep in which nothing happened would agree as well.
    assert found.change.abs().max() > 1e-3


@pytest.mark.parametrize("family", CLASSES)
@pytest.mark.parametrize("kind", ["zero", "mean"])
def test_ablating_each_head_gives_what_their_hooks_give(family: str, kind: str) -> None:
    model, peer = pair(family)
    ids, others = texts()
    _, known = peer.run_with_cache(others)
    expected = torch.zeros(3, 3)
    with torch.no_grad():
        for layer, head in torch.cartesian_prod(torch.arange(3), torch.arange(3)).tolist():

            def ablate(z: Tensor, hook: Any, head: int = head) -> Tensor:
                value = known[hook.name][:, :, head].mean((0, 1)) if kind == "mean" else 0
                z[:, :, head] = value
                return z

            logits = peer.run_with_hooks(ids, fwd_hooks=[(f"blocks.{layer}.attn.hook_z", ablate)])
            expected[layer, head] = number(logits)
    how = {"edit": mean(over=model.trace(others))} if kind == "mean" else {}
    assert_same(ablate_heads(model.trace(ids), METRIC, positions=[-1], **how), expected)


@pytest.mark.parametrize("family", CLASSES)
@pytest.mark.parametrize(
    ("name", "sweep"),
    [
        ("z", "attn_head_out_all_pos"),
        ("query", "attn_head_q_all_pos"),
        ("key", "attn_head_k_all_pos"),
        ("value", "attn_head_v_all_pos"),
        ("probs", "attn_head_pattern_all_pos"),
    ],
)
def test_patching_each_head_gives_what_their_sweep_gives(
    family: str, name: str, sweep: str
) -> None:
    model, peer = pair(family)
    ids, others = texts()
    expected = their_sweep(peer, sweep, ids, others)
    found = patch_heads(model.trace(ids), model.trace(others), METRIC, name=name)
    assert_same(found, expected)


@pytest.mark.parametrize("family", CLASSES)
@pytest.mark.parametrize("name", ["resid_pre", "resid_mid", "attn_out", "mlp_out"])
def test_patching_each_position_gives_what_their_sweep_gives(family: str, name: str) -> None:
    # In BERT, their resid_mid stands before the LayerNorm and ours behind it: the layers above
    # read the same after either is patched.
    model, peer = pair(family)
    ids, others = texts()
    expected = their_sweep(peer, name, ids, others)
    found = patch_positions(model.trace(ids), model.trace(others), METRIC, name=name)
    assert_same(found, expected)


def their_sweep(peer: Any, sweep: str, ids: Tensor, others: Tensor) -> Tensor:
    from transformer_lens import patching

    run: Callable[..., Tensor] = getattr(patching, f"get_act_patch_{sweep}")
    with torch.no_grad():
        _, known = peer.run_with_cache(others)
        return run(peer, ids, known, number)


def test_of_bert_the_bridge_of_version_4_ignores_an_edited_pattern() -> None:
    transformer_lens(major=4)
    theirs = hf_model("bert", "BertForMaskedLM", Sizes(seed=5))
    model, peer = from_transformers(theirs), bridge(theirs)
    ids, others = texts()
    swept = their_sweep(peer, "attn_head_pattern_all_pos", ids, others)
    assert swept.unique().numel() == 1
    ours = patch_heads(model.trace(ids), model.trace(others), METRIC, name="probs")
    assert ours.values.unique().numel() == 9
