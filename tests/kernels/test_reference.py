import math

import numpy as np
import pytest
import torch
from attention_inputs import (
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


def test_a_row_that_is_nan_has_an_entropy_that_is_nan():
    query, key, value = vectors()
    query[1, 2, 3, 0] = float("nan")
    entropy = attend(query, key, value, impl="reference", want=("entropy",)).statistics.entropy
    assert entropy.isnan().nonzero().tolist() == [[1, 2, 3]]


def test_reference_gives_the_attention_of_the_real_gpt2_from_its_queries_and_keys():
    path = data_path("refs", "gpt2__apples_qk.npz")
    with np.load(path, allow_pickle=False) as arrays:
        query, key, attn = (torch.from_numpy(arrays[n]) for n in ("queries", "keys", "attn"))
    for impl in ("reference", "eager"):
        found = attend(
            query, key, torch.zeros_like(key), causal=True, scale=1 / 8, impl=impl, want=("probs",)
        )
        assert float((found.probs - attn).abs().max()) < 1e-6
