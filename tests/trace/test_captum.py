"""Integrated gradients and gradients equal captum's in float64, where captum is installed."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from minibert.analysis import integrated_embeddings
from minibert.loading import from_transformers
from minibert.trace.read import Trace
from tests.families import Sizes, batch, hf_model
from tests.trace.gradient_models import close

attr = pytest.importorskip("captum.attr")

CLASSES = {"bert": "BertForMaskedLM", "gpt2": "GPT2LMHeadModel"}
# The rule of Gauss and Legendre, as here, with the same number of nodes.
STEPS = 23
RULE = {"n_steps": STEPS, "method": "gausslegendre"}
POSITION, TOKEN = 4, 7


@pytest.fixture(scope="module", params=CLASSES)
def theirs(request: pytest.FixtureRequest) -> Any:
    sizes = Sizes(layers=2, heads=2)
    return hf_model(request.param, CLASSES[request.param], sizes, torch.float64)


@pytest.fixture(scope="module")
def trace(theirs: Any) -> Trace:
    return from_transformers(theirs).trace(ids(), grad=True)


@pytest.fixture
def exact_weights(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """captum rounds the weights of its rule to float32, by .float(); here they stay float64."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    monkeypatch.setattr(Tensor, "float", Tensor.double)
    yield
    torch.set_default_dtype(before)


def ids(seed: int = 0) -> Tensor:
    return batch("bert", seed=seed)["input_ids"][:1]


def number(trace: Any) -> Tensor:
    return trace.logits[0, POSITION, TOKEN]


def test_integrated_embeddings_are_those_of_captum_on_transformers(
    theirs: Any, trace: Trace, exact_weights: None
) -> None:
    # What leaves these modules enters layer 0.
    family = theirs.config.model_type
    layer = theirs.transformer.drop if family == "gpt2" else theirs.bert.embeddings
    ask = attr.LayerIntegratedGradients(
        lambda given: theirs(given).logits[:, POSITION, TOKEN], layer
    )
    expected = ask.attribute(ids(), baselines=ids(seed=3), **RULE)
    baseline = trace.model.trace(ids(seed=3)).embed
    found = integrated_embeddings(trace, number, baseline=baseline, steps=STEPS)
    assert close(found.values, expected)
    assert found.values.abs().max() > 1e-3
