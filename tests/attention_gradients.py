"""The truth for gradients of attention in these tests: float64 autograd through a formula."""

import math
from typing import Any

import torch
from torch import Tensor


def inputs(
    n_queries: int,
    n_keys: int,
    d_head: int,
    *,
    dtype: torch.dtype,
    seed: int = 0,
    factor: float = 1,
) -> dict[str, Tensor]:
    """Query, key, value and z_gradient, drawn and rounded; two sentences, two heads."""
    generator = torch.Generator().manual_seed(seed)
    sizes = {"query": n_queries, "key": n_keys, "value": n_keys, "z_gradient": n_queries}
    found = {
        name: torch.randn(2, 2, n, d_head, generator=generator, dtype=torch.float64)
        for name, n in sizes.items()
    }
    found |= {name: found[name] * factor for name in ("query", "key")}
    return {name: one.to(dtype) for name, one in found.items()}


def allowed_cells(n_queries: int, n_keys: int, options: dict[str, Any]) -> Tensor:
    """True where a cell is allowed, (batch, head, query, key)."""
    allowed = torch.ones(2, 2, n_queries, n_keys, dtype=torch.bool)
    if options.get("causal"):
        position = torch.arange(n_queries)[:, None] + n_keys - n_queries
        allowed &= torch.arange(n_keys) <= position
    if options.get("lengths") is not None:
        allowed &= torch.arange(n_keys) < options["lengths"][:, None, None, None]
    if options.get("mask") is not None:
        allowed &= options["mask"]
    return allowed


def truth(given: dict[str, Tensor], options: dict[str, Any]) -> dict[str, Tensor]:
    """z, lse, the gradients and the relevance P ∘ dP of each cell, all in float64.

    `options` are those of `fused.backward.backward`; dead rows have lse −inf and nothing else.
    """
    query, key, value = (given[n].double().requires_grad_() for n in ("query", "key", "value"))
    z_gradient, bias = given["z_gradient"].double(), options.get("bias")
    scale = options.get("scale") or 1 / math.sqrt(query.shape[-1])
    scores = torch.einsum("bhqd,bhkd->bhqk", query, key) * scale
    leaves = {"query": query, "key": key, "value": value}
    if bias is not None:
        leaves["bias"] = bias.double().requires_grad_()
        scores = scores + leaves["bias"]
    allowed = allowed_cells(query.shape[2], key.shape[2], options)
    alive = allowed.any(dim=-1)
    largest = scores.detach().masked_fill(~allowed, -1e6).amax(dim=-1, keepdim=True)
    weights = (scores - largest).masked_fill(~allowed, -math.inf).exp()
    total = torch.where(alive, weights.sum(dim=-1), 1.0)
    probs = weights / total.unsqueeze(-1)
    lse = total.log() + largest.squeeze(-1)
    z = torch.einsum("bhqk,bhkd->bhqd", probs, value)
    loss = (z * z_gradient).sum()
    if options.get("lse_gradient") is not None:
        loss = loss + (lse * options["lse_gradient"].double() * alive).sum()
    gradients = torch.autograd.grad(loss, list(leaves.values()))
    found = dict(zip(leaves, gradients, strict=True))
    relevance = probs * torch.einsum("bhqd,bhkd->bhqk", z_gradient, value)
    found |= {"z": z, "lse": lse.masked_fill(~alive, -math.inf), "relevance": relevance}
    return {name: one.detach() for name, one in found.items()}
