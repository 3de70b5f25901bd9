"""BERT and its descendants: RoBERTa, DistilBERT, ELECTRA, ALBERT."""

from collections.abc import Mapping

from minibert.checkpoint.families.form import (
    CROSS,
    ONE_WAY,
    OTHER_HEAD,
    SUMMARY,
    TRAINING,
    Family,
    Field,
    Fields,
    Judged,
    Names,
    Own,
    activation,
    boolean,
    norm_eps,
    pad,
    size,
    whole,
)
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
_VERDICTS: Mapping[str, Judged] = {
    **dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob"), TRAINING),
    "classifier_dropout": TRAINING,
    "add_cross_attention": CROSS,
}


def _fields(
    *,
    d_mlp: int = 3072,
    padding: int = 0,
    usual_activation: str = "gelu",
    needs_padding: bool = False,
) -> dict[str, Field]:
    """The fields of BERT, with what a family takes where one is missing."""
    return {
        "vocab_size": size("vocab_size"),
        "d_model": size("hidden_size"),
        "n_layers": size("num_hidden_layers"),
        "n_heads": size("num_attention_heads"),
        "n_positions": size("max_position_embeddings"),
        "d_mlp": whole("intermediate_size", d_mlp),
        "activation": activation("hidden_act", usual_activation),
        "tied": boolean("tie_word_embeddings", True),
        "pad_id": pad(padding, needed=needs_padding),
        "norm_eps": norm_eps("layer_norm_eps", 1e-12),
        "n_segments": whole("type_vocab_size", 2, least=0),
        "causal": boolean("is_decoder", False),
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
            "sequence-classification": {
                "transform": "pre_classifier",
                "classifier": "classifier",
            },
        },
        unused=_BUFFERS,
    ),
    # It has no field for the norms' epsilon: its code fixes Config's default, 1e-12.
    fields={
        "vocab_size": size("vocab_size"),
        "d_model": size("dim", "hidden_size"),
        "n_layers": size("n_layers", "num_hidden_layers"),
        "n_heads": size("n_heads", "num_attention_heads"),
        "n_positions": size("max_position_embeddings"),
        "d_mlp": whole("hidden_dim", 3072),
        "activation": activation("activation", "gelu"),
        "tied": boolean("tie_word_embeddings", True),
        "pad_id": pad(0),
    },
    verdicts={
        **dict.fromkeys(("is_decoder", "add_cross_attention"), ONE_WAY),
        **dict.fromkeys(("dropout", "attention_dropout", "qa_dropout"), TRAINING),
        "seq_classif_dropout": TRAINING,
        "sinusoidal_pos_embds": Judged("irrelevant", "the positions are in the file"),
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
    fields=_fields(d_mlp=1024) | {"d_embed": whole("embedding_size", 128)},
    verdicts={**_VERDICTS, **dict.fromkeys((*SUMMARY, "summary_last_dropout"), OTHER_HEAD)},
)


_ALBERT_LM = {
    "transform": "predictions.dense",
    "norm": "predictions.LayerNorm",
    "decoder.weight": "predictions.decoder.weight",
    "decoder.bias": "predictions.bias",
}
_ALBERT_FIELDS = _fields(d_mlp=16384, usual_activation="gelu_new") | {
    "d_embed": whole("embedding_size", 128),
    "n_layer_groups": whole("num_hidden_groups", 1),
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
        **{name: judged for name, judged in _VERDICTS.items() if name != "classifier_dropout"},
        **dict.fromkeys(("is_decoder", "add_cross_attention"), ONE_WAY),
        "classifier_dropout_prob": TRAINING,
        "inner_group_num": Judged("refused", "one layer a group is implemented", (1,)),
    },
    pooled=("none", "pre-training", "sequence-classification"),
)
