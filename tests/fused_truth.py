"""Attention with every option in NumPy, written from the description of a call alone.

In float64 it is what is right. In a narrower dtype it errs as an eager computation does, whose
products are rounded to the dtype after they were summed in float32.
"""

import math
from typing import Any

import numpy as np

Arrays = dict[str, Any]
#: How much worse than eager in the same dtype a kernel may be.
TIMES_EAGER = 2.0


def allowed(shape: tuple[int, ...], **given: Any) -> Any:
    """True where a query (batch, head, query, key) may look."""
    B, H, Q, K = shape
    key, position = np.arange(K), np.arange(Q)[:, None] + K - Q
    seen = np.ones((B, H, Q, K), bool)
    before, after = given.get("window") or (None, None)
    if given.get("lengths") is not None:
        seen &= key < given["lengths"][:, None, None, None]
    if given.get("causal"):
        near = np.broadcast_to(key <= position, (B, 1, Q, K))
        if given.get("prefix") is not None:
            near = near | (key < given["prefix"][:, None, None, None])
        seen &= near
    if before is not None:
        seen &= key >= position - before
    if after is not None and (not given.get("causal") or given.get("prefix") is not None):
        seen &= key <= position + after
    if given.get("mask") is not None:
        seen &= given["mask"]
    return seen


def attention(query: Any, key: Any, value: Any, want: Arrays, dtype: Any, **given: Any) -> Arrays:
    """z, lse and statistics of arrays (batch, head, position, feature), as computed in `dtype`."""
    wide = np.float64 if dtype == np.float64 else np.float32
    group = query.shape[1] // key.shape[1]
    query, key, value = (
        one.astype(wide) for one in (query, key.repeat(group, 1), value.repeat(group, 1))
    )
    (B, H, Q), K = query.shape[:3], key.shape[2]
    scores = (wide(given["scale"]) * (query @ key.swapaxes(2, 3))).astype(dtype).astype(wide)
    if given.get("soft_cap"):
        cap = wide(given["soft_cap"])
        scores = (cap * np.tanh(scores / cap)).astype(dtype).astype(wide)
    if given.get("bias") is not None:
        scores = scores + given["bias"].astype(wide)
    if given.get("alibi_slopes") is not None:
        slopes = np.broadcast_to(given["alibi_slopes"].astype(wide), (B, H))[:, :, None, None]
        scores = scores - slopes * abs(np.arange(Q)[:, None] + K - Q - np.arange(K))
    seen = allowed((B, H, Q, K), **given)
    scores = np.where(seen, scores, wide(-np.inf))
    logits = scores
    if given.get("sinks") is not None:
        sinks = np.broadcast_to(given["sinks"].astype(wide)[:, None, None], (B, H, Q, 1))
        logits = np.concatenate([scores, sinks], -1)
    with np.errstate(divide="ignore", invalid="ignore"):
        largest = logits.max(-1)
        shift = np.where(np.isfinite(largest), largest, 0)
        lse = shift + np.log(np.exp(logits - shift[..., None]).sum(-1))
        probs = np.where(seen, np.exp(scores - np.where(np.isfinite(lse), lse, 0)[..., None]), 0)
        logs = np.where(probs > 0, np.log(probs), 0)
    found = {
        "z": (probs.astype(dtype).astype(wide) @ value).astype(dtype),
        "lse": lse,
        "probs": probs,
        "row_max": scores.max(-1),
        "max_prob": probs.max(-1),
        "entropy": -(probs * logs).sum(-1),
        "argmax": np.where(seen.any(-1), scores.argmax(-1), -1),
    }
    return found | _masses(probs, want) | _sums(probs, want, given.get("lengths"))


def _masses(probs: Any, want: Arrays) -> Arrays:
    Q, K = probs.shape[2:]
    found = {"key_mass": probs[..., list(want.get("key_mass", ()))]}
    mass = []
    for offset in want.get("offset_mass", ()):
        at = np.arange(Q) + K - Q + offset
        inside = (at >= 0) & (at < K)
        mass.append(np.where(inside, probs[:, :, np.arange(Q), at.clip(0, K - 1)], 0))
    return found | {"offset_mass": np.stack(mass, -1) if mass else None}


