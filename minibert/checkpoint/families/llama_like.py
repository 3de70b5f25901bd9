"""Llama and the families built like it: what each of them has of its own."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from minibert.checkpoint.families import form
from minibert.checkpoint.families.form import (
    Family,
    Field,
    Fields,
    Group,
    Judged,
    Names,
    OneWindow,
    Windows,
)
from minibert.checkpoint.families.rotary import Turned, TurnedByType
from minibert.untrusted import Json

LAYER = {
    "attention_norm": "input_layernorm",
    "attention.query": "self_attn.q_proj",
    "attention.key": "self_attn.k_proj",
    "attention.value": "self_attn.v_proj",
    "attention.output": "self_attn.o_proj",
    "mlp_norm": "post_attention_layernorm",
    "mlp.gate": "mlp.gate_proj",
    "mlp.up": "mlp.up_proj",
    "mlp.down": "mlp.down_proj",
}
QUERY_KEY_NORMS = {
    "attention.query_norm": "self_attn.q_norm",
    "attention.key_norm": "self_attn.k_norm",
}
_HEADS: Mapping[str, Mapping[str, str]] = {
    "causal-lm": {"decoder": "lm_head"},
    "sequence-classification": {"classifier": "score"},
    "token-classification": {"classifier": "score"},
    "question-answering": {"classifier": "qa_outputs"},
}
# What transformers calls the body in some classes, though "model" in all others.
OLD_PREFIX = {"question-answering": "transformer"}
ALL_TURN = Turned()
SAME_LAYERS = Judged("refused", "all layers of the family see the same", (None,))
BIDIRECTIONAL = Judged("refused", "attention to later tokens is not implemented", (False, None))
VERDICTS: Mapping[str, Judged] = {**form.DECODER, "partial_rotary_factor": form.WHOLE_HEAD}


def llama_fields(
    *,
    d_mlp: int,
    n_positions: int,
    n_kv_heads: int = 0,
    d_head: int = 0,
    eps: float = 1e-6,
    tied: bool = False,
    padding: int | None = None,
    end: int | None = None,
    activated: Field | None = None,
    biases: tuple[str, ...] = (),
) -> dict[str, Field]:
    """The fields of Llama, with what a family takes where one is missing (0: Config's default).

    `biases` names what may have them: "attention" (query, key, value and output), "mlp".
    """
    attention, mlp = form.boolean("attention_bias", False), form.boolean("mlp_bias", False)
    usual = form.usual_fields(
        n_positions=n_positions,
        d_mlp=d_mlp,
        activation=activated or form.activation("hidden_act", "silu", tanh="gelu_pytorch_tanh"),
        norm_eps=form.norm_eps("rms_norm_eps", eps),
        tied=tied,
        padding=form.pad(padding),
    )
    return {
        **usual,
        "n_kv_heads": form.optional("num_key_value_heads", n_kv_heads),
        "d_head": form.optional("head_dim", d_head),
        "end_ids": form.ends(end),
        **({"query_bias": attention, "output_bias": attention} if "attention" in biases else {}),
        **({"mlp_bias": mlp} if "mlp" in biases else {}),
    }


def llama_family(
    model_type: str,
    prefix: str,
    fields: Mapping[str, Field],
    *,
    within: Mapping[str, str] = LAYER,
    prefixes: Mapping[str, str] = MappingProxyType({}),
    groups: tuple[Group, ...] = (ALL_TURN,),
    verdicts: Mapping[str, Judged] = MappingProxyType({}),
    **more: Any,
) -> Family:
    """A family with Llama's names and verdicts; `within` has the modules of a layer."""
    names = Names(
        prefix="model",
        body={"word": "embed_tokens", "final_norm": "norm"},
        layer="layers.{}",
        within=within,
        heads=_HEADS,
        unused=(r"rotary_emb\.inv_freq$",),
        prefixes=prefixes,
    )
    judged = {**VERDICTS, **verdicts}
    return Family(
        {model_type: prefix},
        names,
        fields,
        judged,
        groups,
        dropout=form.shares(0.0, probs="attention_dropout"),
        head_dropout=form.GENERIC_HEADS,
        **more,
    )


#: Llama 1 to 3.3 (Touvron et al. 2023, Grattafiori et al. 2024), TinyLlama, SmolLM2.
LLAMA = llama_family(
    "llama",
    "Llama",
    llama_fields(d_mlp=11008, n_positions=2048, end=2, biases=("attention", "mlp")),
    prefixes=OLD_PREFIX,
    # It splits sums without changing them.
    verdicts={"pretraining_tp": form.SPEED},
)

#: Granite 3 (Granite Team, IBM 2024): factors on embeddings, scores, stream and logits.
GRANITE = llama_family(
    "granite",
    "Granite",
    llama_fields(d_mlp=11008, n_positions=2048, end=2, biases=("attention", "mlp"))
    | {
        "embed_multiplier": form.number("embedding_multiplier", 1.0),
        "score_multiplier": form.number("attention_multiplier", 1.0),
        "residual_multiplier": form.number("residual_multiplier", 1.0),
        "logits_divisor": form.number("logits_scaling", 1.0),
    },
)

#: Mistral (Jiang et al. 2023): a window in every layer.
MISTRAL = llama_family(
    "mistral",
    "Mistral",
    llama_fields(d_mlp=14336, n_positions=2**17, n_kv_heads=8, end=2),
    groups=(ALL_TURN, OneWindow(4096)),
    verdicts={"layer_types": SAME_LAYERS},
)

_BEFORE = ("attention_norm", "mlp_norm")
#: OLMo 2 (OLMo Team 2024): norms at the output of a block, and of all heads' queries and keys.
OLMO2 = llama_family(
    "olmo2",
    "Olmo2",
    llama_fields(
        d_mlp=11008, n_positions=2048, eps=1e-5, padding=1, end=50279, biases=("attention",)
    ),
    within={ours: theirs for ours, theirs in LAYER.items() if ours not in _BEFORE}
    | QUERY_KEY_NORMS
    | {
        "attention_output_norm": "post_attention_layernorm",
        "mlp_output_norm": "post_feedforward_layernorm",
    },
)

_PARTLY_TURNED = Turned(
    fraction="partial_rotary_factor", scalings=("default", "longrope"), usual_original=4096
)
#: Phi-3 and Phi-4-mini (Abdin et al. 2024): fused matrices and longrope.
PHI3 = llama_family(
    "phi3",
    "Phi3",
    llama_fields(d_mlp=8192, n_positions=4096, eps=1e-5, padding=32000, end=32000),
    within={
        **LAYER,
        **dict.fromkeys(
            ("attention.query", "attention.key", "attention.value"), "self_attn.qkv_proj"
        ),
        **dict.fromkeys(("mlp.gate", "mlp.up"), "mlp.gate_up_proj"),
    },
    groups=(_PARTLY_TURNED, OneWindow(None)),
    verdicts={
        **dict.fromkeys(("resid_pdrop", "embd_pdrop"), form.TRAINING),
        "layer_types": SAME_LAYERS,
    },
    taken_over="modeling_phi3.Phi3",
)


def _qwen_window(config: Json) -> int | None:
    window = form.read_window(config, 4096)
    return window if form.value_of(config, "use_sliding_window", form.BOOLEAN, False) else None


def _qwen_slides(config: Json, layer: int) -> bool:
    first = form.value_of(config, "max_window_layers", form.whole_from(0), 28)
    return _qwen_window(config) is not None and layer >= first


# From a layer on, if they are turned on.
_QWEN_WINDOWS = Windows(
    _qwen_window,
    _qwen_slides,
    lambda size: {"use_sliding_window": size is not None, "sliding_window": size},
    ("use_sliding_window", "sliding_window", "max_window_layers"),
)
#: Qwen2 and Qwen2.5 (Yang et al. 2024): biases of query, key and value.
QWEN2 = llama_family(
    "qwen2",
    "Qwen2",
    llama_fields(d_mlp=22016, n_positions=32768, n_kv_heads=32),
    prefixes=OLD_PREFIX,
    groups=(ALL_TURN, _QWEN_WINDOWS),
)

#: Qwen3 (Yang et al. 2025): a norm of each head's query and key.
QWEN3 = llama_family(
    "qwen3",
    "Qwen3",
    llama_fields(d_mlp=22016, n_positions=32768, n_kv_heads=32, d_head=128, biases=("attention",)),
    within=LAYER | QUERY_KEY_NORMS,
    prefixes=OLD_PREFIX,
    groups=(ALL_TURN, _QWEN_WINDOWS),
)

_GEMMA: Fields = {"d_head": 256, "tied": True, "padding": 0, "end": 1}
_GEMMA |= {"biases": ("attention",)}
# Its first files say "gelu" and mean the approximation by tanh, and so does transformers.
_ACTIVATED = form.activation(
    "hidden_act", "gelu_pytorch_tanh", tanh="gelu_pytorch_tanh", special={"gelu": "gelu_tanh"}
)
_GEMMA_VERDICTS = {"use_bidirectional_attention": BIDIRECTIONAL}
#: Gemma (Gemma Team 2024).
GEMMA = llama_family(
    "gemma",
    "Gemma",
    llama_fields(d_mlp=24576, n_positions=8192, n_kv_heads=16, activated=_ACTIVATED, **_GEMMA),
    verdicts=_GEMMA_VERDICTS,
)

_BOTH_NORMS = LAYER | {
    "attention_output_norm": "post_attention_layernorm",
    "mlp_norm": "pre_feedforward_layernorm",
    "mlp_output_norm": "post_feedforward_layernorm",
}


def _gemma2_fields(n_positions: int, logit_cap: float | None) -> dict[str, Field]:
    """The fields of Gemma 2 and 3, with what a family takes where one is missing."""
    activated = form.activation("hidden_activation", "gelu_pytorch_tanh", tanh="gelu_pytorch_tanh")
    return {
        **llama_fields(
            d_mlp=9216, n_positions=n_positions, n_kv_heads=4, activated=activated, **_GEMMA
        ),
        "query_scalar": form.number("query_pre_attn_scalar", 256.0),
        "logit_soft_cap": form.positive("final_logit_softcapping", logit_cap),
    }


def _gemma_window(config: Json) -> int | None:
    return form.read_window(config, 4096)


def _said(size: int | None) -> Json:
    # transformers needs a number even where no layer reads it.
    return {} if size is None else {"sliding_window": size}


#: Gemma 2 (Gemma Team 2024): norms around blocks, soft caps, a window in every second layer.
GEMMA2 = llama_family(
    "gemma2",
    "Gemma2",
    _gemma2_fields(8192, 30.0)
    | {"attention_soft_cap": form.positive("attn_logit_softcapping", 50.0)},
    within=_BOTH_NORMS,
    groups=(
        ALL_TURN,
        Windows(_gemma_window, lambda _, layer: layer % 2 == 0, _said, ("sliding_window",)),
    ),
    verdicts=_GEMMA_VERDICTS,
)


def _gemma3_slides(config: Json, layer: int) -> bool:
    return (layer + 1) % form.value_of(config, "sliding_window_pattern", form.WHOLE, 6) != 0


#: Gemma 3 (Gemma Team 2025), its text model: layers with a window turn by another base.
GEMMA3 = llama_family(
    "gemma3_text",
    "Gemma3Text",
    _gemma2_fields(2**17, None),
    class_names={"causal-lm": "Gemma3ForCausalLM"},
    within=_BOTH_NORMS | QUERY_KEY_NORMS,
    groups=(
        TurnedByType(
            bases={
                form.FULL: ("rope_theta", 1_000_000.0),
                form.SLIDING: ("rope_local_base_freq", 10_000.0),
            },
            scaled=(form.FULL,),
        ),
        Windows(_gemma_window, _gemma3_slides, _said, ("sliding_window", "sliding_window_pattern")),
    ),
    verdicts={
        **_GEMMA_VERDICTS,
        "_sliding_window_pattern": Judged("irrelevant", "layer_types, beside it, are read"),
        "attn_logit_softcapping": Judged(
            "refused", "transformers does not apply it in this family", (None,)
        ),
    },
)
