"""Every slip is planted in a kernel, and the report names it."""

import math

import pytest
import torch

from minibert.kernels.check.parity import check

KINDS = ("plain", "strided", "lengths", "causal", "causal lengths")


def up_to(keys, length):
    return keys < length


def attention(query, key, value, *, scale, lengths, causal, seen=up_to):
    N = key.shape[2]
    scores = query @ key.transpose(-2, -1) * scale
    allowed = torch.ones(1, 1, query.shape[2], N, dtype=torch.bool)
    if causal:
        allowed = allowed.tril(N - query.shape[2])
    if lengths is not None:
        allowed = allowed & seen(torch.arange(N), lengths[:, None, None, None])
    return scores.masked_fill(~allowed, -math.inf)


def softmax_times(scores, value):
    return scores.softmax(-1).nan_to_num(0.0) @ value


def planted(slip):
    """A kernel from slip(query, key, value, z), where z(query, key, value) is right."""

    def kernel(query, key, value, *, scale, lengths=None, causal=False):
        def z(query, key, value):
            options = {"scale": scale, "lengths": lengths, "causal": causal}
            return softmax_times(attention(query, key, value, **options), value)

        return slip(query, key, value, z)

    return kernel


def by_position(x):
    """The numbers a kernel finds that takes memory for (batch, position, head, d_head)."""
    B, H, N, D = x.shape
    return x.contiguous().view(B, N, H, D).transpose(1, 2)


def by_dimension(x):
    """The numbers a kernel finds that takes memory for (batch, head, d_head, position)."""
    B, H, N, D = x.shape
    return x.contiguous().view(B, H, D, N).transpose(2, 3)


def laid_out(z, first, second):
    """z, whose memory has these two axes the other way round."""
    return z.transpose(first, second).contiguous().view(z.shape)


