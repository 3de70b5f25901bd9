"""DistilBERT (Sanh et al. 2019)."""

from minibert.checkpoint.families.bert_like import BODY, BUFFERS, PLAIN_HEADS
from minibert.checkpoint.families.form import (
    ONE_WAY,
    TRAINING,
    Family,
    Judged,
    Names,
    activation,
    boolean,
    pad,
    size,
    whole,
)

DISTILBERT = Family(
    class_prefixes={"distilbert": "DistilBert"},
    names=Names(
        prefix="distilbert",
        body={name: BODY[name] for name in ("word", "position", "embed_norm")},
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
        unused=BUFFERS,
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
