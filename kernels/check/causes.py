"""Finds the likely cause when `parity.check` sees wrong numbers.

It looks first for what the numbers show directly (a stale output, NaN, an overflow). Then it tries
every mistake of `faults.py`. When none fits, it names the places of the wrong numbers.
"""

import math

import torch
from torch import Tensor

from minibert.kernels.check.distances import distance, mean_distance
from minibert.kernels.check.factors import factor_cause
from minibert.kernels.check.faults import suspects
from minibert.kernels.check.large_scores import large_scores
from minibert.kernels.check.problem import Problem, unfolded
from minibert.kernels.rounding import rounding_cause

STALE = "a stale output"


def likely_cause(
    output: str,
    problem: Problem,
    found: Tensor,
    expected: Tensor,
    *,
    tolerance: float,
    previous: Tensor | None,
) -> str:
    """A sentence that says what is probably wrong with `output`, and where.

    It is empty where two slips look alike that a call with other lengths tells apart.
    """
    # Zeros are the same in every call and tell nothing.
    if previous is not None and torch.equal(found, previous) and bool(found.any()):
        return (
            f"the same numbers as in the previous call, which had other inputs: {STALE}, kept or "
            "cached between calls"
        )
    wrong = ((found.to(expected.dtype) - expected).abs() > tolerance) | (
        found.isfinite() != expected.isfinite()
    )
    if large := large_scores(output, problem, found, wrong, tolerance):
        return large
    if bool(found.isnan().any()):
        return _about_nan(problem, found)
    if not bool(wrong.any()):
        return "within the tolerance at each value, but masked cells are not exactly 0"
    if previous is not None and (stale := _stale_part(wrong, found, previous)):
        return stale
    if output == "lse" and distance(found * math.log(2), expected) <= tolerance:
        return "lse is in base 2: multiply by ln 2"
    for suspect in suspects(problem):
        other = suspect.gives(output)
        if other is None or other.shape != found.shape:
            continue
        if _fits(found, other, tolerance) and explains(found, other, expected):
            return suspect.sentence
    if _only_dead_rows(problem, wrong):
        return (
            "only rows without an allowed key are wrong: there z, probs and entropy are 0, lse and "
            "row_max −inf, argmax −1"
        )
    if _only_padded_queries(problem, wrong):
        return (
            "only rows of padded queries are wrong: a query behind the length of its sentence sees "
            "the real keys like any other"
        )
    if factor := factor_cause(output, problem, found, expected):
        return factor
    if rounded := rounding_cause(output, problem, found, expected):
        return rounded
    return _where(wrong, found, expected)


def _fits(found: Tensor, other: Tensor, tolerance: float) -> bool:
    """True when the numbers agree in every head; a suspect marks a head it cannot know by NaN."""
    unknown = other.isnan().flatten(2).any(dim=-1)
    if int(unknown.sum()) * 2 > unknown.numel():
        return False
    return distance(found[~unknown], other[~unknown]) <= tolerance


def explains(found: Tensor, other: Tensor, expected: Tensor) -> bool:
    """True when what a suspect gives leaves at most half of the mean error."""
    known = ~other.isnan().flatten(2).any(dim=-1)
    error = mean_distance(found[known], expected[known])
    return mean_distance(found[known], other[known]) <= error / 2


def _stale_part(wrong: Tensor, found: Tensor, previous: Tensor) -> str | None:
    """A sentence when nearly every wrong number is that of the previous call; 0 tells nothing."""
    kept = wrong & (found == previous) & (found != 0)
    if int(kept.sum()) < 0.9 * int(wrong.sum()):
        return None
    return (
        f"{int(kept.sum())} of {found.numel()} values, first at {_first(kept)}, are those of the "
        f"previous call, which had other inputs: {STALE}, of which a part is not written"
    )


def _dead_rows(problem: Problem) -> Tensor:
    B, H, Q, K = (*problem.query.shape[:3], problem.n_keys)
    allowed = unfolded(problem).mask
    if allowed is None:
        return torch.zeros(B, H, Q, dtype=torch.bool, device=problem.query.device)
    return ~allowed.expand(B, H, Q, K).any(dim=-1)


def _only_dead_rows(problem: Problem, wrong: Tensor) -> bool:
    dead = _dead_rows(problem)
    if wrong.shape[:3] != dead.shape:
        return False
    rows = wrong if wrong.ndim == 3 else wrong.any(dim=-1)
    return bool(rows.any()) and not bool((rows & ~dead).any())


def _only_padded_queries(problem: Problem, wrong: Tensor) -> bool:
    Q = problem.query.shape[2]
    if problem.lengths is None or problem.n_keys != Q or wrong.shape[2] != Q:
        return False
    padded = torch.arange(Q, device=wrong.device) >= problem.lengths[:, None, None]
    rows = wrong if wrong.ndim == 3 else wrong.any(dim=-1)
    return bool(rows.any()) and not bool((rows & ~padded).any())


def _about_nan(problem: Problem, found: Tensor) -> str:
    nan = found.isnan()
    share = f"NaN in {int(nan.sum())} of {nan.numel()} values"
    if _only_dead_rows(problem, nan):
        return f"{share}, only in rows without an allowed key: a softmax over −inf alone"
    return (
        f"{share}, first at {_first(nan)}: memory that was never written (it is poisoned with NaN "
        "before each call), or 0·(−inf) at a masked key"
    )


def _where(wrong: Tensor, found: Tensor, expected: Tensor) -> str:
    index = tuple(wrong.nonzero()[0].tolist())
    numbers = f"{float(found[index]):.6g} where {float(expected[index]):.6g} is right"
    rows = wrong.transpose(0, 2).flatten(1).any(dim=-1).nonzero().flatten()
    n_rows = wrong.shape[2]
    if len(rows) < n_rows and int(rows[0]) == n_rows - len(rows):
        return (
            f"only the last {len(rows)} of {n_rows} rows are wrong: an incomplete last block? "
            f"{numbers}"
        )
    if len(rows) == 1 < n_rows:
        return f"only row {int(rows[0])} of {n_rows} is wrong, first at {_first(wrong)}: {numbers}"
    heads = wrong.transpose(0, 1).flatten(1).any(dim=-1).nonzero().flatten().tolist()
    where = f"{int(wrong.sum())} of {wrong.numel()} values, first at {_first(wrong)}: {numbers}"
    if len(heads) < wrong.shape[1]:
        of = f"{_listed(heads)} of {wrong.shape[1]}"
        return f"only {f'heads {of} are' if heads[1:] else f'head {of} is'} wrong: {where}"
    return where


def _listed(heads: list[int]) -> str:
    if len(heads) > 2 and heads[-1] - heads[0] == len(heads) - 1:
        return f"{heads[0]} to {heads[-1]}"
    return ", ".join(map(str, heads[:8])) + (" ..." if heads[8:] else "")


def _first(flags: Tensor) -> str:
    return f"[{', '.join(str(i) for i in flags.nonzero()[0].tolist())}]"
