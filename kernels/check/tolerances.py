"""How far an output is from the reference, and how far `parity.py` allows it to be."""

import math

import torch
from torch import Tensor

from minibert.kernels.check.cases import Problem
from minibert.kernels.check.causes import distance
from minibert.kernels.masks import allowed_keys, wide

__all__ = ["TIMES_EAGER", "error_of", "floors", "tolerance_of"]

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
    A = scale · max sum |query·key| + max |bias| the largest sum a score is made of, and ds the
    error of a score: d_head terms added in any order are off by about sqrt(d_head)·w·A
    (Higham & Mary 2019), whatever the order.

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
    query, key = problem.query.double().abs(), problem.key.double().abs()
    (Q, D), K = query.shape[2:], key.shape[2]
    unit = torch.finfo(problem.query.dtype).eps / 2
    fine = torch.finfo(wide(problem.query.dtype)).eps / 2
    largest_sum = problem.scale * float((query @ key.transpose(-2, -1)).max())
    if problem.bias is not None:
        largest_sum += float(problem.bias.abs().max())
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
        return _argmax_error(found, expected)
    if output == "probs" and _leaks(problem, found):
        return math.inf
    return distance(found, right)


def _argmax_error(found: Tensor, expected: dict[str, Tensor]) -> float:
    """How much smaller the score of the key that was given is than the largest: 0 for a tie."""
    dead, K = expected["argmax"] < 0, expected["probs"].shape[-1]
    if not torch.equal(found < 0, dead) or int(found.max()) >= K:
        return math.inf
    probs = expected["probs"]
    chosen = probs.gather(-1, found.clamp_min(0).unsqueeze(-1)).squeeze(-1)
    return float((probs.amax(dim=-1).log() - chosen.log()).masked_fill(dead, 0).max())


def _leaks(problem: Problem, probs: Tensor) -> bool:
    allowed = allowed_keys(
        problem.query,
        problem.key,
        lengths=problem.lengths,
        mask=problem.mask,
        causal=problem.causal,
    )
    return allowed is not None and bool((probs[~allowed.expand(probs.shape)] != 0).any())
