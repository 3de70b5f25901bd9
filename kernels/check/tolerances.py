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


def mean_tolerance(problem: Problem, yardstick: Tensor, right: Tensor) -> float:
    """Twice the mean error of torch eager's z (`yardstick`), and at least the floor of rounding."""
    return max(TIMES_EAGER * mean_distance(yardstick, right), _mean_floor(problem))


def _mean_floor(problem: Problem) -> float:
    """The root mean square error of z that a kernel right in every step may have.

    u is the unit roundoff of the dtype, w that of the accumulator, as in `floors`.
    Rounding errors of different terms are independent (Higham & Mary 2019), so that they add up by
    their squares: u·√(Σ p²·value²) of the probs, each rounded once, and u·|z|. A score, a sum of
    d_head terms of which A is the sum of the absolute values, is off by w·√d_head·A, which moves z
    by w·√d_head·A·√(Σ p²·(value − z)²); its constants, which are the same for all keys, by
    w·A·Σ p·|value|; and K sums of p·value by w·√K·Σ p·|value|.
    """
    plain = unfolded(problem)
    (D, K), scale = (problem.query.shape[3], problem.n_keys), abs(plain.scale)
    dtype = problem.query.dtype
    unit, fine = (torch.finfo(one).eps / 2 for one in (dtype, wide(dtype)))
    probs, value = by_eager(replace(plain, want={}), torch.float64)["probs"], plain.value
    z, squared = probs @ value, probs.square()
    size, spread = probs @ value.abs(), squared @ value.square()
    apart = spread - 2 * z * (squared @ value) + z.square() * squared.sum(-1, keepdim=True)
    largest = scale * (plain.query.abs() @ plain.key.abs().mT).amax(-1, keepdim=True)
    if plain.bias is not None:
        largest = largest + plain.bias.abs().amax(-1, keepdim=True)
    rounded = unit * (spread.sqrt() + z.abs())
    of_scores = fine * largest * (D**0.5 * apart.clamp_min(0).sqrt() + size)
    return float((rounded + of_scores + fine * K**0.5 * size).square().mean().sqrt())


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
