"""What Llama and the families built like it have in common."""

from collections.abc import Mapping
from types import MappingProxyType

from minibert.checkpoint.families.form import (
    DECODER,
    READ,
    TRAINING,
    WHOLE_HEAD,
    Field,
    Judged,
    Names,
    activation,
    boolean,
    ends,
    norm_eps,
    optional,
    pad,
    size,
    whole,
)
from minibert.checkpoint.families.rotary import Turned

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
VERDICTS: Mapping[str, Judged] = {
    **DECODER,
    **dict.fromkeys(ALL_TURN.names, READ),
    "partial_rotary_factor": WHOLE_HEAD,
    "attention_dropout": TRAINING,
}


def llama_names(
    within: Mapping[str, str] = LAYER, *, prefixes: Mapping[str, str] = MappingProxyType({})
) -> Names:
    """The names of Llama's tensors, with what is called otherwise within a layer."""
    return Names(
        prefix="model",
        body={"word": "embed_tokens", "final_norm": "norm"},
        layer="layers.{}",
        within=within,
        heads=_HEADS,
        unused=(r"rotary_emb\.inv_freq$",),
        prefixes=prefixes,
    )


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
) -> dict[str, Field]:
    """The fields of Llama, with what a family takes where one is missing (0: Config's default)."""
    return {
        "vocab_size": size("vocab_size"),
        "d_model": size("hidden_size"),
        "n_layers": size("num_hidden_layers"),
        "n_heads": size("num_attention_heads"),
        "n_kv_heads": optional("num_key_value_heads", n_kv_heads),
        "d_head": optional("head_dim", d_head),
        "n_positions": size("max_position_embeddings", default=n_positions),
        "d_mlp": whole("intermediate_size", d_mlp),
        "activation": activated or activation("hidden_act", "silu", tanh="gelu_pytorch_tanh"),
        "norm_eps": norm_eps("rms_norm_eps", eps),
        "tied": boolean("tie_word_embeddings", tied),
        "pad_id": pad(padding),
        "end_ids": ends(end),
    }


def attention_biases() -> dict[str, Field]:
    """attention_bias, which gives biases to query, key, value and output together."""
    field = boolean("attention_bias", False)
    return {"query_bias": field, "output_bias": field}
