import pytest
import torch
from attention_inputs import (
    STATISTICS,
    VARIATIONS,
    B,
    D,
    H,
    K,
    Q,
    allowed_by,
    by_torch,
    some_mask,
    vectors,
)
from hypothesis import given
from hypothesis import strategies as st

from minibert.kernels import torch_kernels, work_memory
from minibert.kernels.api import attend
from minibert.kernels.torch_kernels import fused_attention

# How far a dtype's z may be from float64 on numbers of size 1: some roundings of z and probs.
ROUNDING = {torch.float64: 1e-13, torch.float32: 2e-6, torch.float16: 4e-3, torch.bfloat16: 3e-2}
LSE_ROUNDING = {torch.float64: 1e-13}


@pytest.mark.parametrize("dtype", ROUNDING)
@pytest.mark.parametrize("name", VARIATIONS)
@pytest.mark.parametrize("with_bias", [False, True])
def test_sdpa_agrees_with_torch_in_float64(name, dtype, with_bias):
    query, key, value = vectors(dtype=dtype)
    bias = torch.randn(1, H, Q, K).to(dtype) if with_bias else None
    found = attend(query, key, value, impl="sdpa", bias=bias, **VARIATIONS[name])
    expected = by_torch(query, key, value, allowed=allowed_by(**VARIATIONS[name]), bias=bias)
    atol, lse_atol = ROUNDING[dtype], LSE_ROUNDING.get(dtype, 2e-4)
    assert found.z.dtype == dtype
    torch.testing.assert_close(found.z.double(), expected["z"], rtol=0, atol=atol)
    torch.testing.assert_close(found.lse.double(), expected["lse"], rtol=0, atol=lse_atol)


@pytest.mark.parametrize("name", VARIATIONS)
@pytest.mark.parametrize("cells", [1, 100])
def test_statistics_do_not_depend_on_how_many_rows_are_taken_at_a_time(name, cells, monkeypatch):
    monkeypatch.setattr(work_memory, "CELLS", cells)
    query, key, value = vectors(queries=K)
    options = dict(VARIATIONS[name])
    if "mask" in options:
        options["mask"] = some_mask(queries=K)
    options["bias"] = torch.randn(1, H, K, K, dtype=torch.float64)
    found = attend(query, key, value, impl="sdpa", want=STATISTICS, **options)
    expected = attend(query, key, value, impl="reference", want=STATISTICS, **options)
    torch.testing.assert_close(found.lse, expected.lse, rtol=1e-13, atol=1e-13)
    for statistic, numbers in vars(expected.statistics).items():
        torch.testing.assert_close(
            getattr(found.statistics, statistic),
            numbers,
            rtol=1e-13,
            atol=1e-13,
            check_dtype=False,
            msg=statistic,
        )


@pytest.mark.parametrize("flash", [True, False])
@pytest.mark.parametrize("name", VARIATIONS)
def test_lse_is_the_same_with_and_without_the_private_operator(name, flash, monkeypatch):
    if not flash:
        monkeypatch.setattr(torch_kernels, "_flash_for_cpu", None)
    query, key, value = vectors(dtype=torch.float32)
    found = attend(query, key, value, impl="sdpa", **VARIATIONS[name])
    expected = by_torch(query, key, value, allowed=allowed_by(**VARIATIONS[name]))
    torch.testing.assert_close(found.lse.double(), expected["lse"], rtol=0, atol=2e-6)


@pytest.mark.parametrize("which", [0, 1, 2, 3])
def test_vectors_and_masks_in_another_memory_order_give_the_same(which):
    # The private operator reads them wrongly, in silence, unless they are put in order first.
    query, key, value = vectors(queries=37, keys=64, dtype=torch.float32)
    tensors = [query, key, value, some_mask(queries=37, keys=64)]
    expected = attend(*tensors[:3], mask=tensors[3], impl="sdpa")
    tensors[which] = tensors[which].transpose(-2, -1).contiguous().transpose(-2, -1)
    found = attend(*tensors[:3], mask=tensors[3], impl="sdpa")
    torch.testing.assert_close(found.z, expected.z)
    torch.testing.assert_close(found.lse, expected.lse)


