"""Sums over queries against whole matrices, in NumPy float64."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from attention_inputs import VARIATIONS, B, D, H, K, Q, allowed_by, some_mask, vectors

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


def by_numpy(query, key, value, z_gradient, *, of, allowed, bias=None, weights=None, scale=None):
    query, key, value, z_gradient = (
        each.double().numpy() for each in (query, key, value, z_gradient)
    )
    scale = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    scores = scale * np.einsum("bhqd,bhkd->bhqk", query, key)
    if bias is not None:
        scores = scores + bias.double().numpy()
    seen = np.exp(scores - scores.max(-1, keepdims=True)) * allowed.numpy()
    total = seen.sum(-1, keepdims=True)
    probs = np.divide(seen, total, out=np.zeros_like(seen), where=total > 0)
    slopes = np.einsum("bhqd,bhkd->bhqk", z_gradient, value)
    cells = FUNCTIONS[of](probs, slopes)
    counted = np.ones((B, 1, query.shape[2])) if weights is None else weights.double().numpy()
    return np.einsum("bhqk,bhq->bhk", cells, np.broadcast_to(counted, cells.shape[:3]))


def inputs(queries: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> list[Any]:
    z_gradient = vectors(queries=queries, seed=seed + 1, dtype=dtype)[0]
    return [*vectors(queries=queries, seed=seed, dtype=dtype), z_gradient]


@pytest.mark.parametrize("of", COLUMNS)
@pytest.mark.parametrize("name", VARIATIONS)
@pytest.mark.parametrize(
    ("impl", "given", "cells"),
    [("chunked", True, 1), ("chunked", False, 40), ("triton", False, 1)],
)
def test_sums_are_those_of_whole_matrices(of, name, impl, given, cells, monkeypatch):
    monkeypatch.setattr(work_memory, "CELLS", cells)
    monkeypatch.setattr(work_memory, "LEAST_ROWS", 2)
    dtype = torch.float64 if impl == "chunked" else torch.float32
    if impl == "triton":
        pytest.importorskip("triton")
    query, key, value, z_gradient = inputs(Q, dtype=dtype)
    bias = torch.randn(1, H, Q, K, dtype=dtype)
    weights = torch.randn(B, H, Q, dtype=dtype)
    options = VARIATIONS[name]
    lse = attend(query, key, value, bias=bias, **options).lse if given else None
    more = {"value": value, "z_gradient": z_gradient, "lse": lse, "weights": weights}
    found = column_sums(query, key, bias=bias, of=of, impl=impl, **more, **options)
    allowed = allowed_by(**options)
    expected = by_numpy(
        query, key, value, z_gradient, of=of, allowed=allowed, bias=bias, weights=weights
    )
    atol = 1e-13 if impl == "chunked" else 2e-5
    np.testing.assert_allclose(found.numpy(), expected, rtol=0, atol=atol)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_narrow_inputs_are_summed_in_float32(dtype):
    query, key, value, z_gradient = inputs(K, dtype=dtype)
    weights = torch.rand(B, 1, K)
    found = column_sums(
        query, key, value=value, z_gradient=z_gradient, weights=weights, of="relevance"
    )
    allowed = torch.ones(B, H, K, K, dtype=torch.bool)
    expected = by_numpy(
        query, key, value, z_gradient, of="relevance", allowed=allowed, weights=weights
    )
    assert found.dtype == torch.float32
    np.testing.assert_allclose(found.double().numpy(), expected, rtol=0, atol=2e-5)


def test_only_rows_between_the_first_and_the_last_weight_are_computed(monkeypatch):
    computed = []
    whole = blocks.Part.blocks

    def watched(part, rows):
        for block in whole(part, rows):
            computed.append((block.rows.start, block.rows.stop))
            yield block

    monkeypatch.setattr(blocks.Part, "blocks", watched)
    query, key, _, _ = inputs(K)
    weights = torch.zeros(B, 1, K, dtype=torch.float64)
    assert not column_sums(query, key, weights=weights).any()
    assert not computed
    weights[:, :, 3] = 2.0
    found = column_sums(query, key, weights=weights)
    assert computed == [(3, 4)]
    probs = attend(query, key, key, want=("probs",)).probs
    torch.testing.assert_close(found, 2 * probs[:, :, 3])


def test_without_weights_every_query_counts_and_columns_add_up_to_their_number():
    query, key, _, _ = inputs(K)
    sums = column_sums(query.requires_grad_(), key, lengths=torch.tensor([K - 2, 3]))
    torch.testing.assert_close(sums.sum(-1), torch.full((B, H), float(K), dtype=torch.float64))
    assert not sums[1, :, 3:].any()
    assert not sums.requires_grad


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
        ({"weights": torch.ones(B, H, Q).to_sparse()}, r"weights is sparse.*weights.to_dense\(\)"),
        ({"weights": torch.ones(B, H, Q, device="meta")}, "weights is on meta.*query on cpu"),
        ({"lse": torch.ones(B, 1, Q)}, r"lse has shape \(2, 1, 5\); expected \(2, 3, 5\)"),
        (
            {"z_gradient": torch.ones(B, H, K, D)},
            r"z_gradient has shape \(2, 3, 7, 11\); expected \(2, 3, 5, 11\), that of z",
        ),
        ({"impl": "fast"}, 'impl is \'fast\'; expected one of "auto", "chunked", "triton"'),
        ({"impl": None}, "impl is None; expected one of .*Leave it out"),
        ({"impl": "triton"}, 'impl="triton" cannot do this: .*impl="chunked" can'),
        ({"lengths": torch.tensor([1, 99])}, "lengths holds"),
        ({"scale": math.inf}, "scale is inf"),
        ({"mask": some_mask().float()}, "mask is torch.float32"),
    ],
)
@pytest.mark.usefixtures("as_for_users")
def test_what_does_not_fit_is_refused(wrong, message):
    query, key, _, _ = inputs(Q)
    with pytest.raises(AttentionError, match=message):
        column_sums(query, key, **wrong)


@pytest.mark.parametrize("of", ["probs", "relevance"])
def test_autocast_changes_nothing(of):
    query, key, value, z_gradient = torch.randn(4, 1, 2, 90, 16).unbind()
    given = {"value": value, "z_gradient": z_gradient, "of": of, "impl": "chunked"}
    expected = column_sums(query, key, **given)
    with torch.autocast("cpu", torch.bfloat16):
        found = column_sums(query, key, **given)
    assert found.dtype == torch.float32
    assert torch.equal(found, expected)
