"""Attribution patching: the first order of every patch, from one backward pass."""

from typing import Any

import pytest
import torch
from torch import Tensor

import minibert
from minibert.analysis import (
    attribution_patching,
    logit_difference,
    patch_heads,
    patch_positions,
)
from minibert.errors import EditError, TraceError
from minibert.layers.config import Config
from minibert.layers.rotary import Rotary
from minibert.model import Model
from minibert.text.tokens import Tokens
from minibert.trace.edit import zero
from minibert.trace.read import Trace

LAYERS, HEADS, LENGTH, VOCABULARY = 2, 4, 7, 41
METRIC = logit_difference(5, 11)


def random_model(family: str, task: str = "causal-lm", **options: Any) -> Model:
    sizes: dict[str, Any] = {
        "vocab_size": VOCABULARY,
        "n_positions": LENGTH,
        "n_layers": LAYERS,
        "n_heads": HEADS,
        "d_model": 12,
        "d_mlp": 13,
    }
    config = Config(family=family, task=task, **sizes, **options)
    model = Model.from_config(config, seed=1)
    generator = torch.Generator().manual_seed(2)
    for parameter in model.parameters():
        parameter.normal_(0, 0.4, generator=generator)
    return model.double()


def gpt2() -> Model:
    return random_model("gpt2", causal=True)


def grouped() -> Model:
    return random_model(
        "llama", causal=True, n_kv_heads=2, d_head=4, rotary=Rotary(4), activation="silu"
    )


def pair(model: Model, **options: Any) -> tuple[Trace, Trace]:
    """A clean and a corrupt batch of a sentence and a shorter one."""
    ids = torch.randint(VOCABULARY, (2, 2, LENGTH), generator=torch.Generator().manual_seed(3))
    mask = torch.arange(LENGTH) < torch.tensor([[LENGTH], [LENGTH - 2]])
    traces = [model.trace(Tokens.from_ids(each, mask=mask), **options) for each in ids]
    return traces[0], traces[1]


def slope(clean: Trace, corrupt: Trace, name: str, layer: int, place: tuple[Any, ...]) -> Tensor:
    """How fast the metric of each sentence grows where a value moves toward the corrupt one."""
    value, step = clean[layer].quantity(name), 1e-5
    moved = torch.zeros_like(value)
    moved[place] = (corrupt[layer].quantity(name) - value)[place]
    edits = [{(name, layer): value + sign * step * moved} for sign in (1, -1)]
    up, down = clean.rerun_each(edits, METRIC)
    return (up - down) / (2 * step)


@pytest.mark.parametrize("make", [gpt2, grouped])
@pytest.mark.parametrize(
    "name",
    ["z", "query", "key", "value", "resid_pre", "resid_mid", "resid_post", "attn_out", "mlp_out"],
)
def test_an_estimate_is_the_derivative_of_the_metric_toward_the_patch(make: Any, name: str) -> None:
    clean, corrupt = pair(make())
    found = attribution_patching(clean, corrupt, METRIC, quantities=(name,))[name]
    head = (1,) if found.values.dim() == 4 else ()
    for layer in range(LAYERS):
        everywhere = slope(clean, corrupt, name, layer, (slice(None), *head))
        assert torch.allclose(found.total[(layer, slice(None), *head)], everywhere, atol=1e-7)
        at_third = slope(clean, corrupt, name, layer, (slice(None), *head, 3))
        assert torch.allclose(found.values[(layer, slice(None), *head, 3)], at_third, atol=1e-7)
        # Far above the tolerance.
        assert everywhere.abs().min() > 1e-5


def test_the_axes_are_named_and_padding_has_0() -> None:
    clean, corrupt = pair(grouped())
    found = attribution_patching(clean, corrupt, METRIC, quantities=("z", "key", "mlp_out"))
    assert found["z"].values.shape == (LAYERS, 2, HEADS, LENGTH)
    assert found["key"].values.shape == (LAYERS, 2, 2, LENGTH)
    assert found["mlp_out"].values.shape == (LAYERS, 2, LENGTH)
    assert minibert.axes_of(found["z"]) == {"values": ("layer", "batch", "head", "position")}
    assert minibert.axes_of(found["mlp_out"]) == {"values": ("layer", "batch", "position")}
    for each in found.values():
        assert not each.values[:, 1, ..., LENGTH - 2 :].any()
        assert each.values[:, 0, ..., -1].any()


def test_a_batch_gives_what_each_pair_gives_alone() -> None:
    clean, corrupt = pair(gpt2())
    both = attribution_patching(clean, corrupt, METRIC)["z"].values
    for row, length in ((0, LENGTH), (1, LENGTH - 2)):
        alone = attribution_patching(clean.text(row), corrupt.text(row), METRIC)["z"].values
        assert torch.allclose(both[:, row, :, :length], alone[:, 0], atol=1e-12)


