"""The reference, by numbers that were worked out by hand and by those of a real model."""

import math

import numpy as np
import pytest
import torch
from attention_inputs import vectors
from data import data_path

from minibert.kernels.api import attend
from minibert.kernels.reference import Shaping, attend_one_query, softmax


@pytest.mark.parametrize(
    ("scores", "right", "lse"),
    [
        (np.log([1.0, 2.0, 5.0]), [1 / 8, 2 / 8, 5 / 8], math.log(8)),
        # Beyond the range of exp.
        ([10_000.0, 10_000.0, -10_000.0], [0.5, 0.5, 0.0], 10_000 + math.log(2)),
    ],
)
def test_softmax_is_what_is_worked_out_by_hand(scores, right, lse):
    probs, found = softmax(np.array(scores))
    np.testing.assert_allclose(probs, right, rtol=1e-15)
    assert found == pytest.approx(lse, rel=1e-15)


def test_one_query_worked_by_hand_and_one_without_a_key():
    query, keys = np.array([2 * math.log(3), 0.0, 50.0]), np.eye(3)
    values = np.array([[1.0, 0.0], [0.0, 1.0], [100.0, 100.0]])
    shaping = Shaping(0.5, np.zeros(3))
    allowed = np.array([True, True, False])
    scores, probs, lse, z = attend_one_query(query, keys, values, allowed=allowed, shaping=shaping)
    np.testing.assert_allclose(scores, [math.log(3), 0, 25])
    np.testing.assert_allclose(probs, [0.75, 0.25, 0])
    np.testing.assert_allclose(z, [0.75, 0.25])
    assert lse == pytest.approx(math.log(4))
    nothing = np.zeros(3, dtype=bool)
    _, probs, lse, z = attend_one_query(query, keys, values, allowed=nothing, shaping=shaping)
    assert [*probs, *z, lse] == [0, 0, 0, 0, 0, -math.inf]


def test_a_row_that_is_nan_has_an_entropy_that_is_nan():
    query, key, value = vectors()
    query[1, 2, 3, 0] = float("nan")
    entropy = attend(query, key, value, impl="reference", want=("entropy",)).statistics.entropy
    assert entropy.isnan().nonzero().tolist() == [[1, 2, 3]]


def test_reference_gives_the_attention_of_the_real_gpt2_from_its_queries_and_keys():
    path = data_path("refs", "gpt2__apples_qk.npz")
    with np.load(path, allow_pickle=False) as arrays:
        query, key, attn = (torch.from_numpy(arrays[n]) for n in ("queries", "keys", "attn"))
    options = {"causal": True, "scale": 1 / 8, "want": ("probs",)}
    for impl in ("reference", "eager"):
        found = attend(query, key, torch.zeros_like(key), impl=impl, **options)
        assert float((found.probs - attn).abs().max()) < 1e-6
