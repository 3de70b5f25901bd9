"""The Triton kernels: drawn calls against NumPy float64, tiles of every size, and what is refused.

How far a number may be off follows from the sizes of the inputs that it is made of and from where
the kernels round them: `calls_by_hand.py` for the outputs, `gradient_bounds.py` for the gradients.
What torch eager errs is not a measure of that: it is right to the last place for one key, where
nothing is summed, and it keeps scores and probs of half precision in half precision, where the
kernels do not. They run in Triton's interpreter, or on a GPU where there is one.
"""

import math
from dataclasses import replace
from random import Random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from calls_by_hand import STATISTICS, Units, complaints, gradients, truth, wanted
from drawn_calls import Drawn, drawn
from gradient_bounds import gradient_bounds
from gradient_checks import check_gradients
from hypothesis import given, settings
from hypothesis import strategies as st

from minibert.errors import AttentionError
from minibert.kernels.api import attend, implementations
from minibert.kernels.call import Call, parse_want
from minibert.kernels.check.parity import check
from minibert.kernels.check.problem import Problem
from minibert.kernels.check.workload import KINDS
from tests.kernels.test_any_call import options_as_leaves

pytest.importorskip("triton")
from triton.runtime.errors import OutOfResources

from minibert.kernels.fused import attention, backward, columns, tuning
from minibert.kernels.fused.launch import Config
from minibert.kernels.fused.tuning import candidates

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
ALL = (*STATISTICS, "key_mass", "map")
SMALL, USUAL = Config(16, 16, 4, 1), Config(64, 64, 4, 1)
CUTS = (SMALL, Config(16, 32, 4, 1), Config(32, 16, 4, 1), USUAL)


def cut_like(patch: pytest.MonkeyPatch, cut: Config) -> None:
    """All kernels are cut like this."""
    for module in (backward, tuning):
        patch.setattr(module, "configs_of", lambda *_: (cut,))


def moved(call: Drawn, **more: Any) -> Call:
    """A drawn call on the device."""
    told = {n: x.to(DEVICE) if torch.is_tensor(x) else x for n, x in call.options.items()}
    vectors = (one.to(DEVICE) for one in (call.query, call.key, call.value))
    return Call.of(*vectors, **told, **more)


@settings(max_examples=12)
@given(
    st.integers(0, 2**32),
    st.sampled_from(CUTS),
    st.just(frozenset(ALL)) | st.frozensets(st.sampled_from(sorted(ALL))),
)
def test_any_options_and_statistics_together_are_right(seed, cut, names):
    random = Random(seed)
    dtype = random.choice((torch.float32, torch.float16))
    call = drawn(random, dtype, most=2)
    while "pages" in call.options:
        # Keys in pages are handed on one after the other: nothing of these kernels.
        call = drawn(random, dtype, most=2)
    asked = [one for one in wanted(call, of_tensors=False) if one[0] in names or one in names]
    want = parse_want(asked, n_keys=None)
    with pytest.MonkeyPatch.context() as patch:
        cut_like(patch, cut)
        found = {n: one.cpu() for n, one in attention.attend(moved(call, want=want)).items()}
    assert set(found) == {"z", "lse", *want}
    eps = torch.finfo(dtype).eps
    right = truth(call, Units(2.0**-23, 2.0**-23, 2.0**-23, eps, eps))
    if "argmax" in want and eps > 2.0**-23:
        # What `launch.best_of` says of inputs of 16 bits: their keys take the last bits of a score.
        right.row_max_bound = right.row_max_bound + 2.0**-17 * np.abs(right.row_max)
    # Below the smallest normal number the spacing is no longer relative: of z, and of weights.
    spacing = torch.finfo(dtype).smallest_normal * eps
    group = call.query.shape[1] // call.value.shape[1]
    values = call.value.double().abs().sum(2, keepdim=True).repeat_interleave(group, 1)
    right.z_bound = right.z_bound + spacing * (1 + values.numpy())
    statistics = SimpleNamespace(**dict.fromkeys(STATISTICS) | found)
    outputs = SimpleNamespace(z=found["z"], lse=found["lse"], statistics=statistics)
    assert not complaints(call, outputs, right), f"{call} {want}"


