"""GPT-NeoX and Pythia (Black et al. 2022, Biderman et al. 2023)."""

from minibert.checkpoint.families.bert_like import PLAIN_HEADS
from minibert.checkpoint.families.form import (
    DECODER,
    HEAD_WIDTH,
    TRAINING,
    Family,
    Names,
    activation,
    boolean,
    ends,
    norm_eps,
    pad,
    size,
    whole,
)
from minibert.checkpoint.families.rotary import Turned

_BIAS = boolean("attention_bias", True)
GPT_NEOX = Family(
    class_prefixes={"gpt_neox": "GPTNeoX"},
    names=Names(
        prefix="gpt_neox",
        body={"word": "embed_in", "final_norm": "final_layer_norm"},
        layer="layers.{}",
        within={
            "attention_norm": "input_layernorm",
            "attention.query": "attention.query_key_value",
            "attention.key": "attention.query_key_value",
            "attention.value": "attention.query_key_value",
            "attention.output": "attention.dense",
            "mlp_norm": "post_attention_layernorm",
            "mlp.up": "mlp.dense_h_to_4h",
            "mlp.down": "mlp.dense_4h_to_h",
        },
        heads={
            **PLAIN_HEADS,
            "causal-lm": {"decoder": "embed_out"},
            "sequence-classification": {"classifier": "score"},
        },
        unused=(r"attention\.(bias|masked_bias)$", r"rotary_emb\.inv_freq$"),
        by_head=True,
        live={"embed_out.weight": "lm_head.weight"},
    ),
    fields={
        "vocab_size": size("vocab_size"),
        "d_model": size("hidden_size"),
        "n_layers": size("num_hidden_layers"),
        "n_heads": size("num_attention_heads"),
        "n_positions": size("max_position_embeddings", default=2048),
        "d_mlp": whole("intermediate_size", 24576),
        "activation": activation("hidden_act", "gelu"),
        "norm_eps": norm_eps("layer_norm_eps", 1e-5),
        "tied": boolean("tie_word_embeddings", False),
        "pad_id": pad(None),
        "end_ids": ends(2),
        "parallel": boolean("use_parallel_residual", True),
        "query_bias": _BIAS,
        "output_bias": _BIAS,
    },
    verdicts={
        **DECODER,
        **dict.fromkeys(("attention_dropout", "hidden_dropout", "classifier_dropout"), TRAINING),
        "head_dim": HEAD_WIDTH,
    },
    groups=(Turned(base="rotary_emb_base", fraction="rotary_pct", usual_fraction=0.25),),
)
