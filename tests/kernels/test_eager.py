import math

import pytest
import torch
from attention_inputs import (
    EVERYTHING,
    STATISTICS,
    VARIATIONS,
    B,
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

from minibert.kernels.api import Attended, attend
from minibert.kernels.eager import attention_probs, attention_scores, weighted_values


def outputs(found: Attended) -> dict[str, torch.Tensor]:
    statistics = vars(found.statistics) if found.statistics else {}
    own = {name: getattr(found, name) for name in ("z", "lse", "scores", "probs")}
    return {name: one for name, one in (own | statistics).items() if one is not None}


@pytest.mark.parametrize("name", VARIATIONS)
@pytest.mark.parametrize("queries", [1, Q, K])
def test_eager_gives_everything_the_reference_gives(name, queries):
    query, key, value = vectors(queries=queries)
    options = dict(VARIATIONS[name])
    if "mask" in options:
        options["mask"] = some_mask(queries=queries) if queries > 1 else None
    bias = torch.randn(B, 1, queries, K, dtype=torch.float64)
    options["bias"] = bias
    found = outputs(attend(query, key, value, impl="eager", want=EVERYTHING, **options))
    expected = outputs(attend(query, key, value, impl="reference", want=EVERYTHING, **options))
    assert found.keys() == expected.keys()
    for output, numbers in expected.items():
        torch.testing.assert_close(
            found[output], numbers, rtol=1e-13, atol=1e-13, check_dtype=False, msg=output
        )


@given(
    seed=st.integers(0, 2**32),
    queries=st.sampled_from([1, 2, 5, 7, 13]),
    keys=st.sampled_from([1, 2, 5, 7, 13]),
    size=st.sampled_from([0.1, 1.0, 100.0]),
    dtype=st.sampled_from([torch.float16, torch.bfloat16, torch.float32, torch.float64]),
)
def test_rows_sum_to_one_and_masked_cells_and_dead_rows_are_zero(seed, queries, keys, size, dtype):
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randn(B, H, queries, keys, generator=generator).mul(size).to(dtype)
    mask = torch.rand(B, 1, queries, keys, generator=generator) < 0.5
    probs = attention_probs(scores, mask)
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


@given(seed=st.integers(0, 2**32), constant=st.floats(-50, 50))
def test_adding_a_constant_to_a_row_of_scores_changes_no_prob(seed, constant):
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randn(B, H, Q, K, generator=generator, dtype=torch.float64)
    mask = some_mask()
    torch.testing.assert_close(
        attention_probs(scores + constant, mask), attention_probs(scores, mask)
    )


@given(seed=st.integers(0, 2**16), order=st.permutations(range(H)))
def test_permuting_the_heads_permutes_z(seed, order):
    query, key, value = vectors(seed=seed)
    whole = attend(query, key, value, impl="eager").z
    permuted = attend(query[:, order], key[:, order], value[:, order], impl="eager").z
    torch.testing.assert_close(permuted, whole[:, order], rtol=1e-14, atol=1e-14)


@given(seed=st.integers(0, 2**16), sentence=st.integers(0, B - 1))
def test_a_sentence_does_not_see_the_rest_of_the_batch(seed, sentence):
    query, key, value = vectors(seed=seed)
    one = slice(sentence, sentence + 1)
    whole = attend(query, key, value, impl="eager", mask=some_mask()).z[one]
    alone = attend(query[one], key[one], value[one], impl="eager", mask=some_mask()[one]).z
    torch.testing.assert_close(alone, whole, rtol=1e-14, atol=1e-14)


@given(seed=st.integers(0, 2**16), now=st.integers(0, K - 2))
def test_the_future_does_not_matter_when_causal(seed, now):
    query, key, value = vectors(queries=K, seed=seed)
    before = attend(query, key, value, impl="eager", causal=True).z
    key[:, :, now + 1 :], value[:, :, now + 1 :] = 1e6, -1e6
    after = attend(query, key, value, impl="eager", causal=True).z
    assert torch.equal(after[:, :, : now + 1], before[:, :, : now + 1])


def test_padding_holds_no_power_even_when_it_is_nan_free_garbage():
    query, key, value = vectors()
    lengths = torch.tensor([4, 2])
    before = attend(query, key, value, impl="eager", lengths=lengths)
    for b, length in enumerate(lengths.tolist()):
        key[b, :, length:], value[b, :, length:] = 1e30, 1e30
    after = attend(query, key, value, impl="eager", lengths=lengths)
    assert torch.equal(after.z, before.z)
    assert torch.equal(after.lse, before.lse)


def test_scores_are_left_as_they_were():
    query, key, _ = vectors()
    scores = attention_scores(query, key, scale=0.3)
    before = scores.clone()
    attention_probs(scores, some_mask())
    attention_probs(scores, None)
    assert torch.equal(scores, before)


def test_large_half_precision_scores_do_not_overflow():
    query = torch.full((1, 1, 1, 64), 60.0, dtype=torch.float16)
    scores = attention_scores(query, query, scale=1 / 8)
    assert scores.item() == 60 * 60 * 64 / 8


@pytest.mark.parametrize("name", VARIATIONS)
def test_gradients_are_those_of_finite_differences(name):
    query, key, value = (tensor.requires_grad_() for tensor in vectors())
    bias = torch.randn(1, H, Q, K, dtype=torch.float64, requires_grad=True)
    want = [item for item in EVERYTHING if item != "argmax"]

    def everything(query, key, value, bias):
        found = attend(query, key, value, impl="eager", bias=bias, want=want, **VARIATIONS[name])
        # The −inf of dead rows has no gradient; finite differences of it are NaN.
        return tuple(one[one.isfinite()] for one in outputs(found).values())

    assert torch.autograd.gradcheck(everything, (query, key, value, bias), fast_mode=True)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_types_round_the_outputs_and_keep_statistics_in_float32(dtype):
    query, key, value = vectors(dtype=dtype)
    found = outputs(attend(query, key, value, impl="eager", want=EVERYTHING))
    assert {found[name].dtype for name in ("z", "scores", "probs")} == {dtype}
    assert {found[name].dtype for name in ("lse", "entropy", "received")} == {torch.float32}
    expected = by_torch(query, key, value)
    torch.testing.assert_close(found["z"].double(), expected["z"], rtol=0.02, atol=0.02)


def test_entropy_spans_certainty_to_the_logarithm_of_the_number_of_keys():
    key = torch.eye(4, dtype=torch.float64)[None, None]
    equal = attend(torch.zeros_like(key), key, key, impl="eager", want=("entropy",))
    torch.testing.assert_close(
        equal.statistics.entropy, torch.full((1, 1, 4), math.log(4), dtype=torch.float64)
    )
    certain = attend(key * 5000, key, key, impl="eager", want=("entropy",))
    assert certain.statistics.entropy.eq(0).all()


def test_offset_mass_of_a_query_beside_a_cache_counts_from_its_own_position():
    query, key, value = vectors(queries=2)
    found = attend(query, key, value, causal=True, impl="eager", want=("probs", "offset_mass"))
    offsets = found.statistics.offset_mass
    torch.testing.assert_close(offsets[:, :, 0, 1], found.probs[:, :, 0, K - 2])
    torch.testing.assert_close(offsets[:, :, 1, 0], found.probs[:, :, 1, K - 2])
    assert offsets[:, :, :, 2].eq(0).all()


def test_the_three_steps_together_are_attention():
    query, key, value = vectors()
    allowed = allowed_by(mask=some_mask())
    probs = attention_probs(attention_scores(query, key, scale=0.2), allowed)
    expected = by_torch(query, key, value, allowed=allowed, scale=0.2)
    torch.testing.assert_close(probs, expected["probs"])
    torch.testing.assert_close(weighted_values(probs, value), expected["z"])


def test_statistics_alone_are_the_same_as_with_the_matrices():
    query, key, value = vectors()
    alone = outputs(attend(query, key, value, impl="eager", want=STATISTICS))
    beside = outputs(attend(query, key, value, impl="eager", want=EVERYTHING))
    assert set(beside) - set(alone) == {"scores", "probs"}
    assert all(torch.equal(alone[name], beside[name]) for name in alone)
