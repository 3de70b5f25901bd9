"""Sums over queries against whole matrices, in NumPy float64."""

from dataclasses import replace
from random import Random

import numpy as np
import pytest
import torch
from attention_inputs import B, D, H, K, Q, some_mask, vectors
from calls_by_hand import Units, truth
from drawn_calls import Drawn, drawn
from hypothesis import given, settings
from hypothesis import strategies as st

from minibert.errors import AttentionError
from minibert.kernels import blocks, work_memory
from minibert.kernels.api import attend
from minibert.kernels.columns import COLUMNS, column_sums

FUNCTIONS = {
    "probs": lambda probs, slopes: probs,
    "relevance": lambda probs, slopes: probs * slopes,
    "positive_relevance": lambda probs, slopes: np.maximum(probs * slopes, 0),
    "absolute_relevance": lambda probs, slopes: np.abs(probs * slopes),
}
TAKEN = {"lengths", "mask", "causal", "window", "scale", "soft_cap", "bias"}


def call_of(seed: int, dtype: torch.dtype) -> Drawn:
    """A drawn call of whole sentences, with the options that `column_sums` takes."""
    random = Random(seed)
    call = drawn(random, dtype)
    while {"packed", "pages"} & call.options.keys():
        call = drawn(random, dtype)
    return replace(call, options={n: x for n, x in call.options.items() if n in TAKEN})


@pytest.mark.parametrize("of", COLUMNS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32), cells=st.sampled_from([1, 40]))
def test_sums_are_those_of_whole_matrices(of, dtype, seed, cells):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(work_memory, "CELLS", cells)
        patch.setattr(work_memory, "LEAST_ROWS", 2)
        check_sums(of, dtype, seed)


def check_sums(of, dtype, seed):
    call, wide = call_of(seed, dtype), torch.promote_types(dtype, torch.float32)
    generator, (B, H, Q, _) = torch.Generator().manual_seed(seed), call.query.shape
    z_gradient = torch.randn(B, H, Q, call.value.shape[3], generator=generator).to(dtype)
    heads = Random(seed).choice((1, H))
    weights = torch.randn(B, heads, Q, generator=generator).to(wide)
    eps = torch.finfo(wide).eps
    right = truth(call, Units(eps, eps, eps, eps, eps))
    lse = torch.from_numpy(right.lse).to(wide) if seed % 2 else None
    more = {"value": call.value, "z_gradient": z_gradient, "weights": weights, "lse": lse}
    found = column_sums(call.query, call.key, of=of, **more, **call.options)
    values, dz = (one.double().numpy() for one in (call.value, z_gradient))
    values = np.repeat(values, H // values.shape[1], axis=1)
    slopes = np.einsum("bhqd,bhkd->bhqk", dz, values)
    largest = np.einsum("bhqd,bhkd->bhqk", np.abs(dz), np.abs(values))
    factors = weights.double().numpy()[..., None]
    expected = (FUNCTIONS[of](right.probs, slopes) * factors).sum(2)
    # A prob and a slope are each rounded, and so is the sum of the products.
    most = largest if of != "probs" else 1.0
    bound = 2 * (right.probs_bound + (values.shape[3] + Q + 4) * eps * right.probs) * most
    assert found.dtype == wide
    off = np.abs(found.double().numpy() - expected)
    assert (off <= (bound * np.abs(factors)).sum(2) + eps).all(), call


def test_only_rows_between_the_first_and_the_last_weight_are_computed(monkeypatch):
    computed = []
    whole = blocks.Part.blocks

    def watched(part, rows):
        for block in whole(part, rows):
            computed.append((block.rows.start, block.rows.stop))
            yield block

    monkeypatch.setattr(blocks.Part, "blocks", watched)
    query, key, _ = vectors(queries=K)
    weights = torch.zeros(B, 1, K, dtype=torch.float64)
    assert not column_sums(query, key, weights=weights).any()
    assert not computed
    weights[:, :, 3] = 2.0
    found = column_sums(query, key, weights=weights)
    assert computed == [(3, 4)]
    probs = attend(query, key, key, want=("probs",)).probs
    torch.testing.assert_close(found, 2 * probs[:, :, 3])


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"of": "prob"}, "of='prob': expected one of 'probs', 'relevance'"),
        ({"of": "relevance"}, "without value: expected value and z_gradient"),
        ({"of": "relevance", "value": torch.ones(B, H, K, D).double()}, "without z_gradient"),
        (
            {"weights": torch.ones(B, Q)},
            r"weights has shape \(2, 5\); expected \(2, 3, 5\) or \(2, 1, 5\), a number for each "
            r"query\. The same for every head: weights\[:, None\]",
        ),
        (
            {"weights": torch.ones(B, H, K)},
            r"weights has shape \(2, 3, 7\).*a number for each",
        ),
        (
            {"weights": torch.ones(B, H, Q).long()},
            r"weights is torch.int64; expected a floating dtype.*weights.to\(query.dtype\)",
        ),
        ({"weights": [1.0]}, r"weights is a list; .*torch.as_tensor\(weights\)"),
        ({"lse": torch.ones(B, 1, Q)}, r"lse has shape \(2, 1, 5\); expected \(2, 3, 5\)"),
        (
            {"z_gradient": torch.ones(B, H, K, D)},
            r"z_gradient has shape \(2, 3, 7, 11\); expected \(2, 3, 5, 11\), that of z",
        ),
        ({"mask": some_mask().float()}, "mask is torch.float32"),
    ],
)
@pytest.mark.usefixtures("as_for_users")
def test_what_does_not_fit_is_refused(wrong, message):
    query, key, _ = vectors()
    with pytest.raises(AttentionError, match=message):
        column_sums(query, key, **wrong)
