"""The checker: what is right passes, and every slip that is planted in a kernel is named."""

import math
import re
from dataclasses import replace
from random import Random

import pytest
import torch
from calls_by_hand import gradients
from drawn_calls import drawn
from gradient_checks import check_gradients

from minibert.errors import AttentionError
from minibert.kernels.check.gradients import eager_gradients
from minibert.kernels.check.parity import ParityReport, check
from minibert.kernels.check.problem import Problem, distance

FEW = {"sizes": (1, 17), "dtypes": (torch.float32,)}
KINDS = ("plain", "strided", "lengths", "causal", "causal lengths")
#: How a test of one slip asks, unless told.
USUAL = {"sizes": (17,), "dtypes": (torch.float32,), "kinds": KINDS, "input_scales": (1.0,)}


def right(query, key, value, *, scale, mask=None):
    scores = query @ key.transpose(-2, -1) * scale
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf)
    return scores.softmax(dim=-1).nan_to_num(0.0) @ value


def stale(kept={}):  # noqa: B006, what is kept is the slip
    def kernel(query, key, value, *, scale, mask=None):
        return kept.setdefault(query.shape, right(query, key, value, scale=scale, mask=mask))

    return kernel


def unsteady(calls=[]):  # noqa: B006, as above
    def kernel(query, key, value, *, scale):
        calls.append(0)
        return right(query, key, value, scale=scale) * (1.01 if len(calls) % 7 == 0 else 1.0)

    return kernel


def spoiling(name, change, *, after=False):
    def kernel(query, key, value, *, scale, lengths=None):
        given = {"query": query, "key": key, "value": value, "lengths": lengths}
        if given[name] is not None and not after:
            change(given[name])
        mask = None
        if lengths is not None:
            mask = torch.arange(key.shape[2]) < lengths[:, None, None, None]
        z = right(query, key, value, scale=scale, mask=mask)
        if after:
            change(given[name])
        return z

    return kernel


#: The orders in which people multiply by the scale, each rounded at other places.
ORDERS = {
    "query first": lambda q, k, scale: (q * scale) @ k.mT,
    "key first": lambda q, k, scale: q @ (k * scale).mT,
    "product first": lambda q, k, scale: q @ k.mT * scale,
    "divided": lambda q, k, scale: q @ k.mT / (1 / scale),
    "both by its root": lambda q, k, scale: (q * scale**0.5) @ (k * scale**0.5).mT,
    "in float32": lambda q, k, scale: (q.float() @ k.float().mT) * scale,
}


@pytest.mark.parametrize("order", ORDERS)
def test_in_whatever_order_it_rounds_a_right_kernel_is_right(order):
    def kernel(query, key, value, *, scale, causal=False):
        scores = ORDERS[order](query, key, scale)
        if causal and not ignored:
            later = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
            scores = scores.masked_fill(later, -math.inf)
        return scores.softmax(-1).to(value.dtype) @ value

    seed, ignored = torch.seed() % 2**31, False
    asked = {"sizes": (17,), "d_head": Random(seed).choice([32, 80, 128])}
    asked |= {"dtypes": (torch.bfloat16,), "seed": seed}
    for kinds, backward in ((("scale", "causal"), False), (("plain",), True)):
        found = check(kernel, kinds=kinds, backward=backward, **asked)
        assert found.ok, f"{asked}: {found}"
    ignored = True
    # Where scores are large as well, though rounding decides about many a row there.
    assert not check(kernel, kinds=("causal",), input_scales=(30.0,), **asked).ok


def test_a_result_of_another_call_is_named():
    report = check(stale(), **FEW)
    assert "stale output" in report.causes[0]
    assert "stale output" in str(report)
    report = check(unsteady(), **FEW | {"sizes": (17, 65), "kinds": ("plain",)})
    assert "another result when it is called again with the same inputs" in report.causes[0]


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("query", torch.Tensor.zero_),
        ("key", lambda key: key.copy_(key.bfloat16())),
        ("lengths", lambda lengths: lengths.fill_(1)),
    ],
)
def test_a_kernel_that_changes_its_inputs_is_caught_and_cannot_move_the_truth(name, change):
    report = check(spoiling(name, change), **FEW)
    assert f"changes its inputs: {name}" in report.causes
    assert {failure.output for failure in report.failures} == {"inputs", "z"}


