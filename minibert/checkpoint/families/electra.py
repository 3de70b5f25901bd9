"""ELECTRA (Clark et al. 2020)."""

from minibert.checkpoint.families.bert_like import (
    BODY,
    BUFFERS,
    LAYER,
    PLAIN_HEADS,
    TWO_STEPS,
    VERDICTS,
    bert_fields,
)
from minibert.checkpoint.families.form import OTHER_HEAD, SUMMARY, Family, Names, whole

_LM = {
    "transform": "generator_predictions.dense",
    "norm": "generator_predictions.LayerNorm",
    "decoder": "generator_lm_head",
}
ELECTRA = Family(
    class_prefixes={"electra": "Electra"},
    names=Names(
        prefix="electra",
        body={ours: theirs for ours, theirs in BODY.items() if ours != "pooler"}
        | {"embed_project": "embeddings_project"},
        layer="encoder.layer.{}",
        within=LAYER,
        heads={
            **PLAIN_HEADS,
            **TWO_STEPS,
            "masked-lm": _LM,
            "causal-lm": _LM,
            "pre-training": {
                "transform": "discriminator_predictions.dense",
                "classifier": "discriminator_predictions.dense_prediction",
            },
        },
        unused=(*BUFFERS, r"^generator_lm_head\.bias$"),
    ),
    fields=bert_fields(d_mlp=1024) | {"d_embed": whole("embedding_size", 128)},
    verdicts={**VERDICTS, **dict.fromkeys((*SUMMARY, "summary_last_dropout"), OTHER_HEAD)},
)
