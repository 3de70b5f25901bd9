"""OLMo 2 (OLMo Team 2024): norms at the output of a block, and of all heads' queries and keys."""

from minibert.checkpoint.families.form import Family
from minibert.checkpoint.families.llama_like import (
    ALL_TURN,
    LAYER,
    QUERY_KEY_NORMS,
    VERDICTS,
    attention_biases,
    llama_fields,
    llama_names,
)

_BEFORE = ("attention_norm", "mlp_norm")
OLMO2 = Family(
    class_prefixes={"olmo2": "Olmo2"},
    names=llama_names(
        {ours: theirs for ours, theirs in LAYER.items() if ours not in _BEFORE}
        | QUERY_KEY_NORMS
        | {
            "attention_output_norm": "post_attention_layernorm",
            "mlp_output_norm": "post_feedforward_layernorm",
        }
    ),
    fields=llama_fields(d_mlp=11008, n_positions=2048, eps=1e-5, padding=1, end=50279)
    | attention_biases(),
    verdicts=VERDICTS,
    read=ALL_TURN.read,
    write=ALL_TURN.write,
)
