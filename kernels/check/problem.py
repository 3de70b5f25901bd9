"""The inputs of one call, as the checker holds them, their truth, and the tolerances."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import reduce
from typing import Any

import torch
from torch import Tensor

from minibert.kernels import eager, reference
from minibert.kernels.call import OPTIONS, Call, Want, wide
from minibert.quantities import Bool, Float, Int

#: Keys before and after its own position that a query sees; None: as many as there are.
Window = tuple[int | None, int | None]


@dataclass(frozen=True, eq=False)
class Problem:
    """The inputs of one call, already rounded to the dtype that is checked.

    The fields are those of `attend`.
    """

    query: Float[Tensor, "batch head query d_head"]
    key: Float[Tensor, "batch_or_page kv_head key d_head"]
    value: Float[Tensor, "batch_or_page kv_head key d_value"]
    scale: float
    lengths: Int[Tensor, " batch"] | None = None
    mask: Bool[Tensor, "#batch #head #query #key"] | None = None
    causal: bool = False
    bias: Float[Tensor, "#batch #head #query #key"] | None = None
    window: Window | None = None
    prefix: Int[Tensor, " batch"] | None = None
    soft_cap: float | None = None
    alibi_slopes: Float[Tensor, " head"] | None = None
    sinks: Float[Tensor, " head"] | None = None
    packed: tuple[int, ...] | None = None
    packed_keys: tuple[int, ...] | None = None
    pages: Int[Tensor, "batch page"] | None = None
    want: Want = field(default_factory=dict)
    # What is given backward; not an option of the call.
    z_gradient: Float[Tensor, "batch head query d_value"] | None = None

    @property
    def n_keys(self) -> int:
        """Keys of a row of the scores."""
        return self.key.shape[2] * (1 if self.pages is None else self.pages.shape[1])

    @property
    def z_shape(self) -> tuple[int, int, int, int]:
        """The shape of z: batch, head, query, d_value."""
        B, H, Q, _ = self.query.shape
        return B, H, Q, self.value.shape[3]

    @property
    def shapes(self) -> tuple[Tensor, Tensor, Tensor]:
        """query, key and value without numbers, (batch, head, position, size) with pages too."""
        B, heads, size = self.query.shape[0], self.key.shape[1], self.n_keys
        key, value = (
            self.query.new_empty(B, heads, size, one.shape[3], device="meta")
            for one in (self.key, self.value)
        )
        return self.query, key, value

    def call(self) -> Call:
        """The problem as an implementation takes it; lse is always wanted."""
        want = self.want | {"lse": ()}
        return Call.of(self.query, self.key, self.value, **self.options() | {"want": want})

    def options(self) -> dict[str, Any]:
        """The options of the call that are given, by name."""
        told = {one.name: getattr(self, one.name) for one in fields(self) if one.name in OPTIONS}
        return {name: one for name, one in told.items() if one is not None}

    def tensors(self) -> dict[str, Tensor]:
        """Every tensor of the call by name, those that are wanted of included."""
        given = {one.name: getattr(self, one.name) for one in fields(self)} | self.want
        return {name: one for name, one in given.items() if isinstance(one, Tensor)}

    @property
    def vectors(self) -> dict[str, Tensor]:
        """query, key and value, and z_gradient where there is one."""
        names = ("query", "key", "value", "z_gradient")
        return {name: one for name, one in self.tensors().items() if name in names}

    @torch.no_grad()
    def refresh(self, seed: int) -> None:
        """Give the vectors the numbers of this seed, in the same memory."""
        generator = torch.Generator(self.query.device).manual_seed(seed)
        for one in self.vectors.values():
            one.normal_(generator=generator)

    def copy(self) -> "Problem":
        """A copy: the same numbers in other memory."""
        return self._holding({name: one.clone() for name, one in self.tensors().items()})

    @torch.no_grad()
    def take(self, other: "Problem") -> "Problem":
        """Fill the own tensors in place with the numbers of `other`; the rest is the other's."""
        theirs, mine = other.tensors(), self.tensors()
        for name, one in mine.items():
            one.copy_(theirs[name])
        return other._holding(mine)

    def changed(self, **fields: Any) -> "Problem":
        """The problem with these fields in place of its own."""
        return replace(self, **fields)

    def _holding(self, tensors: dict[str, Tensor]) -> "Problem":
        want = {name: tensors.pop(name, one) for name, one in self.want.items()}
        return self.changed(want=want, **tensors)

    def differing(self, others: Mapping[str, Tensor]) -> list[str]:
        """The names of the tensors that do not hold the same numbers in `others`."""
        return [name for name, one in self.tensors().items() if not torch.equal(one, others[name])]


