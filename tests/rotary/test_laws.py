"""What holds in every trace of a family with rotary positions, recomputed in NumPy.

That the numbers are those of transformers is in tests/test_verification.py.
"""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.activations import ACT2FN

import minibert
from minibert.trace.read import Trace
from tests.rotary.classes import FAMILIES, LANGUAGE
from tests.rotary.drawn import Drawn, drawn
from tests.rotary.theirs import as_tokens, batch, model_of

LENGTHS = (13, 7, 1)
LIMIT = 1e-12
family = pytest.mark.parametrize("family", FAMILIES)


def close(found: Any, expected: Any, limit: float = LIMIT) -> bool:
    """Whether the largest difference is within the limit, relative to the largest number."""
    found, expected = np.asarray(found), np.asarray(expected)
    assert found.shape == expected.shape
    return bool(np.abs(found - expected).max() <= limit * max(1.0, np.abs(expected).max()))


def traced(chosen: Drawn) -> Trace:
    """A ragged batch through the model of the family that says words."""
    model = minibert.load(model_of(chosen, LANGUAGE[chosen.family]))
    return model.trace(as_tokens(batch(LENGTHS)))


def window_of(config: Any, layer: int) -> tuple[int, int]:
    """How many keys before and after its own position a query sees, by transformers' config."""
    everything = 10**6
    if config.model_type == "modernbert":
        half = config.local_attention // 2
        local = config.layer_types[layer] == "sliding_attention"
        return (half, half) if local else (everything, everything)
    size = getattr(config, "sliding_window", None)
    types = getattr(config, "layer_types", None)
    if size is None or (types is not None and types[layer] != "sliding_attention"):
        return everything, 0
    return size - 1, 0


def scale_of(config: Any, d_head: int) -> float:
    """What query·key is multiplied by, by transformers' config."""
    if config.model_type == "granite":
        return float(config.attention_multiplier)
    return float(getattr(config, "query_pre_attn_scalar", d_head)) ** -0.5


@family
@settings(max_examples=3)
@given(data=st.data())
def test_heads_that_share_keys_score_them_within_their_window(
    family: str, data: st.DataObject
) -> None:
    chosen = data.draw(drawn(family))
    config, trace = chosen.config(), traced(chosen)
    for layer, at in enumerate(trace):
        query, key, value = (each.numpy() for each in (at.query, at.key, at.value))
        group = query.shape[1] // key.shape[1]
        key, value = (np.repeat(each, group, axis=1) for each in (key, value))
        scores = query @ key.swapaxes(-1, -2) * scale_of(config, query.shape[-1])
        for text, length in enumerate(LENGTHS):
            real = (text, slice(None), slice(length), slice(length))
            assert close(at.scores[real], scores[real])
        if family == "gemma2" and (cap := config.attn_logit_softcapping) is not None:
            scores = cap * np.tanh(scores / cap)
        before, after = window_of(config, layer)
        positions = np.arange(scores.shape[-1])
        apart = positions[None] - positions[:, None]
        inside = (apart >= -before) & (apart <= after)
        for text, length in enumerate(LENGTHS):
            allowed = inside[:length, :length]
            weights = np.exp(scores[text, :, :length, :length]) * allowed
            weights /= weights.sum(-1, keepdims=True)
            probs = at.probs[text, :, :length, :length].numpy()
            assert (probs[:, ~allowed] == 0).all()
            assert (at.probs[text, :, :length, length:] == 0).all()
            assert np.abs(probs.sum(-1) - 1).max() <= LIMIT
            assert close(probs, weights, 1e-11)
            assert close(at.z[text, :, :length], weights @ value[text, :, :length], 1e-11)
        for head in range(query.shape[1]):
            alone = trace[layer, head]
            assert close(alone.key, key[:, head])
            assert close(alone.value, value[:, head])
            assert close(alone.probs, at.probs[:, head])


@family
@settings(max_examples=2)
@given(data=st.data())
def test_a_gated_mlp_multiplies_by_the_activation_of_its_gate(
    family: str, data: st.DataObject
) -> None:
    chosen = data.draw(drawn(family))
    config, trace = chosen.config(), traced(chosen)
    name = getattr(config, "hidden_act", None) or config.hidden_activation
    for at in trace:
        if family == "gpt_neox":
            expected = ACT2FN[name](at.mlp_pre)
        else:
            expected = ACT2FN[name](at.mlp_gate) * at.mlp_pre
        assert close(at.mlp_post, expected)