GROUPS, DTYPES = (1, 2, 4, 8), (torch.float32, torch.float16)


# The last has weights below the least number of float32.
@pytest.mark.parametrize("seed", [*range(5), 5035])
def test_a_drawn_call_and_its_gradients_are_within_their_bounds(seed):
    random = Random(seed)
    call = drawn(random, random.choice(DTYPES), sizes=(1, 17), groups=GROUPS, most=2)
    leaves, _ = options_as_leaves(call, ())
    z = attend(**leaves, impl="triton", **call.options).z
    generator = torch.Generator().manual_seed(seed)
    z_gradient = torch.randn(z.shape, generator=generator).to(z.dtype)
    z.backward(z_gradient)
    with torch.no_grad():
        found = attend(**leaves, impl="triton", want=("row_max",), **call.options)
    # All between the inputs and the probs is float32; beside pages ALiBi becomes a bias.
    own = torch.finfo(z.dtype).eps
    units = Units(2.0**-23, 2.0**-23, own if "pages" in call.options else 2.0**-23, own, own)
    assert complaints(call, found, truth(call, units)) == [], call
    doubles = Drawn(*(one.detach().double() for one in leaves.values()), call.options)
    dz = z_gradient.double().numpy()
    bounds = gradient_bounds(doubles, dz, units)
    for name, right in gradients(doubles, dz).items():
        given = leaves[name].grad
        ours = np.zeros(right.shape) if given is None else given.double().numpy()
        off = np.nan_to_num(np.abs(ours - right), nan=np.inf)
        assert (off <= bounds[name]).all(), f"{name} is off by {off.max():.1e} in {call}"


@pytest.mark.parametrize("seed", range(6))
def test_gradients_of_z_and_lse_reach_everything_and_are_those_of_the_formulas(seed, monkeypatch):
    random = Random(seed)
    cut_like(monkeypatch, random.choice((SMALL, Config(16, 32, 4, 1), Config(32, 16, 4, 1))))
    dtype = random.choice((torch.float32, torch.float16))
    call = drawn(random, dtype, sizes=(1, 17, 40), most=2)
    leaves, options = options_as_leaves(call, ("sinks",))
    generator = torch.Generator().manual_seed(seed)
    found = attend(*list(leaves.values())[:3], impl="triton", **options)
    dz = torch.randn(found.z.shape, generator=generator).to(dtype)
    dlse = torch.randn(found.lse.shape, generator=generator)
    torch.autograd.backward([found.z, found.lse], [dz, dlse])
    told = {"scale": call.query.shape[-1] ** -0.5} | call.options
    problem = Problem(call.query, call.key, call.value, z_gradient=dz, **told)
    check_gradients({n: x.grad for n, x in leaves.items()}, problem, lse_gradient=dlse)


def two_groups(**options: Any) -> tuple[dict[str, torch.Tensor], Call]:
    """Two groups of two heads, of more queries and keys than a tile has: leaves, and their call."""
    generator = torch.Generator().manual_seed(0)
    shapes = {"query": (2, 4, 80, 16), "key": (2, 2, 80, 16), "value": (2, 2, 80, 16)}
    leaves = {
        name: torch.randn(shape, generator=generator).to(DEVICE).requires_grad_()
        for name, shape in shapes.items()
    }
    return leaves, Call.of(*leaves.values(), causal=True, **options)


def test_only_the_inputs_that_ask_get_a_gradient_and_the_same_one_each_time():
    every, call = two_groups(want={"entropy": ()})
    found = attention.attend(call)
    assert list(found) == ["z", "lse", "entropy"]
    assert not found["entropy"].requires_grad
    found["z"].sum().backward()
    for asked in (("query",), ("key",), ("query", "value")):
        leaves, call = two_groups()
        for name in leaves.keys() - set(asked):
            leaves[name].requires_grad_(False)
        attention.attend(call)["z"].sum().backward()
        for name, leaf in leaves.items():
            assert leaf.grad is None if name not in asked else leaf.grad.equal(every[name].grad)