def test_a_kernel_that_clobbers_its_inputs_after_use_fails_for_that_alone():
    report = check(spoiling("value", torch.Tensor.zero_, after=True), **FEW)
    assert report.causes == ("changes its inputs: value",)
    assert {failure.output for failure in report.failures} == {"inputs"}


def test_a_prob_that_leaks_through_the_mask_is_caught_however_small():
    def leaking(query, key, value, *, scale, mask=None, want=None):
        scores = query @ key.transpose(-2, -1) * scale
        probs = (scores if mask is None else scores.masked_fill(~mask, -20.0)).softmax(dim=-1)
        return {"z": probs @ value, "probs": probs}

    report = check(leaking, wants=("probs",), **FEW)
    wrong = [one for one in report.failures if one.output == "probs"]
    assert {one.error for one in wrong} == {math.inf}
    assert any("masked cells are not exactly 0" in one.cause for one in wrong)


def test_received_that_counts_padded_queries_is_named():
    def kernel(query, key, value, *, scale, lengths=None):
        scores = query @ key.mT * scale
        if lengths is not None:
            beyond = torch.arange(key.shape[2]) >= lengths[:, None, None, None]
            scores = scores.masked_fill(beyond, -math.inf)
        probs = scores.softmax(-1).nan_to_num(0.0)
        return {"z": probs @ value, "received": probs.sum(-2)}

    options = USUAL | {"sizes": (17, 65)} | {"kinds": ("plain", "lengths"), "wants": ("received",)}
    report = check(kernel, **options)
    assert {(one.output, one.case.split(",")[0]) for one in report.failures} == {
        ("received", "lengths")
    }
    assert "received counts queries after the end of a sentence (padding)" in report.causes[0]


def test_what_a_function_raises_and_does_not_give_is_a_failure_and_not_the_end():
    def raising(query, key, value):
        if query.shape[2] == 17:
            raise ValueError("no tile of 17")
        return right(query, key, value, scale=query.shape[-1] ** -0.5)

    (cause,) = check(raising, **FEW).causes
    assert re.fullmatch(r"raised ValueError: no tile of 17 \(line \d+ of test_check\.py\)", cause)
    report = check(lambda query, key, value, *, want: value, wants=("entropy",), **FEW)
    assert any("gave z and no entropy" in failure.cause for failure in report.failures)


def test_a_right_kernel_is_right_what_it_does_not_take_is_said_and_torch_is_left_as_it_was():
    before = torch.are_deterministic_algorithms_enabled()
    report = check(right, **FEW)
    assert torch.are_deterministic_algorithms_enabled() == before
    assert report.ok, str(report)
    assert {finding.output for finding in report.findings} == {"z", "z, mean"}
    assert report.skipped == ("bias in float32: it takes no bias",)
    assert str(report).startswith("right: right; ")
    assert "not covered: bias" in str(report)


@pytest.mark.parametrize(
    ("asked", "options", "message"),
    [
        (right, {"sizes": ()}, r"check\(sizes=\(\)\): expected numbers of keys"),
        (right, {"sizes": (17, 0)}, r"each at least 1"),
        (right, {"input_scales": ()}, r"check\(input_scales=\(\)\): expected at least one factor"),
        ("fast", {}, "not known; known are reference"),
        ("eager", {"dtypes": (torch.complex64,)}, r"not checked at all: it takes torch.bfloat16"),
    ],
)
def test_nothing_checked_is_not_right(asked, options, message):
    assert not ParityReport("empty", ()).ok
    with pytest.raises(AttentionError, match=message):
        check(asked, **options)


