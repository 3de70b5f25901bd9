import itertools
import math

import pytest
import torch
from attention_gradients import allowed_errors, calls, inputs, truth
from hypothesis import given as drawn_by
from hypothesis import settings

from minibert.errors import AttentionError
from minibert.kernels.call import Call
from minibert.kernels.fused.launch import Config
from minibert.kernels.fused.tuning import candidates

fused_backward = pytest.importorskip(
    "minibert.kernels.fused.backward", reason="Triton is not installed", exc_type=ImportError
)
backward, relevance_columns = fused_backward.backward, fused_backward.relevance_columns

#: Of the few turns of a loop there are in a test, each must be the first, an inner or the last one;
#: more of them, as with the small tiles of float32, only take the interpreter longer.
CONFIGS = dict.fromkeys(("key_value", "query"), Config(64, 64, 4, 1))
GRADIENTS = ("query", "key", "value")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
#: Queries, keys, d_head and options: what a kernel can trip over, each with something else.
CASES = {
    "one key": (1, 1, 16, {}),
    "one more than a tile": (65, 65, 64, {"causal": True}),
    "two tiles and two keys": (130, 130, 80, {"lengths": [130, 43]}),
    "more keys than queries": (23, 131, 64, {"causal": True}),
    "more queries than keys": (70, 19, 40, {"causal": True}),
    "an empty sentence": (37, 37, 64, {"lengths": [29, 0], "causal": True}),
    "a mask with dead rows": (41, 67, 48, {"mask": True}),
    "everything": (
        67,
        67,
        40,
        {"mask": True, "bias": (1, 2, 1, 67), "lengths": [61, 5], "causal": True, "scale": 0.3},
    ),
    "a full block at the end": (64, 64, 128, {"lengths": [64, 31]}),
}
_BOTH = (torch.float32, torch.float16)
# The dtypes in turns, and both for what has the most in it; the others are drawn below.
WITH_DTYPES = [
    ("two tiles and two keys", torch.float32),
    ("a mask with dead rows", torch.float16),
    ("a full block at the end", torch.float16),
    ("one more than a tile", torch.float32),
    *itertools.product(["everything"], _BOTH),
]


def drawn(name, dtype, device, *, factor=1):
    n_queries, n_keys, d_head, wishes = CASES[name]
    given = inputs(n_queries, n_keys, d_head, dtype=dtype, factor=factor)
    generator = torch.Generator().manual_seed(1)
    options = dict(wishes)
    if "lengths" in wishes:
        options["lengths"] = torch.tensor(wishes["lengths"])
    if "mask" in wishes:
        options["mask"] = torch.rand(2, 1, n_queries, n_keys, generator=generator) < 0.6
        options["mask"][1, :, 3] = False
    if "bias" in wishes:
        options["bias"] = torch.randn(*wishes["bias"], generator=generator).to(dtype)
    options["lse_gradient"] = torch.randn(2, 2, n_queries, generator=generator)
    return given, options, truth(given, options)


def moved(named):
    return {n: o.to(DEVICE) if isinstance(o, torch.Tensor) else o for n, o in named.items()}


def told(given, options):
    """The call as the kernels take it."""
    options = {name: one for name, one in moved(options).items() if name != "lse_gradient"}
    return Call.of(*(given[name].to(DEVICE) for name in GRADIENTS), **options)


def computed(given, options, expected, **more):
    z_gradient = given["z_gradient"].to(DEVICE)
    z, lse = (expected[name].to(DEVICE) for name in ("z", "lse"))
    if options.get("lse_gradient") is not None:
        more["lse_gradient"] = options["lse_gradient"].to(DEVICE)
    more = {"configs": CONFIGS} | more
    z = z.to(given["query"].dtype)
    return backward(told(given, options), z_gradient, z, lse.float(), **more)


def assert_as_good_as_eager(found, expected, given, options):
    for name, tolerance in allowed_errors(given, options, expected).items():
        error = (found[name].cpu().double() - expected[name]).abs()
        assert not error.numel() or error.max() <= tolerance, (
            f"d {name}: {float(error.max()):.3g} off, {tolerance:.3g} allowed"
        )


@drawn_by(calls())
@settings(max_examples=12)
def test_any_options_together_are_right(call):
    given, options, config = call
    expected = truth(given, options)
    wanted = (*GRADIENTS, *(name for name in ("bias", "sinks") if name in options))
    configs = dict.fromkeys(("key_value", "query"), config)
    found = computed(
        given, options, expected, wanted=wanted, configs=configs, relevance="absolute_relevance"
    )
    assert_as_good_as_eager(found, expected, given, options)
    cells = expected["relevance"].abs()
    for name, axis in (("relevance_by_key", 2), ("relevance_by_query", 3)):
        torch.testing.assert_close(
            found[name].cpu().double(), cells.sum(axis), rtol=1e-5, atol=1e-4, msg=name
        )


