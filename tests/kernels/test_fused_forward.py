"""The forward in Triton against NumPy float64: in the interpreter, or on a GPU if there."""

import math

import pytest
import torch

from minibert.errors import AttentionError
from minibert.kernels import eager
from minibert.kernels.api import attend
from minibert.kernels.call import Call
from minibert.kernels.check.cases import Case
from minibert.kernels.check.parity import check
from minibert.kernels.check.problem import Problem, truth
from minibert.kernels.check.tolerances import error_of, tolerance_of
from minibert.kernels.registry import implementations
from minibert.kernels.torch_kernels import packed_attention

triton = pytest.importorskip("triton")
pytestmark = pytest.mark.usefixtures("triton_device")

ROWS = ("row_max", "max_prob", "entropy", "argmax", "key_mass", "offset_mass")
ALL = (*ROWS, "received", "map")

# kind, queries, keys, d_head, factor on the inputs, dtype
ODD = [
    (kind, n, n, d_head, factor, dtype)
    for kind, n, d_head, factor, dtype in [
        ("plain", 200, 64, 1.0, torch.float32),
        ("lengths", 130, 40, 1.0, torch.float16),
        ("causal", 130, 80, 1.0, torch.float16),
        ("mask", 70, 24, 1.0, torch.float32),
        # At 10 the softmax is nearly certain, at 30 wholly.
        ("plain", 65, 64, 10.0, torch.float16),
        ("plain", 65, 64, 30.0, torch.float32),
        ("causal lengths", 65, 64, 30.0, torch.float16),
        ("mask", 65, 64, 30.0, torch.float32),
    ]
] + [
    ("causal cache", 22, 65, 40, 1.0, torch.float32),
    ("causal cache", 1, 130, 80, 1.0, torch.float16),
    # More queries than keys: the first ones stand before every key.
    ("causal", 65, 17, 16, 1.0, torch.float32),
    ("causal lengths", 130, 65, 128, 1.0, torch.float16),
]


def compare(problem: Problem, found: dict[str, torch.Tensor], outputs: tuple[str, ...]) -> None:
    expected = truth(problem)
    yardstick = eager.attend(problem.call())
    for output in outputs:
        error = error_of(output, problem, found, expected)
        assert error <= tolerance_of(output, problem, yardstick, expected), output


def run(problem: Problem) -> dict[str, torch.Tensor]:
    return implementations()["triton"].fn(problem.call())


@pytest.mark.parametrize(("kind", "queries", "keys", "d_head", "factor", "dtype"), ODD)
def test_every_output_is_right_in_odd_cases(
    kind, queries, keys, d_head, factor, dtype, triton_device
):
    case = Case(kind, queries, keys, factor)
    problem = case.draw(
        dtype=dtype, device=torch.device(triton_device), d_head=d_head, wants=ALL, seed=queries
    )
    compare(problem, run(problem), ("z", "lse", *ALL))


def test_the_gate_before_every_benchmark_finds_nothing(triton_device):
    dtypes, size = ((torch.float16,), 17) if triton_device == "cpu" else (None, 65)
    report = check(
        "triton", device=triton_device, sizes=(size,), input_scales=(1.0,), dtypes=dtypes, d_head=16
    )
    assert report.ok, str(report)


@pytest.mark.parametrize(("cut", "causal"), [((16, 32, 4, 1), True), ((16, 16, 4, 1, True), False)])
def test_how_the_kernel_is_cut_changes_nothing(cut, causal, triton_device):
    from minibert.kernels.fused.columns import received_and_map
    from minibert.kernels.fused.forward import forward
    from minibert.kernels.fused.launch import Config

    case = Case("causal lengths" if causal else "lengths", 50, 50, 1.0)
    problem = case.draw(
        dtype=torch.float32, device=torch.device(triton_device), d_head=16, wants=ALL, seed=3
    )
    call, config = problem.call(), Config(*cut)
    found = forward(call, config=config)
    found |= received_and_map(call, lse=found["lse"], config=config)
    compare(problem, found, ("z", "lse", *ALL))


