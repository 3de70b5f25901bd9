"""The checker: what is right passes, and every slip that is planted in a kernel is named."""

import math
import operator
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
LARGE = {"sizes": (17, 65), "input_scales": (1.0, 10.0, 30.0)}


def right(query, key, value, *, scale, mask=None):
    scores = query @ key.transpose(-2, -1) * scale
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf)
    return scores.softmax(dim=-1).nan_to_num(0.0) @ value


def made(
    *,
    inputs=lambda q, k, v: (q, k, v),
    scale=lambda scale, d_head: scale,
    seen=operator.lt,
    first=lambda n_queries, n_keys: n_keys - n_queries,
    lengths=lambda lengths: lengths,
    softmax=lambda scores: scores.softmax(-1).nan_to_num(0.0),
    z=lambda z: z,
):
    """A right kernel, but for what is changed on the way."""

    def kernel(query, key, value, **options):
        query, key, value = inputs(query, key, value)
        (Q, D), K = query.shape[2:], key.shape[2]
        allowed = torch.ones(1, 1, Q, K, dtype=torch.bool)
        if options.get("causal", False):
            allowed = allowed.tril(first(Q, K))
        if (given := options.get("lengths")) is not None:
            edge = lengths(given)[:, None, None, None]
            allowed = allowed & seen(torch.arange(K), edge)
        if (given := options.get("mask")) is not None:
            allowed = allowed & given
        scores = query @ key.mT * scale(options["scale"], D)
        return z(softmax(scores.masked_fill(~allowed, -math.inf)) @ value)

    # What is asked is what is named.
    def told(query, key, value, *, scale, lengths=None, causal=False, mask=None):
        named = {"scale": scale, "lengths": lengths, "causal": causal, "mask": mask}
        return kernel(query, key, value, **named)

    return told


def by_position(x):
    """The numbers a kernel finds that takes memory for (batch, position, head, d_head)."""
    B, H, N, D = x.shape
    return x.contiguous().view(B, N, H, D).transpose(1, 2)


def laid_out(z):
    """z, whose memory is that of (batch, position, head, d_head)."""
    return z.transpose(1, 2).contiguous().view(z.shape)


def ends_unwritten(z):
    out, whole = torch.empty_like(z), z.shape[2] // 16 * 16
    out[:, :, :whole] = z[:, :, :whole]
    return out


ROWS = {"sizes": (17, 65)}
#: What is changed, how it is asked beside USUAL, and what the first cause must say; more slips are
#: those of `kernel_zoo`.
SLIPS = [
    (
        {"inputs": lambda *x: map(by_position, x), "z": laid_out},
        FEW,
        "query, key, value are read and z is written as (batch, position, head, d_head)",
    ),
    (
        {
            "inputs": lambda *x: [one.transpose(1, 2) for one in x],
            "z": lambda z: z.transpose(1, 2),
        },
        FEW,
        "heads attend to heads",
    ),
    (
        {"seen": lambda keys, n: keys < (n + 63) // 64 * 64},
        {"sizes": (130,), "kinds": ("lengths",)},
        "rounded up to blocks of 64 keys",
    ),
    (
        {"scale": lambda scale, d_head: (d_head + 1) ** -0.5},
        LARGE,
        # sqrt(64 / 65)
        "wrong scale: it behaves as 1/sqrt(d_head + 1) (0.99228 times",
    ),
    ({"scale": lambda scale, d_head: scale * 1.0007}, ROWS, "wrong scale: it behaves as 1.0007"),
    ({"z": lambda z: 1.001 * z}, ROWS, "everywhere 1.001 times what is right"),
    (
        {
            "softmax": lambda s: torch.where(
                s.exp().sum(-1, keepdim=True) == 0, torch.nan, s.softmax(-1).nan_to_num(0.0)
            )
        },
        # In causal order the first rows have few keys, so that all their scores can be below −87.
        {"kinds": ("causal",), "input_scales": (1.0, 30.0)},
        "exp is 0 for all keys of rows with scores below −87",
    ),
    ({"z": ends_unwritten}, FEW, "never written"),
    ({"first": lambda queries, keys: 0}, {"kinds": ("causal cache",)}, "aligned to the start"),
    (
        {"softmax": lambda s: s.softmax(-1).nan_to_num(1.0)},
        {"kinds": ("mask",)},
        "only rows without an allowed key",
    ),
]


@pytest.mark.parametrize(("changes", "options", "cause"), SLIPS)
def test_a_slip_is_named_and_is_the_only_cause(changes, options, cause):
    report = check(made(**changes), **USUAL | options)
    assert report.failures
    assert all(cause in one for one in report.causes[:1]), str(report)
    assert len(report.causes) == 1 or cause.startswith(("wrong scale", "everywhere"))


def bfloat16(changed):
    """Computed in float32 and rounded at its end alone, with something changed there."""

    def kernel(query, key, value):
        given = query.float(), key.float(), value.float()
        return changed(*given, query.shape[-1] ** -0.5).to(query.dtype)

    return kernel


def attention(query, key, value, scale):
    return (query @ key.mT * scale).softmax(-1) @ value


def summed_in_bfloat16(query, key, value, scale):
    probs = (query @ key.mT * scale).softmax(dim=-1)
    z = torch.zeros_like(query).bfloat16()
    for place in range(key.shape[2]):
        z += probs[..., place, None].bfloat16() * value[:, :, place, None].bfloat16()
    return z


@pytest.mark.parametrize(
    ("slip", "size", "cause"),
    [
        (lambda q, k, v, scale: attention(q, k, v, 63**-0.5), 130, "it behaves as 1/sqrt"),
        (lambda *given: 1.01 * attention(*given), 17, r"everywhere about 1\.01 times"),
        (lambda *given: attention(*given) + 0.02, 17, r"about 0\.02 is added everywhere"),
        (
            lambda q, k, v, scale: attention(q, k[:, :, :-1], v[:, :, :-1], scale),
            130,
            "the last key is not seen",
        ),
        (summed_in_bfloat16, 130, "in too few digits"),
    ],
)
def test_what_stays_within_the_largest_error_shows_in_the_mean(slip, size, cause):
    few = USUAL | {"sizes": (size,), "kinds": ("plain",), "dtypes": (torch.bfloat16,)}
    assert check(bfloat16(attention), **few).ok
    report = check(bfloat16(slip), **few)
    assert re.search(cause, report.causes[0]), report.causes


def with_lse(lse):
    def kernel(query, key, value, *, scale):
        scores = query @ key.mT * scale
        return scores.softmax(-1) @ value, lse(scores)

    return kernel


@pytest.mark.parametrize(
    ("lse", "cause"),
    [
        (lambda s: s.logsumexp(-1) / math.log(2), "base 2"),
        (lambda s: s.logsumexp(-1) + 0.5, "values, first at [0, 0, 0]: "),
        (lambda s: s.exp().sum(-1).log(), "exp overflows"),
    ],
)
def test_an_lse_that_is_wrong_beside_a_right_z_is_named(lse, cause):
    report = check(with_lse(lse), sizes=(65,), dtypes=(torch.float32,))
    assert {one.output for one in report.failures} == {"lse"}
    assert cause in report.causes[0]


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

    options = USUAL | ROWS | {"kinds": ("plain", "lengths"), "wants": ("received",)}
    report = check(kernel, **options)
    assert {(one.output, one.case.split(",")[0]) for one in report.failures} == {
        ("received", "lengths")
    }
    assert "received counts queries behind the end of a sentence (padding)" in report.causes[0]


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