@pytest.mark.parametrize(("name", "dtype"), WITH_DTYPES)
def test_gradients_err_at_most_twice_as_much_as_eager(name, dtype, triton_device):
    given, options, expected = drawn(name, dtype, triton_device)
    wanted = (*GRADIENTS, "bias") if "bias" in options else GRADIENTS
    found = computed(given, options, expected, wanted=wanted)
    assert {name: found[name].dtype for name in wanted} == dict.fromkeys(wanted, dtype)
    assert_as_good_as_eager(found, expected, given, options)


@pytest.mark.parametrize("dtype", _BOTH)
def test_what_lies_outside_a_window_is_not_read(dtype, triton_device):
    given = inputs(96, 96, 16, dtype=dtype, batch=1, heads=(2, 1))
    options = {"window": (7, 9), "lse_gradient": torch.randn(1, 2, 96)}
    expected = truth(given, options)
    configs = dict.fromkeys(("key_value", "query"), Config(16, 16, 4, 1))
    for names in (("query", "z_gradient"), ("key", "value")):
        spoiled = dict(given)
        for name in names:
            spoiled[name] = given[name].clone()
            spoiled[name][:, :, 64:] = math.nan
        found = computed(spoiled, options, expected, configs=configs)
        # Rows 0 … 47 look at keys up to 56, and keys 0 … 47 are seen by rows up to 54.
        for name in set(GRADIENTS) - set(names):
            allowed = allowed_errors(given, options, expected)[name]
            error = (found[name].cpu().double() - expected[name])[:, :, :48].abs().max()
            assert error <= allowed


def gpu_configs(dtype, d_head):
    kind = "fp32" if dtype == torch.float32 else "fp16"
    owners = {"key_value": "backward keys", "query": "backward queries"}
    return {name: candidates(kernel, kind, d_head, "")[0] for name, kernel in owners.items()}


@pytest.mark.parametrize(
    ("dtype", "d_head"), [(torch.float32, 80), (torch.float16, 40), (torch.float16, 256)]
)
def test_the_tiles_that_a_gpu_gets_give_the_same(dtype, d_head, triton_device):
    given = inputs(37, 71, d_head, dtype=dtype)
    options = {"causal": True}
    expected = truth(given, options)
    found = computed(given, options, expected, configs=gpu_configs(dtype, d_head))
    assert_as_good_as_eager(found, expected, given, options)


@pytest.mark.parametrize(("dtype", "factor"), [(torch.float32, 30), (torch.float16, 10)])
def test_gradients_are_right_where_the_softmax_is_all_but_certain(dtype, factor, triton_device):
    given, options, expected = drawn("one more than a tile", dtype, triton_device, factor=factor)
    found = computed(given, options, expected)
    assert_as_good_as_eager(found, expected, given, options)


@pytest.mark.parametrize(
    ("name", "of", "f"),
    [
        ("everything", "relevance", lambda cells: cells),
        ("everything", "positive_relevance", lambda cells: cells.clamp(min=0)),
        ("everything", "absolute_relevance", lambda cells: cells.abs()),
        ("more queries than keys", "absolute_relevance", lambda cells: cells.abs()),
    ],
)
def test_relevance_sums_are_those_of_the_cells(name, of, f, triton_device):
    given, options, expected = drawn(name, torch.float32, triton_device)
    weights = torch.rand(2, 1, given["query"].shape[2])
    cells = f(expected["relevance"])
    found = computed(given, options, expected, relevance=of, weights=weights.to(triton_device))
    by_key = (cells * weights.double().unsqueeze(-1)).sum(dim=2)
    lse, weights = expected["lse"].float().to(triton_device), weights.to(triton_device)
    z_gradient = given["z_gradient"].to(triton_device)
    alone = relevance_columns(told(given, options), z_gradient, lse=lse, of=of, weights=weights)
    for sums, right in (
        (found["relevance_by_key"], by_key),
        (alone, by_key),
        (found["relevance_by_query"], cells.sum(dim=3)),
    ):
        torch.testing.assert_close(sums.cpu().double(), right, rtol=1e-5, atol=5e-5)


