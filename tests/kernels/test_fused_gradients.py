import math

import pytest
import torch
from attention_gradients import inputs, truth

from minibert.errors import AttentionError
from minibert.kernels.call import Call

attention = pytest.importorskip(
    "minibert.kernels.fused.attention", reason="Triton is not installed", exc_type=ImportError
)

NAMES = ("query", "key", "value")


def leaves(*, wanted=NAMES, dtype=torch.float32, device="cpu"):
    given = {name: one.to(device) for name, one in inputs(19, 23, 16, dtype=dtype).items()}
    for name in wanted:
        given[name].requires_grad_()
    return given


def attended(given, want=None, **options):
    options = {"scale": 0.25, "causal": True, "want": want or {}} | options
    return attention.attend(Call.of(*(given[name] for name in NAMES), **options))


def test_autograd_gives_the_gradients_of_z_and_lse(triton_device):
    given = leaves(device=triton_device)
    found = attended(given, want={"entropy": ()})
    assert list(found) == ["z", "lse", "entropy"]
    assert not found["entropy"].requires_grad
    factors = torch.randn(2, 2, 19, device=triton_device)
    ((found["z"] * given["z_gradient"]).sum() + (found["lse"] * factors).sum()).backward()
    cpu = {name: one.detach().cpu() for name, one in given.items()}
    options = {"scale": 0.25, "causal": True, "lse_gradient": factors.cpu()}
    expected = truth(cpu, options)
    for name in NAMES:
        torch.testing.assert_close(
            given[name].grad.cpu().double(), expected[name], rtol=1e-5, atol=2e-5
        )


@pytest.mark.parametrize("wanted", [("query",), ("key",), ("value",), ("query", "value")])
def test_only_the_inputs_that_ask_get_a_gradient(wanted, triton_device):
    given = leaves(wanted=wanted, device=triton_device)
    attended(given)["z"].backward(given["z_gradient"])
    every = leaves(device=triton_device)
    attended(every)["z"].backward(every["z_gradient"])
    for name in NAMES:
        if name in wanted:
            assert torch.equal(given[name].grad, every[name].grad)
        else:
            assert given[name].grad is None


def test_a_loss_of_lse_alone_has_a_gradient(triton_device):
    given = leaves(device=triton_device)
    attended(given)["lse"].sum().backward()
    # The sum of d lse/d value is nothing: lse does not look at values.
    assert (given["value"].grad == 0).all()
    assert given["query"].grad.abs().max() > 0.01


def test_a_bias_gets_its_gradient(triton_device):
    given = leaves(device=triton_device)
    bias = torch.randn(1, 2, 1, 23, device=triton_device, requires_grad=True)
    attended(given, bias=bias)["z"].backward(given["z_gradient"])
    cpu = {name: one.detach().cpu() for name, one in given.items()}
    expected = truth(cpu, {"scale": 0.25, "causal": True, "bias": bias.detach().cpu()})
    assert bias.grad.shape == bias.shape
    torch.testing.assert_close(bias.grad.cpu().double(), expected["bias"], rtol=1e-5, atol=2e-5)


def test_sinks_get_their_gradient_also_of_rows_that_see_no_key(triton_device):
    given = leaves(device=triton_device)
    lengths, factors = torch.tensor([23, 0], device=triton_device), torch.randn(2, 2, 19)
    sinks = torch.tensor([0.5, -1.0], device=triton_device, requires_grad=True)
    found = attended(given, sinks=sinks, lengths=lengths)
    dz = given["z_gradient"]
    ((found["z"] * dz).sum() + (found["lse"] * factors.to(triton_device)).sum()).backward()
    cpu = {name: one.detach().cpu() for name, one in given.items()}
    options = {
        "scale": 0.25,
        "causal": True,
        "sinks": sinks.detach().cpu(),
        "lengths": lengths.cpu(),
    }
    expected = truth(cpu, options | {"lse_gradient": factors})
    torch.testing.assert_close(sinks.grad.cpu().double(), expected["sinks"], rtol=1e-5, atol=2e-5)


