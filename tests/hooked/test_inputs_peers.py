"""The inputs of heads and MLPs that are switched on, against TransformerLens' own."""

from typing import Any

import pytest
import torch
from torch import Tensor

from tests.hooked.models import FAMILIES, close, ids, pair, shifted, written

pytest.importorskip("transformer_lens")

SWITCHES = {
    "use_split_qkv_input": ("hook_q_input", "hook_k_input", "hook_v_input"),
    "use_attn_in": ("hook_attn_in",),
    "use_hook_mlp_in": ("hook_mlp_in",),
}
# Heads of Llama share keys and values, and then one input for all three is refused in both.
CASES = [(f, s) for f in FAMILIES for s in SWITCHES if (f, s) != ("llama", "use_attn_in")]


def switched(family: str, switch: str) -> tuple[Any, Any]:
    """Both models, with a switch turned on."""
    models = pair(family)
    for model in models:
        getattr(model, f"set_{switch}")(True)
    return models


def last_head(value: Tensor, hook: Any) -> None:
    """What the last head reads, or the last number where there are no heads, is another."""
    value[:, :, -1] = value[:, :, -1].flip(0) * 0.5


@pytest.mark.parametrize(("family", "switch"), CASES)
def test_the_cache_has_the_same_names_in_the_same_numbers(family: str, switch: str) -> None:
    ours, lens = switched(family, switch)
    with torch.no_grad():
        got_logits, got = ours.run_with_cache(ids())
        logits, wanted = lens.run_with_cache(ids())
    close(got_logits, logits)
    assert set(got) == set(wanted.keys())
    assert all(f"blocks.1.{name}" in got for name in SWITCHES[switch])
    for name in wanted:
        close(got[name], wanted[name], name)


@pytest.mark.parametrize(("family", "switch"), CASES)
def test_a_hook_on_each_point_changes_the_logits_by_the_same(family: str, switch: str) -> None:
    ours, lens = switched(family, switch)
    norms = ("ln1.hook_scale", "ln1.hook_normalized", "hook_resid_pre", "attn.hook_q")
    with torch.no_grad():
        plain = ours(ids())
        for name in (*SWITCHES[switch], *norms):
            for hook in (shifted, written, last_head):
                hooks = [(f"blocks.{layer}.{name}", hook) for layer in range(2)]
                got = ours.run_with_hooks(ids(), fwd_hooks=hooks)
                close(got, lens.run_with_hooks(ids(), fwd_hooks=hooks), name)
                assert not torch.equal(got, plain), name
        assert torch.equal(ours(ids()), plain)


@pytest.mark.parametrize(("family", "switch"), CASES)
def test_gradients_at_each_point_are_the_same(family: str, switch: str) -> None:
    ours, lens = switched(family, switch)
    _, got = ours.run_with_cache(ids(), return_type="loss", incl_bwd=True)
    _, wanted = lens.run_with_cache(ids(), return_type="loss", incl_bwd=True)
    for name in wanted:
        # The gradient of one of three calls, in whichever order they are gone back through.
        if name.endswith("_grad") and ".ln1." not in name:
            close(got[name], wanted[name], name)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_stream_of_another_run_is_patched_into_last_head(family: str) -> None:
    """A step of path patching: an earlier head is taken from another run for one query alone."""
    ours, lens = switched(family, "use_split_qkv_input")
    found = []
    for model in (ours, lens):
        _, clean = model.run_with_cache(ids(1))
        _, other = model.run_with_cache(ids(2))
        change = other["result", 0][:, :, 2] - clean["result", 0][:, :, 2]

        def patch(value: Tensor, hook: Any, change: Tensor = change) -> None:
            value[:, :, 0] += change

        hooks = [("blocks.1.hook_q_input", patch)]
        found.append(model.run_with_hooks(ids(1), fwd_hooks=hooks).detach())
    close(*found)