def test_the_gradients_of_the_checker_are_those_of_the_formula():
    for seed in range(12):
        call = drawn(Random(seed), torch.float64)
        vectors, scale = (call.query, call.key, call.value), call.query.shape[3] ** -0.5
        dz = torch.randn(*call.query.shape[:3], call.value.shape[3], dtype=torch.float64)
        problem = Problem(*vectors, **{"scale": scale} | call.options, z_gradient=dz)
        found = eager_gradients(problem, torch.float64)
        for name, right in gradients(call, dz.numpy()).items():
            off = (found[name] - torch.from_numpy(right)).abs().max()
            assert off <= 1e-6 * (1 + abs(right).max()), (call, name)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_torchs_own_gradients_pass_and_mistakes_do_not(dtype):
    *vectors, dz = (torch.randn(2, 2, 23, 11).to(dtype) for _ in range(4))
    lengths, bias = torch.tensor([20, 7]), torch.randn(1, 2, 23, 23).to(dtype)
    options = {"causal": True, "lengths": lengths, "bias": bias, "z_gradient": dz}
    problem, lse_gradient = Problem(*vectors, 0.3, **options), torch.randn(2, 2, 23)
    found = eager_gradients(problem, dtype, lse_gradient=lse_gradient)
    check_gradients(found, problem, lse_gradient=lse_gradient)
    lost = eager_gradients(problem, dtype)
    # Values have no part in lse.
    del lost["value"]
    future = replace(problem, causal=False)
    ignored = eager_gradients(future, dtype, lse_gradient=lse_gradient)
    for one in found.values():
        one[0, 0, 3, 2] = math.nan
    # Rounding to bfloat16 hides the first two.
    for wrong in (*([lost, ignored] if dtype != torch.bfloat16 else []), found):
        for name, one in wrong.items():
            with pytest.raises(AssertionError, match=f"gradient of {name} is wrong"):
                check_gradients({name: one}, problem, lse_gradient=lse_gradient)


def of_one_key(problem, dtype):
    """Gradients by the formulas of a fused kernel, each number rounded where such a kernel does."""
    q, k, v, dz = (getattr(problem, name).to(dtype) for name in VECTORS)
    lse = ((q * problem.scale) @ k.mT + problem.bias.to(dtype)).logsumexp(-1, keepdim=True)
    probs = (problem.scale * (q @ k.mT) + problem.bias.to(dtype) - lse).exp()
    delta = (dz.flip(-1) * (probs @ v).flip(-1)).cumsum(-1)[..., -1:]
    of_scores = probs * (dz @ v.mT - delta)
    found = {"query": problem.scale * of_scores @ k, "key": problem.scale * of_scores.mT @ q}
    return found | {"value": probs.mT @ dz, "bias": of_scores.sum((0, 1), keepdim=True)}


VECTORS = ("query", "key", "value", "z_gradient")


def test_where_eager_errs_nothing_a_gradient_may_still_be_rounded():
    """Of one key the probs are 1 and dS is 0: eager is exact there, which nobody else has to be."""
    off = dict.fromkeys(("query", "key", "value", "bias"), 0.0)
    for seed in range(8):
        generator = torch.Generator().manual_seed(seed)
        shapes = {name: (2, 2, 1 if name in ("key", "value") else 5, 64) for name in VECTORS}
        given = {n: 3 * torch.randn(shape, generator=generator) for n, shape in shapes.items()}
        problem = Problem(**given, scale=0.13, bias=torch.randn(1, 1, 5, 1, generator=generator))
        found = of_one_key(problem, torch.float32)
        check_gradients(found, problem)
        right, eager = (eager_gradients(problem, one) for one in (torch.float64, torch.float32))
        for name, gradient in found.items():
            unit = torch.finfo(torch.float32).eps * right[name].abs().max()
            beyond = distance(gradient, right[name]) - 2 * distance(eager[name], right[name]) - unit
            off[name] = max(off[name], float(beyond))
        for name in ("query", "key", "value"):
            with pytest.raises(AssertionError, match=f"gradient of {name} is wrong"):
                check_gradients({name: found[name] + 1}, problem)
    # Without a term of its own no tolerance would let these pass.
    assert min(off.values()) > 0, off
