"""The parity matrix: every option, width and dtype, forward and backward, against NumPy float64.

What Triton gives for a call of `cases.OPTIONS` may err at most twice what torch eager errs in the
same dtype, or a few roundings where eager is right by luck. The truth is the reference in float64,
and for gradients eager in float64, on the same rounded inputs.
"""

import inspect
from collections.abc import Iterator

import torch
from torch import Tensor

from benchmarks.gpu import cases
from benchmarks.gpu.cases import Drawn
from benchmarks.gpu.resources import watched
from minibert.bench.gate import failure
from minibert.bench.result_rows import Row
from minibert.errors import AttentionError
from minibert.kernels.api import Attended, attend

__all__ = ["attended", "row"]

TIMES_EAGER = 2.0
#: Roundings of an honest kernel, in units of the dtype and of the largest value.
ROUNDINGS = 8.0
#: In units of float32, for what is kept in float32 whatever the inputs are.
FINE = 64.0
#: Scores closer than 2^-18 of one may tie; a prob differs by as much times the score.
NEAR = 2.0**-15
Numbers = dict[str, Tensor]
Compared = tuple[str, float, float]


def attended(drawn: Drawn, impl: str, option: str) -> Attended:
    """What `attend` gives for such a call. Raises AttentionError where it takes none."""
    if unknown := drawn.keywords.keys() - inspect.signature(attend).parameters.keys():
        raise AttentionError(f"attend takes no {', '.join(sorted(unknown))}")
    return attend(*drawn.vectors(), **drawn.keywords, impl=impl, want=cases.wanted(option))


def row(option: str, d_head: int, dtype: str, device: torch.device) -> Row:
    """Fields of a row: how many outputs were compared, the worst one, what could not be asked."""
    drawn = cases.draw(option, d_head, dtype, device)
    with watched() as kernels:
        found: Row = {"ok": True, "wrong": False, "checks": 0, "failures": 0, "not_covered": []}
        for name, compared in (("forward", forward), ("backward", backward)):
            try:
                _count(found, compared(drawn, option))
            except AttentionError as error:
                found["not_covered"].append(f"{name}: {error}"[:200])
            # A kernel that raises is a finding.
            except Exception as error:
                found["failures"] += 1
                found |= {**failure(error), "checks": found["checks"]}
    return {**found, "d_head": d_head, "dtype": dtype, "kernels": kernels()}


def _count(found: Row, errors: Iterator[Compared]) -> None:
    for name, error, allowed in errors:
        right = error <= allowed
        found["checks"] += 1
        found["failures"] += not right
        tight = error / allowed if right else float("inf")
        if not right:
            found |= {"ok": False, "wrong": True}
        if tight >= found.get("tightest", 0.0):
            found["tightest"] = tight
            found["worst"] = f"{name}: error {error:.2e}, allowed {allowed:.2e}"


def forward(drawn: Drawn, option: str) -> Iterator[Compared]:
    """Each output: its name, its error, what is allowed."""
    with torch.no_grad():
        ours = _named(attended(drawn, "triton", option))
        exact = drawn.to(torch.device("cpu"), torch.float64)
        truth = _named(attended(exact, "reference", option))
        eager = _named(attended(drawn, "eager", option))
        best = [one.pop("argmax", None) for one in (ours, truth, eager)][:2]
        yield from _errors(ours, truth, eager, drawn.query.dtype)
        if best[1] is not None and "packed" not in drawn.keywords:
            probs = attend(*exact.vectors(), **exact.keywords, impl="reference", want=("probs",))
            yield "argmax", _missed(best[0], best[1], probs.probs), NEAR


def _missed(ours: Tensor, truth: Tensor, probs: Tensor) -> float:
    """How much likelier the likeliest key is than the one named; infinite for a wrong dead row."""
    ours, truth = ours.cpu(), truth.cpu()
    if not torch.equal(ours < 0, truth < 0):
        return float("inf")
    chosen = [probs.gather(-1, one.clamp_min(0)[..., None]) for one in (ours, truth)]
    return float((chosen[1] - chosen[0]).max())


def backward(drawn: Drawn, option: str) -> Iterator[Compared]:
    """The gradient of each input: its name, its error, what is allowed."""
    ours = _gradients(drawn, "triton", option)
    truth = _gradients(drawn.to(torch.device("cpu"), torch.float64), "eager", option)
    yield from _errors(ours, truth, _gradients(drawn, "eager", option), drawn.query.dtype)


def _gradients(drawn: Drawn, impl: str, option: str) -> Numbers:
    drawn = drawn.with_gradient()
    found = attended(drawn, impl, option)
    assert found.lse is not None
    generator = torch.Generator().manual_seed(1)
    weights = torch.randn(found.z.shape, generator=generator).to(drawn.query.dtype)
    alive = found.lse.isfinite()
    total = (found.z * weights.to(found.z.device)).sum().double()
    total = total + found.lse.masked_fill(~alive, 0.0).sum().double()
    leaves = drawn.leaves()
    got = torch.autograd.grad(total, tuple(leaves.values()))
    return {f"gradient of {name}": one for name, one in zip(leaves, got, strict=True)}


def _named(found: Attended) -> Numbers:
    statistics = {} if found.statistics is None else vars(found.statistics)
    outputs = {"z": found.z, "lse": found.lse, **statistics}
    return {name: one for name, one in outputs.items() if one is not None}


def _errors(
    ours: Numbers, truth: Numbers, eager: Numbers, dtype: torch.dtype
) -> Iterator[Compared]:
    for name, expected in truth.items():
        unit = torch.finfo(dtype).eps / 2
        rounded = name == "z" or name.startswith("gradient")
        floor = ROUNDINGS * unit if rounded else FINE * torch.finfo(torch.float32).eps / 2
        finite = expected[expected.isfinite()]
        largest = float(finite.abs().max()) if finite.numel() else 0.0
        allowed = TIMES_EAGER * _distance(eager[name], expected) + floor * max(largest, 1.0)
        yield name, _distance(ours[name], expected), allowed


def _distance(found: Tensor, expected: Tensor) -> float:
    """The largest difference; infinite where one has a NaN or an infinity and the other not."""
    found, expected = found.detach().double().cpu(), expected.detach().double().cpu()
    if found.shape != expected.shape:
        return float("inf")
    same = (found == expected) | (found.isnan() & expected.isnan())
    gap = (found - expected).abs().masked_fill(same, 0.0)
    return float(gap.nan_to_num(float("inf"), float("inf")).max()) if gap.numel() else 0.0
