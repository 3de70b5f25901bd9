"""The inputs of heads and MLPs that are switched on: by their formulas, and what is refused."""

import pytest
import torch

from minibert.errors import EditError, TraceError
from minibert.transformer_lens import HookedTransformer, TransformerBridge, patching
from tests.hooked.models import close, ids, ours_of, shifted, transformers_model


@pytest.mark.parametrize("family", ["qwen3", "olmo2", "gemma2"])
@torch.no_grad()
def test_heads_and_mlps_read_what_their_points_hold(family: str) -> None:
    model = ours_of(transformers_model(family))
    model.set_use_split_qkv_input(True)
    model.set_use_hook_mlp_in(True)
    names = [f"blocks.1.hook_{name}" for name in ("q_input", "k_input", "v_input", "mlp_in")]
    with model.hooks(fwd_hooks=[(name, shifted) for name in names]):
        _, cache = model.run_with_cache(ids())
    block, before = model.blocks[1], family != "olmo2"
    for name, weight in (("q", block.attn.W_Q), ("k", block.attn.W_K), ("v", block.attn.W_V)):
        read = cache[f"blocks.1.hook_{name}_input"]
        # Key-value heads stand as often as there are heads that share them.
        own = weight[:: weight.shape[0] // read.shape[2]]
        read = block.ln1(read) if before else read
        close(torch.einsum("bphm,hmd->bphd", read, own), cache[name, 1], name)
    read = cache["mlp_in", 1]
    close((block.ln2(read) if before else read) @ block.mlp.W_gate, cache["pre", 1])
    # The stream itself is as it was.
    close(cache["resid_mid", 1] + cache["mlp_out", 1], cache["resid_post", 1])
    close(cache["resid_pre", 1], cache["resid_post", 0])


@torch.no_grad()
def test_inputs_that_nobody_changes_change_nothing() -> None:
    model = HookedTransformer.from_pretrained_no_processing("tiny-gpt2")
    plain = model(ids())
    assert "blocks.0.hook_q_input" not in model.run_with_cache(ids())[1]
    model.set_use_attn_in(True)
    logits, cache = model.run_with_cache(ids(), pos_slice=-1)
    close(logits, plain)
    read = cache["attn_in", 2]
    assert read.shape == (2, 1, model.cfg.n_heads, model.cfg.d_model)
    assert torch.equal(read, cache["resid_pre", 2].unsqueeze(2).expand_as(read))
    assert cache["scale", 2, "ln1"].shape == (2, 1, model.cfg.n_heads, 1)
    assert torch.equal(model(ids()), plain)


@torch.no_grad()
def test_an_input_of_each_key_value_head_is_patched() -> None:
    model = HookedTransformer.from_pretrained_no_processing("tiny-llama")
    model.set_use_split_qkv_input(True)
    clean, corrupted = ids(1, sentences=1)[:, :2], ids(2, sentences=1)[:, :2]
    _, cache = model.run_with_cache(clean)
    found = patching.generic_activation_patch(
        model,
        corrupted,
        cache,
        lambda logits: logits[0, -1, 7],
        patching.layer_head_vector_patch_setter,
        "v_input",
        ["layer", "head"],
    )
    assert found.shape == (model.cfg.n_layers, model.cfg.n_key_value_heads)
    # Each is a patch of its own.
    assert len(found.unique()) == found.numel()


def test_switches_that_contradict_each_other_are_refused() -> None:
    model = HookedTransformer.from_pretrained_no_processing("tiny-gpt2")
    with pytest.raises(EditError, match=r"set_use_hook_mlp_in\(True\)"):
        model.run_with_hooks(ids(), fwd_hooks=[("blocks.2.hook_mlp_in", shifted)])
    model.cfg.use_split_qkv_input = True
    with pytest.raises(EditError, match="set use_split_qkv_input to False"):
        model.set_use_attn_in(True)
    _, cache = model.run_with_cache(ids())
    with pytest.raises(TraceError, match="of each head's input"):
        cache.apply_ln_to_stack(cache.decompose_resid(layer=1), layer=1)
    grouped = HookedTransformer.from_pretrained_no_processing("tiny-llama")
    with pytest.raises(EditError, match="use_split_qkv_input"):
        grouped.set_use_attn_in(True)


def test_a_bridge_keeps_its_switches_when_weights_are_processed() -> None:
    bridge = TransformerBridge.boot_transformers("tiny-gpt2")
    bridge.set_use_split_qkv_input(True)
    bridge.enable_compatibility_mode()
    assert bridge.cfg.use_split_qkv_input
    assert bridge.run_with_cache(ids())[1]["q_input", 1].shape[2] == bridge.cfg.n_heads
