"""Gemma 2 (Gemma Team 2024): norms around blocks, soft caps, a window in every second layer."""

from typing import Any

from minibert.checkpoint.families.form import (
    READ,
    Family,
    Field,
    Json,
    activation,
    number,
    positive,
    read_window,
    read_windows,
    window_of,
    write_layer_types,
)
from minibert.checkpoint.families.llama_like import (
    ALL_TURN,
    BIDIRECTIONAL,
    LAYER,
    VERDICTS,
    attention_biases,
    llama_fields,
    llama_names,
)
from minibert.layers.config import Config

BOTH_NORMS = LAYER | {
    "attention_output_norm": "post_attention_layernorm",
    "mlp_norm": "pre_feedforward_layernorm",
    "mlp_output_norm": "post_feedforward_layernorm",
}


def gemma2_fields(n_positions: int, logit_cap: float | None) -> dict[str, Field]:
    """The fields of Gemma 2 and 3, with what a family takes where one is missing."""
    fields = llama_fields(
        d_mlp=9216,
        n_positions=n_positions,
        n_kv_heads=4,
        d_head=256,
        tied=True,
        padding=0,
        end=1,
        activated=activation("hidden_activation", "gelu_pytorch_tanh", tanh="gelu_pytorch_tanh"),
    )
    return {
        **fields,
        **attention_biases(),
        "query_scalar": number("query_pre_attn_scalar", 256.0),
        "logit_soft_cap": positive("final_logit_softcapping", logit_cap),
    }


def write_windows(config: Config) -> dict[str, Any]:
    """The fields of Gemma 2 and 3 that say the windows."""
    content: dict[str, Any] = {"layer_types": write_layer_types(config)}
    window = window_of(config)
    # transformers needs a number even where no layer reads it.
    return content if window is None else content | {"sliding_window": window}


def _read(config: Json, said: Json) -> dict[str, Any]:
    window = read_window(config, 4096)
    windows = read_windows(config, said["n_layers"], window, lambda layer: layer % 2 == 0)
    return ALL_TURN.read(config, said) | {"windows": windows}


def _write(config: Config) -> dict[str, Any]:
    return ALL_TURN.write(config) | write_windows(config)


GEMMA2 = Family(
    class_prefixes={"gemma2": "Gemma2"},
    names=llama_names(BOTH_NORMS),
    fields=gemma2_fields(8192, 30.0)
    | {"attention_soft_cap": positive("attn_logit_softcapping", 50.0)},
    verdicts={
        **VERDICTS,
        **dict.fromkeys(("sliding_window", "layer_types"), READ),
        "use_bidirectional_attention": BIDIRECTIONAL,
    },
    read=_read,
    write=_write,
)
