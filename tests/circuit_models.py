"""Random models of every family and their head weights in NumPy float64, read from transformers."""

from typing import Any

import numpy as np
import torch

from minibert.loading import from_transformers
from minibert.model import Model
from tests.families import Sizes, hf_model
from tests.rotary import theirs as rotary
from tests.rotary.classes import LANGUAGE
from tests.rotary.drawn import plain

BODIES = {
    "bert": "BertForMaskedLM",
    "roberta": "RobertaModel",
    "distilbert": "DistilBertModel",
    "electra": "ElectraModel",
    "albert": "AlbertModel",
    "gpt2": "GPT2LMHeadModel",
}
FAMILIES = sorted(BODIES)
SIZES = Sizes(layers=3, heads=3, d_head=5)

Array = np.ndarray[Any, np.dtype[Any]]


def model_pair(family: str, sizes: Sizes = SIZES, dtype: Any = torch.float64) -> tuple[Any, Model]:
    """A transformers model with random weights, and the same in minibert."""
    theirs = hf_model(family, BODIES[family], sizes, dtype)
    return theirs, from_transformers(theirs)


# Where transformers keeps the linear layers and norms of one layer.
_BERT = {
    "query": "attention.self.query",
    "key": "attention.self.key",
    "value": "attention.self.value",
    "output": "attention.output.dense",
    "attention_norm": "attention.output.LayerNorm",
    "mlp_norm": "output.LayerNorm",
}
_NAMES = {
    "distilbert": {
        "query": "attention.q_lin",
        "key": "attention.k_lin",
        "value": "attention.v_lin",
        "output": "attention.out_lin",
        "attention_norm": "sa_layer_norm",
        "mlp_norm": "output_layer_norm",
    },
    "albert": {
        "query": "attention.query",
        "key": "attention.key",
        "value": "attention.value",
        "output": "attention.dense",
        "attention_norm": "attention.LayerNorm",
        "mlp_norm": "full_layer_layer_norm",
    },
}


def their_layer(theirs: Any, family: str, layer: int) -> dict[str, tuple[Array, Array]]:
    """(weight, bias) of a layer's linear layers as y = x·weight + bias, and of its norms."""
    if family == "gpt2":
        block = theirs.transformer.h[layer]
        weight, bias = (t.detach().double().numpy() for t in block.attn.c_attn.parameters())
        names = ("query", "key", "value")
        split = zip(np.split(weight, 3, 1), np.split(bias, 3), strict=True)
        found = dict(zip(names, split, strict=True))
        found["output"] = _arrays(block.attn.c_proj)
        found["attention_norm"] = _arrays(block.ln_1)
        return found
    body = getattr(theirs, "bert", theirs)
    if family == "distilbert":
        block = body.transformer.layer[layer]
    elif family == "albert":
        groups = body.encoder.albert_layer_groups
        share = body.config.num_hidden_layers / len(groups)
        block = groups[int(layer / share)].albert_layers[0]
    else:
        block = body.encoder.layer[layer]
    found = {}
    for ours, name in _NAMES.get(family, _BERT).items():
        weight, bias = _arrays(block.get_submodule(name))
        found[ours] = (weight.T if weight.ndim == 2 else weight, bias)
    return found


# Rotary families without a norm of queries and keys, and the two kinds of weights they have.
ROTARY = ["llama", "gemma2"]


def rotary_pair(family: str, seed: int = 0) -> tuple[Any, Model]:
    """A transformers model with rotary positions and grouped heads, and the same in minibert."""
    theirs = rotary.model_of(plain(family, seed), LANGUAGE[family])
    return theirs, from_transformers(theirs)


def their_rotary_layer(theirs: Any, layer: int) -> dict[str, Array]:
    """The weights of a layer as y = x·weight, keys and values repeated for each head; its norms."""
    block, hf = theirs.model.layers[layer], theirs.config
    group, d_head = hf.num_attention_heads // hf.num_key_value_heads, hf.head_dim
    found = {}
    for name, part in (("query", "q"), ("key", "k"), ("value", "v"), ("output", "o")):
        weight = getattr(block.self_attn, f"{part}_proj").weight.detach().numpy().T
        if part in "kv":
            per_head = weight.reshape(len(weight), -1, d_head)
            weight = np.repeat(per_head, group, axis=1).reshape(len(weight), -1)
        found[name] = weight
    found["attention_norm"] = rms_weight(theirs, block.input_layernorm)
    if hf.model_type == "gemma2":
        found["output_norm"] = rms_weight(theirs, block.post_attention_layernorm)
    return found


def rms_weight(theirs: Any, norm: Any) -> Array:
    """What an RMSNorm multiplies by: Gemma's are counted from 1."""
    return norm.weight.detach().numpy() + (theirs.config.model_type == "gemma2")


def _arrays(module: Any) -> tuple[Array, Array]:
    return (
        module.weight.detach().double().numpy(),
        module.bias.detach().double().numpy(),
    )


def head_of(weights: tuple[Array, Array], head: int, d_head: int) -> tuple[Array, Array]:
    """W (d_model x d_head) and b of one head of query, key or value."""
    columns = slice(head * d_head, (head + 1) * d_head)
    return weights[0][:, columns], weights[1][columns]


def centring(width: int) -> Array:
    """The matrix that takes the mean of a row away."""
    return np.eye(width) - 1 / width
