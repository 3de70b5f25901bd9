"""The truth for gradients of attention in these tests: autograd through the plain formula.

The formula is that of `minibert.kernels.call.Call`, sentence by sentence, with N x N matrices. In
float64 it is the truth; in the dtype of the inputs it is what torch eager gives.
"""

import math
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor

from minibert.kernels.fused.launch import Config

__all__ = ["allowed_errors", "calls", "inputs", "truth"]


def inputs(
    n_queries: int,
    n_keys: int,
    d_head: int,
    *,
    dtype: torch.dtype,
    seed: int = 0,
    factor: float = 1,
    batch: int = 2,
    heads: tuple[int, int] = (2, 2),
    d_value: int | None = None,
) -> dict[str, Tensor]:
    """Query, key, value and z_gradient, drawn and rounded; `heads` are those of query and key."""
    generator = torch.Generator().manual_seed(seed)
    d_value = d_head if d_value is None else d_value
    shapes = {
        "query": (heads[0], n_queries, d_head),
        "key": (heads[1], n_keys, d_head),
        "value": (heads[1], n_keys, d_value),
        "z_gradient": (heads[0], n_queries, d_value),
    }
    found = {
        name: torch.randn(batch, *shape, generator=generator, dtype=torch.float64)
        for name, shape in shapes.items()
    }
    found |= {name: found[name] * factor for name in ("query", "key")}
    return {name: one.to(dtype) for name, one in found.items()}


def allowed_cells(n_queries: int, n_keys: int, options: dict[str, Any]) -> Tensor:
    """True where a cell is allowed, (#batch, #head, query, key)."""
    position = torch.arange(n_keys - n_queries, n_keys)[:, None]
    keys = torch.arange(n_keys)
    allowed = torch.ones(1, 1, n_queries, n_keys, dtype=torch.bool)
    if options.get("causal"):
        past = keys <= position
        if options.get("prefix") is not None:
            past = past | (keys < options["prefix"][:, None, None, None])
        allowed = allowed & past
    if options.get("lengths") is not None:
        allowed = allowed & (keys < options["lengths"][:, None, None, None])
    if options.get("mask") is not None:
        allowed = allowed & options["mask"]
    before, after = options.get("window") or (None, None)
    if before is not None:
        allowed = allowed & (keys >= position - before)
    if after is not None:
        allowed = allowed & (keys <= position + after)
    return allowed


def truth(
    given: dict[str, Tensor], options: dict[str, Any], dtype: torch.dtype = torch.float64
) -> dict[str, Tensor]:
    """z, lse, the gradients, P and the relevance P ∘ dP of each cell, computed in `dtype`.

    `options` are those of `attend`, and the gradient of lse as "lse_gradient"; dead rows have
    lse −inf and nothing else. Cells between packed sentences are 0.
    """
    packed = options.get("packed")
    if packed is None:
        return of_sentence(given, options, dtype)
    ends = {"query": packed, "key": options.get("packed_keys") or packed}
    ends |= {"value": ends["key"], "z_gradient": packed}
    parts = {name: one.split(list(ends[name]), dim=2) for name, one in given.items()}
    rest = {name: one for name, one in options.items() if not name.startswith("packed")}
    found = []
    for number in range(len(packed)):
        if options.get("lse_gradient") is not None:
            split = options["lse_gradient"].split(list(packed), dim=2)
            rest["lse_gradient"] = split[number]
        if options.get("prefix") is not None:
            rest["prefix"] = options["prefix"][number : number + 1]
        found.append(of_sentence({n: one[number] for n, one in parts.items()}, rest, dtype))
    joined = {}
    for name in found[0]:
        every = [one[name] for one in found]
        if name == "sinks":
            joined[name] = torch.stack(every).sum(0)
        elif name in ("probs", "relevance"):
            blocks = [
                torch.block_diag(*(one[0, h] for one in every)) for h in range(every[0].shape[1])
            ]
            joined[name] = torch.stack(blocks)[None]
        else:
            joined[name] = torch.cat(every, dim=2)
    return joined