def test_the_gradients_are_the_same_with_relevance_and_each_time(triton_device):
    given = inputs(65, 65, 16, dtype=torch.float16, batch=1, heads=(4, 2))
    options = {"packed": (29, 0, 36), "causal": True, "lse_gradient": torch.randn(1, 4, 65)}
    expected = truth(given, options)
    plain = computed(given, options, expected)
    again = computed(given, options, expected)
    beside = computed(given, options, expected, relevance="absolute_relevance")
    for name in GRADIENTS:
        assert torch.equal(plain[name], again[name])
        assert torch.equal(plain[name], beside[name])


def test_dead_rows_and_padding_keys_have_gradients_of_exactly_0(triton_device):
    given, options, expected = drawn("everything", torch.float32, triton_device)
    dead = expected["lse"].isneginf()
    assert dead.any()
    # What a loss makes of lse there, −inf, must not matter.
    options["lse_gradient"][dead] = math.nan
    found = computed(given, options, expected, relevance="absolute_relevance")
    assert (found["query"].cpu()[dead] == 0).all()
    assert (found["relevance_by_query"].cpu()[dead] == 0).all()
    for name in ("key", "value", "relevance_by_key"):
        assert (found[name][0, :, 61:] == 0).all()
        assert (found[name][1, :, 5:] == 0).all()
        assert found[name].isfinite().all()


@pytest.mark.parametrize("axes", [(1, 2, 29, 37), (2, 1, 1, 37), (1, 1, 29, 1)])
def test_the_gradient_of_a_bias_is_summed_over_what_it_is_repeated_for(axes, triton_device):
    given = inputs(29, 37, 16, dtype=torch.float32)
    options = {"bias": torch.randn(axes), "causal": True, "lse_gradient": torch.randn(2, 2, 29)}
    expected = truth(given, options)
    found = computed(given, options, expected, wanted=["bias"])
    assert set(found) == {"bias"}
    torch.testing.assert_close(found["bias"].cpu().double(), expected["bias"], rtol=1e-5, atol=3e-5)


def test_gradients_agree_with_finite_differences(triton_device):
    given = inputs(5, 7, 16, dtype=torch.float32)
    options = {"causal": True}
    expected = truth(given, options)
    found = computed(given, options, expected)

    def loss(changed):
        return (truth(changed, options)["z"] * given["z_gradient"].double()).sum()

    wide = {name: one.double() for name, one in given.items()}
    for name, place in (("query", (1, 1, 4, 3)), ("key", (0, 1, 2, 9)), ("value", (1, 0, 1, 15))):
        step = torch.zeros_like(wide[name])
        step[place] = 1e-5
        up, down = (loss(wide | {name: wide[name] + sign * step}) for sign in (1, -1))
        assert float((up - down) / 2e-5) == pytest.approx(float(found[name][place]), abs=2e-6)


def test_vectors_in_any_layout_give_the_same_gradients(triton_device):
    given, options, expected = drawn("more keys than queries", torch.float32, triton_device)
    plain = computed(given, options, expected)

    def turned(one):
        return one.transpose(1, 2).contiguous().transpose(1, 2)

    given = {name: turned(one) for name, one in given.items()}
    given["value"] = given["value"].mT.contiguous().mT
    found = computed(given, options, expected)
    for name in GRADIENTS:
        assert torch.equal(found[name], plain[name])


def test_a_gpu_with_less_memory_gets_smaller_tiles_or_is_refused(triton_device):
    given = inputs(5, 5, 128, dtype=torch.float16, batch=1)
    problem = fused_backward.problem_of(told(given, {}), given["z_gradient"].to(DEVICE))
    from triton.runtime.errors import OutOfResources

    tried = []

    def launch(config):
        tried.append(config)
        if len(tried) <= failing:
            raise OutOfResources(300_000, 100_000, "shared memory")

    failing = 1
    problem.tuned("backward keys", "", launch, None)
    assert len(tried) == 2
    assert tried[1].block_n < candidates("backward keys", "fp16", 128, "")[0].block_n
    tried, failing = [], 9
    with pytest.raises(AttentionError, match=r"d_head 128 in torch\.float16 .*300000.*eager"):
        problem.tuned("backward keys", "", launch, None)


def test_an_unknown_name_is_refused(triton_device):
    given, options, expected = drawn("one key", torch.float32, triton_device)
    with pytest.raises(AttentionError, match=r"of bias; there are .* \(no bias was given\)"):
        computed(given, options, expected, wanted=["bias"])
    with pytest.raises(AttentionError, match="'probs' is no relevance; expected one of relevance,"):
        computed(given, options, expected, relevance="probs")
