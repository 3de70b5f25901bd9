"""Small models of every family to edit, and each quantity of a trace once more, by hand."""

from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

import minibert
from minibert.loading import from_transformers
from minibert.model import Model
from minibert.quantities import QUANTITIES
from tests.families import CLASSES, Sizes, batch, hf_model

LAYERS, HEADS, LENGTH = 3, 3, 13
NAMES = [name for name, quantity in QUANTITIES.items() if quantity.per_layer]
PER_HEAD = [name for name in NAMES if QUANTITIES[name].per_head]
FAMILIES = {
    family: next(name for name in names if name.endswith(("ForMaskedLM", "LMHeadModel")))
    for family, names in CLASSES.items()
}


@cache
def theirs_of(family: str, dtype: torch.dtype = torch.float32) -> Any:
    return hf_model(family, FAMILIES[family], Sizes(), dtype)


@cache
def model_of(family: str, dtype: torch.dtype = torch.float32) -> Model:
    return from_transformers(theirs_of(family, dtype))


def sentences(family: str, seed: int = 0) -> minibert.Tokens:
    """Three sentences of 13, 7 and 1 tokens; those of another seed have the same lengths."""
    inputs = batch(family, seed=seed)
    segments = inputs["token_type_ids"] if model_of(family).config.n_segments > 1 else None
    mask = inputs["attention_mask"].bool()
    return minibert.Tokens.from_ids(inputs["input_ids"], mask=mask, segments=segments)


def whole(family: str, seed: int = 0) -> minibert.Tokens:
    """Three sentences of 13 tokens."""
    ids = batch(family, seed=seed)["input_ids"]
    return minibert.Tokens.from_ids(torch.where(ids < 2, 5, ids))


def random_like(value: Tensor, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(value.shape, generator=generator, dtype=torch.float64).to(value)


def close(found: Tensor, expected: Tensor, tolerance: float = 1e-5) -> bool:
    """Whether the largest difference is within the tolerance, relative to the largest number."""
    assert found.shape == expected.shape
    size = max(1.0, expected.abs().max().item())
    return bool((found - expected).abs().max() <= tolerance * size)


def recomputed(trace: Any, layer: int) -> dict[str, Tensor]:
    """Each quantity of a layer from those before it, as they are read from the trace."""
    at, part, config = trace[layer], trace.model.body.layers[layer], trace.config
    attention, pre_norm = part.attention, config.pre_norm

    def linear(module: Any, x: Tensor) -> Tensor:
        return F.linear(x, module.weight, module.bias)

    def norm(module: Any, x: Tensor, here: bool) -> Tensor:
        return F.layer_norm(x, x.shape[-1:], module.weight, module.bias, module.eps) if here else x

    x = norm(part.attention_norm, at.resid_pre, pre_norm)
    projected = {
        name: linear(getattr(attention, name), x)
        .unflatten(-1, (config.n_heads, -1))
        .transpose(1, 2)
        for name in ("query", "key", "value")
    }
    weight = attention.output.weight.unflatten(1, (config.n_heads, -1))
    mid, post = at.resid_pre + at.attn_out, at.resid_mid + at.mlp_out
    return projected | {
        "resid_pre": trace.embed if layer == 0 else trace[layer - 1].resid_post,
        "scores": at.query @ at.key.transpose(-1, -2) / config.d_head**0.5,
        "probs": at.scores.masked_fill(~trace.mask, -torch.inf).softmax(-1),
        "z": at.probs @ at.value,
        "head_out": torch.einsum("bhpd,mhd->bhpm", at.z, weight),
        "attn_out": at.head_out.sum(1) + attention.output.bias,
        "resid_mid": norm(part.attention_norm, mid, not pre_norm),
        "mlp_pre": linear(part.mlp.up, norm(part.mlp_norm, at.resid_mid, pre_norm)),
        "mlp_post": F.gelu(at.mlp_pre),
        "mlp_out": linear(part.mlp.down, at.mlp_post),
        "resid_post": norm(part.mlp_norm, post, not pre_norm),
    }
