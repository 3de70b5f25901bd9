"""BERT and its descendants: RoBERTa, DistilBERT, ELECTRA, ALBERT, ModernBERT."""

from collections.abc import Mapping

from minibert.checkpoint.families import form
from minibert.checkpoint.families.form import Family, Field, Fields, Judged, Names, Own, Windows
from minibert.checkpoint.families.rotary import TurnedByType
from minibert.layers.config import Config
from minibert.untrusted import Json

_BODY = {
    "word": "embeddings.word_embeddings",
    "position": "embeddings.position_embeddings",
    "segment": "embeddings.token_type_embeddings",
    "embed_norm": "embeddings.LayerNorm",
    "pooler": "pooler.dense",
}
_LAYER = {
    "attention.query": "attention.self.query",
    "attention.key": "attention.self.key",
    "attention.value": "attention.self.value",
    "attention.output": "attention.output.dense",
    "attention_norm": "attention.output.LayerNorm",
    "mlp.up": "intermediate.dense",
    "mlp.down": "output.dense",
    "mlp_norm": "output.LayerNorm",
}
PLAIN_HEADS: Mapping[str, Mapping[str, str]] = {
    "sequence-classification": {"classifier": "classifier"},
    "token-classification": {"classifier": "classifier"},
    "question-answering": {"classifier": "qa_outputs"},
}
_TWO_STEPS: Mapping[str, Mapping[str, str]] = {
    "sequence-classification": {
        "transform": "classifier.dense",
        "classifier": "classifier.out_proj",
    }
}
_BUFFERS = (r"embeddings\.(position_ids|token_type_ids)$",)
_VERDICTS: Mapping[str, Judged] = {"add_cross_attention": form.CROSS}
_HIDDEN = "hidden_dropout_prob"
_DROPPED = {"embed": _HIDDEN, "probs": "attention_probs_dropout_prob", "attn_out": _HIDDEN}
_DROPOUT = form.shares(0.1, **_DROPPED, mlp_out=_HIDDEN)
_HEAD_DROPOUT = dict.fromkeys(
    (form.TEXTS, form.TOKENS), (("classifier_dropout", 0.1), (_HIDDEN, 0.1))
)


def _fields(
    *,
    d_mlp: int = 3072,
    padding: int = 0,
    usual_activation: str = "gelu",
    needs_padding: bool = False,
) -> dict[str, Field]:
    """The fields of BERT, with what a family takes where one is missing."""
    return form.usual_fields(
        d_mlp=d_mlp,
        activation=form.activation("hidden_act", usual_activation),
        norm_eps=form.norm_eps("layer_norm_eps", 1e-12),
        tied=True,
        padding=form.pad(padding, needed=needs_padding),
    ) | {
        "n_segments": form.whole("type_vocab_size", 2, least=0),
        "causal": form.boolean("is_decoder", False),
    }


_BERT_LM = {
    "transform": "cls.predictions.transform.dense",
    "norm": "cls.predictions.transform.LayerNorm",
    "decoder.weight": "cls.predictions.decoder.weight",
    "decoder.bias": "cls.predictions.bias",
}
#: Devlin et al. 2018.
BERT = Family(
    class_prefixes={"bert": "Bert"},
    class_names={"causal-lm": "BertLMHeadModel"},
    names=Names(
        prefix="bert",
        body=_BODY,
        layer="encoder.layer.{}",
        within=_LAYER,
        heads={
            **PLAIN_HEADS,
            "masked-lm": _BERT_LM,
            "causal-lm": _BERT_LM,
            "next-sentence": {"classifier": "cls.seq_relationship"},
            "pre-training": _BERT_LM | {"next_sentence": "cls.seq_relationship"},
        },
        unused=_BUFFERS,
        aliases={"cls.predictions.bias": "cls.predictions.decoder.bias"},
    ),
    fields=_fields(),
    verdicts=_VERDICTS,
    dropout=_DROPOUT,
    head_dropout=_HEAD_DROPOUT,
    pooled=("none", "next-sentence", "pre-training", "sequence-classification"),
)


_ROBERTA_LM = {
    "transform": "lm_head.dense",
    "norm": "lm_head.layer_norm",
    "decoder.weight": "lm_head.decoder.weight",
    "decoder.bias": "lm_head.bias",
}


def _read_roberta(config: Json, said: Json) -> Fields:
    offset = said["pad_id"] + 1
    return {"position_offset": offset, "n_positions": said["n_positions"] - offset}


def _write_roberta(config: Config) -> Json:
    return {"max_position_embeddings": config.n_positions + config.position_offset}


#: Liu et al. 2019. Positions begin at pad_token_id + 1, and max_position_embeddings counts from 0.
ROBERTA = Family(
    class_prefixes={"roberta": "Roberta", "xlm-roberta": "XLMRoberta", "camembert": "Camembert"},
    names=Names(
        prefix="roberta",
        body=_BODY,
        layer="encoder.layer.{}",
        within=_LAYER,
        heads={**PLAIN_HEADS, **_TWO_STEPS, "masked-lm": _ROBERTA_LM, "causal-lm": _ROBERTA_LM},
        unused=_BUFFERS,
        aliases={"lm_head.bias": "lm_head.decoder.bias"},
    ),
    fields=_fields(padding=1, needs_padding=True),
    verdicts=_VERDICTS,
    dropout=_DROPOUT,
    head_dropout=_HEAD_DROPOUT,
    groups=(Own((), _read_roberta, _write_roberta),),
    pooled=("none",),
)


