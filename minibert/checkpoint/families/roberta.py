"""RoBERTa (Liu et al. 2019), XLM-RoBERTa and CamemBERT.

They count positions from padding_idx + 1 on; max_position_embeddings counts the rows before, too.
"""

from typing import Any

from minibert.checkpoint.families.bert_like import (
    BODY,
    BUFFERS,
    LAYER,
    PLAIN_HEADS,
    TWO_STEPS,
    VERDICTS,
    bert_fields,
)
from minibert.checkpoint.families.form import Family, Json, Names
from minibert.layers.config import Config

_LM = {
    "transform": "lm_head.dense",
    "norm": "lm_head.layer_norm",
    "decoder.weight": "lm_head.decoder.weight",
    "decoder.bias": "lm_head.bias",
}


def _read(config: Json, said: Json) -> dict[str, Any]:
    offset = said["pad_id"] + 1
    return {"position_offset": offset, "n_positions": said["n_positions"] - offset}


def _write(config: Config) -> dict[str, Any]:
    return {"max_position_embeddings": config.n_positions + config.position_offset}


ROBERTA = Family(
    class_prefixes={"roberta": "Roberta", "xlm-roberta": "XLMRoberta", "camembert": "Camembert"},
    names=Names(
        prefix="roberta",
        body=BODY,
        layer="encoder.layer.{}",
        within=LAYER,
        heads={**PLAIN_HEADS, **TWO_STEPS, "masked-lm": _LM, "causal-lm": _LM},
        unused=BUFFERS,
        aliases={"lm_head.bias": "lm_head.decoder.bias"},
    ),
    fields=bert_fields(padding=1, needs_padding=True),
    verdicts=VERDICTS,
    read=_read,
    write=_write,
    pooled=("none",),
)
