"""Direct logit attribution of GPT-2 equals TransformerLens', where that is installed."""

import pytest
import torch
from vocabulary_models import both

from minibert.analysis.attribution import logit_attribution
from tests.families import Sizes
from tests.transformer_lens_models import lens_model

pytest.importorskip("transformer_lens")


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_gpt2_values_equal_those_of_transformer_lens(seed: int) -> None:
    chosen = Sizes(activation="gelu_new", seed=seed)
    theirs, model, inputs, _ = both("gpt2", "GPT2LMHeadModel", chosen, torch.float32)
    # With value biases folded, what a head writes would be another number than its z·W_O.
    ids, token, against = inputs["input_ids"][:1], 7, 13
    logits, cache = lens_model(theirs, fold_ln=True).run_with_cache(ids)
    trace = model.trace(ids)
    torch.testing.assert_close(logits, trace.logits, atol=1e-5, rtol=1e-5)
    stack, labels = cache.get_full_resid_decomposition(
        expand_neurons=False, return_labels=True, pos_slice=-1
    )
    values = cache.logit_attrs(stack, tokens=token, incorrect_tokens=against, pos_slice=-1)
    expected = dict(zip(labels, values.flatten().tolist(), strict=True))
    found = logit_attribution(trace, token, against=against)
    ours = {f"L{n}H{h}": found[f"head {n}-{h}"] for n in range(3) for h in range(3)}
    ours |= {f"{n}_mlp_out": found[f"mlp {n}"] for n in range(3)}
    ours["embeddings"] = found["embed"]
    ours["bias"] = found.by_layer("attention bias").sum()
    # TransformerLens tells tokens and positions apart.
    expected["embeddings"] = expected.pop("embed") + expected.pop("pos_embed")
    assert set(ours) == set(expected)
    for label, value in ours.items():
        assert abs(value.item() - expected[label]) <= 1e-5, label
