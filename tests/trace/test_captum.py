"""captum's integrated gradients run on a model of ours by an edit of `embed`."""

from typing import Any

import pytest
import torch
from torch import Tensor

from minibert.model import from_transformers
from tests.families import Sizes, batch, hf_model
from tests.trace.editing import close

attr = pytest.importorskip("captum.attr")
POSITION, TOKEN = 4, 7
RULE = {"n_steps": 5, "method": "gausslegendre"}


@pytest.mark.parametrize("family", ["bert", "gpt2"])
def test_integrated_gradients_are_those_of_the_same_model_in_transformers(family: str) -> None:
    name = {"bert": "BertForMaskedLM", "gpt2": "GPT2LMHeadModel"}[family]
    theirs: Any = hf_model(family, name, Sizes(layers=2, heads=2), torch.float64)
    model = from_transformers(theirs)
    ids, others = (batch("bert", seed=seed)["input_ids"][:1] for seed in (0, 3))
    # What leaves these modules enters layer 0.
    layer = theirs.transformer.drop if family == "gpt2" else theirs.bert.embeddings

    def logit(embed: Tensor) -> Tensor:
        trace = model.trace(ids.expand(len(embed), -1), edit={"embed": lambda _: embed})
        return trace.logits[:, POSITION, TOKEN]

    start, end = model.trace(others).embed, model.trace(ids).embed
    found = attr.IntegratedGradients(logit).attribute(end, baselines=start, **RULE)
    whole = attr.LayerIntegratedGradients(
        lambda given: theirs(given).logits[:, POSITION, TOKEN], layer
    )
    assert close(found, whole.attribute(ids, baselines=others, **RULE), 1e-9)
    assert found.abs().max() > 1e-3
