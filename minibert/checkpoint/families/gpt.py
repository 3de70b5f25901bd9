"""GPT-2 (Radford et al. 2019), GPT-NeoX and Pythia (Black et al. 2022, Biderman et al. 2023)."""

from minibert.checkpoint.families import form
from minibert.checkpoint.families.bert_like import PLAIN_HEADS
from minibert.checkpoint.families.form import Family, Fields, Judged, Names, Own
from minibert.checkpoint.families.rotary import Turned
from minibert.layers.config import Config
from minibert.untrusted import Json


def _read(config: Json, said: Json) -> Fields:
    scaled = form.value_of(config, "scale_attn_weights", form.BOOLEAN, True)
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
        "vocab_size": form.size("vocab_size"),
        "d_model": form.size("n_embd", "hidden_size"),
        "n_layers": form.size("n_layer", "num_hidden_layers"),
        "n_heads": form.size("n_head", "num_attention_heads"),
        "n_positions": form.size("n_positions", "max_position_embeddings"),
        "d_mlp": form.optional("n_inner"),
        "activation": form.activation("activation_function", "gelu_new"),
        "tied": form.boolean("tie_word_embeddings", True),
        "pad_id": form.pad(None),
        "norm_eps": form.norm_eps("layer_norm_epsilon", 1e-5),
        "scale_by_layer": form.boolean("scale_attn_by_inverse_layer_idx", False),
        "end_ids": form.ends(50256),
    },
    verdicts={
        **dict.fromkeys((*form.SUMMARY, "summary_proj_to_labels"), form.OTHER_HEAD),
        "summary_first_dropout": form.OTHER_HEAD,
        "is_decoder": form.ONE_WAY,
        "is_causal": form.DECODER["is_causal"],
        "add_cross_attention": form.CROSS,
        "reorder_and_upcast_attn": Judged(
            "irrelevant", "the order of rounding in float16, not the numbers"
        ),
    },
    groups=(Own(("scale_attn_weights",), _read, _write),),
    dropout=form.shares(
        0.1, embed="embd_pdrop", probs="attn_pdrop", attn_out="resid_pdrop", mlp_out="resid_pdrop"
    ),
    head_dropout=form.GENERIC_HEADS,
)


_BIASES = form.boolean("attention_bias", True)
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
    fields=form.usual_fields(
        n_positions=2048,
        d_mlp=24576,
        activation=form.activation("hidden_act", "gelu"),
        norm_eps=form.norm_eps("layer_norm_eps", 1e-5),
        tied=False,
        padding=form.pad(None),
    )
    | {
        "end_ids": form.ends(2),
        "parallel": form.boolean("use_parallel_residual", True),
        "query_bias": _BIASES,
        "output_bias": _BIASES,
    },
    verdicts={**form.DECODER, "head_dim": form.HEAD_WIDTH},
    groups=(Turned(base="rotary_emb_base", fraction="rotary_pct", usual_fraction=0.25),),
    dropout=form.shares(
        0.0,
        **dict.fromkeys(("embed", "attn_out", "mlp_out"), "hidden_dropout"),
        probs="attention_dropout",
    ),
    head_dropout={form.TOKENS: (("classifier_dropout", 0.1),)},
)
