"""mean_error.py: what stays within the largest error that rounding allows shows in the mean."""

import re

import pytest
import torch

from minibert.kernels.check.parity import check


def attention(query, key, value, *, scale=None, keys=None):
    """In float32, rounded to the type of the inputs at its end alone."""
    query, key, value = query.float(), key[:, :, :keys].float(), value[:, :, :keys].float()
    scores = query @ key.mT * (query.shape[-1] ** -0.5 if scale is None else scale)
    return scores.softmax(dim=-1) @ value


def summed_in_bfloat16(query, key, value):
    probs = (query.float() @ key.float().mT / query.shape[-1] ** 0.5).softmax(dim=-1)
    z = torch.zeros_like(query)
    for place in range(key.shape[2]):
        z += probs[..., place, None].bfloat16() * value[:, :, place, None]
    return z


@pytest.mark.parametrize(
    ("slip", "size", "cause"),
    [
        (lambda *qkv: attention(*qkv, scale=63**-0.5), 130, "it behaves as 1/sqrt"),
        (lambda *qkv: 1.01 * attention(*qkv), 17, r"everywhere about 1\.01 times"),
        (lambda *qkv: attention(*qkv) + 0.02, 17, r"about 0\.02 is added everywhere"),
        (lambda *qkv: attention(*qkv, keys=-1), 130, "the last key is not seen"),
        (summed_in_bfloat16, 130, "in too few digits"),
    ],
)
def test_small_slips_show_in_bfloat16(slip, size, cause):
    def kernel(query, key, value):
        return slip(query, key, value).to(query.dtype)

    def right(query, key, value):
        return attention(query, key, value).to(query.dtype)

    few = {"sizes": (size,), "input_scales": (1.0,), "kinds": ("plain",)}
    assert check(right, dtypes=(torch.bfloat16,), **few).ok
    report = check(kernel, dtypes=(torch.bfloat16,), **few)
    assert re.search(cause, report.causes[0]), report.causes


def test_what_differs_when_it_is_called_again_is_named_so():
    calls = []

    def unsteady(query, key, value, *, scale):
        calls.append(len(calls))
        factor = 1.01 if len(calls) % 7 == 0 else 1.0
        return attention(query, key, value, scale=scale) * factor

    report = check(unsteady, sizes=(17, 65), dtypes=(torch.float32,), kinds=("plain",))
    assert "another result when it is called again with the same inputs" in report.causes[0]
