"""The tensor names of Hugging Face checkpoints: one table a family.

A table maps our module to theirs; weight and bias follow. No other file knows these names.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["FAMILIES", "Family"]


@dataclass(frozen=True)
class Family:
    """How the checkpoints of one family name their tensors."""

    prefix: str
    body: Mapping[str, str]
    layer: str
    within: Mapping[str, str]
    heads: Mapping[str, Mapping[str, str]]
    unused: tuple[str, ...] = ()
    """Patterns of names that the family's checkpoints carry and no model needs."""
    conv1d: bool = False
    aliases: Mapping[str, str] = field(default_factory=dict)
    """Other names of a tensor in older files."""


_BERT_BODY = {
    "word": "embeddings.word_embeddings",
    "position": "embeddings.position_embeddings",
    "segment": "embeddings.token_type_embeddings",
    "embed_norm": "embeddings.LayerNorm",
    "pooler": "pooler.dense",
}
_BERT_LAYER = {
    "attention.query": "attention.self.query",
    "attention.key": "attention.self.key",
    "attention.value": "attention.self.value",
    "attention.output": "attention.output.dense",
    "attention_norm": "attention.output.LayerNorm",
    "mlp.up": "intermediate.dense",
    "mlp.down": "output.dense",
    "mlp_norm": "output.LayerNorm",
}
_PLAIN_HEADS = {
    "sequence-classification": {"classifier": "classifier"},
    "token-classification": {"classifier": "classifier"},
    "question-answering": {"classifier": "qa_outputs"},
}
_TWO_STEP_CLASSIFIER = {
    "sequence-classification": {
        "transform": "classifier.dense",
        "classifier": "classifier.out_proj",
    }
}
_BERT_LM = {
    "transform": "cls.predictions.transform.dense",
    "norm": "cls.predictions.transform.LayerNorm",
    "decoder.weight": "cls.predictions.decoder.weight",
    "decoder.bias": "cls.predictions.bias",
}
_ROBERTA_LM = {
    "transform": "lm_head.dense",
    "norm": "lm_head.layer_norm",
    "decoder.weight": "lm_head.decoder.weight",
    "decoder.bias": "lm_head.bias",
}
_ALBERT_LM = {
    "transform": "predictions.dense",
    "norm": "predictions.LayerNorm",
    "decoder.weight": "predictions.decoder.weight",
    "decoder.bias": "predictions.bias",
}
_ELECTRA_LM = {
    "transform": "generator_predictions.dense",
    "norm": "generator_predictions.LayerNorm",
    "decoder": "generator_lm_head",
}
_GPT2_LAYER = {
    "attention_norm": "ln_1",
    "attention.query": "attn.c_attn",
    "attention.key": "attn.c_attn",
    "attention.value": "attn.c_attn",
    "attention.output": "attn.c_proj",
    "mlp_norm": "ln_2",
    "mlp.up": "mlp.c_fc",
    "mlp.down": "mlp.c_proj",
}
_BUFFERS = (r"embeddings\.(position_ids|token_type_ids)$",)

FAMILIES = {
    "bert": Family(
        prefix="bert",
        body=_BERT_BODY,
        layer="encoder.layer.{}",
        within=_BERT_LAYER,
        heads={
            **_PLAIN_HEADS,
            "masked-lm": _BERT_LM,
            "causal-lm": _BERT_LM,
            "next-sentence": {"classifier": "cls.seq_relationship"},
            "pre-training": _BERT_LM | {"next_sentence": "cls.seq_relationship"},
        },
        unused=_BUFFERS,
        aliases={"cls.predictions.bias": "cls.predictions.decoder.bias"},
    ),
    "roberta": Family(
        prefix="roberta",
        body=_BERT_BODY,
        layer="encoder.layer.{}",
        within=_BERT_LAYER,
        heads=_PLAIN_HEADS
        | _TWO_STEP_CLASSIFIER
        | {"masked-lm": _ROBERTA_LM, "causal-lm": _ROBERTA_LM},
        unused=_BUFFERS,
        aliases={"lm_head.bias": "lm_head.decoder.bias"},
    ),
    "electra": Family(
        prefix="electra",
        body={k: v for k, v in _BERT_BODY.items() if k != "pooler"}
        | {"embed_project": "embeddings_project"},
        layer="encoder.layer.{}",
        within=_BERT_LAYER,
        heads=_PLAIN_HEADS
        | _TWO_STEP_CLASSIFIER
        | {
            "masked-lm": _ELECTRA_LM,
            "causal-lm": _ELECTRA_LM,
            "pre-training": {
                "transform": "discriminator_predictions.dense",
                "classifier": "discriminator_predictions.dense_prediction",
            },
        },
        unused=(*_BUFFERS, r"^generator_lm_head\.bias$"),
    ),
    "albert": Family(
        prefix="albert",
        body=_BERT_BODY
        | {"embed_project": "encoder.embedding_hidden_mapping_in", "pooler": "pooler"},
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
        heads=_PLAIN_HEADS
        | {
            "masked-lm": _ALBERT_LM,
            "pre-training": _ALBERT_LM | {"next_sentence": "sop_classifier.classifier"},
        },
        unused=_BUFFERS,
        aliases={"predictions.bias": "predictions.decoder.bias"},
    ),
    "distilbert": Family(
        prefix="distilbert",
        body={name: _BERT_BODY[name] for name in ("word", "position", "embed_norm")},
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
        heads=_PLAIN_HEADS
        | {
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
    "gpt2": Family(
        prefix="transformer",
        body={"word": "wte", "position": "wpe", "final_norm": "ln_f"},
        layer="h.{}",
        within=_GPT2_LAYER,
        heads=_PLAIN_HEADS
        | {
            "causal-lm": {"decoder": "lm_head"},
            "sequence-classification": {"classifier": "score"},
        },
        unused=(r"h\.\d+\.attn\.(bias|masked_bias)$", r"^multiple_choice_head\."),
        conv1d=True,
    ),
}
