"""Random attention inputs for the tests of minibert.kernels; prime sizes, so axes cannot swap."""

import math
from typing import Any

import torch
from torch import Tensor

B, H, Q, K, D = 2, 3, 5, 7, 11
EVERYTHING = (
    "scores",
    "probs",
    "row_max",
    "max_prob",
    "entropy",
    "argmax",
    "received",
    ("key_mass", (0, 3)),
    ("offset_mass", (-2, 0, 1)),
    ("map", 3),
    ("top_keys", 3),
    ("top_probs", 9),
)
STATISTICS = EVERYTHING[2:]


def vectors(
    *, queries: int = Q, keys: int = K, seed: int = 0, dtype: torch.dtype = torch.float64
) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)

    def normal(n: int) -> Tensor:
        return torch.randn(B, H, n, D, generator=generator, dtype=torch.float64).to(dtype)

    return normal(queries), normal(keys), normal(keys)


def some_mask(*, queries: int = Q, keys: int = K, seed: int = 0) -> Tensor:
    """Random, different in each head, with a dead row: query 1 of sentence 1, head 2."""
    generator = torch.Generator().manual_seed(seed)
    mask = torch.rand(B, H, queries, keys, generator=generator) < 0.6
    mask[..., 0] = True
    mask[1, 2, 1] = False
    return mask


def by_torch(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    allowed: Tensor | None = None,
    bias: Tensor | None = None,
    scale: float | None = None,
) -> dict[str, Tensor]:
    """Attention by torch's own float64 einsum, masked_fill, softmax and logsumexp."""
    query, key, value = query.double(), key.double(), value.double()
    scale = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    scores = torch.einsum("bhqd,bhkd->bhqk", query, key) * scale
    masked = scores if bias is None else scores + bias.double()
    if allowed is not None:
        masked = masked.masked_fill(~allowed, -math.inf)
    probs = masked.softmax(dim=-1).nan_to_num(0.0)
    z = torch.einsum("bhqk,bhkd->bhqd", probs, value)
    return {"scores": scores, "probs": probs, "lse": masked.logsumexp(dim=-1), "z": z}


def outputs(found: Any) -> dict[str, Tensor]:
    """What `attend` gave, by name."""
    statistics = vars(found.statistics) if found.statistics else {}
    own = {name: getattr(found, name) for name in ("z", "lse", "scores", "probs")}
    return {name: one for name, one in (own | statistics).items() if one is not None}
