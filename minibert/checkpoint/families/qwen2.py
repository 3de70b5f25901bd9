"""Qwen2 and Qwen2.5 (Yang et al. 2024): Llama with biases of query, key and value."""

from minibert.checkpoint.families.form import Family
from minibert.checkpoint.families.llama_like import (
    OLD_PREFIX,
    llama_fields,
    llama_names,
)
from minibert.checkpoint.families.qwen_like import VERDICTS, read, write

QWEN2 = Family(
    class_prefixes={"qwen2": "Qwen2"},
    names=llama_names(prefixes=OLD_PREFIX),
    fields=llama_fields(d_mlp=22016, n_positions=32768, n_kv_heads=32),
    verdicts=VERDICTS,
    read=read,
    write=write,
)
