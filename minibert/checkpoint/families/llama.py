"""Llama 1 to 3.3 (Touvron et al. 2023, Grattafiori et al. 2024), TinyLlama, SmolLM2."""

from minibert.checkpoint.families.form import SPEED, Family, boolean
from minibert.checkpoint.families.llama_like import (
    ALL_TURN,
    OLD_PREFIX,
    VERDICTS,
    attention_biases,
    llama_fields,
    llama_names,
)

LLAMA = Family(
    class_prefixes={"llama": "Llama"},
    names=llama_names(prefixes=OLD_PREFIX),
    fields=llama_fields(d_mlp=11008, n_positions=2048, end=2)
    | attention_biases()
    | {"mlp_bias": boolean("mlp_bias", False)},
    # pretraining_tp splits sums without changing them.
    verdicts={**VERDICTS, "pretraining_tp": SPEED},
    read=ALL_TURN.read,
    write=ALL_TURN.write,
)