def _sums(probs: Any, want: Arrays, lengths: Any) -> Arrays:
    """What is summed over queries; those of padding do not count where queries have lengths."""
    B, H, Q, K = probs.shape
    every = np.full(B, 10**9)
    real = [np.minimum(every if lengths is None or n != K else lengths, n) for n in (Q, K)]
    probs = probs * (np.arange(Q) < real[0][:, None])[:, None, :, None]
    found = {"received": probs.sum(2)}
    if "map" in want:
        sizes = [math.ceil(n / want["map"][0]) for n in (Q, K)]
        cells = [math.ceil(n / size) for n, size in zip((Q, K), sizes, strict=True)]
        total = np.zeros((B, H, *cells))
        for q, k in np.ndindex(*cells):
            rows, columns = (slice(n * s, (n + 1) * s) for n, s in zip((q, k), sizes, strict=True))
            counts = [
                (real[i] - n * sizes[i]).clip(1, sizes[i]) for i, n in enumerate((q, k))
            ]
            area = (counts[0] * counts[1])[:, None]
            total[:, :, q, k] = probs[:, :, rows, columns].sum((2, 3)) / area
        found["map"] = total
    return found


def floors(query: Any, key: Any, value: Any, dtype: Any, **given: Any) -> dict[str, float]:
    """What rounding alone may do to each output of a kernel that is right in every step.

    A score is a sum of d_head terms, off by about sqrt(d_head)·w·A, where A is the largest sum of
    sizes and w the rounding of float32 (Higham & Mary 2019); its soft cap errs in its last places.
    """
    (Q, D), K = query.shape[2:], key.shape[2]
    unit, fine = np.finfo(dtype).eps / 2, 2.0**-24
    group = query.shape[1] // key.shape[1]
    sizes = abs(query).astype(float) @ abs(key.repeat(group, 1)).astype(float).swapaxes(2, 3)
    largest = abs(given["scale"]) * sizes.max(initial=0.0) + 4 * (given.get("soft_cap") or 0.0)
    for name, factor in (("bias", 1), ("sinks", 1), ("alibi_slopes", max(Q, K))):
        if given.get(name) is not None:
            largest += factor * float(abs(given[name]).max())
    step = math.sqrt(D) * fine * largest
    few, prob = step + 4 * fine * (1 + math.log(K + 1)), 2 * step + 4 * fine
    z = (2 * step + 4 * unit) * float(abs(value).max(initial=0))
    entropy = 2 * step * math.log(K + 1) + few
    found = {"z": z, "lse": few, "row_max": few, "entropy": entropy, "received": (Q + 1) * prob}
    return found | dict.fromkeys(("max_prob", "key_mass", "offset_mass", "map"), prob)


def distance(found: Any, right: Any) -> float:
    """The largest absolute error; infinite for another shape, or where one is not finite."""
    if found.shape != right.shape:
        return math.inf
    with np.errstate(invalid="ignore"):
        errors = np.where(found == right, 0.0, abs(found - right))
    return math.inf if np.isnan(errors).any() else float(errors.max(initial=0.0))


def assert_right(found: Arrays, vectors: tuple[Any, ...], want: Arrays, **given: Any) -> None:
    """Every output errs at most twice as much as eager, or as rounding explains."""
    dtype = vectors[0].dtype
    right = attention(*vectors, want, np.float64, **given)
    eager = attention(*vectors, want, dtype, **given)
    least = floors(*vectors, dtype, **given)
    assert set(found) == {"z", "lse", *want}
    for name in found.keys() - {"argmax"}:
        limit = max(TIMES_EAGER * distance(eager[name].astype(float), right[name]), least[name])
        assert distance(found[name].astype(float), right[name]) <= limit, name
    if "argmax" in found:
        best, chosen = right["probs"].max(-1), found["argmax"].clip(0)
        assert ((found["argmax"] < 0) == (right["argmax"] < 0)).all()
        prob = np.take_along_axis(right["probs"], chosen[..., None], -1)[..., 0]
        with np.errstate(divide="ignore", invalid="ignore"):
            worse = np.where(right["argmax"] < 0, 0, np.log(best) - np.log(prob))
        assert worse.max(initial=0.0) <= 2 * max(least["lse"], 2.0**-17 if dtype == np.float16 else 0)