#: Sanh et al. 2019.
DISTILBERT = Family(
    class_prefixes={"distilbert": "DistilBert"},
    names=Names(
        prefix="distilbert",
        body={name: _BODY[name] for name in ("word", "position", "embed_norm")},
        layer="transformer.layer.{}",
        within={
            "attention.query": "attention.q_lin",
            "attention.key": "attention.k_lin",
            "attention.value": "attention.v_lin",
            "attention.output": "attention.out_lin",
            "attention_norm": "sa_layer_norm",
            "mlp.up": "ffn.lin1",
            "mlp.down": "ffn.lin2",
            "mlp_norm": "output_layer_norm",
        },
        heads={
            **PLAIN_HEADS,
            "masked-lm": {
                "transform": "vocab_transform",
                "norm": "vocab_layer_norm",
                "decoder": "vocab_projector",
            },
            "sequence-classification": {"transform": "pre_classifier", "classifier": "classifier"},
        },
        unused=_BUFFERS,
    ),
    # It has no field for the norms' epsilon: its code fixes Config's default, 1e-12.
    fields={
        "vocab_size": form.size("vocab_size"),
        "d_model": form.size("dim", "hidden_size"),
        "n_layers": form.size("n_layers", "num_hidden_layers"),
        "n_heads": form.size("n_heads", "num_attention_heads"),
        "n_positions": form.size("max_position_embeddings"),
        "d_mlp": form.whole("hidden_dim", 3072),
        "activation": form.activation("activation", "gelu"),
        "tied": form.boolean("tie_word_embeddings", True),
        "pad_id": form.pad(0),
    },
    verdicts={
        **dict.fromkeys(("is_decoder", "add_cross_attention"), form.ONE_WAY),
        "sinusoidal_pos_embds": Judged("irrelevant", "the positions are in the file"),
    },
    dropout=form.shares(0.1, embed="dropout", probs="attention_dropout", mlp_out="dropout"),
    head_dropout={
        form.TEXTS: (("seq_classif_dropout", 0.2),),
        form.TOKENS: (("dropout", 0.1),),
        "question-answering": (("qa_dropout", 0.1),),
    },
)


_ELECTRA_LM = {
    "transform": "generator_predictions.dense",
    "norm": "generator_predictions.LayerNorm",
    "decoder": "generator_lm_head",
}
#: Clark et al. 2020.
ELECTRA = Family(
    class_prefixes={"electra": "Electra"},
    names=Names(
        prefix="electra",
        body={ours: theirs for ours, theirs in _BODY.items() if ours != "pooler"}
        | {"embed_project": "embeddings_project"},
        layer="encoder.layer.{}",
        within=_LAYER,
        heads={
            **PLAIN_HEADS,
            **_TWO_STEPS,
            "masked-lm": _ELECTRA_LM,
            "causal-lm": _ELECTRA_LM,
            "pre-training": {
                "transform": "discriminator_predictions.dense",
                "classifier": "discriminator_predictions.dense_prediction",
            },
        },
        unused=(*_BUFFERS, r"^generator_lm_head\.bias$"),
    ),
    fields=_fields(d_mlp=1024) | {"d_embed": form.whole("embedding_size", 128)},
    verdicts={
        **_VERDICTS,
        **dict.fromkeys((*form.SUMMARY, "summary_last_dropout"), form.OTHER_HEAD),
    },
    dropout=_DROPOUT,
    head_dropout=_HEAD_DROPOUT,
)


_ALBERT_LM = {
    "transform": "predictions.dense",
    "norm": "predictions.LayerNorm",
    "decoder.weight": "predictions.decoder.weight",
    "decoder.bias": "predictions.bias",
}
_ALBERT_FIELDS = _fields(d_mlp=16384, usual_activation="gelu_new") | {
    "d_embed": form.whole("embedding_size", 128),
    "n_layer_groups": form.whole("num_hidden_groups", 1),
}
#: Lan et al. 2019: layers share their weights.
ALBERT = Family(
    class_prefixes={"albert": "Albert"},
    names=Names(
        prefix="albert",
        body=_BODY | {"embed_project": "encoder.embedding_hidden_mapping_in", "pooler": "pooler"},
        layer="encoder.albert_layer_groups.{}.albert_layers.0",
        within={
            "attention.query": "attention.query",
            "attention.key": "attention.key",
            "attention.value": "attention.value",
            "attention.output": "attention.dense",
            "attention_norm": "attention.LayerNorm",
            "mlp.up": "ffn",
            "mlp.down": "ffn_output",
            "mlp_norm": "full_layer_layer_norm",
        },
        heads={
            **PLAIN_HEADS,
            "masked-lm": _ALBERT_LM,
            "pre-training": _ALBERT_LM | {"next_sentence": "sop_classifier.classifier"},
        },
        unused=_BUFFERS,
        aliases={"predictions.bias": "predictions.decoder.bias"},
    ),
    fields={ours: field for ours, field in _ALBERT_FIELDS.items() if ours != "causal"},
    verdicts={
        **dict.fromkeys(("is_decoder", "add_cross_attention"), form.ONE_WAY),
        "inner_group_num": Judged("refused", "one layer a group is implemented", (1,)),
    },
    dropout=form.shares(0.0, **_DROPPED),
    head_dropout=dict.fromkeys((form.TEXTS, form.TOKENS), (("classifier_dropout_prob", 0.1),)),
    pooled=("none", "pre-training", "sequence-classification"),
)


