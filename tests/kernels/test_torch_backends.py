"""torch's back ends and FlexAttention by name: right where they run, an error where they do not."""

import pytest
import torch

from minibert.errors import AttentionError
from minibert.kernels.api import attend, implementations
from minibert.kernels.check.cases import KINDS
from minibert.kernels.check.parity import check

SQUARE = ("plain", "strided", "scale", "causal")
# FlexAttention without a compiler is slow: what differs in how its mask and scores are made.
FLEX = ("plain", "scale", "mask", "causal cache", "causal lengths", "bias")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("name", "kinds", "scales"),
    [("flash", SQUARE, (1.0, 30.0)), ("math", tuple(KINDS), (1.0, 30.0)), ("flex", FLEX, (1.0,))],
)
def test_a_back_end_that_runs_on_a_cpu_is_right(name, kinds, scales, dtype):
    report = check(name, sizes=(17,), input_scales=scales, dtypes=(dtype,), kinds=kinds)
    assert report.ok, str(report)
    assert {finding.output for finding in report.findings} == {"z", "z, mean", "lse"}
    assert not report.skipped


@pytest.mark.parametrize("name", ["cudnn", "efficient"])
def test_a_back_end_that_is_not_here_is_an_error_that_names_another(name):
    query, key, value = torch.randn(3, 2, 3, 5, 8, dtype=torch.float16).unbind()
    with pytest.raises(AttentionError, match=f'impl="{name}" cannot do this: it runs on cuda'):
        attend(query, key, value, impl=name)


def test_flash_takes_no_mask_and_says_so():
    query, key, value = torch.randn(3, 2, 3, 5, 8).unbind()
    with pytest.raises(AttentionError, match='impl="flash" cannot do this: it takes no lengths'):
        attend(query, key, value, lengths=torch.tensor([5, 3]), impl="flash")


def test_flash_is_causal_for_as_many_queries_as_keys_alone():
    query, (key, value) = torch.randn(2, 3, 5, 8), torch.randn(2, 2, 3, 7, 8).unbind()
    with pytest.raises(AttentionError, match="there are 5 and 7"):
        attend(query, key, value, causal=True, impl="flash")
    last = attend(query[:, :, :1], key, value, causal=True, impl="flash")
    right = attend(query[:, :, :1], key, value, causal=True, impl="eager")
    torch.testing.assert_close(last.z, right.z)


def test_auto_never_takes_one_of_them():
    named = {"flash", "cudnn", "efficient", "math", "flex"}
    assert all(implementations()[name].rank is None for name in named)
