"""The truth of an attention call in NumPy float64, and how far each number may be off.

Written from the docstring of `attend` alone. The bound of each number follows from the size of the
inputs that it is made of and from where it is rounded (Higham 2002, sections 3.1 and 3.5), so that
it is small where the numbers are small, whatever torch's own attention errs there.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from drawn_calls import Drawn
from torch import Tensor

Array = npt.NDArray[np.float64]
STATISTICS = (
    "row_max", "max_prob", "entropy", "argmax", "received", "offset_mass", "top_keys", "top_probs",
)  # fmt: skip
#: Asked for beside them; those in front Triton's kernels give as well.
OFFSETS, POSITIONS, BLOCKS, RANKS = (-1, 0, 1), (0, 3), 5, (5, 3)


@dataclass(frozen=True)
class Units:
    """The spacing of numbers near 1 where sums are made, and where each is kept."""

    sums: float
    scores: float
    alibi: float
    probs: float
    outputs: float


@dataclass
class Truth:
    """The right outputs, and how far each may be off; the axes are those of `Attended`."""

    z: Array
    lse: Array
    probs: Array
    z_bound: Array
    lse_bound: Array
    probs_bound: Array
    row_max: Array
    row_max_bound: Array
    score_bound: Array
    positions: npt.NDArray[np.int64]
    real: npt.NDArray[np.bool_]
    starts: npt.NDArray[np.int64]
    """The first key of each query's own sentence, (batch, query)."""
    allowed: npt.NDArray[np.bool_]


def truth(call: Drawn, units: Units) -> Truth:
    """What a call gives, by the formulas, sentence by sentence."""
    options = call.options
    if "packed" not in options:
        return _padded(call, units)
    queries = options["packed"]
    keys = options.get("packed_keys", queries)
    rest = {n: x for n, x in options.items() if n not in ("packed", "packed_keys", "prefix")}
    found, first, first_key = [], 0, 0
    for number, (Q, K) in enumerate(zip(queries, keys, strict=True)):
        own = dict(rest)
        if "prefix" in options:
            own["prefix"] = options["prefix"][number : number + 1]
        rows, columns = slice(first, first + Q), slice(first_key, first_key + K)
        vectors = (call.query[:, :, rows], call.key[:, :, columns], call.value[:, :, columns])
        found.append((_padded(Drawn(*vectors, own), units), columns))
        first, first_key = first + Q, first_key + K
    width = sum(keys)
    joined: dict[str, Any] = {}
    for name in ("z", "lse", "row_max", "z_bound", "lse_bound", "row_max_bound"):
        joined[name] = np.concatenate([getattr(one, name) for one, _ in found], axis=2)
    for name in ("probs", "probs_bound", "score_bound", "allowed"):
        wide = []
        for one, columns in found:
            row = np.zeros((*one.lse.shape, width), dtype=getattr(one, name).dtype)
            row[..., columns] = getattr(one, name)
            wide.append(row)
        joined[name] = np.concatenate(wide, axis=2)
    starts = np.cumsum((0, *keys))[:-1]
    positions = [one.positions + start for (one, _), start in zip(found, starts, strict=True)]
    joined["positions"] = np.concatenate(positions, axis=1)
    joined["starts"] = np.repeat(starts, queries)[None]
    joined["real"] = np.ones((1, sum(queries)), dtype=bool)
    return Truth(**joined)