@pytest.mark.parametrize(
    ("slip", "cause"),
    [
        (lambda q, k, v, z: z(q, v, k), "key and value are swapped"),
        (lambda q, k, v, z: z(k, q, v), "query and key are swapped"),
        (
            lambda q, k, v, z: laid_out(z(*map(by_position, (q, k, v))), 1, 2),
            "query, key, value are read and z is written as (batch, position, head, d_head)",
        ),
        (
            lambda q, k, v, z: z(*map(by_position, (q, k, v))),
            "layout: query, key, value are read as (batch, position, head, d_head)",
        ),
        (
            lambda q, k, v, z: laid_out(z(q, k, v), 1, 2),
            "layout: z is written as (batch, position, head, d_head)",
        ),
        (
            lambda q, k, v, z: z(*(x.transpose(1, 2) for x in (q, k, v))).transpose(1, 2),
            "heads attend to heads",
        ),
        (
            lambda q, k, v, z: z(q, by_dimension(k), v),
            "layout: key is read as (batch, head, d_head, position)",
        ),
        (
            lambda q, k, v, z: laid_out(z(q, k, v), 2, 3),
            "layout: z is written as (batch, head, d_head, position)",
        ),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_vectors_taken_for_one_another_or_read_in_another_layout_are_named(slip, cause, dtype):
    # One key alone looks alike in all of them: it must not be what names the cause.
    report = check(planted(slip), sizes=(1, 17), dtypes=(dtype,), kinds=KINDS)
    assert len(report.causes) == 1
    assert cause in report.causes[0]


@pytest.mark.parametrize(
    ("seen", "cause"),
    [
        (lambda keys, length: keys <= length, "one key too many is seen behind the length"),
        (lambda keys, length: keys < length - 1, "the last real key is not seen"),
        (lambda keys, length: keys >= 0, "lengths is ignored"),
    ],
)
def test_lengths_that_are_off_by_one_are_named_and_not_taken_for_ignored(seen, cause):
    def kernel(query, key, value, *, scale, lengths=None, causal=False):
        options = {"scale": scale, "lengths": lengths, "causal": causal, "seen": seen}
        return softmax_times(attention(query, key, value, **options), value)

    report = check(kernel, sizes=(1, 17, 65), dtypes=(torch.float32,), kinds=KINDS)
    assert {one.case.split(",")[0] for one in report.failures} == {"lengths", "causal lengths"}
    assert len(report.causes) == 1
    assert cause in report.causes[0]


@pytest.mark.parametrize("clean", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_exp_without_the_maximum_taken_off_is_named(dtype, clean):
    def kernel(query, key, value, *, scale, lengths=None, causal=False):
        options = {"scale": scale, "lengths": lengths, "causal": causal}
        weights = attention(query, key, value, **options).exp()
        total = weights.sum(-1, keepdim=True)
        z = weights / total.masked_fill(total == 0, 1.0) @ value
        return z.nan_to_num() if clean else z

    report = check(kernel, sizes=(17, 65), dtypes=(dtype,), kinds=KINDS)
    assert all("inputs x 1," not in one.case for one in report.failures)
    assert len(report.causes) == 1
    assert "exp overflows: rows with scores near or above 89 are" in report.causes[0]


def test_an_lse_that_overflows_beside_a_right_z_is_named():
    def kernel(query, key, value, *, scale):
        scores = query @ key.transpose(-2, -1) * scale
        return scores.softmax(-1) @ value, scores.exp().sum(-1).log()

    report = check(kernel, sizes=(65,), dtypes=(torch.float32,))
    assert {one.output for one in report.failures} == {"lse"}
    assert "exp overflows" in report.causes[0]


def test_nan_for_another_reason_is_not_taken_for_an_overflow():
    def kernel(query, key, value, *, scale):
        z = (query @ key.transpose(-2, -1) * scale).softmax(-1) @ value
        z[:, :, 3] = math.nan
        return z

    report = check(kernel, sizes=(65,), dtypes=(torch.float32,))
    assert report.causes
    assert all("never written" in cause for cause in report.causes)


def one_row_off(q, k, v, z):
    """0.1 % too much in one row of one head alone."""
    out = z(q, k, v)
    out[0, 0, q.shape[2] // 2] *= 1.001
    return out


def bfloat16_scores(query, key, value, *, scale, lengths=None, causal=False):
    """query·key in bfloat16, as a matmul of that type gives it; the rest in float32."""

    class Rounded:
        shape = query.shape

        def __matmul__(self, other):
            return (query.bfloat16() @ other.bfloat16()).to(query.dtype)

    options = {"scale": scale, "lengths": lengths, "causal": causal}
    return softmax_times(attention(Rounded(), key, value, **options), value)


def of_float32(kernel):
    report = check(kernel, sizes=(17, 65), dtypes=(torch.float32,), kinds=KINDS)
    assert report.failures
    return report.causes


@pytest.mark.parametrize(("factor", "shown"), [(1.0007, "1.0007"), (0.999, "0.999")])
def test_a_scale_a_little_off_everywhere_is_no_rounding(factor, shown):
    def kernel(query, key, value, *, scale, lengths=None, causal=False):
        options = {"scale": scale * factor, "lengths": lengths, "causal": causal}
        return softmax_times(attention(query, key, value, **options), value)

    causes = of_float32(kernel)
    assert all(f"wrong scale: it behaves as {shown}" in one for one in causes), causes


def test_an_output_a_little_off_everywhere_is_no_rounding():
    causes = of_float32(planted(lambda q, k, v, z: 1.001 * z(q, k, v)))
    assert all("everywhere 1.001 times what is right" in one for one in causes), causes


def test_an_error_in_one_row_alone_is_no_rounding():
    causes = of_float32(planted(one_row_off))
    assert all("only row" in one for one in causes), causes


def test_query_times_key_in_bfloat16_is_rounding():
    causes = of_float32(bfloat16_scores)
    assert all("rounded to bfloat16" in one for one in causes), causes


def test_received_that_counts_padded_queries_is_named():
    def kernel(query, key, value, *, scale, lengths=None, causal=False):
        options = {"scale": scale, "lengths": lengths, "causal": causal}
        probs = attention(query, key, value, **options).softmax(-1).nan_to_num(0.0)
        return {"z": probs @ value, "received": probs.sum(-2)}

    report = check(
        kernel, sizes=(17, 65), dtypes=(torch.float32,), kinds=KINDS, wants=("received",)
    )
    assert {one.case.split(",")[0] for one in report.failures} == {"lengths", "causal lengths"}
    assert {one.output for one in report.failures} == {"received"}
    assert len(report.causes) == 1
    assert "received counts queries behind the end of a sentence (padding)" in report.causes[0]


def lengths_of_the_first(query, key, value, *, scale, lengths=None, causal=False):
    options = {"scale": scale, "causal": causal}
    lengths = None if lengths is None else lengths[:1].expand_as(lengths)
    return softmax_times(attention(query, key, value, lengths=lengths, **options), value)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_length_of_the_first_sentence_used_for_all_is_named(seed):
    # Another seed gives all keys to another sentence: where it is the first, lengths seem ignored.
    options = {"sizes": (17, 65), "dtypes": (torch.float32,), "kinds": KINDS, "seed": seed}
    report = check(lengths_of_the_first, **options)
    assert len(report.causes) == 1
    assert "lengths of the first sentence is used for all" in report.causes[0]


def test_a_kernel_that_is_always_causal_is_told_of_causal_only():
    def kernel(query, key, value, *, scale):
        options = {"scale": scale, "lengths": None, "causal": True}
        return softmax_times(attention(query, key, value, **options), value)

    causes = of_float32(kernel)
    assert len(causes) == 1
    assert "causal order is kept where it was not asked for" in causes[0]
    assert "--causal-only" in causes[0]


def test_a_scale_of_one_dimension_more_is_named_with_its_factor():
    def kernel(query, key, value, *, scale, lengths=None, causal=False):
        options = {"scale": (query.shape[3] + 1) ** -0.5, "lengths": lengths, "causal": causal}
        return softmax_times(attention(query, key, value, **options), value)

    causes = check(
        kernel, sizes=(17, 65), dtypes=(torch.float32,), kinds=KINDS, input_scales=(1.0, 30.0)
    ).causes
    # sqrt(64 / 65)
    assert len(causes) == 1
    assert "wrong scale: it behaves as 1/sqrt(d_head + 1) (0.99228 times" in causes[0]


@pytest.mark.parametrize("limit", [80, 50])
def test_scores_cut_off_before_exp_are_named(limit):
    def kernel(query, key, value, *, scale, lengths=None, causal=False):
        options = {"scale": scale, "lengths": lengths, "causal": causal}
        weights = attention(query, key, value, **options).clamp(max=limit).exp()
        return weights / weights.sum(-1, keepdim=True).clamp_min(1e-30) @ value

    causes = of_float32(kernel)
    assert all(f"scores above {limit} are cut off" in one for one in causes), causes


def test_rows_whose_exp_is_0_for_all_keys_are_named():
    # In causal order the first rows have few keys, so that all their scores can be below −87.
    def kernel(query, key, value, *, scale, causal=False):
        options = {"scale": scale, "lengths": None, "causal": causal}
        scores = attention(query, key, value, **options)
        weights = scores.exp()
        lost = weights.sum(-1, keepdim=True) == 0
        return torch.where(lost, torch.nan, softmax_times(scores, value))

    options = {"sizes": (17,), "kinds": ("causal",), "input_scales": (1.0, 30.0)}
    causes = check(kernel, dtypes=(torch.float32,), **options).causes
    assert all("exp is 0 for all keys of rows with scores below −87" in one for one in causes)
    assert causes


def test_who_watches_is_told_that_the_cause_is_looked_for_and_then_of_the_case_again():
    told = []
    options = {"sizes": (17,), "dtypes": (torch.float32,), "kinds": ("plain",)}
    watch = {"watch": lambda done, total, what: told.append(what), "input_scales": (1.0,)}
    check(planted(lambda q, k, v, z: z(q, v, k)), **options, **watch)
    looked = [i for i, what in enumerate(told) if "looking for the likely cause" in what]
    assert looked
    assert all(told[i + 1] == "plain, 17 x 17, inputs x 1, float32" for i in looked)
    told.clear()
    check(planted(lambda q, k, v, z: z(q, k, v)), **options, **watch)
    assert set(told) == {"plain, 17 x 17, inputs x 1, float32"}
