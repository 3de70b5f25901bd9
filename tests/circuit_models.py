"""Random models of every family and their head weights in NumPy float64, read from transformers."""

from typing import Any

import numpy as np
import torch

from minibert.loading import from_transformers
from minibert.model import Model
from tests.families import Sizes, hf_model

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
