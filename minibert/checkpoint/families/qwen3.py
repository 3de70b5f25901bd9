"""Qwen3 (Yang et al. 2025): Llama with a norm of each head's query and key."""

from minibert.checkpoint.families.form import Family
from minibert.checkpoint.families.llama_like import (
    LAYER,
    OLD_PREFIX,
    QUERY_KEY_NORMS,
    attention_biases,
    llama_fields,
    llama_names,
)
from minibert.checkpoint.families.qwen_like import VERDICTS, read, write

QWEN3 = Family(
    class_prefixes={"qwen3": "Qwen3"},
    names=llama_names(LAYER | QUERY_KEY_NORMS, prefixes=OLD_PREFIX),
    fields=llama_fields(d_mlp=22016, n_positions=32768, n_kv_heads=32, d_head=128)
    | attention_biases(),
    verdicts=VERDICTS,
    read=read,
    write=write,
)
