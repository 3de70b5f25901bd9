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


# Choices that BERT and GPT-2 do not make, two families and their kin: shared key-value heads,
# rotation of a part of each head, windows, soft caps, norms before and after.
OTHER_KINDS: dict[str, dict[str, Any]] = {
    "llama": {"family": "llama", "n_kv_heads": 2, "rotary": Rotary(6), "windows": (0, 3, 0)},
    "gemma2": {
        "family": "gemma2",
        "n_kv_heads": 1,
        "rotary": Rotary(6),
        "windows": (4, 0, 4),
        "attention_soft_cap": 3.0,
        "logit_soft_cap": 5.0,
        "query_scalar": 5.0,
    },
    "gpt_neox": {"family": "gpt_neox", "rotary": Rotary(4)},
    "modernbert": {
        "family": "modernbert",
        "causal": False,
        "rotary": Rotary(6, base=160_000.0),
        "local_rotary": Rotary(6),
        "windows": (0, 5, 5),
    },
}

_LIKE_BERT: dict[str, Any] = {
    "causal": False, "n_kv_heads": 4, "windows": (), "rotary": None, "task": "masked-lm",
    "n_positions": 600,
}  # fmt: skip
# What stands behind a server alone, as changes of "llama".
SERVED_KINDS: dict[str, dict[str, Any]] = {
    "distilbert": {**_LIKE_BERT, "family": "distilbert"},
    # Its first position reads row 4 of the table; [SEP] of tiny-bert stands for padding, in row 3.
    "roberta": {**_LIKE_BERT, "family": "roberta", "position_offset": 4},
    # Its output head has an activation of its own; its embeddings are narrower than its stream.
    "electra": {
        **_LIKE_BERT, "family": "electra", "n_segments": 2, "activation": "relu", "d_embed": 10,
    },
    # Two of its three layers share their weights too.
    "albert": {
        **_LIKE_BERT, "family": "albert", "n_segments": 2, "d_embed": 10, "n_layer_groups": 2,
    },
}  # fmt: skip


def other_model(kind: str, **changes: Any) -> Model:
    """A random model of `OTHER_KINDS`, of 3 layers and 4 heads of 6, with large weights."""
    sizes = {"vocab_size": 41, "n_positions": 97, "n_layers": 3, "n_heads": 4, "d_model": 24}
    more = {"task": "none", "causal": True, "d_mlp": 17, "activation": "gelu_tanh"}
    config = Config(**(sizes | more | OTHER_KINDS[kind] | changes))
    model = Model.from_config(config, seed=7)
    draw = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0, 0.4, generator=draw)
    return model


def other_trace(kind: str, n_tokens: int = 11, **changes: Any) -> Trace:
    """What such a model makes of some tokens."""
    return other_model(kind, **changes).trace([(13 * i + 5) % 41 for i in range(n_tokens)])