_TURNED = TurnedByType(
    bases={
        "full_attention": ("global_rope_theta", 160_000.0),
        "sliding_attention": ("local_rope_theta", 10_000.0),
    },
    scaled=("full_attention", "sliding_attention"),
)
_POOLINGS = {"cls": "first", "mean": "mean"}
_BIAS = form.boolean("attention_bias", False)
_HEAD = {"transform": "head.dense", "norm": "head.norm"}
_CLASSIFIER = _HEAD | {"classifier": "classifier"}


def _read_pooling(config: Json, said: Json) -> Fields:
    pooling = config.get("classifier_pooling", "cls")
    if not isinstance(pooling, str) or pooling not in _POOLINGS:
        raise form.refuse("classifier_pooling", pooling, "cls or mean")
    return {"pooling": _POOLINGS[pooling]}


def _write_pooling(config: Config) -> Json:
    return {"classifier_pooling": next(k for k, v in _POOLINGS.items() if v == config.pooling)}


def _window(config: Json) -> int:
    # A token sees local_attention // 2 tokens to each side, and itself.
    return 2 * (form.value_of(config, "local_attention", form.whole_from(0), 128) // 2) + 1


def _slides(config: Json, layer: int) -> bool:
    return layer % form.value_of(config, "global_attn_every_n_layers", form.WHOLE, 3) != 0


_WINDOWS = Windows(
    _window,
    _slides,
    lambda size: {} if size is None else {"local_attention": size - 1},
    ("local_attention", "global_attn_every_n_layers"),
)


#: Warner et al. 2024: most layers see a window, and turn by another base.
MODERNBERT = Family(
    class_prefixes={"modernbert": "ModernBert"},
    names=Names(
        prefix="model",
        body={
            "word": "embeddings.tok_embeddings",
            "embed_norm": "embeddings.norm",
            "final_norm": "final_norm",
        },
        layer="layers.{}",
        within={
            "attention_norm": "attn_norm",
            "attention.query": "attn.Wqkv",
            "attention.key": "attn.Wqkv",
            "attention.value": "attn.Wqkv",
            "attention.output": "attn.Wo",
            "mlp_norm": "mlp_norm",
            "mlp.gate": "mlp.Wi",
            "mlp.up": "mlp.Wi",
            "mlp.down": "mlp.Wo",
        },
        heads={
            "masked-lm": _HEAD | {"decoder": "decoder"},
            "sequence-classification": _CLASSIFIER,
            "token-classification": _CLASSIFIER,
            "question-answering": _CLASSIFIER,
        },
    ),
    fields=form.usual_fields(
        n_positions=8192,
        d_mlp=1152,
        activation=form.activation("hidden_activation", "gelu"),
        norm_eps=form.norm_eps("norm_eps", 1e-5),
        tied=True,
        padding=form.pad(50283),
    )
    | {
        "norm_bias": form.boolean("norm_bias", False),
        "query_bias": _BIAS,
        "output_bias": _BIAS,
        "mlp_bias": form.boolean("mlp_bias", False),
        "decoder_bias": form.boolean("decoder_bias", True),
        "head_bias": form.boolean("classifier_bias", False),
        "head_activation": form.activation("classifier_activation", "gelu"),
    },
    verdicts={
        "initializer_cutoff_factor": form.TRAINING,
        **dict.fromkeys(("deterministic_flash_attn", "reference_compile"), form.SPEED),
        **dict.fromkeys(
            ("sparse_prediction", "sparse_pred_ignore_index"),
            Judged("irrelevant", "of the loss in training"),
        ),
        **dict.fromkeys(
            ("cls_token_id", "sep_token_id"), Judged("irrelevant", "the tokenizer says them")
        ),
        **dict.fromkeys(("is_decoder", "add_cross_attention"), form.ONE_WAY),
        "partial_rotary_factor": form.WHOLE_HEAD,
        "head_dim": form.HEAD_WIDTH,
    },
    groups=(_TURNED, _WINDOWS, Own(("classifier_pooling",), _read_pooling, _write_pooling)),
    dropout=form.shares(
        0.0,
        embed="embedding_dropout",
        probs="attention_dropout",
        attn_out="attention_dropout",
        mlp_post="mlp_dropout",
    ),
    head_dropout=dict.fromkeys(
        (form.TEXTS, form.TOKENS, "question-answering"), (("classifier_dropout", 0.0),)
    ),
)