def truth(problem: Problem) -> dict[str, Tensor]:
    """The outputs of the float64 reference for the same, already rounded, inputs."""
    if problem.pages is not None:
        problem = replace(unfolded(problem), lengths=problem.lengths)
    return reference.attend(problem.call())


def by_eager(problem: Problem, dtype: torch.dtype) -> dict[str, Tensor]:
    """The outputs of torch eager in this dtype, for an output of any kind."""
    plain = replace(unfolded(problem, dtype), lengths=problem.lengths)
    return eager.attend(plain.call())


def unfolded(problem: Problem, dtype: torch.dtype = torch.float64) -> Problem:
    """An equal problem expressed only by a mask, a bias, a soft cap and sinks, in this dtype.

    Heads are repeated and pages laid one after the other; z, lse, scores and probs are the same.
    It is written for the checker alone, so that it shares no slip with an implementation.
    """
    distance, key = _positions(problem)
    bias, sinks = (
        None if one is None else one.to(dtype)
        for one in (bias_at(problem, distance), problem.sinks)
    )
    keys, value = (_keys(problem, one).to(dtype) for one in (problem.key, problem.value))
    return Problem(
        problem.query.to(dtype), keys, value, problem.scale, bias=bias, sinks=sinks,
        mask=all_of(allowed_at(problem, distance, key)), soft_cap=problem.soft_cap,
        want=problem.want,
    )  # fmt: skip


def allowed(problem: Problem, late: int = 0) -> dict[str, Tensor]:
    """Where each part of the call lets a query see a key, by name; all of them have to.

    The names are mask, packed, lengths, causal (with the prefix), before and after. With `late`
    each query stands so many positions later.
    """
    distance, key = _positions(problem)
    return allowed_at(problem, distance - late, key)


def all_of(parts: Mapping[str, Tensor | None]) -> Tensor | None:
    """The mask of these parts, of four axes; None where there is none."""
    there = [one for one in parts.values() if one is not None]
    mask = reduce(torch.Tensor.__and__, there) if there else None
    return None if mask is None else mask[(None,) * (4 - mask.ndim)]


