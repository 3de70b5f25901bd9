"""Small models of every family to edit, and each quantity of a trace once more, by hand."""

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor

import minibert
from minibert.model import Model, from_transformers
from minibert.quantities import QUANTITIES
from tests.families import CLASSES, LAYER_NAMES, Sizes, batch, hf_model

LAYERS, HEADS, LENGTH = 3, 3, 13
NAMES = list(LAYER_NAMES)
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


def _narrowed(value: Tensor) -> Tensor:
    """The first of the longest axis."""
    return value.narrow(max(range(value.dim()), key=value.shape.__getitem__), 0, 1)


#: What functions give that are not of the kind that they were given: float32 or float64.
OTHER_KINDS: tuple[Callable[[Tensor], Any], ...] = (
    _narrowed,
    lambda value: value[None],
    lambda value: value.unsqueeze_(0),
    lambda value: value.mean(),
    lambda value: value.to(torch.float32 if value.dtype == torch.float64 else torch.float64),
    lambda value: value.bfloat16(),
    lambda value: value.long(),
    lambda value: value.to("meta"),
    lambda value: value.detach().to_sparse(),
    lambda value: 0.0,
    lambda value: value.tolist(),
    lambda value: True,
)