@pytest.mark.parametrize("dtype", ROUNDING)
@pytest.mark.parametrize("causal", [False, True])
def test_more_keys_than_a_block_of_the_fused_kernel_change_nothing(dtype, causal):
    # The CPU kernel takes 512 keys at a time.
    query, key, value = vectors(queries=601, keys=601, dtype=dtype)
    mask = None if causal else some_mask(queries=601, keys=601)
    found = attend(query, key, value, mask=mask, causal=causal, impl="sdpa")
    allowed = torch.ones(601, 601, dtype=torch.bool).tril() if causal else mask
    expected = by_torch(query, key, value, allowed=allowed)
    torch.testing.assert_close(found.z.double(), expected["z"], rtol=0, atol=ROUNDING[dtype])
    lse_atol = LSE_ROUNDING.get(dtype, 2e-4)
    torch.testing.assert_close(found.lse.double(), expected["lse"], rtol=0, atol=lse_atol)


@pytest.mark.parametrize("shape", [(1, 1, 1, K), (B, 1, 1, K), (1, H, Q, 1), (1, 1, Q, K)])
def test_every_axis_of_a_mask_may_be_one(shape):
    query, key, value = vectors()
    mask = torch.rand(shape) < 0.6
    found = attend(query, key, value, mask=mask, impl="sdpa")
    expected = by_torch(query, key, value, allowed=mask)
    torch.testing.assert_close(found.z, expected["z"])
    torch.testing.assert_close(found.lse, expected["lse"])


@pytest.mark.parametrize("dtype", ROUNDING)
@pytest.mark.parametrize("keys", [K, 700])
def test_torch_gives_zero_for_a_dead_row_on_this_cpu_as_fused_attention_relies_on(dtype, keys):
    query, key, value = vectors(keys=keys, dtype=dtype)
    z = fused_attention(query, key, value, mask=some_mask(keys=keys))
    assert z.isfinite().all()
    assert z[1, 2, 1].eq(0).all()


@pytest.mark.parametrize(
    ("dtype", "flash"), [(torch.float32, True), (torch.bfloat16, True), (torch.float32, False)]
)
@pytest.mark.parametrize("which", [0, 1, 2])
@pytest.mark.parametrize("options", [{}, {"causal": True}, {"mask": some_mask(queries=K)}])
def test_a_nan_comes_out_in_the_rows_that_see_it(dtype, flash, which, options, monkeypatch):
    if not flash:
        monkeypatch.setattr(torch_kernels, "_flash_for_cpu", None)
    tensors = vectors(queries=K, dtype=dtype)
    tensors[which][1, 2, 0, 3] = float("nan")
    found = attend(*tensors, impl="sdpa", **options)
    expected = attend(*tensors, impl="reference", **options)
    lost = expected.lse.isnan() & ~found.lse.isnan()
    assert not lost.any()
    seen = expected.lse.isnan().unsqueeze(-1).expand_as(found.z)
    assert found.z[seen].isnan().all()
    assert bool(found.z.isnan().any())
    # The other sentence sees nothing of it.
    assert bool(found.z[0].isfinite().all())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("where", [slice(None), slice(0, 512), slice(512, None), slice(-1, None)])
@pytest.mark.parametrize("keys", [1, 15, 16, 513, 1301])
def test_keys_that_are_nan_come_out_wherever_the_blocks_of_the_kernel_end(dtype, where, keys):
    query, key, value = vectors(keys=keys, dtype=dtype)
    key[:, :, where] = float("nan")
    found = attend(query, key, value, impl="sdpa")
    rows = key.isnan().any(dim=-1).any(dim=-1, keepdim=True).expand_as(found.lse)
    assert torch.equal(found.lse.isnan(), rows)
    assert torch.equal(found.z.isnan().all(dim=-1), rows)


def test_scores_that_are_nan_from_finite_inputs_come_out():
    query = torch.full((1, 1, 2, 64), 1e25)
    key = torch.full((1, 1, 3, 64), 1e25) * torch.tensor([1.0, -1.0]).repeat(32)
    found = attend(query, key, torch.ones_like(key), impl="sdpa")
    assert found.z.isnan().all()
    assert found.lse.isnan().all()


def test_an_lse_that_is_zero_by_right_stays_zero():
    zeros, value = torch.zeros(1, 1, 1, D), torch.randn(1, 1, 1, D)
    found = attend(zeros, zeros, value, impl="sdpa")
    assert found.lse.item() == 0
    torch.testing.assert_close(found.z, value)


@pytest.mark.parametrize("dtype", ROUNDING)
def test_fused_attention_is_attention(dtype):
    query, key, value = vectors(queries=K, dtype=dtype)
    mask = some_mask(queries=K)
    for options, allowed in (
        ({}, None),
        ({"mask": mask}, mask),
        ({"causal": True}, allowed_by(causal=True, queries=K)),
    ):
        z = fused_attention(query, key, value, scale=0.4, **options)
        expected = by_torch(query, key, value, allowed=allowed, scale=0.4)["z"]
        torch.testing.assert_close(z.double(), expected, rtol=0, atol=ROUNDING[dtype])