def _keys(problem: Problem, vectors: Tensor) -> Tensor:
    """Keys or values, (batch, head, key, size)."""
    if problem.pages is not None:
        table, (_, _, slots, size) = problem.pages.long(), vectors.shape
        B, pages = table.shape
        vectors = vectors[table].permute(0, 2, 1, 3, 4).reshape(B, -1, pages * slots, size)
    return vectors.repeat_interleave(problem.query.shape[1] // vectors.shape[1], dim=1)


def _positions(problem: Problem) -> tuple[Tensor, Tensor]:
    """The position of each key − that of each query, and that of each key, in its sentence."""
    Q, K, device = problem.query.shape[2], problem.n_keys, problem.query.device
    if problem.packed is not None:
        query, key, _ = _packed_positions(problem.packed, problem.packed_keys or problem.packed)
        return (key - query[:, None]).to(device)[None, None], key.to(device)
    query, key = (torch.arange(n, K, device=device) for n in (K - Q, 0))
    distance = (key - query[:, None])[None, None]
    if problem.pages is not None and problem.lengths is not None:
        distance = distance + K - problem.lengths[:, None, None, None]
    return distance, key


def allowed_at(problem: Problem, distance: Tensor, key: Tensor) -> dict[str, Tensor]:
    """`allowed` for keys at these positions, so far after each query's own."""
    parts = {} if problem.mask is None else {"mask": problem.mask}
    if problem.packed is not None:
        same = _packed_positions(problem.packed, problem.packed_keys or problem.packed)[2]
        parts["packed"] = same.to(distance.device)
    lengths, prefix = (
        None if one is None else one[:, None, None, None]
        for one in (problem.lengths, problem.prefix)
    )
    if lengths is not None:
        parts["lengths"] = key < lengths
    if problem.causal:
        parts["causal"] = distance <= 0
        if prefix is not None:
            parts["causal"] = parts["causal"] | (key < prefix)
    before, after = problem.window or (None, None)
    if before is not None:
        parts["before"] = distance >= -before
    if after is not None and (prefix is not None or not problem.causal):
        parts["after"] = distance <= after
    return parts


def bias_at(problem: Problem, distance: Tensor) -> Tensor | None:
    """The bias, with what ALiBi takes off at these distances."""
    if problem.alibi_slopes is None:
        return problem.bias
    lost = -problem.alibi_slopes.double()[..., None, None] * distance.abs()
    return lost if problem.bias is None else lost + problem.bias


def _packed_positions(
    queries: tuple[int, ...], keys: tuple[int, ...]
) -> tuple[Tensor, Tensor, Tensor]:
    """The positions of queries and keys in their sentences, and where the two are of the same."""
    query = torch.cat([torch.arange(k - q, k) for q, k in zip(queries, keys, strict=True)])
    key = torch.cat([torch.arange(k) for k in keys])
    sentence = torch.arange(len(keys))
    of_query = sentence.repeat_interleave(torch.tensor(queries))
    of_key = sentence.repeat_interleave(torch.tensor(keys))
    return query, key, of_query[:, None] == of_key


def largest_score(problem: Problem) -> float:
    """The largest sum of absolute terms that a score is made of."""
    plain = unfolded(problem)
    largest = abs(plain.scale) * float((plain.query.abs() @ plain.key.abs().mT).max())
    return largest + (0.0 if plain.bias is None else float(plain.bias.abs().max()))


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
    """Twice the error of torch eager (`yardstick`), and at least the floor of rounding.

    In 16 bits also what other orders of rounding give (`_of_steps`).
    """
    eager_error = error_of(output, problem, yardstick, expected)
    return max(TIMES_EAGER * eager_error, floors(problem)[output], _of_steps(output, problem))


#: Roundings of the vectors, by a factor of the scale each, and of a score, by product, scale and
#: bias, in whatever order torch's functions are called.
_OF_VECTORS, _OF_SCORE = 2, 3
#: The largest of 10,000 rounding errors, in standard deviations.
_LARGEST = 4.0


def _stepwise(problem: Problem) -> tuple[Tensor, Tensor]:
    """The masked scores in float64, with a sink as one more, and how far each may be off.

    A function that calls torch's functions one by one rounds vectors and scores to the dtype.
    Such a rounding is off by u/sqrt(3) of the number, in the mean; of a score s, whose terms are
    t = scale·query·key, by u/sqrt(3)·sqrt(2·sum t² + 3·s²) in all: its standard deviation.
    """
    plain, unit = unfolded(problem), torch.finfo(problem.query.dtype).eps / 2
    terms = plain.scale**2 * plain.query.square() @ plain.key.square().mT
    scores = plain.scale * plain.query @ plain.key.mT

    def of(numbers: Tensor) -> Tensor:
        return unit * ((_OF_VECTORS * terms + _OF_SCORE * numbers.square()) / 3).sqrt()

    shaped, off = scores, of(scores)
    if plain.soft_cap is not None:
        shaped = plain.soft_cap * torch.tanh(scores / plain.soft_cap)
        # By the slope of tanh, the largest that an error comes near.
        near = (scores.abs() - 3 * off).clamp_min(0) / plain.soft_cap
        off = off * (1 - torch.tanh(near).square()) + unit * shaped.abs()
    if plain.bias is not None:
        shaped = shaped + plain.bias
        off = torch.maximum(off, of(shaped))
    if plain.mask is not None:
        shaped, off = shaped.masked_fill(~plain.mask, -math.inf), off.masked_fill(~plain.mask, 0)
    if plain.sinks is not None:
        sinks = plain.sinks[:, None, None].expand(*shaped.shape[:3], 1)
        shaped, off = torch.cat([shaped, sinks], -1), torch.cat([off, 0 * sinks], -1)
    return shaped, off


def undecided(problem: Problem) -> Tensor:
    """The share of each row's probs that rounding may move to other keys, (batch, head, query).

    Let d be three standard deviations of a score (`_stepwise`). The share p of some keys whose
    scores go up by d, while the others go down by d, becomes p·e^2d / (p·e^2d + 1 − p), which gains
    most where p is 1/(1 + e^d), and no share of keys without the best one is above 1 − max p.
    Where d is below a half, errors are in proportion to roundings (`_of_steps`): 0 here.
    """
    shaped, off = _stepwise(problem)
    off = 3 * off.amax(-1)
    best, others = shaped.sort(-1, descending=True).values.split([1, shaped.shape[-1] - 1], -1)
    odds = torch.minimum(others.logsumexp(-1) - best[..., 0], -off)
    moved = torch.sigmoid(odds + 2 * off) - torch.sigmoid(odds)
    return moved.nan_to_num(0.0).masked_fill(off < 0.5, 0.0)


def _of_steps(output: str, problem: Problem) -> float:
    """The error that rounding to 16 bits after each step may give; 0 for wider types.

    With e the error of a score, dp = p·(e − sum p·e), dz = sum p·e·(value − z) and d lse = sum p·e,
    of errors that are independent; and where scores are so large that rounding decides which key
    wins, what `undecided` says.
    """
    if wide(problem.query.dtype) == problem.query.dtype:
        return 0.0
    shaped, off = _stepwise(problem)
    unit, moved = torch.finfo(problem.query.dtype).eps / 2, undecided(problem)
    probs = shaped.softmax(-1).nan_to_num(0.0)
    of_keys = probs.square() * (off.square() + unit**2 / 3)
    spread = of_keys.sum(-1, keepdim=True)
    if output in ("probs", "max_prob"):
        squared = spread * probs.square() + of_keys * (1 - 2 * probs)
        allowed = _LARGEST * squared.clamp_min(0).sqrt() + 2 * unit * probs
        most = torch.ones(())
    elif output == "z":
        value = unfolded(problem).value
        n_keys = value.shape[2]
        z, of_keys = probs[..., :n_keys] @ value, of_keys[..., :n_keys]
        apart = of_keys @ value.square() - 2 * z * (of_keys @ value) + spread * z.square()
        most = (value.amax(2) - value.amin(2)).amax(-1)[..., None, None]
        allowed = _LARGEST * apart.clamp_min(0).sqrt() + 2 * unit * z.abs()
    elif output in ("lse", "row_max"):
        return _LARGEST * float((spread.sqrt() if output == "lse" else off).max())
    else:
        return 0.0
    moved = moved[..., None]
    return float(torch.where(moved > 0, (moved + 2 * unit) * most, allowed).max())


def floors(problem: Problem) -> dict[str, float]:
    """The error of each output that a correct kernel may have merely from rounding.

    u is the unit roundoff of the dtype, w that of the accumulator (float32; float64 for float64),
    A = scale · max sum |query·key| + max |bias| + max |ALiBi| the largest sum a score is made of (a
    soft cap makes it smaller, a sink is one more score), and ds the error of a score: d_head terms
    added in any order are off by about sqrt(d_head)·w·A (Higham & Mary 2019), whatever the order.

    scores    ds, and the number itself rounded: u·A
    lse       ds, and a few roundings of exp, sum and ln: 4·w·(1 + ln K); row_max likewise
    probs     dp = p·(ds − sum p·ds), so at most 2·ds; rounded once: 2·u with room
    z         sum dp·value: (2·ds + 4·u)·max |value|; probs and z are rounded once each, with room
    entropy   dH/ds = −p·(ln p + H), so at most 2·ds·ln K, and the roundings of lse
    argmax    the difference of two scores: 2·ds; top_keys likewise
    received  Q probs added up, held in the accumulator: Q·(2·ds + 4·w); profile likewise; the
              others one prob
    key_sums  as z, with columns in place of values, and rounded to the accumulator alone
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
        "top_keys": 2 * (step + few),
    } | dict.fromkeys(
        ("max_prob", "key_mass", "offset_mass", "map", "pair_mass", "top_probs"), prob
    )


def mean_tolerance(problem: Problem, yardstick: Tensor, right: Tensor) -> float:
    """Twice the mean error of torch eager's z (`yardstick`), and at least the floor of rounding.

    Large scores make it a mean over few rows, in which rounding turned one key's lead into
    another's. So three standard errors of the mean over rows are added to its square.
    """
    rows = _apart(yardstick, right).square().mean(-1)
    unsure = 3 * float(rows.std()) / rows.numel() ** 0.5 if rows.numel() > 1 else 0.0
    return max(TIMES_EAGER * (float(rows.mean()) + unsure) ** 0.5, _mean_floor(problem))


def _mean_floor(problem: Problem) -> float:
    """The root mean square error of z that a kernel right in every step may have.

    u is the unit roundoff of the dtype, w that of the accumulator, as in `floors`.
    Rounding errors of different terms are independent (Higham & Mary 2019), so that they add up by
    their squares: u·√(Σ p²·value²) of the probs, each rounded once, and u·|z|. A score, a sum of
    d_head terms of which A is the sum of the absolute values, is off by w·√d_head·A, which moves z
    by w·√d_head·A·√(Σ p²·(value − z)²); its constants, which are the same for all keys, by
    w·A·Σ p·|value|; and K sums of p·value by w·√K·Σ p·|value|. A share of the probs that goes to
    another key (`undecided`) moves z by that share of the difference of two values.
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
    moved = 2 * undecided(problem).square().mean() * value.square().mean()
    return float(((rounded + of_scores + fine * K**0.5 * size).square().mean() + moved).sqrt())


def error_of(
    output: str, problem: Problem, outputs: dict[str, Tensor], expected: dict[str, Tensor]
) -> float:
    """The largest absolute error; infinite for a wrong shape or a masked prob that is not 0."""
    found, right = outputs[output], expected[output]
    if found.shape != right.shape:
        return math.inf
    if output == "argmax":
        return _keys_error(problem, found.unsqueeze(-1), right.unsqueeze(-1), expected)
    if output == "top_keys":
        return _keys_error(problem, found, right, expected)
    if output == "probs" and _leaks(problem, found):
        return math.inf
    return distance(found, right)


def _keys_error(
    problem: Problem, found: Tensor, right: Tensor, expected: dict[str, Tensor]
) -> float:
    """How far the scores of the keys that were given are from the right ones: 0 for a tie.

    `found` and `right` are (batch, head, query, rank), -1 for no key.
    """
    none, probs = right < 0, expected.get("probs")
    if probs is None:
        # Of packed sentences, each of which counts its keys from 0.
        probs = by_eager(replace(problem, want={}), torch.float64)["probs"]
        first = _first_keys(problem)[:, None]
        found, right = (torch.where(keys < 0, keys, keys + first) for keys in (found, right))
    twice = found.sort(-1).values.diff(dim=-1) == 0
    twice &= found.sort(-1).values[..., 1:] >= 0
    if not torch.equal(found < 0, none) or int(found.max()) >= probs.shape[-1] or bool(twice.any()):
        return math.inf
    logs = probs.clamp_min(torch.finfo(probs.dtype).tiny).log()
    apart = logs.gather(-1, right.clamp_min(0)) - logs.gather(-1, found.clamp_min(0))
    return float(apart.abs().masked_fill(none, 0).max())


def _first_keys(problem: Problem) -> Tensor:
    """For each packed query the place of the first key of its sentence."""
    queries = torch.tensor(problem.packed or ())
    keys = torch.tensor(problem.packed_keys or problem.packed or ())
    return (keys.cumsum(0) - keys).repeat_interleave(queries).to(problem.query.device)


def _leaks(problem: Problem, probs: Tensor) -> bool:
    allowed = unfolded(problem).mask
    return allowed is not None and bool((probs[~allowed.expand(probs.shape)] != 0).any())
