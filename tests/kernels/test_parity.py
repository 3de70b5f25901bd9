import math
import re

import pytest
import torch

from minibert.errors import AttentionError
from minibert.kernels.check.cases import Case
from minibert.kernels.check.parity import check
from minibert.kernels.check.report import ParityReport
from minibert.kernels.check.tolerances import floors

FEW = {"sizes": (1, 17), "dtypes": (torch.float32,)}


def right(query, key, value, *, scale, mask=None):
    scores = query @ key.transpose(-2, -1) * scale
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf)
    return scores.softmax(dim=-1).nan_to_num(0.0) @ value


@pytest.mark.parametrize("name", ["eager", "sdpa"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_every_implementation_of_ours_is_right(name, dtype):
    report = check(name, sizes=(1, 33), input_scales=(1.0, 30.0), dtypes=(dtype,))
    assert report.ok, str(report)
    assert not report.skipped


def test_the_reference_passes_its_own_check():
    assert check("reference", sizes=(17,), dtypes=(torch.float32,)).ok


def test_a_right_kernel_of_a_user_is_right_and_what_it_does_not_take_is_said():
    report = check(right, **FEW)
    assert report.ok, str(report)
    assert {finding.output for finding in report.findings} == {"z", "z, mean"}
    assert report.skipped == ("bias in float32: it takes no bias",)
    assert str(report).startswith("right: right; ")
    assert "not covered: bias" in str(report)


def test_a_mask_that_is_missing_on_the_last_block_is_caught():
    def leaky(query, key, value, *, scale, lengths=None):
        mask = None
        if lengths is not None:
            columns = torch.arange(key.shape[2])
            last_block = columns >= key.shape[2] // 64 * 64
            mask = (columns < lengths[:, None, None, None]) | last_block
        return right(query, key, value, scale=scale, mask=mask)

    report = check(leaky, sizes=(65,), dtypes=(torch.float32,))
    assert not report.ok
    assert all(failure.case.startswith("lengths") for failure in report.failures)
    assert "the mask is missing on the last block" in report.causes[0]


def test_lengths_rounded_up_to_a_block_are_caught():
    def rounded(query, key, value, *, scale, lengths=None):
        if lengths is None:
            return right(query, key, value, scale=scale)
        edge = (lengths + 63) // 64 * 64
        mask = torch.arange(key.shape[2]) < edge[:, None, None, None]
        return right(query, key, value, scale=scale, mask=mask)

    report = check(rounded, sizes=(130,), dtypes=(torch.float32,))
    assert "rounded up to blocks of 64 keys" in report.causes[0]


def test_a_stale_output_is_caught():
    kept = {}

    def stale(query, key, value, *, scale, mask=None):
        return kept.setdefault(query.shape, right(query, key, value, scale=scale, mask=mask))

    report = check(stale, **FEW)
    assert not report.ok
    assert "stale output" in report.causes[0]
    assert "stale output" in str(report)


@pytest.mark.parametrize(
    ("factor", "named"),
    [
        (lambda d_head, scale: 1 / d_head, "1/d_head"),
        (lambda d_head, scale: 1.0, "the scale is left out"),
        (lambda d_head, scale: 1 / math.sqrt(d_head), "`scale` is ignored"),
        (lambda d_head, scale: scale * math.log(2), "without log2"),
    ],
)
def test_a_wrong_scale_is_caught_and_named(factor, named):
    def misscaled(query, key, value, *, scale):
        return right(query, key, value, scale=factor(query.shape[-1], scale))

    report = check(misscaled, **FEW)
    assert not report.ok
    assert "wrong scale" in report.causes[0]
    assert named in report.causes[0]


def test_rows_that_were_never_written_are_caught_by_the_poison():
    def unfinished(query, key, value, *, scale):
        z = torch.empty_like(query)
        whole = query.shape[2] // 16 * 16
        z[:, :, :whole] = right(query, key, value, scale=scale)[:, :, :whole]
        return z

    report = check(unfinished, **FEW)
    assert "never written" in report.causes[0]


@pytest.mark.parametrize(
    ("kernel", "named"),
    [
        (lambda q, k, v, mask: right(q, k, v, scale=q.shape[-1] ** -0.5), "mask is ignored"),
        (
            lambda q, k, v, mask: right(
                q, k, v, scale=q.shape[-1] ** -0.5, mask=None if mask is None else ~mask
            ),
            "wrong way round",
        ),
        (
            lambda q, k, v, mask: (
                torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
                + (0 if mask is None else ~mask.any(dim=-1, keepdim=True))
            ),
            "only rows without an allowed key",
        ),
    ],
)
def test_slips_with_the_mask_are_named(kernel, named):
    def slipped(query, key, value, *, mask=None, lengths=None):
        assert lengths is None or mask is None
        return kernel(query, key, value, mask)

    report = check(slipped, sizes=(17,), input_scales=(1.0,), dtypes=(torch.float32,))
    failures = [failure for failure in report.failures if failure.case.startswith("mask")]
    assert any(named in failure.cause for failure in failures)


def test_causal_aligned_to_the_start_is_named():
    def aligned_to_the_start(query, key, value, *, scale, causal=False):
        return torch.nn.functional.scaled_dot_product_attention(
            query, key, value, is_causal=causal, scale=scale
        )

    report = check(aligned_to_the_start, **FEW)
    assert {failure.case.split(",")[0] for failure in report.failures} == {"causal cache"}
    assert "aligned to the start" in report.causes[0]


def test_causal_that_is_one_key_too_far_is_named():
    def one_too_far(query, key, value, *, scale, causal=False):
        Q, K = query.shape[2], key.shape[2]
        mask = torch.ones(Q, K, dtype=torch.bool).tril(K - Q + 1) if causal else None
        return torch.nn.functional.scaled_dot_product_attention(
            query, key, value, attn_mask=mask, scale=scale
        )

    assert "causal is one key too far" in check(one_too_far, **FEW).causes


def test_lse_in_base_two_is_named():
    def base_two(query, key, value, *, scale):
        scores = query @ key.transpose(-2, -1) * scale
        return scores.softmax(dim=-1) @ value, scores.logsumexp(dim=-1) / math.log(2)

    report = check(base_two, **FEW)
    assert {failure.output for failure in report.failures} == {"lse"}
    assert "base 2" in report.causes[0]


def test_an_lse_that_is_wrong_otherwise_is_a_failure_and_not_a_crash():
    def shifted(query, key, value, *, scale):
        scores = query @ key.transpose(-2, -1) * scale
        return scores.softmax(dim=-1) @ value, scores.logsumexp(dim=-1) + 0.5

    report = check(shifted, **FEW)
    assert {failure.output for failure in report.failures} == {"lse"}
    assert "values, first at [0, 0, 0]: " in report.causes[0]


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("query", lambda query, key, lengths: query.zero_()),
        ("key", lambda query, key, lengths: key.copy_(key.bfloat16())),
        ("lengths", lambda query, key, lengths: None if lengths is None else lengths.fill_(1)),
    ],
)
def test_a_kernel_that_changes_its_inputs_is_caught_and_cannot_move_the_truth(name, change):
    def changing(query, key, value, *, scale, lengths=None):
        change(query, key, lengths)
        mask = None
        if lengths is not None:
            mask = torch.arange(key.shape[2]) < lengths[:, None, None, None]
        return right(query, key, value, scale=scale, mask=mask)

    report = check(changing, **FEW)
    assert f"changes its inputs: {name}" in report.causes
    assert {failure.output for failure in report.failures} == {"inputs", "z"}