def of_sentence(
    given: dict[str, Tensor], options: dict[str, Any], dtype: torch.dtype
) -> dict[str, Tensor]:
    """`truth` of padded sentences."""
    leaves = {n: given[n].detach().to(dtype).requires_grad_() for n in ("query", "key", "value")}
    for name in ("bias", "sinks"):
        if options.get(name) is not None:
            leaves[name] = options[name].detach().to(dtype).requires_grad_()
    query, group = leaves["query"], given["query"].shape[1] // given["key"].shape[1]
    key, value = (leaves[name].repeat_interleave(group, dim=1) for name in ("key", "value"))
    z_gradient = given["z_gradient"].to(dtype)
    scale = options.get("scale") or 1 / math.sqrt(query.shape[-1])
    scores = query @ key.mT * scale
    if options.get("soft_cap") is not None:
        scores = options["soft_cap"] * torch.tanh(scores / options["soft_cap"])
    if "bias" in leaves:
        scores = scores + leaves["bias"]
    if options.get("alibi_slopes") is not None:
        (Q, K), slopes = scores.shape[2:], options["alibi_slopes"].to(dtype)
        distance = (torch.arange(K - Q, K)[:, None] - torch.arange(K)).abs()
        scores = scores - slopes[..., None, None] * distance
    allowed = allowed_cells(query.shape[2], key.shape[2], options)
    scores = scores.masked_fill(~allowed, -math.inf)
    alive = allowed.any(dim=-1).expand(scores.shape[:3])
    if "sinks" in leaves:
        sinks = leaves["sinks"][None, :, None, None].expand(*scores.shape[:3], 1)
        scores, alive = torch.cat([scores, sinks], dim=-1), torch.ones_like(alive)
    # A row without a key is computed as if it had some, and then left out.
    opened = torch.where(alive.unsqueeze(-1), scores, 0.0)
    probs = opened.softmax(-1) * alive.unsqueeze(-1)
    probs = probs[..., : key.shape[2]]
    lse = opened.to(torch.promote_types(dtype, torch.float32)).logsumexp(-1)
    z = probs @ value
    loss = (z * z_gradient).sum().to(lse.dtype)
    if options.get("lse_gradient") is not None:
        loss = loss + (lse * options["lse_gradient"].to(lse.dtype))[alive].sum()
    gradients = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True)
    found = {
        name: torch.zeros_like(leaf) if one is None else one
        for (name, leaf), one in zip(leaves.items(), gradients, strict=True)
    }
    found |= {"probs": probs, "relevance": probs * (z_gradient @ value.mT)}
    found |= {"z": z, "lse": lse.masked_fill(~alive, -math.inf)}
    return {name: one.detach() for name, one in found.items()}


def allowed_errors(
    given: dict[str, Tensor], options: dict[str, Any], right: dict[str, Tensor]
) -> dict[str, float]:
    """How far a gradient may be off: twice eager's own error, or what rounding explains if more.

    u is the unit roundoff of the dtype, w that of float32, A the largest sum of absolute terms of a
    score, G that of dP, L the largest gradient of lse, R the largest sum of P that a key gets from
    all that read it. A sum of D terms is off by about sqrt(D)·w of its absolute terms (Higham &
    Mary 2019), and P, dS and z are rounded once:

        P:  p = 2·(sqrt(D) + 4)·w·A + 4·w of itself
        dS: e = (p + u)·(2·G + L) + (3·u + 2·sqrt(D)·w)·G for each P
    """
    eager = truth(given, options, given["query"].dtype)
    unit = torch.finfo(given["query"].dtype).eps / 2
    fine = torch.finfo(torch.float32).eps / 2
    sizes = {name: one.double().abs() for name, one in given.items()}
    group = given["query"].shape[1] // given["key"].shape[1]
    many = {n: sizes[n].repeat_interleave(group, dim=1) for n in ("key", "value")}
    scale = abs(options.get("scale") or 1 / math.sqrt(given["query"].shape[-1]))
    of_scores = scale * largest(sizes["query"] @ many["key"].mT)
    for name in ("bias", "sinks"):
        of_scores += largest(options.get(name))
    of_scores += largest(options.get("alibi_slopes")) * max(
        given["query"].shape[2], given["key"].shape[2]
    )
    of_probs = largest(sizes["z_gradient"] @ many["value"].mT)
    live = right["lse"].isfinite()
    lse_gradient = options.get("lse_gradient")
    of_lse = 0.0 if lse_gradient is None else largest(lse_gradient[live.cpu()])
    root = math.sqrt(max(one.shape[-1] for one in given.values()))
    received = right["probs"].sum(dim=2).unflatten(1, (-1, group)).sum(dim=2)
    received = max(1.0, largest(received))
    p = 2 * (root + 4) * fine * of_scores + 4 * fine
    e = (p + unit) * (2 * of_probs + of_lse) + (3 * unit + 2 * root * fine) * of_probs
    least = {
        "query": scale * largest(given["key"]) * e,
        "key": scale * largest(given["query"]) * e * received,
        "value": largest(given["z_gradient"]) * (p + unit) * received,
        "sinks": e * right["lse"][:, 0].numel(),
    }
    if "bias" in right:
        repeated = math.prod(right["probs"].shape[:3]) / math.prod(right["bias"].shape[:3])
        least["bias"] = e * repeated
    return {
        name: max(2 * largest(eager[name] - right[name]), one + unit * largest(right[name]))
        for name, one in least.items()
        if name in right
    }