@pytest.mark.parametrize("causal", [False, True])
def test_packed_sentences_do_not_see_one_another(causal, triton_device):
    from minibert.kernels.fused.attention import attend as attend_fused

    lengths = (17, 1, 40, 70)
    query, key, value = torch.randn(3, 1, 2, sum(lengths), 16, device=triton_device).unbind()
    # A NaN in the first sentence must not reach the others.
    value[:, :, 3] = math.nan
    want = dict.fromkeys(("entropy", "argmax", "received"), ())
    want |= {"offset_mass": (-1, 0), "key_mass": (0,)}
    options = {"causal": causal, "scale": 0.25}
    found = attend_fused(Call.of(query, key, value, packed=lengths, want=want, **options))
    names = tuple(want.items())
    parts = zip(*(one.split(lengths, dim=2) for one in (query, key, value)), strict=True)
    outputs = {name: one.split(lengths, dim=2) for name, one in found.items()}
    for number, vectors in list(enumerate(parts))[1:]:
        alone = attend(
            *vectors, causal=causal, scale=0.25, impl="eager",
            want=[name if not given else (name, given) for name, given in names],
        )  # fmt: skip
        torch.testing.assert_close(outputs["z"][number], alone.z, rtol=0, atol=1e-5)
        for name in want:
            theirs = getattr(alone.statistics, name)
            torch.testing.assert_close(outputs[name][number], theirs, rtol=0, atol=1e-5)


def test_packed_sentences_agree_with_those_of_sdpa(triton_device):
    from minibert.kernels.fused.attention import attend as attend_fused

    lengths = (5, 30)
    query, key, value = torch.randn(3, 1, 3, 35, 8, device=triton_device).unbind()
    found = attend_fused(Call.of(query, key, value, packed=lengths, scale=0.3))
    expected = packed_attention(query, key, value, lengths=lengths, scale=0.3)
    torch.testing.assert_close(found["z"], expected)


def test_what_packed_sentences_cannot_give_is_refused(triton_device):
    from minibert.kernels.fused.attention import attend as attend_fused

    vectors = torch.randn(3, 1, 1, 4, 8, device=triton_device).unbind()
    with pytest.raises(AttentionError, match="sentence by sentence"):
        attend_fused(Call.of(*vectors, packed=(1, 3), want={"map": (2,)}))


def test_a_nan_in_a_query_stays_in_its_row(triton_device):
    query, key, value = torch.randn(3, 1, 1, 20, 8, device=triton_device).unbind()
    query[0, 0, 7, 2] = math.nan
    found = attend(query, key, value, impl="triton", want=("entropy", "row_max"))
    rows = torch.zeros(20, dtype=torch.bool, device=triton_device)
    rows[7] = True
    for numbers in (found.lse, found.statistics.entropy, found.statistics.row_max):
        assert torch.equal(numbers[0, 0].isnan(), rows)
    assert torch.equal(found.z[0, 0].isnan().all(dim=-1), rows)


def test_column_sums_take_a_weight_for_each_query(triton_device):
    from minibert.kernels.fused.columns import column_sums

    query, key = torch.randn(2, 2, 3, 45, 16, device=triton_device).unbind()
    lengths = torch.tensor([45, 20], device=triton_device)
    weights = torch.randn(2, 1, 45, device=triton_device)
    options = {"lengths": lengths, "causal": True, "scale": 0.25}
    whole = attend(query, key, key, impl="eager", want=("probs",), **options)
    found = column_sums(Call.of(query, key, key, **options), lse=whole.lse, weights=weights)
    expected = (weights.unsqueeze(-1) * whole.probs).sum(dim=2)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)


def test_a_head_that_is_too_wide_is_refused_with_the_reason(triton_device):
    vectors = torch.randn(3, 1, 1, 2, 258, device=triton_device).unbind()
    with pytest.raises(AttentionError, match=r"d_head of at most 256.* can\."):
        attend(*vectors, impl="triton")