def test_where_the_metric_is_linear_in_a_value_the_estimate_is_the_patch() -> None:
    model = random_model("bert", "none", n_segments=2)
    clean, corrupt = model.trace([3, 4, 5, 6, 7]), model.trace([3, 9, 5, 20, 7])

    def metric(hidden: Tensor) -> Tensor:
        return hidden[:, 2, 3] - 2 * hidden[:, 1, 5]

    found = attribution_patching(clean, corrupt, metric, quantities=("resid_post",))["resid_post"]
    patched = patch_positions(clean, corrupt, metric).change
    assert torch.allclose(found.values[-1, 0], patched[-1], atol=1e-12)
    assert patched[-1].abs().max() > 1e-3


def test_both_ends_agree_where_the_texts_are_close_and_differ_where_they_are_not() -> None:
    model = gpt2()
    clean, corrupt = pair(model)
    ends = [attribution_patching(clean, corrupt, METRIC, at=at)["z"] for at in ("clean", "corrupt")]
    assert not torch.allclose(ends[0].values, ends[1].values, atol=1e-3)
    near = clean.rerun({"embed": torch.lerp(clean.embed, corrupt.embed, 1e-4)})
    at_clean = attribution_patching(clean, near, METRIC)["z"].total
    graded = model.trace(clean.tokens, grad=True, edit={"embed": near.embed})
    at_near = attribution_patching(clean, graded, METRIC, at="corrupt")["z"].total
    assert torch.allclose(at_clean, at_near, rtol=1e-2, atol=1e-8)


def test_it_costs_three_forward_passes_with_the_two_traces_and_one_backward_pass(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, passes, backward = gpt2(), [], []
    model.body.layers[0].register_forward_hook(lambda *_: passes.append(1))
    grad = torch.autograd.grad
    monkeypatch.setattr(torch.autograd, "grad", lambda *a, **b: backward.append(1) or grad(*a, **b))
    names = ("z", "query", "key", "value", "resid_pre", "mlp_out")
    clean, corrupt = pair(model)
    attribution_patching(clean, corrupt, METRIC, quantities=names)
    assert (len(passes), len(backward)) == (3, 1)
    differentiable, _ = pair(model, grad=True)
    attribution_patching(differentiable, corrupt, METRIC, quantities=names)
    # The two of the second pair, and none besides.
    assert (len(passes), len(backward)) == (5, 2)


def test_the_gradients_that_a_trace_holds_stay() -> None:
    clean, corrupt = pair(gpt2(), grad=True)
    clean.backward(clean.logits[0, 1, 3])
    before = clean.grad[0].z.clone()
    attribution_patching(clean, corrupt, METRIC)
    assert torch.equal(clean.grad[0].z, before)


def test_in_tiny_gpt2_the_estimates_follow_the_patches_of_induction() -> None:
    """But for the previous-token head 0-3, whose effect goes through a softmax far from linear."""
    model = minibert.load("tiny-gpt2")
    clean = model.trace(" river window summer horse garden letter morning river window summer")
    corrupt = model.trace(" river window garden horse summer letter morning river window summer")
    horse, letter = (int(clean.tokens.ids[0, place]) for place in (3, 5))
    metric = logit_difference(horse, letter)
    estimated = attribution_patching(clean, corrupt, metric)["z"].total[:, 0]
    patched = patch_heads(clean, corrupt, metric).mean
    upper = torch.stack((estimated[1:].flatten(), patched[1:].flatten()))
    assert torch.corrcoef(upper)[0, 1] > 0.98
    four = [set(each.abs().flatten().topk(4).indices.tolist()) for each in (estimated, patched)]
    assert four[0] == four[1]
    # It has the right sign and a share of the size.
    assert patched[0, 3] < 2 * estimated[0, 3] < 0


def test_what_cannot_be_estimated_is_an_error() -> None:
    model = gpt2()
    clean, corrupt = pair(model)
    with pytest.raises(EditError, match="probs has no layers or no positions"):
        attribution_patching(clean, corrupt, METRIC, quantities=("probs",))
    with pytest.raises(EditError, match="mlp_gate: the MLP of"):
        attribution_patching(clean, corrupt, METRIC, quantities=("mlp_gate",))
    with pytest.raises(EditError, match="same length"):
        attribution_patching(clean, model.trace([1, 2, 3]), METRIC)
    with pytest.raises(TraceError, match="at='both'"):
        attribution_patching(clean, corrupt, METRIC, at="both")
    with pytest.raises(TraceError, match="edits"):
        attribution_patching(clean.rerun({("z", 0): zero}), corrupt, METRIC)
    with pytest.raises(EditError, match="one number for each"):
        attribution_patching(clean, corrupt, lambda logits: logits.sum())