def _padded(call: Drawn, units: Units) -> Truth:
    options, stored = call.options, units.scores
    query, key, value = (one.double().numpy() for one in _gathered(call))
    (B, H, Q, D), K = query.shape, key.shape[2]
    key, value = (np.repeat(one, H // one.shape[1], axis=1) for one in (key, value))
    lengths = options["lengths"].numpy() if "lengths" in options else np.full(B, K)
    ends = lengths if "pages" in options else np.full(B, K)
    positions = ends[:, None] - Q + np.arange(Q)
    allowed = _allowed(options, lengths, positions, (B, H, Q, K))
    scale = options.get("scale", 1 / math.sqrt(D))
    scores = scale * np.einsum("bhqd,bhkd->bhqk", query, key)
    size = abs(scale) * np.einsum("bhqd,bhkd->bhqk", np.abs(query), np.abs(key))
    # A sum of D products; the scaled vectors and the score are rounded where they are stored.
    error = (D + 2) * units.sums * size + 3 * stored * size
    if "soft_cap" in options:
        cap = options["soft_cap"]
        scores = cap * np.tanh(scores / cap)
        error = error + 6 * stored * np.minimum(np.abs(scores) + size, cap)
    distance = np.abs(positions[:, None, :, None] - np.arange(K))
    added = np.zeros((B, H, Q, K))
    if "bias" in options:
        added = added + options["bias"].detach().double().numpy()
    if "alibi_slopes" in options:
        slopes = options["alibi_slopes"].detach().double().numpy().reshape(-1, H)[:, :, None, None]
        added = added - slopes * distance
        # Both are one bias where ALiBi is not taken.
        error = error + 3 * units.alibi * (slopes * distance + np.abs(added))
    scores = scores + added
    error = error + 2 * stored * (np.abs(scores) + np.abs(added))
    return _softmax(call, scores, error, allowed, units, positions, lengths, value)


def _softmax(
    call: Drawn,
    scores: Array,
    error: Array,
    allowed: npt.NDArray[np.bool_],
    units: Units,
    positions: npt.NDArray[np.int64],
    lengths: npt.NDArray[np.int64],
    value: Array,
) -> Truth:
    unit, stored = units.sums, units.probs
    (_, _, Q, K), options = scores.shape, call.options
    logits = np.where(allowed, scores, -np.inf)
    off = np.where(allowed, error, 0.0)
    if "sinks" in options:
        sinks = np.broadcast_to(
            options["sinks"].detach().double().numpy()[:, None, None], (*scores.shape[:3], 1)
        )
        logits = np.concatenate([logits, sinks], axis=-1)
        off = np.concatenate([off, np.full_like(sinks, 30 * units.scores)], axis=-1)
    with np.errstate(divide="ignore", invalid="ignore"):
        top = logits.max(-1, keepdims=True)
        shifted = np.exp(logits - np.where(np.isfinite(top), top, 0.0))
        lse = (np.where(np.isfinite(top), top, 0.0) + np.log(shifted.sum(-1, keepdims=True)))[
            ..., 0
        ]
        probs = np.where(allowed, np.exp(scores - lse[..., None]), 0.0)
        # exp turns an absolute error into a relative one; lse moves by no more than the scores do.
        worst = off.max(-1)
        lse_bound = worst + (K + 8) * unit + 4 * unit * np.abs(np.where(np.isfinite(lse), lse, 0.0))
        relative = np.expm1(np.minimum(error + lse_bound[..., None] + (K + 8) * unit, 30.0))
    probs_bound = np.minimum(probs * (relative + 2 * stored), 1.0) + 1e-7 * (unit > 1e-10)
    probs_bound = np.where(allowed, probs_bound, 0.0)
    z = probs @ value
    z_bound = probs_bound @ np.abs(value) + (K + 4) * unit * (probs @ np.abs(value))
    # The least is that of a number below the smallest normal one of half precision.
    z_bound = z_bound + 2 * units.outputs * np.abs(z) + (6e-8 if units.outputs == 2**-10 else 1e-30)
    itself = Q == K and "pages" not in options
    real = np.arange(Q) < (lengths[:, None] if itself else np.full((len(lengths), 1), Q))
    row_max = np.where(allowed, scores, -np.inf).max(-1)
    row_max_bound = np.where(allowed, error, 0.0).max(-1) + 1e-30
    found = (z, lse, probs, z_bound, lse_bound, probs_bound, row_max, row_max_bound, off[..., :K])
    return Truth(*found, positions, real, np.zeros_like(positions), allowed)


def gradients(call: Drawn, z_gradient: Array) -> dict[str, Array]:
    """The gradients of z times `z_gradient`: of query, key and value, in the shapes they came in.

    With P the probs and dP = dZ · Vᵀ: dV = Pᵀ · dZ, dS = P ∘ (dP − rowsum(P ∘ dP)); where a soft
    cap squeezed a score, dS times 1 − tanh²; dQ = scale · dS · K, dK = scale · dSᵀ · Q (Dao et al.
    2022, appendix B.2). A sink's share of the softmax is in P, whose rows then sum to less.
    """
    exact = truth(call, Units(0.0, 0.0, 0.0, 0.0, 0.0))
    query, (key, value) = call.query.numpy(), flat(call)
    group = query.shape[1] // key.shape[1]
    keys, values = (np.repeat(one, group, axis=1) for one in (key, value))
    scale = call.options.get("scale", 1 / math.sqrt(query.shape[3]))
    probs = exact.probs
    of_probs = np.einsum("bhqd,bhkd->bhqk", z_gradient, values)
    of_scores = probs * (of_probs - (probs * of_probs).sum(-1, keepdims=True))
    if "soft_cap" in call.options:
        cap = call.options["soft_cap"]
        scores = scale * np.einsum("bhqd,bhkd->bhqk", query, keys)
        of_scores = of_scores * (1 - np.tanh(scores / cap) ** 2)
    found = {"query": scale * np.einsum("bhqk,bhkd->bhqd", of_scores, keys)}
    of_key = scale * np.einsum("bhqk,bhqd->bhkd", of_scores, query)
    of_value = np.einsum("bhqk,bhqd->bhkd", probs, z_gradient)
    for name, numbers in (("key", of_key), ("value", of_value)):
        summed = numbers.reshape(len(numbers), -1, group, *numbers.shape[2:]).sum(2)
        found[name] = in_pages(call, summed, getattr(call, name).shape)
    return found


def flat(call: Drawn) -> tuple[Array, Array]:
    _, key, value = _gathered(call)
    return key.numpy(), value.numpy()


def in_pages(call: Drawn, numbers: Array, shape: tuple[int, ...]) -> Array:
    """Numbers of each sentence's keys, back in the pages they came from."""
    if "pages" not in call.options:
        return numbers
    found, slots = np.zeros(shape), shape[2]
    for sentence, pages in enumerate(call.options["pages"].tolist()):
        for number, page in enumerate(pages):
            found[page] += numbers[sentence, :, number * slots : (number + 1) * slots]
    return found


def _gathered(call: Drawn) -> tuple[Tensor, Tensor, Tensor]:
    """query, key and value with the pages of each sentence one after the other."""
    if "pages" not in call.options:
        return call.query, call.key, call.value
    rows = [
        [
            torch.cat([one[page] for page in pages], dim=1)
            for pages in call.options["pages"].tolist()
        ]
        for one in (call.key, call.value)
    ]
    return call.query, torch.stack(rows[0]), torch.stack(rows[1])


def _allowed(
    options: dict[str, Any],
    lengths: npt.NDArray[np.int64],
    positions: npt.NDArray[np.int64],
    shape: tuple[int, int, int, int],
) -> npt.NDArray[np.bool_]:
    keys, at = np.arange(shape[3]), positions[:, None, :, None]
    allowed = np.broadcast_to(keys < lengths[:, None, None, None], shape).copy()
    if options.get("causal"):
        seen = keys <= at
        if "prefix" in options:
            seen = seen | (keys < options["prefix"].numpy()[:, None, None, None])
        allowed &= seen
    before, after = options.get("window", (None, None))
    if before is not None:
        allowed &= keys >= at - before
    if after is not None:
        allowed &= keys <= at + after
    if "mask" in options:
        allowed &= options["mask"].numpy()
    return allowed


def complaints(call: Drawn, found: Any, right: Truth, *, lse_error: float = 0.0) -> list[str]:
    """What is further off than it may be; empty where all is right."""
    said = []
    bounds = {"z": right.z_bound, "lse": right.lse_bound + lse_error}
    given = {"z": found.z, "lse": found.lse}
    if found.statistics is not None and found.statistics.row_max is not None:
        given["row_max"], bounds["row_max"] = found.statistics.row_max, right.row_max_bound
    for name, bound in bounds.items():
        numbers, expected = given[name].double().numpy(), getattr(right, name)
        if numbers.shape != expected.shape:
            said.append(f"{name} has shape {numbers.shape} and not {expected.shape}")
            continue
        both = np.isneginf(numbers) & np.isneginf(expected)
        with np.errstate(invalid="ignore"):
            off = np.where(both, 0.0, np.abs(numbers - expected))
        if not (off <= bound).all():
            at = np.unravel_index(
                int(np.nanargmax(np.nan_to_num(off / bound, nan=np.inf))), off.shape
            )
            where = tuple(int(i) for i in at)
            said.append(
                f"{name}{where}: {numbers[at]!r} and not {expected[at]!r} ± {bound[at]:.1e}"
            )
    if found.statistics is not None:
        said += _of_statistics(call, found.statistics, right, lse_error)
    return said


def wanted(call: Drawn, *, of_tensors: bool = True) -> tuple[Any, ...]:
    """Everything that can be asked of a call, with parameters that it can take."""
    options, Q = call.options, call.query.shape[2]
    K, spans = call.key.shape[2], sentences(call)
    found: tuple[Any, ...] = ("row_max", "max_prob", "entropy", "argmax", "received")
    found += tuple(zip(("top_keys", "top_probs"), RANKS, strict=True))
    if "pages" in options:
        K *= options["pages"].shape[1]
    longest = max(columns.stop - columns.start for _, columns in spans) if spans else K
    found += (("key_mass", tuple(n for n in POSITIONS if n < longest)),)
    if "pages" not in options:
        found += (("offset_mass", OFFSETS), *(["profile"] * of_tensors))
        found += () if "packed" in options else (("map", BLOCKS),)
    if not of_tensors:
        return found
    pairs = [
        (rows.stop - 1, columns.start) for rows, columns in spans or [(slice(0, Q), slice(0, K))]
    ]
    columns = torch.arange(2.0 * K).reshape(1, 1, K, 2).cos()
    of_pairs = torch.tensor([[*pairs, (-1, -1), (0, 0), *pairs]])
    return (*found, ("key_sums", columns), ("pair_mass", of_pairs))


def sentences(call: Drawn) -> list[tuple[slice, slice]]:
    """The queries and keys of each packed sentence; none where they are not packed."""
    queries = call.options.get("packed", ())
    keys = call.options.get("packed_keys", queries)
    ends = zip(np.cumsum(queries), np.cumsum(keys), strict=True)
    sizes = zip(ends, queries, keys, strict=True)
    return [(slice(int(q - n), int(q)), slice(int(k - m), int(k))) for (q, k), n, m in sizes]


def _of_statistics(call: Drawn, found: Any, right: Truth, more: float) -> list[str]:
    probs, bound = right.probs, right.probs_bound + more
    slack, asked = 1e-6, vars(found)
    expected: dict[str, tuple[Array, Array]] = {}
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.where(probs > 0, np.log(np.where(probs > 0, probs, 1.0)), 0.0)
    expected["max_prob"] = (probs.max(-1), bound.max(-1) + slack)
    expected["entropy"] = (
        -(probs * logs).sum(-1),
        (bound * (np.abs(logs) + 2)).sum(-1) + slack * probs.shape[-1],
    )
    real = right.real[:, None, :, None]
    if "packed" not in call.options or "packed_keys" not in call.options:
        expected["received"] = ((probs * real).sum(2), (bound * real).sum(2) + slack)
    most = bound.max(-1)[..., None] + slack
    starts = right.starts[..., None]
    expected["key_mass"] = (_at(call, probs, starts + np.array(POSITIONS)), most)
    if "pages" not in call.options:
        at = right.positions[..., None] + np.array(OFFSETS)
        expected["offset_mass"] = (_at(call, probs, at), most)
        expected["profile"] = _diagonals(call, probs * real, bound * real)
    if asked.get("map") is not None:
        expected["map"] = (_means(call, probs, right.real), most.max())
    if asked.get("key_sums") is not None:
        of_keys, of_pairs = (given for _, given in wanted(call)[-2:])
        sizes = np.abs(of_keys[0, 0].double().numpy())
        expected["key_sums"] = (probs @ of_keys[0, 0].double().numpy(), bound @ sizes + slack)
        query, key = of_pairs[0].numpy().T
        expected["pair_mass"] = (probs[:, :, query, key] * (query >= 0), bound.max() + slack)
    best = {"argmax": found.argmax, "top_keys": found.top_keys}
    said = [
        one
        for name, keys in best.items()
        if keys is not None
        for one in _of_best(name, keys.numpy().reshape(*right.row_max.shape, -1), right, bound)
    ]
    ordered = -np.sort(-probs, -1)[..., : RANKS[1]]
    missing = ((0, 0),) * 3 + ((0, RANKS[1] - ordered.shape[-1]),)
    expected["top_probs"] = (np.pad(ordered, missing), most)
    for name, (numbers, allowed) in expected.items():
        given = asked.get(name)
        if given is None:
            continue
        given = given.double().numpy()
        off = np.abs(given - numbers[..., : given.shape[-1]])
        if not (off <= allowed + 0 * off).all():
            said.append(f"{name} is off by {np.nanmax(off - allowed):.1e} more than it may be")
    return said


def _at(call: Drawn, probs: Array, at: npt.NDArray[np.int64]) -> Array:
    """The probs of each query at keys (batch, query, number); 0 outside of its own sentence."""
    first, last = np.zeros((2, 1, 1, 1), dtype=int)
    last = last + probs.shape[-1]
    if spans := sentences(call):
        counts = [rows.stop - rows.start for rows, _ in spans]
        first = np.repeat([columns.start for _, columns in spans], counts)[None, :, None]
        last = np.repeat([columns.stop for _, columns in spans], counts)[None, :, None]
    inside = (at >= first) & (at < last)
    where = np.clip(at, 0, probs.shape[-1] - 1)[:, None]
    where = np.broadcast_to(where, (*probs.shape[:3], at.shape[-1]))
    return np.take_along_axis(probs, where, -1) * inside[:, None]


def _diagonals(call: Drawn, probs: Array, bound: Array) -> tuple[Array, Array]:
    """The sums along each diagonal of each sentence, and how far they may be off."""
    found = []
    for rows, columns in sentences(call) or [(slice(None), slice(None))]:
        parts = [one[:, :, rows, columns] for one in (probs, bound)]
        Q, K = parts[0].shape[2:]
        offsets = [K - Q + n for n in range(1 - K, Q)]
        found.append([[one.trace(k, 2, 3) for k in offsets] for one in parts])
    sums, allowed = (np.stack([k for one in found for k in one[n]], -1) for n in (0, 1))
    return sums, allowed + 1e-6


def _means(call: Drawn, probs: Array, real: npt.NDArray[np.bool_]) -> Array:
    """The mean of the real cells of each block."""
    Q, K = probs.shape[2:]
    rows, columns = (math.ceil(n / BLOCKS) for n in (Q, K))
    sums = np.add.reduceat(probs * real[:, None, :, None], range(0, Q, rows), axis=2)
    sums = np.add.reduceat(sums, range(0, K, columns), axis=3)
    counts = np.add.reduceat(real.astype(int), range(0, Q, rows), axis=1)
    keys = np.full(len(probs), K)
    if "lengths" in call.options:
        keys = call.options["lengths"].numpy()
    width = (keys[:, None] - np.arange(0, K, columns)).clip(0, columns)
    return sums / (counts[:, :, None] * width[:, None, :]).clip(1)[:, None]


def _of_best(name: str, keys: npt.NDArray[np.int64], right: Truth, bound: Array) -> list[str]:
    """Whether the keys of each row have its largest probs, in order, counted in its sentence.

    -1 stands for none, where a row sees fewer keys.
    """
    there, seen = keys >= 0, right.allowed.sum(-1, keepdims=True)
    if not (there == (np.arange(keys.shape[-1]) < seen)).all():
        return [f"{name}: not as many keys as a row sees"]
    at = np.where(there, keys + right.starts[:, None, :, None], 0)
    if not np.take_along_axis(right.allowed, at, -1)[there].all():
        return [f"{name}: a key that the row does not see"]
    twice = np.sort(np.where(there, keys, -1 - np.arange(keys.shape[-1])), -1)
    if (twice[..., 1:] == twice[..., :-1]).any():
        return [f"{name}: one key twice"]
    most = np.take_along_axis(right.probs + bound, at, -1)
    order = np.argsort(-right.probs, -1)[..., : keys.shape[-1]]
    least = np.take_along_axis(right.probs - bound, order, -1)
    there = there[..., : order.shape[-1]]
    wrong = there & (most[..., : order.shape[-1]] < least)
    return [f"{name}: not the keys of the largest probs"] if wrong.any() else []
