"""What holds of attention whatever the numbers, for each implementation that runs here."""

import math

import pytest
import torch
from attention_inputs import EVERYTHING, STATISTICS, B, D, H, K, Q, outputs, some_mask, vectors
from hypothesis import given
from hypothesis import strategies as st

from minibert.kernels import torch_kernels
from minibert.kernels.api import attend
from minibert.kernels.eager import attention_probs, attention_scores

IMPLS = pytest.mark.parametrize("impl", ["eager", "sdpa", "chunked"])
MASKS = pytest.mark.parametrize("options", [{}, {"causal": True}, {"mask": some_mask(queries=K)}])
SEEDS = st.integers(0, 2**16)


@given(
    seed=SEEDS,
    queries=st.sampled_from([1, 2, 5, 7, 13]),
    keys=st.sampled_from([1, 2, 5, 7, 13]),
    size=st.sampled_from([0.1, 1.0, 100.0]),
    dtype=st.sampled_from([torch.float16, torch.bfloat16, torch.float32, torch.float64]),
)
def test_rows_sum_to_one_and_masked_cells_and_dead_rows_are_zero(seed, queries, keys, size, dtype):
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randn(B, H, queries, keys, generator=generator).mul(size).to(dtype)
    mask = torch.rand(B, 1, queries, keys, generator=generator) < 0.5
    before = scores.clone()
    probs = attention_probs(scores, mask)
    assert torch.equal(scores, before)
    everywhere = mask.expand_as(probs)
    alive = everywhere.any(dim=-1)
    assert probs.dtype == dtype
    assert probs[~everywhere].eq(0).all()
    sums = probs.double().sum(dim=-1)
    # A sum of n numbers, each off by half an ulp of at most 1.
    torch.testing.assert_close(
        sums[alive], torch.ones_like(sums[alive]), rtol=0, atol=torch.finfo(dtype).eps * keys
    )
    assert sums[~alive].eq(0).all()


@IMPLS
@given(seed=SEEDS, order=st.permutations(range(H)))
def test_permuting_the_heads_permutes_z(impl, seed, order):
    query, key, value = vectors(seed=seed)
    whole = attend(query, key, value, impl=impl).z
    permuted = attend(query[:, order], key[:, order], value[:, order], impl=impl).z
    torch.testing.assert_close(permuted, whole[:, order], rtol=1e-14, atol=1e-14)


@IMPLS
@given(seed=SEEDS, sentence=st.integers(0, B - 1))
def test_a_sentence_does_not_see_the_rest_of_the_batch(impl, seed, sentence):
    query, key, value = vectors(seed=seed)
    one = slice(sentence, sentence + 1)
    whole = attend(query, key, value, impl=impl, mask=some_mask()).z[one]
    alone = attend(query[one], key[one], value[one], impl=impl, mask=some_mask()[one]).z
    torch.testing.assert_close(alone, whole, rtol=1e-14, atol=1e-14)


@IMPLS
@given(seed=SEEDS, now=st.integers(0, K - 2))
def test_the_future_does_not_matter_when_causal(impl, seed, now):
    query, key, value = vectors(queries=K, seed=seed)
    before = attend(query, key, value, impl=impl, causal=True)
    key[:, :, now + 1 :], value[:, :, now + 1 :] = 1e6, -1e6
    after = attend(query, key, value, impl=impl, causal=True)
    torch.testing.assert_close(after.z[:, :, : now + 1], before.z[:, :, : now + 1])
    torch.testing.assert_close(after.lse[:, :, : now + 1], before.lse[:, :, : now + 1])


@IMPLS
@given(seed=SEEDS, constant=st.floats(-50, 50))
def test_a_constant_bias_changes_z_nowhere_and_lse_by_itself(impl, seed, constant):
    query, key, value = vectors(seed=seed)
    bias = torch.full((1, 1, 1, K), constant, dtype=torch.float64)
    plain = attend(query, key, value, impl=impl)
    moved = attend(query, key, value, impl=impl, bias=bias)
    torch.testing.assert_close(moved.z, plain.z, rtol=1e-11, atol=1e-11)
    torch.testing.assert_close(moved.lse, plain.lse + constant, rtol=1e-11, atol=1e-11)


@IMPLS
def test_padding_holds_no_power_even_when_it_is_garbage(impl):
    query, key, value = vectors()
    lengths = torch.tensor([4, 2])
    before = attend(query, key, value, impl=impl, lengths=lengths)
    for b, length in enumerate(lengths.tolist()):
        key[b, :, length:], value[b, :, length:] = 1e30, 1e30
    after = attend(query, key, value, impl=impl, lengths=lengths)
    assert torch.equal(after.z, before.z)
    assert torch.equal(after.lse, before.lse)


