"""Small exact models, and what every test of gradients does with them."""

from collections.abc import Callable
from typing import Any

import torch

import minibert
from minibert.loading import from_transformers
from minibert.model import Model
from minibert.trace.read import Trace
from tests.explicit_forward import Explicit
from tests.families import LAYER_NAMES, Sizes, as_tokens, batch, hf_model
from tests.trace import editing

TOLERANCE = 1e-9
MODELS = {
    "bert": "BertForMaskedLM",
    "roberta": "RobertaForSequenceClassification",
    "distilbert": "DistilBertForTokenClassification",
    "electra": "ElectraForPreTraining",
    "albert": "AlbertForPreTraining",
    "gpt2": "GPT2LMHeadModel",
}
DEFAULT = Sizes()


def exact(family: str, name: str, chosen: Sizes = DEFAULT) -> Model:
    return from_transformers(hf_model(family, name, chosen, torch.float64))


def padded(family: str) -> minibert.Tokens:
    return as_tokens(batch(family))


def weighted(logits: torch.Tensor) -> torch.Tensor:
    """A number that depends on every logit, each by another factor."""
    factors = torch.arange(logits.numel(), dtype=logits.dtype).view(logits.shape)
    return (logits * torch.cos(factors)).sum()


def close(ours: torch.Tensor, expected: torch.Tensor, tolerance: float = TOLERANCE) -> bool:
    return editing.close(ours, expected, tolerance)


def assert_all(trace: Trace, scalar_of: Callable[[Any], torch.Tensor]) -> None:
    """Every gradient of trace.grad is that of the explicit pass."""
    explicit = Explicit(trace)
    expected = explicit.gradients(scalar_of(explicit))
    assert close(trace.grad.embed, expected["embed"])
    assert close(trace.grad.logits, expected["logits"])
    for layer, at in enumerate(trace.grad):
        for name in LAYER_NAMES:
            assert close(getattr(at, name), expected[layer, name]), (layer, name)
