"""ModernBERT (Warner et al. 2024): most layers see a window, and turn by another base."""

from minibert.checkpoint.families.form import (
    HEAD_WIDTH,
    ONE_WAY,
    SPEED,
    TRAINING,
    WHOLE_HEAD,
    Family,
    Fields,
    Judged,
    Names,
    Own,
    Windows,
    activation,
    boolean,
    norm_eps,
    pad,
    read_whole,
    refuse,
    size,
    whole,
)
from minibert.checkpoint.families.rotary import TurnedByType
from minibert.layers.config import Config
from minibert.untrusted import Json

_TURNED = TurnedByType(
    bases={
        "full_attention": ("global_rope_theta", 160_000.0),
        "sliding_attention": ("local_rope_theta", 10_000.0),
    },
    scaled=("full_attention", "sliding_attention"),
)
_POOLINGS = {"cls": "first", "mean": "mean"}
_BIAS = boolean("attention_bias", False)
_HEAD = {"transform": "head.dense", "norm": "head.norm"}
_CLASSIFIER = _HEAD | {"classifier": "classifier"}


def _read_pooling(config: Json, said: Json) -> Fields:
    pooling = config.get("classifier_pooling", "cls")
    if not isinstance(pooling, str) or pooling not in _POOLINGS:
        raise refuse("classifier_pooling", pooling, "cls or mean")
    return {"pooling": _POOLINGS[pooling]}


def _write_pooling(config: Config) -> Json:
    return {"classifier_pooling": next(k for k, v in _POOLINGS.items() if v == config.pooling)}


def _window(config: Json) -> int:
    # A token sees local_attention // 2 tokens to each side, and itself.
    return 2 * (read_whole(config, "local_attention", 128, least=0) // 2) + 1


def _slides(config: Json, layer: int) -> bool:
    return layer % read_whole(config, "global_attn_every_n_layers", 3) != 0


_WINDOWS = Windows(
    _window,
    _slides,
    lambda size: {} if size is None else {"local_attention": size - 1},
    ("local_attention", "global_attn_every_n_layers"),
)


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
    fields={
        "vocab_size": size("vocab_size"),
        "d_model": size("hidden_size"),
        "n_layers": size("num_hidden_layers"),
        "n_heads": size("num_attention_heads"),
        "n_positions": size("max_position_embeddings", default=8192),
        "d_mlp": whole("intermediate_size", 1152),
        "activation": activation("hidden_activation", "gelu"),
        "norm_eps": norm_eps("norm_eps", 1e-5),
        "norm_bias": boolean("norm_bias", False),
        "tied": boolean("tie_word_embeddings", True),
        "pad_id": pad(50283),
        "query_bias": _BIAS,
        "output_bias": _BIAS,
        "mlp_bias": boolean("mlp_bias", False),
        "decoder_bias": boolean("decoder_bias", True),
        "head_bias": boolean("classifier_bias", False),
        "head_activation": activation("classifier_activation", "gelu"),
    },
    verdicts={
        **dict.fromkeys(("attention_dropout", "embedding_dropout", "mlp_dropout"), TRAINING),
        **dict.fromkeys(("classifier_dropout", "initializer_cutoff_factor"), TRAINING),
        **dict.fromkeys(("deterministic_flash_attn", "reference_compile"), SPEED),
        **dict.fromkeys(
            ("sparse_prediction", "sparse_pred_ignore_index"),
            Judged("irrelevant", "of the loss in training"),
        ),
        **dict.fromkeys(
            ("cls_token_id", "sep_token_id"), Judged("irrelevant", "the tokenizer says them")
        ),
        **dict.fromkeys(("is_decoder", "add_cross_attention"), ONE_WAY),
        "partial_rotary_factor": WHOLE_HEAD,
        "head_dim": HEAD_WIDTH,
    },
    groups=(_TURNED, _WINDOWS, Own(("classifier_pooling",), _read_pooling, _write_pooling)),
)