def largest(numbers: Tensor | None) -> float:
    """The largest size; 0 of nothing."""
    return 0.0 if numbers is None or not numbers.numel() else float(numbers.double().abs().max())


@st.composite
def calls(draw):
    """Vectors and options of any kind together, and the config of the kernels."""
    generator = torch.Generator().manual_seed(draw(st.integers(0, 9999)))
    dtype = draw(st.sampled_from([torch.float32, torch.float16]))
    group, packed = draw(st.sampled_from([1, 2, 4, 8])), draw(st.booleans())
    key_heads = draw(st.integers(1, 2)) if group < 3 else 1
    H, D = group * key_heads, draw(st.sampled_from([8, 20]))
    options = {"causal": draw(st.booleans()), "scale": draw(st.sampled_from([0.3, -0.4, 1.0]))}

    def maybe(name, make):
        if draw(st.booleans()):
            options[name] = make()

    if packed:
        tokens = st.lists(st.sampled_from([0, 1, 17, 40]), min_size=1, max_size=3)
        options["packed"] = tuple(draw(tokens))
        n, B, Q = len(options["packed"]), 1, sum(options["packed"])
        maybe("packed_keys", lambda: tuple(draw(st.sampled_from([0, 1, 17, 65])) for _ in range(n)))
        K, sentences = sum(options.get("packed_keys", options["packed"])), n
    else:
        B, K = draw(st.integers(1, 2)), draw(st.sampled_from([1, 17, 65]))
        Q, sentences = draw(st.sampled_from([K, K, 1, 20])), B
        maybe("lengths", lambda: torch.tensor([draw(st.sampled_from([0, 1, 9, K]))] * B))
        if draw(st.integers(0, 3)) == 0:
            options["mask"] = torch.rand(B, 1, Q, K, generator=generator) < 0.6
            axes = [draw(st.sampled_from([1, n])) for n in (B, H, Q, K)]
            options["bias"] = torch.randn(axes, generator=generator).to(dtype)
    side = st.sampled_from([None, 0, 1, 7, K])
    maybe("window", lambda: (draw(side), draw(side)))
    maybe("soft_cap", lambda: draw(st.sampled_from([1.0, 20.0])))
    maybe("alibi_slopes", lambda: torch.rand(B, H, generator=generator))
    maybe("sinks", lambda: 3 * torch.randn(H, generator=generator))
    if options["causal"]:
        maybe("prefix", lambda: torch.randint(0, K + 1, (sentences,), generator=generator))
    maybe("lse_gradient", lambda: torch.randn(B, H, Q, generator=generator))
    given = inputs(
        Q, K, D, dtype=dtype, seed=draw(st.integers(0, 9999)), batch=B, heads=(H, key_heads),
        d_value=draw(st.sampled_from([D, 12])),
    )  # fmt: skip
    small = [Config(16, 32, 4, 1), Config(32, 16, 4, 1)]
    few = B * H * max(Q, K) < 150
    return given, options, draw(st.sampled_from([Config(64, 64, 4, 1), *small * few]))
