"""BERT (Devlin et al. 2018)."""

from minibert.checkpoint.families.bert_like import (
    BODY,
    BUFFERS,
    LAYER,
    PLAIN_HEADS,
    VERDICTS,
    bert_fields,
)
from minibert.checkpoint.families.form import Family, Names

_LM = {
    "transform": "cls.predictions.transform.dense",
    "norm": "cls.predictions.transform.LayerNorm",
    "decoder.weight": "cls.predictions.decoder.weight",
    "decoder.bias": "cls.predictions.bias",
}
BERT = Family(
    class_prefixes={"bert": "Bert"},
    class_names={"causal-lm": "BertLMHeadModel"},
    names=Names(
        prefix="bert",
        body=BODY,
        layer="encoder.layer.{}",
        within=LAYER,
        heads={
            **PLAIN_HEADS,
            "masked-lm": _LM,
            "causal-lm": _LM,
            "next-sentence": {"classifier": "cls.seq_relationship"},
            "pre-training": _LM | {"next_sentence": "cls.seq_relationship"},
        },
        unused=BUFFERS,
        aliases={"cls.predictions.bias": "cls.predictions.decoder.bias"},
    ),
    fields=bert_fields(),
    verdicts=VERDICTS,
    pooled=("none", "next-sentence", "pre-training", "sequence-classification"),
)
