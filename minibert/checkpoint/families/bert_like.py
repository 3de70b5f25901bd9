"""What BERT and its descendants have in common."""

from collections.abc import Mapping

from minibert.checkpoint.families.form import (
    CROSS,
    TRAINING,
    Field,
    Judged,
    activation,
    boolean,
    norm_eps,
    pad,
    size,
    whole,
)

BODY = {
    "word": "embeddings.word_embeddings",
    "position": "embeddings.position_embeddings",
    "segment": "embeddings.token_type_embeddings",
    "embed_norm": "embeddings.LayerNorm",
    "pooler": "pooler.dense",
}
LAYER = {
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
TWO_STEPS: Mapping[str, Mapping[str, str]] = {
    "sequence-classification": {
        "transform": "classifier.dense",
        "classifier": "classifier.out_proj",
    }
}
BUFFERS = (r"embeddings\.(position_ids|token_type_ids)$",)
VERDICTS: Mapping[str, Judged] = {
    **dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob"), TRAINING),
    "classifier_dropout": TRAINING,
    "add_cross_attention": CROSS,
}


def bert_fields(
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
