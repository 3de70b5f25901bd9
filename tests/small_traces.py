"""Traces of small random models, with numbers far enough from zero to tell rows apart."""

from typing import Any

import torch

from minibert.layers.config import Config
from minibert.layers.rotary import Rotary
from minibert.model import Model
from minibert.trace.read import Trace

LAYERS, HEADS, WIDTH = 3, 2, 14
# What tells families apart in attention: no order; order alone; and rotation, one key-value head
# for both heads, windows and soft caps.
KINDS: dict[str, dict[str, Any]] = {
    "bert": {},
    "gpt2": {"causal": True},
    "gemma2": {
        "causal": True,
        "family": "gemma2",
        "rotary": Rotary(4),
        "n_kv_heads": 1,
        "windows": (0, 4, 6),
        "attention_soft_cap": 2.0,
        "logit_soft_cap": 3.0,
    },
}


def small_trace(n_tokens: int = 11, causal: bool = False, **changes: Any) -> Trace:
    sizes: dict[str, Any] = {
        "vocab_size": 41,
        "n_positions": 53,
        "n_layers": LAYERS,
        "n_heads": HEADS,
        "d_model": WIDTH,
        "d_mlp": 17,
        "family": "gpt2" if causal else "bert",
        "task": "none",
        "causal": causal,
        "n_segments": 0 if causal else 2,
    }
    model = Model.from_config(Config(**(sizes | changes)), seed=7)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(5)
    return model.trace([(13 * i + 5) % 41 for i in range(n_tokens)])