def test_slopes_that_are_trained_are_refused(triton_device):
    given = leaves(device=triton_device)
    slopes = torch.ones(2, device=triton_device, requires_grad=True)
    with pytest.raises(AttentionError, match=r"no gradient for alibi_slopes.*eager"):
        attended(given, alibi_slopes=slopes)
    attended(given, alibi_slopes=slopes.detach())["z"].sum().backward()
    assert given["query"].grad.isfinite().all()


@pytest.mark.parametrize("packed", [False, True])
def test_the_double_check_knows_every_option(packed, triton_device):
    shapes = {"n_queries": 19, "n_keys": 19, "d_head": 16, "batch": 1, "heads": (4, 2)}
    drawn = inputs(**shapes, d_value=8, dtype=torch.float32)
    given = {name: one.to(triton_device) for name, one in drawn.items()}
    given["key"].requires_grad_()
    options = {
        "window": (7, None),
        "soft_cap": 2.0,
        "alibi_slopes": torch.rand(4, device=triton_device),
        "sinks": torch.randn(4, device=triton_device, requires_grad=True),
    }
    if packed:
        options["packed"] = (11, 8)
    with attention.double_check():
        attended(given, **options)["z"].backward(given["z_gradient"])
    cpu = {name: one.detach().cpu() for name, one in given.items()}
    told = {n: o.detach().cpu() if isinstance(o, torch.Tensor) else o for n, o in options.items()}
    told |= {"scale": 0.25, "causal": True}
    for name, found in (("key", given["key"].grad), ("sinks", options["sinks"].grad)):
        expected = truth(cpu, told)[name]
        torch.testing.assert_close(found.cpu().double(), expected, rtol=1e-5, atol=2e-5)


def test_without_gradients_nothing_is_kept(triton_device):
    with torch.no_grad():
        found = attended(leaves(device=triton_device))
    assert not found["z"].requires_grad
    assert not attended(leaves(wanted=(), device=triton_device))["z"].requires_grad


def test_the_gradient_of_a_gradient_is_refused(triton_device):
    given = leaves(device=triton_device)
    z = attended(given)["z"]
    (gradient,) = torch.autograd.grad(z.square().sum(), given["query"], create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_the_double_check_lets_right_gradients_pass(dtype, triton_device):
    given = leaves(dtype=dtype, device=triton_device)
    mask = torch.rand(2, 2, 19, 23, device=triton_device) < 0.5
    lengths = torch.tensor([20, 0], device=triton_device)
    bias = torch.randn(1, 1, 19, 23, device=triton_device).to(dtype).requires_grad_()
    with attention.double_check():
        found = attended(given, mask=mask, lengths=lengths, bias=bias)
    (found["z"].float().sum() + found["lse"][0].isfinite().sum()).backward()
    assert given["query"].grad.isfinite().all()


def test_the_double_check_names_the_place_of_a_wrong_gradient(triton_device, monkeypatch):
    right = attention.backward

    def wrong(*tensors, **options):
        found = right(*tensors, **options)
        found["key"][1, 0, 7, 3] += 0.01
        return found

    monkeypatch.setattr(attention, "backward", wrong)
    given = leaves(device=triton_device)
    with attention.double_check():
        z = attended(given)["z"]
    with pytest.raises(
        AttentionError, match=r"gradient of key is wrong at \[1, 0, 7, 3\] and 1 of"
    ):
        z.backward(given["z_gradient"])
    # Outside, nothing is compared.
    attended(given)["z"].backward(given["z_gradient"])


def test_a_dead_row_does_not_spoil_the_others_through_its_lse(triton_device):
    given = leaves(device=triton_device)
    lengths = torch.tensor([23, 0], device=triton_device)
    found = attended(given, lengths=lengths)
    assert (found["lse"][1] == -math.inf).all()
    # exp(−inf) has the gradient 0, lse² has −inf: both must stay with the dead row.
    (found["lse"].exp().sum() + found["lse"].square().sum()).backward()
    assert given["query"].grad.isfinite().all()
    assert (given["query"].grad[1] == 0).all()
