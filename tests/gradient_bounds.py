"""How far the gradients of attention may be off, number by number, from where each is rounded.

The backward of FlashAttention-2 (Dao 2023, algorithm 2), followed from its inputs to its outputs.
u is half the spacing of float32 near 1, in which everything is summed; h that of the tensors'
dtype: in half precision P and dC are rounded before they enter a product of matrices, and z and the
gradients when they are stored. A sum of n products errs, in any order, at most n u times the sum of
their absolute values (Higham 2002, section 3.1); 2 u more are for what is multiplied or added once.
a is half the least number that half precision tells from 0, for float32 h is 0 and a is b, its
least normal number, below which it may give 0. e(·) is the bound of a number's error; those of the
scores and of lse are in `calls_by_hand.py`.

    P = exp(s − lse)         e(P)  = P (exp(e(s) + e(lse) + 8 u) − 1) + b
    P rounded                e(P') = e(P) + h P + a
    dV = P'ᵀ dZ              e(dV) = e(P')ᵀ |dZ| + (n + 2) u Pᵀ |dZ|, and rounded
    z = P' V                 e(z)  = e(P') |V| + (K + 2) u P |V|, and rounded
    dP = dZ Vᵀ               e(dP) = (d + 2) u |dZ| |V|ᵀ
    δ = rowsum(dZ z)         e(δ)  = rowsum(|dZ| e(z)) + (d + 2) u rowsum(|dZ| |z|)
    dS = P (dP − δ)          e(dS) = e(P) |dP − δ| + (P + e(P)) (e(dP) + e(δ) + 2 u (|dP| + |δ|))
    dC = dS (1 − tanh²)      e(dC) = e(dS) (1 − tanh²) + |dS| (0.77 e(x) + 16 u) + 2 u |dC|
    dC rounded               e(dC') = e(dC) + h |dC| + a
    dQ = scale dC' K         e(dQ) = scale (e(dC') |K| + (n + 2) u |dC| |K|), and rounded
    dK = scale dC'ᵀ Q        likewise; dK and dV are sums over the heads of a group

"And rounded" adds (h + 2 u) |number| + a. Without a soft cap c, dC is dS; with one x is the score
over c before the cap, 0.77 the steepest slope of 1 − tanh², and 16 u holds two roundings of a tanh
that errs at most 4 u. n counts the products that are summed: keys of a query, queries of a key in
all heads of its group. Where a query may not look P is 0, and nothing is off.
"""

from dataclasses import dataclass

import numpy as np
from calls_by_hand import Array, Truth, Units, flat, gradients, in_pages, truth
from drawn_calls import Drawn

#: b, and a for half precision, by the spacing of its numbers near 1.
_LEAST_NORMAL, _LEAST = 2.0**-126, {2.0**-10: 2.0**-25}


@dataclass(frozen=True)
class _Rounding:
    """u, h and a of the module's docstring."""

    sums: float
    stored: float
    least: float

    def entering(self, numbers: Array, error: Array) -> Array:
        """The error of numbers that are rounded before they enter a product."""
        return error + self.stored * np.abs(numbers) + self.least

    def leaving(self, numbers: Array, error: Array) -> Array:
        """The error of numbers that are rounded when they are stored."""
        return error + (self.stored + 2 * self.sums) * np.abs(numbers) + self.least

    def summed(self, count: int) -> float:
        """The error of a sum of so many products, for each unit of their absolute values."""
        return (count + 2) * self.sums


def gradient_bounds(call: Drawn, z_gradient: Array, units: Units) -> dict[str, Array]:
    """How far the gradients of query, key and value may be off; in the shapes they came in.

    The call's vectors are float64; `units` says where a kernel rounds.
    """
    half = units.outputs in _LEAST
    least = _LEAST.get(units.outputs, _LEAST_NORMAL)
    size = _Rounding(units.sums / 2, units.outputs / 2 if half else 0.0, least)
    right, query, (key, value) = truth(call, units), call.query.numpy(), flat(call)
    group = query.shape[1] // key.shape[1]
    keys, values = (np.repeat(one, group, axis=1) for one in (key, value))
    scale = abs(call.options.get("scale", query.shape[3] ** -0.5))
    of_queries, of_keys = size.summed(query.shape[2] * group), size.summed(key.shape[2])
    probs, seen, dz = right.probs, right.probs > 0, np.abs(z_gradient)
    lost = right.score_bound + right.lse_bound[..., None] + 8 * size.sums
    wrong_probs = np.where(seen, probs * np.expm1(np.minimum(lost, 30.0)) + _LEAST_NORMAL, 0.0)
    entered = np.where(seen, size.entering(probs, wrong_probs), 0.0)
    wrong_z = size.leaving(right.z, (entered + of_keys * probs) @ np.abs(values))
    of_scores, error = _of_scores(right, z_gradient, values, wrong_probs, wrong_z, size)
    if "soft_cap" in call.options:
        products = np.einsum("bhqd,bhkd->bhqk", query, keys)
        terms = np.einsum("bhqd,bhkd->bhqk", np.abs(query), np.abs(keys))
        x, off = (one * scale / call.options["soft_cap"] for one in (products, terms))
        slope = 1 - np.tanh(x) ** 2
        off = 0.77 * size.summed(query.shape[3] + 2) * off + 16 * size.sums
        error = slope * error + np.abs(of_scores) * off
        of_scores = slope * of_scores
        error = error + 2 * size.sums * np.abs(of_scores)
    passed, sizes = np.where(seen, size.entering(of_scores, error), 0.0), np.abs(of_scores)
    of_query = np.einsum("bhqk,bhkd->bhqd", passed + of_keys * sizes, np.abs(keys))
    of_key = np.einsum("bhqk,bhqd->bhkd", passed + of_queries * sizes, np.abs(query))
    of_value = np.einsum("bhqk,bhqd->bhkd", entered + of_queries * probs, dz)
    bounds = {"query": scale * of_query}
    for name, bound in (("key", scale * of_key), ("value", of_value)):
        summed = bound.reshape(len(bound), -1, group, *bound.shape[2:]).sum(2)
        bounds[name] = in_pages(call, summed, getattr(call, name).shape)
    exact = gradients(call, z_gradient)
    return {name: size.leaving(exact[name], bound) for name, bound in bounds.items()}


def _of_scores(
    right: Truth,
    z_gradient: Array,
    values: Array,
    wrong_probs: Array,
    wrong_z: Array,
    size: _Rounding,
) -> tuple[Array, Array]:
    """dS, and how far it may be off."""
    dz, probs, width = np.abs(z_gradient), right.probs, size.summed(values.shape[3])
    of_probs = np.einsum("bhqd,bhkd->bhqk", z_gradient, values)
    delta = (probs * of_probs).sum(-1, keepdims=True)
    off = width * np.einsum("bhqd,bhkd->bhqk", dz, np.abs(values))
    off = off + (dz * (wrong_z + width * np.abs(right.z))).sum(-1, keepdims=True)
    off = off + 2 * size.sums * (np.abs(of_probs) + np.abs(delta))
    error = wrong_probs * np.abs(of_probs - delta) + (probs + wrong_probs) * off
    return probs * (of_probs - delta), error
