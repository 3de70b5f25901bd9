"""Gemma 3 (Gemma Team 2025), its text model: layers with a window turn by another base."""

from typing import Any

from minibert.checkpoint.families.form import (
    READ,
    Family,
    Json,
    Judged,
    read_whole,
    read_window,
    read_windows,
)
from minibert.checkpoint.families.gemma2 import BOTH_NORMS, gemma2_fields, write_windows
from minibert.checkpoint.families.llama_like import (
    BIDIRECTIONAL,
    QUERY_KEY_NORMS,
    VERDICTS,
    llama_names,
)
from minibert.checkpoint.families.rotary import TurnedByType
from minibert.layers.config import Config

_TURNED = TurnedByType(
    bases={
        "full_attention": ("rope_theta", 1_000_000.0),
        "sliding_attention": ("rope_local_base_freq", 10_000.0),
    },
    scaled=("full_attention",),
)


def _read(config: Json, said: Json) -> dict[str, Any]:
    window = read_window(config, 4096)
    pattern = read_whole(config, "sliding_window_pattern", 6)
    windows = read_windows(
        config, said["n_layers"], window, lambda layer: (layer + 1) % pattern != 0
    )
    return _TURNED.read(config, said) | {"windows": windows}


def _write(config: Config) -> dict[str, Any]:
    return _TURNED.write(config) | write_windows(config)


GEMMA3 = Family(
    class_prefixes={"gemma3_text": "Gemma3Text"},
    class_names={"causal-lm": "Gemma3ForCausalLM"},
    names=llama_names(BOTH_NORMS | QUERY_KEY_NORMS),
    fields=gemma2_fields(2**17, None),
    verdicts={
        **VERDICTS,
        **dict.fromkeys(_TURNED.names, READ),
        **dict.fromkeys(("sliding_window", "sliding_window_pattern", "layer_types"), READ),
        "_sliding_window_pattern": Judged("irrelevant", "layer_types, beside it, are read"),
        "attn_logit_softcapping": Judged(
            "refused", "transformers does not apply it in this family", (None,)
        ),
        "use_bidirectional_attention": BIDIRECTIONAL,
    },
    read=_read,
    write=_write,
)
