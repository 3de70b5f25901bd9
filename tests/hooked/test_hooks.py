"""Hooks, gradients, switched inputs and processed weights: by formulas, and as TransformerLens'."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from minibert.errors import EditError, TraceError
from minibert.transformer_lens import HookedTransformer, TransformerBridge, patching
from tests.hooked.models import FAMILIES, close, ids, ours_of, pair, transformers_model
from tests.trace.editing import OTHER_KINDS
from tests.transformer_lens_models import PROCESSING

SWITCHES = {
    "use_split_qkv_input": ("hook_q_input", "hook_k_input", "hook_v_input"),
    "use_attn_in": ("hook_attn_in",),
    "use_hook_mlp_in": ("hook_mlp_in",),
}
# Heads of Llama share keys and values, and then one input for all three is refused in both.
CASES = [(f, s) for f in FAMILIES for s in ("", *SWITCHES) if (f, s) != ("llama", "use_attn_in")]
every_case = pytest.mark.parametrize(("family", "switch"), CASES)


def shifted(value: Tensor, hook: Any) -> Tensor:
    """Another value at each place, the same in both programs; −inf stays."""
    steps = torch.linspace(-0.3, 0.4, value.numel(), dtype=value.dtype)
    return value + steps.reshape(value.shape)


def written(value: Tensor, hook: Any) -> None:
    """Written in place, and nothing returned."""
    # Not the same everywhere: a norm of a constant is its rounding.
    value[:, -1] = torch.linspace(-0.3, 0.4, value.shape[-1], dtype=value.dtype)


def switched(family: str, switch: str) -> tuple[Any, Any]:
    """Both models, with a switch turned on."""
    models = pair(family)
    for model in models if switch else ():
        getattr(model, f"set_{switch}")(True)
    return models


@every_case
@torch.no_grad()
def test_a_hook_on_each_point_changes_the_logits_by_the_same(family: str, switch: str) -> None:
    ours, lens = switched(family, switch)
    plain, (_, got) = ours(ids()), ours.run_with_cache(ids())
    logits, wanted = lens.run_with_cache(ids())
    close(plain, logits)
    assert set(got) == set(wanted.keys())
    for name in wanted:
        close(got[name], wanted[name], name)
    norms = ("ln1.hook_scale", "ln1.hook_normalized", "hook_resid_pre", "attn.hook_q")
    some = [f"blocks.1.{name}" for name in (*SWITCHES.get(switch, ()), *norms)]
    for name in some if switch else got:
        for hook in (shifted, written):
            hooks = [(name, hook)]
            changed = ours.run_with_hooks(ids(), fwd_hooks=hooks)
            close(changed, lens.run_with_hooks(ids(), fwd_hooks=hooks), name)
            assert not torch.equal(changed, plain), name
    # Scores that are written where they are masked are looked at.
    hooks = [("blocks.1.attn.hook_attn_scores", lambda value, hook: torch.zeros_like(value))]
    close(*(model.run_with_hooks(ids(), fwd_hooks=hooks) for model in (ours, lens)))
    assert torch.equal(ours(ids()), plain)


def hook_of(function: Callable[[Tensor], Any]) -> Callable[..., Any]:
    return lambda value, hook: function(value)


@every_case
def test_a_hook_gives_the_kind_of_tensor_that_it_was_given(family: str, switch: str) -> None:
    ours = ours_of(transformers_model(family))
    if switch:
        getattr(ours, f"set_{switch}")(True)
    for number, name in enumerate(ours.run_with_cache(ids())[1]):
        hooks = [(name, hook_of(OTHER_KINDS[number % len(OTHER_KINDS)]))]
        refused = pytest.raises(EditError, match=f"A hook on {name} returned .* as it was given")
        with torch.no_grad(), refused:
            ours.run_with_hooks(ids(), fwd_hooks=hooks)
        if not name.endswith(("hook_embed", "hook_pos_embed")):
            with ours.hooks(bwd_hooks=hooks):
                loss = ours(ids(), return_type="loss")
                with pytest.raises(EditError, match="as it was given"):
                    loss.backward()


@every_case
def test_gradients_at_each_point_are_the_same(family: str, switch: str) -> None:
    ours, lens = switched(family, switch)
    loss, got = ours.run_with_cache(ids(), return_type="loss", incl_bwd=True)
    wanted_loss, wanted = lens.run_with_cache(ids(), return_type="loss", incl_bwd=True)
    close(loss.detach(), wanted_loss.detach())
    assert set(got) == set(wanted.keys())
    # TransformerLens calls the norm in front of attention three times, for query, key and value,
    # and its cache keeps the gradient of one of them.
    whole: dict[str, Tensor] = {}

    def add(value: Tensor, hook: Any) -> None:
        whole[f"{hook.name}_grad"] = value + whole.get(f"{hook.name}_grad", 0)

    # With a switch each of the three has axes of its own.
    hooks = [] if switch else [(lambda name: ".ln1." in name, add)]
    with lens.hooks(bwd_hooks=hooks):
        lens(ids(), return_type="loss").backward()
    for name in wanted:
        if name.endswith("_grad") and not (switch and ".ln1." in name):
            close(got[name], whole.get(name, wanted[name]), name)


def test_a_backward_hook_changes_what_flows_on() -> None:
    found = []
    for model in pair("gpt2"):
        seen: list[Tensor] = []
        backward = [
            ("blocks.1.hook_resid_pre", lambda value, hook: (value * 2,)),
            ("blocks.0.hook_resid_post", lambda value, hook, seen=seen: seen.append(value.clone())),
        ]
        with model.hooks(bwd_hooks=backward):
            model(ids(), return_type="loss").backward()
        found.append(seen[0])
    close(*found)


def test_an_earlier_head_of_another_run_is_patched_into_one_query() -> None:
    """A step of path patching."""
    found = []
    for model in switched("llama", "use_split_qkv_input"):
        clean, other = (model.run_with_cache(ids(seed))[1] for seed in (1, 2))
        change = other["result", 0][:, :, 2] - clean["result", 0][:, :, 2]

        def patch(value: Tensor, hook: Any, change: Tensor = change) -> None:
            value[:, :, 0] += change

        hooks = [("blocks.1.hook_q_input", patch)]
        found.append(model.run_with_hooks(ids(1), fwd_hooks=hooks).detach())
    close(*found)


@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_padding_counts_in_the_loss_unless_a_mask_names_it(family: str) -> None:
    models, mask = pair(family), torch.arange(11) < torch.tensor([[11], [6]])
    options: list[dict[str, Any]] = [{}, {"attention_mask": mask.long()}]
    for given in options:
        for each in (False, True):
            given = given | {"return_type": "loss", "loss_per_token": each}
            close(*(model(ids(), **given) for model in models))


FLAGS = [*({flag: True} for flag in PROCESSING), dict.fromkeys(PROCESSING, True)]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("flags", FLAGS, ids="+".join)
@torch.no_grad()
def test_processed_weights_are_the_same(family: str, flags: dict[str, bool]) -> None:
    # RMSNorm: TransformerLens warns and leaves it, ours refuses it.
    flags = {n: v for n, v in flags.items() if (family, n) != ("llama", "center_writing_weights")}
    ours, lens = pair(family, **flags)
    wanted = lens.state_dict()
    # TransformerLens keeps shared keys and values under other names.
    compared = [name for name, _ in ours.named_parameters() if name in wanted]
    assert len(compared) > 10
    for name, weight in ours.named_parameters():
        if name in compared:
            close(weight, wanted[name], name)
    logits, got = ours.run_with_cache(ids())
    wanted_logits, cache = lens.run_with_cache(ids())
    close(logits, wanted_logits)
    for name in cache:
        close(got[name], cache[name], name)
    for mode in ("Q", "K", "V"):
        close(ours.all_composition_scores(mode), lens.all_composition_scores(mode), mode, 1e-4)
    for name in ("normalization_type", "n_params", "act_fn", "d_vocab", "n_ctx", "eps"):
        assert getattr(ours.cfg, name) == getattr(lens.cfg, name), name


@torch.no_grad()
def test_even_factors_are_those_of_transformer_lens_up_to_signs() -> None:
    ours, lens = pair("gpt2", refactor_factored_attn_matrices=True)
    close(ours(ids()), lens(ids()))
    for name in ("W_Q", "W_K", "W_V", "W_O", "b_Q", "b_K"):
        close(getattr(ours, name).abs(), getattr(lens, name).abs(), name, 1e-4)


PATCHES = [name for name in dir(patching) if name.startswith("get_act_patch_")]


@pytest.mark.parametrize("family", ["gpt2", "llama"])
@torch.no_grad()
def test_patching_functions_give_the_same(family: str) -> None:
    ours, lens = pair(family)
    from transformer_lens import patching as their_patching

    # Few positions: a pass for every query and key is slow in both.
    clean, corrupted = ids(1)[:, :3], ids(2)[:, :3]

    def metric(logits: Tensor) -> Tensor:
        return (logits[:, -1, 7] - logits[:, -1, 13]).mean()

    caches = [model.run_with_cache(clean)[1] for model in (ours, lens)]
    for name in PATCHES:
        got = getattr(patching, name)(ours, corrupted, caches[0], metric)
        wanted = getattr(their_patching, name)(lens, corrupted, caches[1], metric)
        close(got, wanted.to(got.dtype), name, 1e-5)
    assert len(PATCHES) == 18


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
    for name in ("q", "k", "v"):
        read = cache[f"blocks.1.hook_{name}_input"]
        # Key-value heads stand as often as there are heads that share them.
        weight = getattr(block.attn, f"W_{name.upper()}")
        own = weight[:: weight.shape[0] // read.shape[2]]
        read = block.ln1(read) if before else read
        close(torch.einsum("bphm,hmd->bphd", read, own), cache[name, 1], name)
    read = cache["mlp_in", 1]
    close((block.ln2(read) if before else read) @ block.mlp.W_gate, cache["pre", 1])
    # The stream itself is as it was.
    close(cache["resid_mid", 1] + cache["mlp_out", 1], cache["resid_post", 1])
    close(cache["resid_pre", 1], cache["resid_post", 0])


@torch.no_grad()
def test_inputs_that_nobody_changes_change_nothing_and_are_cut_by_position() -> None:
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
    setter = patching.layer_head_vector_patch_setter
    axes = ["layer", "head"]
    found = patching.generic_activation_patch(
        model, corrupted, cache, lambda logits: logits[0, -1, 7], setter, "v_input", axes
    )
    assert found.shape == (model.cfg.n_layers, model.cfg.n_key_value_heads)
    # Each is a patch of its own.
    assert len(found.unique()) == found.numel()


def test_switches_that_contradict_each_other_are_refused_and_a_bridge_keeps_its_own() -> None:
    model = TransformerBridge.boot_transformers("tiny-gpt2")
    with pytest.raises(EditError, match=r"set_use_hook_mlp_in\(True\)"):
        model.run_with_hooks(ids(), fwd_hooks=[("blocks.2.hook_mlp_in", shifted)])
    model.reset_hooks()
    model.set_use_split_qkv_input(True)
    with pytest.raises(EditError, match="set use_split_qkv_input to False"):
        model.set_use_attn_in(True)
    _, cache = model.run_with_cache(ids())
    with pytest.raises(TraceError, match="of each head's input"):
        cache.apply_ln_to_stack(cache.decompose_resid(layer=1), layer=1)
    model.enable_compatibility_mode()
    assert model.run_with_cache(ids())[1]["q_input", 1].shape[2] == model.cfg.n_heads
    grouped = HookedTransformer.from_pretrained_no_processing("tiny-llama")
    with pytest.raises(EditError, match="use_split_qkv_input"):
        grouped.set_use_attn_in(True)