def test_a_kernel_that_clobbers_its_inputs_after_use_fails_for_that_alone():
    def clobbering(query, key, value, *, scale):
        z = right(query, key, value, scale=scale)
        value.zero_()
        return z

    report = check(clobbering, **FEW)
    assert report.causes == ("changes its inputs: value",)
    assert {failure.output for failure in report.failures} == {"inputs"}


@pytest.mark.parametrize(
    ("nothing", "message"),
    [
        ({"sizes": ()}, r"check\(sizes=\(\)\): expected numbers of keys"),
        ({"sizes": (17, 0)}, r"each at least 1"),
        ({"input_scales": ()}, r"check\(input_scales=\(\)\): expected at least one factor"),
    ],
)
def test_a_check_on_nothing_is_an_error_that_says_what_to_give(nothing, message):
    with pytest.raises(AttentionError, match=message):
        check(right, **nothing)


def test_a_prob_that_leaks_through_the_mask_is_caught_however_small():
    def leaking(query, key, value, *, scale, mask=None, want=None):
        scores = query @ key.transpose(-2, -1) * scale
        masked = scores if mask is None else scores.masked_fill(~mask, -20.0)
        probs = masked.softmax(dim=-1)
        return {"z": probs @ value, "probs": probs}

    report = check(leaking, wants=("probs",), **FEW)
    wrong = [one for one in report.failures if one.output == "probs"]
    assert wrong
    assert all(one.error == math.inf for one in wrong)
    assert any("masked cells are not exactly 0" in one.cause for one in wrong)


def test_what_a_function_raises_is_a_failure_and_not_the_end():
    def raising(query, key, value):
        if query.shape[2] == 17:
            raise ValueError("no tile of 17")
        return right(query, key, value, scale=query.shape[-1] ** -0.5)

    report = check(raising, **FEW)
    assert not report.ok
    assert len(report.causes) == 1
    assert re.fullmatch(
        r"raised ValueError: no tile of 17 \(line \d+ of test_parity\.py\)", report.causes[0]
    )


def test_a_promise_that_is_not_kept_is_a_failure():
    report = check(lambda query, key, value, *, want: value, wants=("entropy",), **FEW)
    assert any("gave z and no entropy" in failure.cause for failure in report.failures)


def test_nothing_checked_is_not_right():
    assert not ParityReport("empty", ()).ok
    with pytest.raises(AttentionError, match="not known; known are reference"):
        check("fast")
    with pytest.raises(AttentionError, match=r"not checked at all: it takes torch.bfloat16"):
        check("eager", dtypes=(torch.complex64,))


def test_the_settings_of_torch_are_as_they_were_before():
    before = torch.are_deterministic_algorithms_enabled()
    check(right, sizes=(17,), input_scales=(1.0,), dtypes=(torch.float32,))
    assert torch.are_deterministic_algorithms_enabled() == before


def test_floors_are_a_few_units_in_the_last_place():
    def floor(dtype):
        case = Case("plain", 65, 65, 1.0)
        problem = case.draw(dtype=dtype, device=torch.device("cpu"), d_head=64, wants=(), seed=0)
        return floors(problem)

    assert 1e-6 < floor(torch.float32)["z"] < 1e-4
    assert 1e-14 < floor(torch.float64)["z"] < 1e-12
    assert 1e-3 < floor(torch.bfloat16)["z"] < 1e-1
