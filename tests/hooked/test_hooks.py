"""Hooks, gradients, switched inputs and processed weights: by formulas, and as TransformerLens'."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from minibert.errors import EditError
from tests.hooked.models import FAMILIES, close, ids, ours_of, pair, transformers_model
from tests.trace.editing import OTHER_KINDS
from tests.transformer_lens_models import PROCESSING

every_family = pytest.mark.parametrize("family", FAMILIES)


def shifted(value: Tensor, hook: Any) -> Tensor:
    """Another value at each place, the same in both programs; −inf stays."""
    steps = torch.linspace(-0.3, 0.4, value.numel(), dtype=value.dtype)
    return value + steps.reshape(value.shape)


def written(value: Tensor, hook: Any) -> None:
    """Written in place, and nothing returned."""
    # Not the same everywhere: a norm of a constant is its rounding.
    value[:, -1] = torch.linspace(-0.3, 0.4, value.shape[-1], dtype=value.dtype)


@every_family
@torch.no_grad()
def test_a_hook_on_each_point_changes_the_logits_by_the_same(family: str) -> None:
    ours, lens = pair(family)
    plain, (_, got) = ours(ids()), ours.run_with_cache(ids())
    logits, wanted = lens.run_with_cache(ids())
    close(plain, logits)
    assert set(got) == set(wanted.keys())
    for name in wanted:
        close(got[name], wanted[name], name)
    for name in got:
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


@every_family
def test_a_hook_gives_the_kind_of_tensor_that_it_was_given(family: str) -> None:
    ours = ours_of(transformers_model(family))
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


@every_family
def test_gradients_at_each_point_are_the_same(family: str) -> None:
    ours, lens = pair(family)
    loss, got = ours.run_with_cache(ids(), return_type="loss", incl_bwd=True)
    wanted_loss, wanted = lens.run_with_cache(ids(), return_type="loss", incl_bwd=True)
    close(loss.detach(), wanted_loss.detach())
    assert set(got) == set(wanted.keys())
    # TransformerLens calls the norm in front of attention three times, for query, key and value,
    # and its cache keeps the gradient of one of them.
    whole: dict[str, Tensor] = {}

    def add(value: Tensor, hook: Any) -> None:
        whole[f"{hook.name}_grad"] = value + whole.get(f"{hook.name}_grad", 0)

    with lens.hooks(bwd_hooks=[(lambda name: ".ln1." in name, add)]):
        lens(ids(), return_type="loss").backward()
    for name in wanted:
        if name.endswith("_grad"):
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


@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_padding_counts_in_the_loss_unless_a_mask_names_it(family: str) -> None:
    models, mask = pair(family), torch.arange(11) < torch.tensor([[11], [6]])
    options: list[dict[str, Any]] = [{}, {"attention_mask": mask.long()}]
    for given in options:
        for each in (False, True):
            given = given | {"return_type": "loss", "loss_per_token": each}
            close(*(model(ids(), **given) for model in models))


STREAM = ("embed", "pos_embed", "resid_pre", "resid_mid", "resid_post", "attn_out", "mlp_out")


def centred(value: Tensor) -> Tensor:
    return value - value.mean(-1, keepdim=True)


def without_biases(name: str, plain: Any, model: Any) -> Tensor:
    attention = model.body.layers[int(name.split(".")[1])].attention
    biases = attention.b_V
    written = torch.einsum("hd,hdm->hm", biases, attention.W_O)
    return plain[name] - (written if name.endswith("result") else biases)


# The rows of docs/transformer_lens.md: what each step of processing changes, and to what.
STEPS: dict[str, tuple[set[str], Callable[[str, Any, Any], Tensor]]] = {
    # The last norm's weight and bias are in W_U then.
    "fold_ln": ({"in"}, lambda _, plain, model: plain["ln_final.hook_normalized"]),
    "center_writing_weights": (
        {"result", *STREAM}, lambda name, plain, model: centred(plain[name]),
    ),
    "center_unembed": ({"out"}, lambda name, plain, model: centred(plain[name])),
    "fold_value_biases": ({"result", "v", "z"}, without_biases),
}  # fmt: skip


@pytest.mark.parametrize("step", STEPS)
@torch.no_grad()
def test_a_step_of_processing_changes_what_the_docs_say_and_nothing_else(step: str) -> None:
    (names, made), theirs = STEPS[step], transformers_model("gpt2")
    own = ours_of(theirs)
    _, plain = own.run_with_cache(ids())
    _, found = ours_of(theirs, **{step: True}).run_with_cache(ids())
    assert found.keys() == plain.keys()
    same = [n for n in found if torch.allclose(found[n], plain[n], atol=1e-5, rtol=0)]
    assert {name.split("hook_")[-1] for name in found if name not in same} == names
    for name in set(found) - {*same}:
        close(found[name], made(name, plain, own.model), name)


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
    for name in ("normalization_type", "n_params", "act_fn", "d_vocab", "n_ctx", "eps"):
        assert getattr(ours.cfg, name) == getattr(lens.cfg, name), name


def test_patching_and_refactored_weights_are_the_same() -> None:
    theirs = pytest.importorskip("transformer_lens.patching")
    from minibert.transformer_lens import patching

    ours, lens = pair("gpt2", refactor_factored_attn_matrices=True)
    for name in ("W_Q", "b_K", "W_V", "W_O", "b_O"):
        close(getattr(ours, name), getattr(lens, name), name)
    clean, corrupted = ids(), ids().flip(1)
    caches = [model.run_with_cache(clean)[1] for model in (ours, lens)]
    names = [name for name in vars(theirs) if name.startswith("get_act_patch_")]
    assert names == [name for name in names if hasattr(patching, name)]
    with torch.no_grad():
        for name in names:
            found, wanted = (
                getattr(module, name)(model, corrupted, cache, lambda logits: logits[0, -1, 3])
                for module, model, cache in ((patching, ours, caches[0]), (theirs, lens, caches[1]))
            )
            close(found, wanted, name)
