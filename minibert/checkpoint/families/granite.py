"""Granite 3 (Granite Team, IBM 2024): Llama with factors on embeddings, scores, stream, logits."""

from minibert.checkpoint.families.form import Family, boolean, number
from minibert.checkpoint.families.llama_like import (
    ALL_TURN,
    VERDICTS,
    attention_biases,
    llama_fields,
    llama_names,
)

GRANITE = Family(
    class_prefixes={"granite": "Granite"},
    names=llama_names(),
    fields=llama_fields(d_mlp=11008, n_positions=2048, end=2)
    | attention_biases()
    | {
        "mlp_bias": boolean("mlp_bias", False),
        "embed_multiplier": number("embedding_multiplier", 1.0),
        "score_multiplier": number("attention_multiplier", 1.0),
        "residual_multiplier": number("residual_multiplier", 1.0),
        "logits_divisor": number("logits_scaling", 1.0),
    },
    verdicts=VERDICTS,
    read=ALL_TURN.read,
    write=ALL_TURN.write,
)
