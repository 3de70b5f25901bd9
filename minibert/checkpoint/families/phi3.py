"""Phi-3 and Phi-4-mini (Abdin et al. 2024): Llama with fused matrices and longrope."""

from typing import Any

from minibert.checkpoint.families.form import (
    READ,
    TRAINING,
    Family,
    Json,
    one_window,
    write_one_window,
)
from minibert.checkpoint.families.llama_like import (
    SAME_LAYERS,
    VERDICTS,
    llama_fields,
    llama_names,
)
from minibert.checkpoint.families.rotary import Turned
from minibert.layers.config import Config

_TURNED = Turned(
    fraction="partial_rotary_factor", scalings=("default", "longrope"), usual_original=4096
)


def _read(config: Json, said: Json) -> dict[str, Any]:
    return _TURNED.read(config, said) | one_window(config, said, None)


def _write(config: Config) -> dict[str, Any]:
    return _TURNED.write(config) | write_one_window(config)


PHI3 = Family(
    class_prefixes={"phi3": "Phi3"},
    names=llama_names(
        {
            "attention_norm": "input_layernorm",
            "attention.query": "self_attn.qkv_proj",
            "attention.key": "self_attn.qkv_proj",
            "attention.value": "self_attn.qkv_proj",
            "attention.output": "self_attn.o_proj",
            "mlp_norm": "post_attention_layernorm",
            "mlp.gate": "mlp.gate_up_proj",
            "mlp.up": "mlp.gate_up_proj",
            "mlp.down": "mlp.down_proj",
        }
    ),
    fields=llama_fields(d_mlp=8192, n_positions=4096, eps=1e-5, padding=32000, end=32000),
    verdicts={
        **VERDICTS,
        **dict.fromkeys(_TURNED.names, READ),
        **dict.fromkeys(("resid_pdrop", "embd_pdrop"), TRAINING),
        "sliding_window": READ,
        "layer_types": SAME_LAYERS,
    },
    read=_read,
    write=_write,
    taken_over="modeling_phi3.Phi3",
)
