"""Random models of every family, and their head weights in NumPy float64 from transformers."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from minibert.model import Model, from_transformers
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
# Rotary families without a norm of queries and keys; the last multiplies what is written.
ROTARY = ["llama", "gemma2", "granite"]
SIZES = Sizes(layers=3, heads=3, d_head=5)

Array = NDArray[np.float64]


def model_pair(family: str, sizes: Sizes = SIZES, dtype: Any = torch.float64) -> tuple[Any, Model]:
    """A transformers model with random weights, and the same in minibert.

    Rotary models have sizes of their own; of the chosen ones only the seed counts.
    """
    if family in LANGUAGE:
        theirs = rotary.model_of(plain(family, sizes.seed), LANGUAGE[family], dtype)
    else:
        theirs = hf_model(family, BODIES[family], sizes, dtype)
    return theirs, from_transformers(theirs)


# Where transformers keeps query, key, value, output and the norms of one layer.
_PARTS = ("query", "key", "value", "output", "attention_norm", "mlp_norm", "output_norm")
_BERT = "attention.self.query attention.self.key attention.self.value attention.output.dense "
_BERT += "attention.output.LayerNorm output.LayerNorm"
_ROTARY = "self_attn.q_proj self_attn.k_proj self_attn.v_proj self_attn.o_proj input_layernorm -"
_NAMES = {
    "gpt2": "attn.c_attn attn.c_attn attn.c_attn attn.c_proj ln_1 ln_2",
    "distilbert": "attention.q_lin attention.k_lin attention.v_lin attention.out_lin "
    "sa_layer_norm output_layer_norm",
    "albert": "attention.query attention.key attention.value attention.dense "
    "attention.LayerNorm full_layer_layer_norm",
    "llama": _ROTARY,
    "granite": _ROTARY,
    "gemma2": f"{_ROTARY} post_attention_layernorm",
}


@dataclass(frozen=True)
class Weights:
    """Of one layer: y = x·W + b of each head, and what its norms multiply by.

    W    query, key, value (head, d_model, d_head) and output (head, d_head, d_model)
    b    (head, d_head), of the output (d_model)
    """

    W: dict[str, Array]
    b: dict[str, Array]
    norms: dict[str, Array]
    centre: Array
    """What takes the mean of a row away, where the family's norms do."""

    def folded(self) -> dict[str, Array]:
        """W with what the norms in front of and behind attention do to every row alike."""
        before = self.centre @ np.diag(self.norms["attention_norm"])
        behind = self.centre @ np.diag(self.norms.get("output_norm", np.ones(len(before))))
        found = {name: before @ self.W[name] for name in ("query", "key", "value")}
        return found | {"output": self.W["output"] @ behind}


def their_layer(theirs: Any, family: str, layer: int) -> Weights:
    """The weights of a layer, keys and values as every head reads them."""
    block, n_heads = _block(theirs, family, layer), theirs.config.num_attention_heads
    W, b, norms = {}, {}, {}
    for part, name in zip(_PARTS, _NAMES.get(family, _BERT).split(), strict=False):
        if name == "-":
            continue
        weight, bias = _arrays(block.get_submodule(name))
        if weight.ndim == 1:
            # Gemma's are counted from 1.
            norms[part] = weight + (family == "gemma2")
            continue
        if family == "gpt2" and part != "output":
            third = slice(len(weight) * _PARTS.index(part), len(weight) * (_PARTS.index(part) + 1))
            weight, bias = weight[:, third], bias[third]
        elif family != "gpt2":
            weight = weight.T
        if part == "output":
            weight = weight * getattr(theirs.config, "residual_multiplier", 1.0)
            W[part], b[part] = weight.reshape(n_heads, -1, weight.shape[1]), bias
        else:
            d_head = W["query"].shape[2] if W else weight.shape[1] // n_heads
            rows = weight.reshape(len(weight), -1, d_head).transpose(1, 0, 2)
            share = n_heads // len(rows)
            W[part] = rows.repeat(share, 0)
            b[part] = bias.reshape(-1, d_head).repeat(share, 0)
    width = W["query"].shape[1]
    return Weights(W, b, norms, np.eye(width) - (family not in LANGUAGE) / width)


def _block(theirs: Any, family: str, layer: int) -> Any:
    if family in LANGUAGE:
        return theirs.model.layers[layer]
    body = getattr(theirs, "bert", theirs)
    if family == "albert":
        groups = body.encoder.albert_layer_groups
        share = body.config.num_hidden_layers / len(groups)
        return groups[int(layer / share)].albert_layers[0]
    if family == "gpt2":
        return body.transformer.h[layer]
    return (body.transformer if family == "distilbert" else body.encoder).layer[layer]


def _arrays(module: Any) -> tuple[Array, Array]:
    weight = module.weight.detach().double().numpy()
    bias = getattr(module, "bias", None)
    width = weight.shape[0]
    return weight, np.zeros(width) if bias is None else bias.detach().double().numpy()
