"""How far an output is from the reference, and how far `parity.py` allows it to be."""

import math
from dataclasses import replace

import torch
from torch import Tensor

from minibert.kernels.call import wide
from minibert.kernels.check.problem import Problem, by_eager, largest_score, unfolded


def distance(found: Tensor, expected: Tensor) -> float:
    """The largest absolute difference; an infinity where one is NaN or infinite and not both."""
    return float(_apart(found, expected).max())


def mean_distance(found: Tensor, expected: Tensor) -> float:
    """The root mean square of the differences, infinite as `distance` is."""
    return float(torch.linalg.vector_norm(_apart(found, expected))) / found.numel() ** 0.5


def _apart(found: Tensor, expected: Tensor) -> Tensor:
    found = found.to(expected.dtype)
    same = found == expected
    return (found - expected).abs().nan_to_num(math.inf, math.inf).masked_fill(same, 0)


#: How much worse than torch eager an implementation may be.
TIMES_EAGER = 2.0


def tolerance_of(
    output: str, problem: Problem, yardstick: dict[str, Tensor], expected: dict[str, Tensor]
) -> float:
    """Twice the error of torch eager (`yardstick`), and at least the floor of rounding."""
    eager_error = error_of(output, problem, yardstick, expected)
    return max(TIMES_EAGER * eager_error, floors(problem)[output])


def floors(problem: Problem) -> dict[str, float]:
    """The error, by output, that a kernel right in every step may have from rounding alone.

    u is the unit roundoff of the dtype, w that of the accumulator (float32; float64 for float64),
    A = scale · max sum |query·key| + max |bias| + max |ALiBi| the largest sum a score is made of (a
    soft cap makes it smaller, a sink is one more score), and ds the error of a score: d_head terms
    added in any order are off by about sqrt(d_head)·w·A (Higham & Mary 2019), whatever the order.

    scores    ds, and the number itself rounded: u·A
    lse       ds, and a few roundings of exp, sum and ln: 4·w·(1 + ln K); row_max likewise
    probs     dp = p·(ds − sum p·ds), so at most 2·ds; rounded once: 2·u with room
    z         sum dp·value: (2·ds + 4·u)·max |value|; probs and z are rounded once each, with room
    entropy   dH/ds = −p·(ln p + H), so at most 2·ds·ln K, and the roundings of lse
    argmax    the difference of two scores: 2·ds
    received  Q probs added up, held in the accumulator: Q·(2·ds + 4·w); profile likewise; the
              others one prob
    key_sums  as z, with columns in the place of values, and rounded to the accumulator alone
    """
    (Q, D), K = problem.query.shape[2:], problem.n_keys
    unit = torch.finfo(problem.query.dtype).eps / 2
    fine = torch.finfo(wide(problem.query.dtype)).eps / 2
    largest_sum = largest_score(problem)
    if problem.sinks is not None:
        largest_sum = max(largest_sum, float(problem.sinks.abs().max()))
    step = math.sqrt(D) * fine * largest_sum
    few, prob = 4 * fine * (1 + math.log(K)), 2 * step + 4 * fine
    largest_value = float(problem.value.double().abs().max())
    return {
        "z": (2 * step + 4 * unit) * largest_value,
        "scores": step + unit * largest_sum,
        "probs": 2 * step + 2 * unit,
        "lse": step + few,
        "row_max": step + few,
        "argmax": 2 * (step + few),
        "entropy": 2 * step * math.log(K) + few,
        "received": Q * prob,
        "profile": Q * prob,
        "key_sums": prob * float(problem.want["key_sums"].abs().max())
        if "key_sums" in problem.want
        else 0.0,
    } | dict.fromkeys(("max_prob", "key_mass", "offset_mass", "map", "pair_mass"), prob)


def error_of(
    output: str, problem: Problem, outputs: dict[str, Tensor], expected: dict[str, Tensor]
) -> float:
    """The largest absolute error; infinite for a wrong shape or a masked prob that is not 0."""
    found, right = outputs[output], expected[output]
    if found.shape != right.shape:
        return math.inf
    if output == "argmax":
        return _argmax_error(problem, found, expected)
    if output == "probs" and _leaks(problem, found):
        return math.inf
    return distance(found, right)


def _argmax_error(problem: Problem, found: Tensor, expected: dict[str, Tensor]) -> float:
    """How much smaller the score of the key that was given is than the largest: 0 for a tie."""
    dead, probs = expected["argmax"] < 0, expected.get("probs")
    if probs is None:
        # Of packed sentences, each of which counts its keys from 0.
        probs = by_eager(replace(problem, want={}), torch.float64)["probs"]
        found = torch.where(found < 0, found, found + _first_keys(problem))
    if not torch.equal(found < 0, dead) or int(found.max()) >= probs.shape[-1]:
        return math.inf
    chosen = probs.gather(-1, found.clamp_min(0).unsqueeze(-1)).squeeze(-1)
    return float((probs.amax(dim=-1).log() - chosen.log()).masked_fill(dead, 0).max())


def _first_keys(problem: Problem) -> Tensor:
    """For each packed query the place of the first key of its sentence."""
    queries = torch.tensor(problem.packed or ())
    keys = torch.tensor(problem.packed_keys or problem.packed or ())
    return (keys.cumsum(0) - keys).repeat_interleave(queries).to(problem.query.device)


def _leaks(problem: Problem, probs: Tensor) -> bool:
    allowed = unfolded(problem).mask
    return allowed is not None and bool((probs[~allowed.expand(probs.shape)] != 0).any())
