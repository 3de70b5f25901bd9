import math

import numpy as np
import pytest
import torch
from attention_inputs import (
    EVERYTHING,
    OF_TENSORS,
    VARIATIONS,
    B,
    H,
    K,
    Q,
    allowed_by,
    by_torch,
    vectors,
)
from data import data_path

from minibert.kernels.api import attend
from minibert.kernels.reference import Shaping, attend_one_query, softmax


def test_softmax_of_logarithms_gives_the_numbers_they_came_from():
    probs, lse = softmax(np.log(np.array([1.0, 2.0, 5.0])))
    np.testing.assert_allclose(probs, [1 / 8, 2 / 8, 5 / 8], rtol=1e-15)
    assert lse == pytest.approx(math.log(8), rel=1e-15)


def test_softmax_of_scores_beyond_the_range_of_exp_stays_finite():
    probs, lse = softmax(np.array([10_000.0, 10_000.0, -10_000.0]))
    assert probs.tolist() == [0.5, 0.5, 0.0]
    assert lse == pytest.approx(10_000 + math.log(2))


def test_one_query_worked_by_hand():
    keys, values = np.eye(3), np.array([[1.0, 0.0], [0.0, 1.0], [100.0, 100.0]])
    scores, probs, lse, z = attend_one_query(
        np.array([2 * math.log(3), 0.0, 50.0]),
        keys,
        values,
        allowed=np.array([True, True, False]),
        shaping=Shaping(0.5, np.zeros(3)),
    )
    np.testing.assert_allclose(scores, [math.log(3), 0, 25])
    np.testing.assert_allclose(probs, [0.75, 0.25, 0])
    np.testing.assert_allclose(z, [0.75, 0.25])
    assert lse == pytest.approx(math.log(4))


def test_a_query_without_an_allowed_key_sees_nothing():
    _, probs, lse, z = attend_one_query(
        np.ones(2),
        np.ones((3, 2)),
        np.ones((3, 2)),
        allowed=np.zeros(3, dtype=bool),
        shaping=Shaping(1.0, np.zeros(3)),
    )
    assert probs.tolist() == [0, 0, 0]
    assert z.tolist() == [0, 0]
    assert lse == -math.inf


@pytest.mark.parametrize("name", VARIATIONS)
@pytest.mark.parametrize("with_bias", [False, True])
def test_reference_agrees_with_torch_in_float64(name, with_bias):
    query, key, value = vectors()
    bias = torch.randn(1, H, Q, K, dtype=torch.float64) if with_bias else None
    options = VARIATIONS[name]
    found = attend(
        query, key, value, impl="reference", want=("scores", "probs"), bias=bias, **options
    )
    expected = by_torch(query, key, value, allowed=allowed_by(**options), bias=bias)
    for output, numbers in expected.items():
        torch.testing.assert_close(getattr(found, output), numbers, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("queries", [1, 5, 7, 11])
def test_causal_order_is_aligned_to_the_end_whatever_the_number_of_queries(queries):
    query, key, value = vectors(queries=queries)
    found = attend(query, key, value, impl="reference", causal=True)
    allowed = allowed_by(causal=True, queries=queries)
    torch.testing.assert_close(found.z, by_torch(query, key, value, allowed=allowed)["z"])


def test_new_queries_beside_a_cache_see_what_they_saw_in_the_whole_text():
    query, key, value = vectors(queries=K)
    whole = attend(query, key, value, impl="reference", causal=True)
    newest = attend(query[:, :, -2:], key, value, impl="reference", causal=True)
    assert torch.equal(newest.z, whole.z[:, :, -2:])


def test_statistics_are_what_numpy_makes_of_the_probs():
    query, key, value = vectors(queries=K)
    lengths = torch.tensor([4, 0])
    found = attend(query, key, value, impl="reference", lengths=lengths, want=EVERYTHING)
    probs, statistics = found.probs.numpy(), found.statistics
    logs = np.log(np.where(probs > 0, probs, 1))
    np.testing.assert_allclose(statistics.entropy, -(probs * logs).sum(-1), atol=1e-15)
    np.testing.assert_array_equal(statistics.max_prob, probs.max(-1))
    np.testing.assert_array_equal(statistics.key_mass, probs[..., [0, 3]])
    np.testing.assert_allclose(statistics.received[0], probs[0, :, :4].sum(axis=1))
    np.testing.assert_array_equal(statistics.received[1], np.zeros((H, K)))
    np.testing.assert_array_equal(statistics.argmax[0], probs[0].argmax(-1))
    np.testing.assert_array_equal(statistics.argmax[1], np.full((H, K), -1))
    for column, offset in enumerate((-2, 0, 1)):
        diagonal = np.diagonal(probs, offset, axis1=2, axis2=3)
        rows = np.arange(K)[max(0, -offset) : K - max(0, offset)]
        np.testing.assert_array_equal(statistics.offset_mass[:, :, rows, column], diagonal)
    assert statistics.row_max[1].isneginf().all()
    torch.testing.assert_close(statistics.row_max[0], found.scores[0, ..., :4].amax(-1))


def test_what_is_asked_with_tensors_is_a_product_a_choice_and_sums_of_diagonals():
    query, key, value = vectors()
    lengths = torch.tensor([4, K])
    want = ("probs", *OF_TENSORS)
    for impl in ("reference", "eager"):
        found = attend(query, key, value, impl=impl, lengths=lengths, want=want)
        probs, statistics = found.probs, found.statistics
        torch.testing.assert_close(statistics.key_sums, probs @ OF_TENSORS[0][1])
        pairs = [[4, 0], [0, 0], [2, 6], [4, 0]]
        for number, (i, j) in enumerate(pairs):
            torch.testing.assert_close(statistics.pair_mass[..., number], probs[..., i, j])
        assert statistics.pair_mass[..., len(pairs) :].eq(0).all()
        for number, offset in enumerate(range(1 - K, Q)):
            diagonal = probs.diagonal(K - Q + offset, 2, 3).sum(-1)
            torch.testing.assert_close(statistics.profile[..., number], diagonal)


def test_a_row_that_is_nan_has_an_entropy_that_is_nan():
    query, key, value = vectors()
    query[1, 2, 3, 0] = float("nan")
    entropy = attend(query, key, value, impl="reference", want=("entropy",)).statistics.entropy
    assert entropy.isnan().nonzero().tolist() == [[1, 2, 3]]


def test_map_is_the_mean_over_the_real_cells_of_each_block():
    query, key, value = vectors(queries=K)
    lengths = torch.tensor([4, K])
    found = attend(query, key, value, impl="reference", lengths=lengths, want=("probs", ("map", 3)))
    means = found.statistics.map
    assert means.shape == (B, H, 3, 3)
    torch.testing.assert_close(means[0, :, 0, 1], found.probs[0, :, :3, 3:4].mean((-2, -1)))
    torch.testing.assert_close(means[1, :, 2, 0], found.probs[1, :, 6:, :3].mean((-2, -1)))
    assert means[0, :, 2].eq(0).all()


def test_reference_gives_the_attention_of_the_real_gpt2_from_its_queries_and_keys():
    path = data_path("refs", "gpt2__apples_qk.npz")
    with np.load(path, allow_pickle=False) as arrays:
        query, key, attn = (torch.from_numpy(arrays[n]) for n in ("queries", "keys", "attn"))
    for impl in ("reference", "eager"):
        found = attend(
            query, key, torch.zeros_like(key), causal=True, scale=1 / 8, impl=impl, want=("probs",)
        )
        assert float((found.probs - attn).abs().max()) < 1e-6