@pytest.mark.parametrize("scale", [-0.3, 0.0, 1e-30])
@pytest.mark.parametrize("impl", ["sdpa", "flash", "math", "chunked", "auto"])
def test_a_scale_of_zero_or_below_leaves_the_mask_in_place(impl, scale):
    query, key, value = vectors(queries=K)
    found = attend(query, key, value, impl=impl, causal=True, scale=scale)
    expected = attend(query, key, value, impl="reference", causal=True, scale=scale)
    torch.testing.assert_close(found.z, expected.z, rtol=0, atol=1e-12)
    torch.testing.assert_close(found.lse, expected.lse, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("impl", "dtype", "flash"),
    [
        ("chunked", torch.float64, True),
        ("eager", torch.float32, True),
        ("sdpa", torch.float32, True),
        ("sdpa", torch.bfloat16, True),
        ("sdpa", torch.float32, False),
    ],
)
@pytest.mark.parametrize("which", [0, 1, 2])
@MASKS
def test_a_nan_comes_out_in_the_rows_that_see_it(impl, dtype, flash, which, options, monkeypatch):
    if not flash:
        monkeypatch.setattr(torch_kernels, "_flash_for_cpu", None)
    tensors = vectors(queries=K, dtype=dtype)
    tensors[which][1, 2, 0, 3] = math.nan
    found = attend(*tensors, impl=impl, want=("entropy",), **options)
    expected = attend(*tensors, impl="reference", want=("entropy",), **options)
    assert torch.equal(found.lse.isnan(), expected.lse.isnan())
    assert torch.equal(found.statistics.entropy.isnan(), expected.statistics.entropy.isnan())
    assert found.z[expected.lse.isnan()].isnan().all()
    assert bool(found.z.isnan().any())
    # The other sentence sees nothing of it.
    assert bool(found.z[0].isfinite().all())


def test_nan_in_padding_reaches_no_statistic():
    query, key, value = vectors(queries=K)
    key[0, :, 5:], value[0, :, 5:] = math.nan, math.nan
    lengths = torch.tensor([5, K])
    found = attend(query, key, value, lengths=lengths, impl="chunked", want=STATISTICS)
    assert found.z.isfinite().all()
    assert found.statistics.received.isfinite().all()


@IMPLS
def test_scores_that_overflow_are_nan_and_no_dead_row(impl):
    query, key = torch.full((1, 1, 40, 8), 1e20), torch.full((1, 1, 40, 8), -1e20)
    for options in ({}, {"lengths": torch.tensor([40])}):
        found = attend(query, key, key, impl=impl, want=("entropy",), **options)
        assert found.lse.isnan().all()
        assert found.z.isnan().all()


@IMPLS
def test_vectors_whose_product_overflows_before_it_is_scaled_are_no_matter(impl):
    query = torch.full((1, 1, 40, 64), 3e18)
    found = attend(query, query, torch.ones_like(query), impl=impl, want=("entropy",))
    assert found.lse.isfinite().all()
    torch.testing.assert_close(found.statistics.entropy, torch.full((1, 1, 40), math.log(40)))
    half = torch.full((1, 1, 1, 64), 60.0, dtype=torch.float16)
    assert attention_scores(half, half, scale=1 / 8).item() == 60 * 60 * 64 / 8


@pytest.mark.parametrize("impl", ["eager", "sdpa", "chunked", "flex"])
def test_autocast_changes_nothing(impl):
    query, key, value = vectors(queries=16, keys=16, dtype=torch.float32)
    query.requires_grad_(impl in ("eager", "sdpa"))
    want = () if impl == "flex" else STATISTICS
    expected = outputs(attend(query, key, value, impl=impl, want=want))
    with torch.autocast("cpu", torch.bfloat16):
        found = outputs(attend(query, key, value, impl=impl, want=want))
    assert all(torch.equal(found[name], numbers) for name, numbers in expected.items())


@pytest.mark.parametrize("impl", ["eager", "sdpa", "chunked"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_half_types_round_the_outputs_and_keep_statistics_in_float32(impl, dtype):
    want = EVERYTHING if impl == "eager" else STATISTICS
    found = outputs(attend(*vectors(dtype=dtype), impl=impl, want=want))
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    for name, numbers in found.items():
        known = {"argmax": torch.int64, "z": dtype, "scores": dtype, "probs": dtype}
        assert numbers.dtype == known.get(name, wide), name


@IMPLS
def test_entropy_spans_certainty_to_the_logarithm_of_the_number_of_keys(impl):
    key = torch.eye(4, dtype=torch.float64)[None, None]
    equal = attend(torch.zeros_like(key), key, key, impl=impl, want=("entropy",))
    right = torch.full((1, 1, 4), math.log(4), dtype=torch.float64)
    torch.testing.assert_close(equal.statistics.entropy, right)
    certain = attend(key * 5000, key, key, impl=impl, want=("entropy",))
    assert certain.statistics.entropy.eq(0).all()


@pytest.mark.parametrize("options", [{}, {"mask": some_mask(), "causal": True}])
def test_gradients_of_everything_eager_gives_are_those_of_finite_differences(options):
    query, key, value = (tensor.requires_grad_() for tensor in vectors())
    bias = torch.randn(1, H, Q, K, dtype=torch.float64, requires_grad=True)
    want = [item for item in EVERYTHING if item != "argmax"]

    def everything(query, key, value, bias):
        found = attend(query, key, value, impl="eager", bias=bias, want=want, **options)
        # The −inf of dead rows has no gradient; finite differences of it are NaN.
        return tuple(one[one.isfinite()] for one in outputs(found).values())

    assert torch.autograd.gradcheck(everything, (query, key, value, bias), fast_mode=True)


def test_a_loss_on_lse_reaches_the_query_when_nothing_is_said_about_the_implementation():
    query, key, value = vectors()
    found = attend(query.requires_grad_(), key, value)
    (gradient,) = torch.autograd.grad(found.lse.sum(), query)
    # d lse / d query = scale · probs · key.
    torch.testing.assert_close(gradient, attend(query.detach(), key, key).z / math.sqrt(D))
