"""Pairs of the same weights: TransformerLens' model, and ours by its names."""

from typing import Any

import torch
from torch import Tensor

from minibert.transformer_lens import HookedTransformer
from tests.families import Sizes, hf_model
from tests.rotary import theirs as rotary
from tests.rotary.classes import LANGUAGE
from tests.rotary.drawn import plain
from tests.transformer_lens_models import PROCESSING, hooked, hooked_rotary

FAMILIES = ("gpt2", "gpt_neox", "llama")
SIZES = Sizes(layers=2, heads=3, d_head=7, d_mlp=13, activation="gelu_new", seed=11)


def ids(seed: int = 4, sentences: int = 2) -> Tensor:
    """Token ids (sentence, 11)."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(2, 41, (sentences, 11), generator=generator)


def transformers_model(family: str) -> Any:
    """A small random model of transformers; of the rotary families in float64."""
    if family == "gpt2":
        return hf_model("gpt2", "GPT2LMHeadModel", SIZES)
    return rotary.model_of(plain(family, 0), LANGUAGE[family])


def ours_of(theirs: Any, **processing: Any) -> HookedTransformer:
    """Ours of a transformers model; without flags its weights are as they are."""
    dtype = next(theirs.parameters()).dtype
    off: dict[str, Any] = dict.fromkeys(PROCESSING, False)
    options = off | processing
    made = HookedTransformer.from_pretrained("a test", hf_model=theirs, dtype=dtype, **options)
    made.set_use_attn_result(True)
    return made


def lens_of(theirs: Any, **processing: bool) -> Any:
    """TransformerLens' model of a transformers model, 3.9; a test without it is skipped."""
    if theirs.config.model_type == "gpt2":
        return hooked(theirs, **processing)
    model = hooked_rotary(theirs, next(theirs.parameters()).dtype)
    if processing:
        off = dict.fromkeys(PROCESSING, False)
        # A copy, since the state dictionary is emptied on the way.
        model.load_and_process_state_dict(dict(model.state_dict()), **off | processing)
    return model


def pair(family: str, **processing: bool) -> tuple[HookedTransformer, Any]:
    """Both, of the same weights."""
    theirs = transformers_model(family)
    lens = lens_of(theirs, **processing)
    return ours_of(theirs, **processing), lens


def close(got: Tensor, wanted: Tensor, message: str = "", atol: float | None = None) -> None:
    """The same shape, and within 1e-5 in float32 or 1e-6 in float64, of the largest number.

    TransformerLens turns queries and keys, and processes weights, in float32 whatever it is given.
    """
    assert got.shape == wanted.shape, message
    hidden = wanted == float("-inf")
    assert torch.equal(got == float("-inf"), hidden), message
    got, wanted = got.masked_fill(hidden, 0), wanted.masked_fill(hidden, 0)
    bound = (1e-5 if wanted.dtype == torch.float32 else 1e-6) if atol is None else atol
    largest = max(1.0, wanted.abs().max().item()) if wanted.numel() else 1.0
    difference = (got - wanted).abs().max().item() if wanted.numel() else 0.0
    assert difference <= bound * largest, (message, difference, largest)