@pytest.mark.parametrize("name", VARIATIONS)
def test_gradients_of_z_are_those_of_eager_dead_rows_included(name):
    gradients = []
    for impl in ("sdpa", "eager"):
        tensors = [tensor.requires_grad_() for tensor in vectors()]
        bias = torch.ones(1, H, Q, K, dtype=torch.float64, requires_grad=True)
        z = attend(*tensors, impl=impl, bias=bias, **VARIATIONS[name]).z
        weights = torch.arange(z.numel(), dtype=z.dtype).reshape(z.shape)
        gradients.append(torch.autograd.grad((z * weights).sum(), [*tensors, bias]))
    for fused, explicit in zip(*gradients, strict=True):
        assert fused.isfinite().all()
        torch.testing.assert_close(fused, explicit, rtol=1e-10, atol=1e-10)


def test_lse_of_a_training_pass_carries_no_gradient_and_is_right():
    query, key, value = (tensor.requires_grad_() for tensor in vectors())
    found = attend(query, key, value, impl="sdpa")
    assert found.z.requires_grad
    assert not found.lse.requires_grad
    torch.testing.assert_close(found.lse, by_torch(query, key, value)["lse"].detach())


@given(seed=st.integers(0, 2**16), order=st.permutations(range(H)))
def test_permuting_the_heads_permutes_z(seed, order):
    query, key, value = vectors(seed=seed)
    whole = attend(query, key, value, impl="sdpa").z
    permuted = attend(query[:, order], key[:, order], value[:, order], impl="sdpa").z
    torch.testing.assert_close(permuted, whole[:, order], rtol=1e-14, atol=1e-14)


@given(seed=st.integers(0, 2**16), now=st.integers(0, K - 2))
def test_the_future_does_not_matter_when_causal(seed, now):
    query, key, value = vectors(queries=K, seed=seed)
    before = attend(query, key, value, impl="sdpa", causal=True)
    key[:, :, now + 1 :], value[:, :, now + 1 :] = 1e6, -1e6
    after = attend(query, key, value, impl="sdpa", causal=True)
    torch.testing.assert_close(after.z[:, :, : now + 1], before.z[:, :, : now + 1])
    torch.testing.assert_close(after.lse[:, :, : now + 1], before.lse[:, :, : now + 1])


@given(seed=st.integers(0, 2**16), constant=st.floats(-50, 50))
def test_a_constant_bias_changes_z_nowhere_and_lse_by_itself(seed, constant):
    query, key, value = vectors(seed=seed)
    bias = torch.full((1, 1, 1, K), constant, dtype=torch.float64)
    plain = attend(query, key, value, impl="sdpa")
    moved = attend(query, key, value, impl="sdpa", bias=bias)
    torch.testing.assert_close(moved.z, plain.z, rtol=1e-11, atol=1e-11)
    torch.testing.assert_close(moved.lse, plain.lse + constant, rtol=1e-11, atol=1e-11)


@given(seed=st.integers(0, 2**16), sentence=st.integers(0, B - 1))
def test_a_sentence_does_not_see_the_rest_of_the_batch(seed, sentence):
    query, key, value = vectors(seed=seed)
    one = slice(sentence, sentence + 1)
    whole = attend(query, key, value, impl="sdpa", mask=some_mask()).z[one]
    alone = attend(query[one], key[one], value[one], impl="sdpa", mask=some_mask()[one]).z
    torch.testing.assert_close(alone, whole, rtol=1e-14, atol=1e-14)
    assert whole.shape[-1] == D


@pytest.mark.parametrize("scale", [-0.3, 0.0])
@pytest.mark.parametrize("impl", ["sdpa", "flash", "math", "chunked", "auto"])
def test_a_scale_of_zero_or_below_leaves_the_mask_in_place(impl, scale):
    query, key, value = vectors(dtype=torch.float64)
    query = query[:, :, :1].expand(-1, -1, key.shape[2], -1)
    found = attend(query, key, value, impl=impl, causal=True, scale=scale)
    expected = attend(query, key, value, impl="reference", causal=True, scale=scale)
    torch.testing.assert_close(found.z, expected.z, rtol=0, atol=1e-12)
    torch.testing.assert_close(found.lse, expected.lse, rtol=0, atol=1e-12)
