"""Is what a contender gives right, at the very size that is timed? Asked before the clock runs.

Whole parity is `parity.py`, on small inputs. Here some rows and one head are computed again in
float64: the last rows of some heads, through the tolerances of
`minibert.kernels.check.parity`, and what
sums over queries of one head. Gradients may be off by GRADIENT of the largest.
"""

from collections.abc import Collection
from dataclasses import replace

import torch
from torch import Tensor

from benchmarks.gpu.contenders import Built
from minibert.bench.result_rows import Row, WrongError, within
from minibert.kernels import eager
from minibert.kernels.check.problem import Problem, truth
from minibert.kernels.check.tolerances import error_of, tolerance_of

ROWS, PAIRS, BLOCK = 8, 3, 512
# Of the largest value. bfloat16 keeps 8 bits; a gradient is two products of numbers so rounded.
GRADIENT = 0.02
SUMS = 1e-3
# A head of more positions is left to the rows: its float64 gradient would take gigabytes.
LARGEST_GRADIENT = 4096
SUMMED = ("received", "map")


def check(
    built: Built, found: dict[str, Tensor], given: Problem, *, left_out: Collection[str] = ()
) -> Row:
    """Fields of a row: how far off each output is. Raises WrongError.

    `left_out` are outputs that are wanted and looked at elsewhere.
    """
    errors: dict[str, float] = {}
    if missing := built.want.keys() - found.keys() - set(left_out):
        raise WrongError(f"gave {', '.join(found)} and no {', '.join(sorted(missing))}")
    if "z" in found:
        _check_rows(built, found, given, errors)
        _check_sums(found, given, errors)
    else:
        _check_gradients(found, given, errors)
    return {"errors": {name: float(f"{error:.3g}") for name, error in errors.items()}}


def _check_rows(
    built: Built, found: dict[str, Tensor], given: Problem, errors: dict[str, float]
) -> None:
    rows = min(ROWS, given.n_keys)
    problem = tail(given, built, rows)
    expected = truth(problem)
    yardstick = eager.attend(problem.call())
    for name in ("z", "lse", *problem.want):
        if name not in found:
            # A baseline gives z alone; statistics come with lse.
            if not built.want:
                continue
            raise WrongError("gave no lse")
        part = {name: _pairs(found[name])[:, :, -rows:]}
        error = error_of(name, problem, part, expected)
        allowed = tolerance_of(name, problem, yardstick, expected)
        errors[name] = within(name, error, allowed)


def tail(given: Problem, built: Built, rows: int) -> Problem:
    """The last rows of some heads as a problem: queries are aligned to the end there too."""
    want = {name: one for name, one in built.want.items() if name not in SUMMED}
    query, key, value = map(_pairs, (given.query, given.key, given.value))
    return replace(given, query=query[:, :, -rows:], key=key, value=value, want=want)


def _pairs(numbers: Tensor) -> Tensor:
    """Some of all (batch, head), the first and the last among them, as a batch of one head."""
    flat = numbers.flatten(0, 1)
    places = torch.linspace(0, len(flat) - 1, min(PAIRS, len(flat)), dtype=torch.float64)
    return flat[places.round().long().unique().to(flat.device)].unsqueeze(1)


def _check_sums(found: dict[str, Tensor], given: Problem, errors: dict[str, float]) -> None:
    if "received" in found:
        expected = received_of(given)
        _compare("received", found["received"][-1, -1], expected, SUMS, errors)
    if "map" in found:
        # Every row sums to 1, so the mean over all cells is 1 / N; blocks are equal here.
        whole = found["map"][-1, -1].double().mean() * given.n_keys
        _compare("map", whole, torch.ones_like(whole), SUMS, errors)


def received_of(given: Problem) -> Tensor:
    """What the last head's keys receive, in float64, by blocks of rows."""
    N = given.n_keys
    query, key = (one[-1, -1].double() for one in (given.query, given.key))
    places = torch.arange(N, device=query.device)
    total = torch.zeros(N, dtype=torch.float64, device=query.device)
    for first in range(0, N, BLOCK):
        scores = query[first : first + BLOCK] @ key.T * given.scale
        if given.causal:
            scores.masked_fill_(places > places[first : first + BLOCK, None], -torch.inf)
        total += scores.softmax(dim=-1).sum(dim=0)
    return total


def _check_gradients(found: dict[str, Tensor], given: Problem, errors: dict[str, float]) -> None:
    for name, one in found.items():
        if not bool(one.isfinite().all()):
            raise WrongError(f"{name} holds NaN or an infinity")
    if given.n_keys > LARGEST_GRADIENT:
        return
    for name, expected in gradients_of(given).items():
        if name in found:
            _compare(name, found[name][-1, -1], expected, GRADIENT, errors)


def gradients_of(given: Problem) -> dict[str, Tensor]:
    """Gradients and relevance sums of the last head, by float64 autograd."""
    tensors = (given.query, given.key, given.value)
    query, key, value = (one[-1, -1].double().requires_grad_() for one in tensors)
    assert given.z_gradient is not None
    z_gradient = given.z_gradient[-1, -1].double()
    scores = query @ key.T * given.scale
    if given.causal:
        places = torch.arange(given.n_keys, device=query.device)
        scores = scores.masked_fill(places > places[:, None], -torch.inf)
    probs = scores.softmax(dim=-1)
    found = torch.autograd.grad(probs @ value, (query, key, value, probs), z_gradient)
    relevance = (probs * found[3]).detach().clamp_min(0)
    return {
        **dict(zip(("query", "key", "value"), found, strict=False)),
        "relevance_by_key": relevance.sum(dim=0),
        "relevance_by_query": relevance.sum(dim=1),
    }


def _compare(
    name: str, found: Tensor, expected: Tensor, allowed: float, errors: dict[str, float]
) -> None:
    error = float((found.double() - expected).abs().max() / expected.abs().max())
    errors[name] = within(name, error, allowed, of=" of the largest")
