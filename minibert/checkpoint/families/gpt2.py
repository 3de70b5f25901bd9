"""GPT-2 (Radford et al. 2019)."""

from minibert.checkpoint.families.bert_like import PLAIN_HEADS
from minibert.checkpoint.families.form import (
    CROSS,
    DECODER,
    ONE_WAY,
    OTHER_HEAD,
    SUMMARY,
    TRAINING,
    Family,
    Fields,
    Judged,
    Names,
    Own,
    activation,
    boolean,
    ends,
    norm_eps,
    optional,
    pad,
    read_boolean,
    size,
)
from minibert.layers.config import Config
from minibert.untrusted import Json


def _read(config: Json, said: Json) -> Fields:
    scaled = read_boolean(config, "scale_attn_weights", True)
    return {
        "causal": True,
        "d_mlp": said["d_mlp"] or 4 * said["d_model"],
        "query_scalar": None if scaled else 1.0,
    }


def _write(config: Config) -> Json:
    return {"scale_attn_weights": config.query_scalar is None}


GPT2 = Family(
    class_prefixes={"gpt2": "GPT2"},
    class_names={"causal-lm": "GPT2LMHeadModel"},
    names=Names(
        prefix="transformer",
        body={"word": "wte", "position": "wpe", "final_norm": "ln_f"},
        layer="h.{}",
        within={
            "attention_norm": "ln_1",
            "attention.query": "attn.c_attn",
            "attention.key": "attn.c_attn",
            "attention.value": "attn.c_attn",
            "attention.output": "attn.c_proj",
            "mlp_norm": "ln_2",
            "mlp.up": "mlp.c_fc",
            "mlp.down": "mlp.c_proj",
        },
        heads={
            **PLAIN_HEADS,
            "causal-lm": {"decoder": "lm_head"},
            "sequence-classification": {"classifier": "score"},
        },
        unused=(r"h\.\d+\.attn\.(bias|masked_bias)$", r"^multiple_choice_head\."),
        conv1d=True,
    ),
    fields={
        "vocab_size": size("vocab_size"),
        "d_model": size("n_embd", "hidden_size"),
        "n_layers": size("n_layer", "num_hidden_layers"),
        "n_heads": size("n_head", "num_attention_heads"),
        "n_positions": size("n_positions", "max_position_embeddings"),
        "d_mlp": optional("n_inner"),
        "activation": activation("activation_function", "gelu_new"),
        "tied": boolean("tie_word_embeddings", True),
        "pad_id": pad(None),
        "norm_eps": norm_eps("layer_norm_epsilon", 1e-5),
        "scale_by_layer": boolean("scale_attn_by_inverse_layer_idx", False),
        "end_ids": ends(50256),
    },
    verdicts={
        **dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), TRAINING),
        **dict.fromkeys((*SUMMARY, "summary_proj_to_labels"), OTHER_HEAD),
        "summary_first_dropout": OTHER_HEAD,
        "is_decoder": ONE_WAY,
        "is_causal": DECODER["is_causal"],
        "add_cross_attention": CROSS,
        "reorder_and_upcast_attn": Judged(
            "irrelevant", "the order of rounding in float16, not the numbers"
        ),
    },
    groups=(Own(("scale_attn_weights",), _read, _write),),
)