def test_dead_rows_and_padding_have_gradients_of_exactly_0_whatever_their_lse():
    leaves, call = two_groups(lengths=torch.tensor([61, 0], device=DEVICE))
    lse = attention.attend(call)["lse"]
    assert (lse[1] == -math.inf).all()
    # exp(−inf) has the gradient 0, lse² has −inf: both must stay with the dead row.
    (lse.exp().sum() + lse.square().sum()).backward()
    assert leaves["query"].grad[0].abs().max() > 0.01
    # The sum of d lse/d value is nothing: lse does not look at values.
    for part in (leaves["query"].grad[1], leaves["key"].grad[0, :, 61:], leaves["value"].grad):
        assert part.eq(0).all()


def test_what_has_no_gradient_is_refused():
    trained = {"alibi_slopes": (4,), "bias": (1, 4, 80, 80)}
    for name, shape in trained.items():
        leaves, call = two_groups(**{name: torch.ones(shape, device=DEVICE, requires_grad=True)})
        with pytest.raises(AttentionError, match=rf"no gradient for {name}.*eager"):
            attention.attend(call)
    leaves, call = two_groups()
    z = attention.attend(call)["z"]
    (gradient,) = torch.autograd.grad(z.square().sum(), leaves["query"], create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()


@pytest.mark.parametrize("window", [(20, 0), (40, 25)])
def test_what_lies_outside_a_window_is_not_read(window, monkeypatch):
    cut_like(monkeypatch, SMALL)
    query, key, dz = torch.randn(3, 1, 1, 160, 8).unbind()
    options = {"window": window, "scale": 0.3}
    leaves = {"query": query, "key": key, "value": key.clone()}
    right = {name: one.double().requires_grad_() for name, one in leaves.items()}
    expected = attend(*right.values(), impl="eager", want=("entropy", "received"), **options)
    expected.z.backward(dz.double())
    # The rows 80 to 95 are a block; what they see, or who sees them, comes in blocks of 16.
    before, after = window
    rows = slice(80, 96)
    for spoiled, first, last in (
        (("key", "value"), 80 - before, 96 + after),
        (("query",), 80 - after, 96 + before),
    ):
        given = {name: one.clone().to(DEVICE) for name, one in leaves.items()}
        z_gradient = dz.clone().to(DEVICE)
        for one in (*(given[name] for name in spoiled), *[z_gradient] * ("query" in spoiled)):
            one[:, :, : first // 16 * 16] = one[:, :, math.ceil(last / 16) * 16 :] = math.nan
        call = Call.of(*given.values(), want={"entropy": ()}, **options)
        names = {"query"} if "key" in spoiled else {"key", "value"}
        if "key" in spoiled:
            found = attention.attend(call)
            ours, theirs = [found["z"], found["entropy"]], [expected.z, expected.statistics.entropy]
        else:
            lse = expected.lse.detach().float().to(DEVICE)
            asked = replace(call, want={"received": ()})
            ours = [columns.received_and_map(asked, lse=lse)["received"]]
            theirs = [expected.statistics.received]
        z, lse = (one.detach().float().to(DEVICE) for one in (expected.z, expected.lse))
        gradients = backward.backward(call, z_gradient, z, lse, wanted=names)
        ours += [gradients[name] for name in names]
        theirs += [right[name].grad for name in names]
        for mine, other in zip(ours, theirs, strict=True):
            off = mine.cpu().double()[:, :, rows] - other.detach()[:, :, rows]
            assert off.abs().max() < 5e-5


#: Kinds, keys, size of a head, dtype and factors on the inputs; the first is what is asked before
#: every benchmark.
TILES = [
    (tuple(KINDS), 17, 16, "float16", (1.0,)),
    (("causal lengths", "causal cache"), 130, 40, "float32", (30.0,)),
    (("plain",), 70, 256, "float16", (1.0,)),
    (("mask", "bias"), 20, 16, "float32", (1.0,)),
]


@pytest.mark.parametrize(("kinds", "keys", "d_head", "dtype", "scales"), TILES)
def test_all_statistics_of_what_is_asked_before_a_benchmark_are_right(
    kinds, keys, d_head, dtype, scales
):
    record = replace(implementations()["triton"], wants=frozenset(ALL))
    report = check(
        record, kinds=kinds, sizes=(keys,), d_head=d_head, input_scales=scales,
        dtypes=(getattr(torch, dtype),), device=DEVICE,
    )  # fmt: skip
    assert report.ok, str(report)


@pytest.mark.parametrize(
    ("dtype", "d_head"), [(torch.float32, 80), (torch.float16, 40), (torch.float16, 256)]
)
def test_the_gradients_by_the_tiles_that_a_gpu_gets_are_right(dtype, d_head, monkeypatch):
    kind = "fp32" if dtype == torch.float32 else "fp16"

    def of_a_gpu(kernel, *_):
        return (USUAL,) if kernel == "forward" else candidates(kernel, kind, d_head, "")

    monkeypatch.setattr(backward, "configs_of", of_a_gpu)
    query, key, value = torch.randn(3, 1, 2, 71, d_head, device=DEVICE).to(dtype).unbind()
    leaves = {"query": query[:, :, :37], "key": key, "value": value}
    leaves = {name: one.detach().requires_grad_() for name, one in leaves.items()}
    z = attend(**leaves, causal=True, impl="triton").z
    dz = torch.randn_like(z)
    z.backward(dz)
    given = {name: one.detach() for name, one in leaves.items()}
    problem = Problem(**given, scale=d_head**-0.5, causal=True, z_gradient=dz)
    check_gradients({n: x.grad for n, x in leaves.items()}, problem)


def test_a_gpu_with_less_memory_gets_smaller_tiles_or_is_refused(monkeypatch):
    vectors = torch.randn(1, 2, 5, 128, device=DEVICE).half()
    problem = backward.problem_of(Call.of(vectors, vectors, vectors), vectors)
    configs = candidates("backward keys", "fp16", 128, "")
    monkeypatch.setattr(backward, "configs_of", lambda *_: configs)
    tried: list[Config] = []

    def launch(config: Config) -> None:
        tried.append(config)
        if len(tried) <= failing:
            raise OutOfResources(300_000, 100_000, "shared memory")

    failing = 1
    problem.tuned("backward keys", launch)
    assert len(tried) == 2
    assert tried[1].block_n < tried[0].block_n
    tried, failing = [], 9
    with pytest.raises(AttentionError, match=r"d_head 128 in torch\.float16 .*300000.*eager"):
        problem.tuned("backward keys", launch)


def test_what_these_kernels_cannot_do_is_refused():
    vectors = torch.randn(3, 1, 1, 4, 8, device=DEVICE).unbind()
    with pytest.raises(AttentionError, match="sentence by sentence"):
        attention.attend(Call.of(*vectors, packed=(1, 3), want={"map": (2,)}))
    wide = torch.randn(3, 1, 1, 2, 258, device=DEVICE).unbind()
    with pytest.raises(AttentionError, match=r"d_head of at most 256.* can\."):
        attend(*wide, impl="triton")


@pytest.mark.parametrize(
    ("capability", "word"),
    [((8, 0), "ampere"), ((8, 9), "ampere"), ((9, 0), ""), ((10, 0), "blackwell")],
)
def test_gpus_that_multiply_otherwise_than_hopper_choose_among_other_tiles(
    capability: tuple[int, int], word: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fault: Hopper's tiles spilled up to 776 bytes a thread on Ampere."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    assert tuning.generation(torch.device("cuda")) == word
    hopper, here = (
        tuning.candidates("backward keys", "bf16", 128, f"causal{told}")[0]
        for told in ("", f" {word}")
    )
    assert (here.block_n < hopper.block_n) == (word == "ampere")
