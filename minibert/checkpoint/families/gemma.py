"""Gemma (Gemma Team 2024)."""

from minibert.checkpoint.families.form import Family, activation
from minibert.checkpoint.families.llama_like import (
    ALL_TURN,
    BIDIRECTIONAL,
    VERDICTS,
    attention_biases,
    llama_fields,
    llama_names,
)

# Its first files say "gelu" and mean the approximation by tanh, and so does transformers.
_ACTIVATED = activation(
    "hidden_act", "gelu_pytorch_tanh", tanh="gelu_pytorch_tanh", special={"gelu": "gelu_tanh"}
)
GEMMA = Family(
    class_prefixes={"gemma": "Gemma"},
    names=llama_names(),
    fields=llama_fields(
        d_mlp=24576,
        n_positions=8192,
        n_kv_heads=16,
        d_head=256,
        tied=True,
        padding=0,
        end=1,
        activated=_ACTIVATED,
    )
    | attention_biases(),
    verdicts={**VERDICTS, "use_bidirectional_attention": BIDIRECTIONAL},
    read=ALL_TURN.read,
    write=ALL_TURN.write,
)
