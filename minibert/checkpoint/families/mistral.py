"""Mistral (Jiang et al. 2023): Llama, and a window in every layer."""

from typing import Any

from minibert.checkpoint.families.form import READ, Family, Json, one_window, write_one_window
from minibert.checkpoint.families.llama_like import (
    ALL_TURN,
    SAME_LAYERS,
    VERDICTS,
    llama_fields,
    llama_names,
)
from minibert.layers.config import Config


def _read(config: Json, said: Json) -> dict[str, Any]:
    return ALL_TURN.read(config, said) | one_window(config, said, 4096)


def _write(config: Config) -> dict[str, Any]:
    return ALL_TURN.write(config) | write_one_window(config)


MISTRAL = Family(
    class_prefixes={"mistral": "Mistral"},
    names=llama_names(),
    fields=llama_fields(d_mlp=14336, n_positions=2**17, n_kv_heads=8, end=2),
    verdicts={**VERDICTS, "sliding_window": READ, "layer_types": SAME_LAYERS},
    read=_read,
    write=_write,
)
