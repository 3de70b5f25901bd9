"""ALBERT (Lan et al. 2019): layers share their weights."""

from minibert.checkpoint.families.bert_like import BODY, BUFFERS, PLAIN_HEADS, VERDICTS, bert_fields
from minibert.checkpoint.families.form import ONE_WAY, TRAINING, Family, Judged, Names, whole

_LM = {
    "transform": "predictions.dense",
    "norm": "predictions.LayerNorm",
    "decoder.weight": "predictions.decoder.weight",
    "decoder.bias": "predictions.bias",
}
_FIELDS = bert_fields(d_mlp=16384, usual_activation="gelu_new") | {
    "d_embed": whole("embedding_size", 128),
    "n_layer_groups": whole("num_hidden_groups", 1),
}
ALBERT = Family(
    class_prefixes={"albert": "Albert"},
    names=Names(
        prefix="albert",
        body=BODY | {"embed_project": "encoder.embedding_hidden_mapping_in", "pooler": "pooler"},
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
            "masked-lm": _LM,
            "pre-training": _LM | {"next_sentence": "sop_classifier.classifier"},
        },
        unused=BUFFERS,
        aliases={"predictions.bias": "predictions.decoder.bias"},
    ),
    fields={ours: field for ours, field in _FIELDS.items() if ours != "causal"},
    verdicts={
        **{name: judged for name, judged in VERDICTS.items() if name != "classifier_dropout"},
        **dict.fromkeys(("is_decoder", "add_cross_attention"), ONE_WAY),
        "classifier_dropout_prob": TRAINING,
        "inner_group_num": Judged("refused", "one layer a group is implemented", (1,)),
    },
    pooled=("none", "pre-training", "sequence-classification"),
)
