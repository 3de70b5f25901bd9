"""Between the `config.json` of a Hugging Face checkpoint and a Config.

`config_from_hf` reads one, `config_to_hf` writes one. The words on the left of the tables below
are ours, those on the right are Hugging Face's.
"""

from collections.abc import Mapping
from typing import Any

from minibert.checkpoint.architectures import MODEL_TYPES, class_name, task_of
from minibert.errors import CheckpointError
from minibert.layers.config import ACTIVATIONS, LARGEST_LABELS, Config, check_task

__all__ = ["config_from_hf", "config_to_hf"]

_ACTIVATION_NAMES = {
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_python": "gelu",
    "swish": "silu",
} | {name: name for name in ACTIVATIONS}

# Tasks whose body ends in a pooler: tanh(W·hidden[0] + b).
_POOLED_TASKS = {
    "bert": ("none", "next-sentence", "pre-training", "sequence-classification"),
    "albert": ("none", "pre-training", "sequence-classification"),
    "roberta": ("none",),
}
# Field -> the names a config.json may give it, in order of preference.
_SIZES = {
    "vocab_size": ("vocab_size",),
    "d_model": ("hidden_size", "dim", "n_embd"),
    "n_layers": ("num_hidden_layers", "n_layers", "n_layer"),
    "n_heads": ("num_attention_heads", "n_heads", "n_head"),
    "n_positions": ("max_position_embeddings", "n_positions", "n_ctx"),
}
_OWN_EMBEDDING = ("electra", "albert")
_D_MLP = ("intermediate_size", "hidden_dim", "n_inner")
_PROBLEM_TYPES = ("single_label_classification", "multi_label_classification", "regression")


def config_from_hf(config: Mapping[str, Any], task: str | None = None) -> Config:
    """The Config of a Hugging Face `config.json`, read into a dictionary.

    `task` overrides what `architectures` says; "none" leaves the task head out.

    Raises CheckpointError for an unknown family, task or activation, a missing or
    impossible size, and for what minibert does not implement (relative positions,
    cross attention).
    """
    model_type = config.get("model_type")
    if not isinstance(model_type, str) or model_type not in MODEL_TYPES:
        raise CheckpointError(
            f"config.json: model_type {model_type!r} is not a family minibert knows; "
            f"known are {', '.join(sorted(MODEL_TYPES))}."
        )
    family = MODEL_TYPES[model_type]
    _reject_unsupported(config)
    sizes = {field: _size(config, names) for field, names in _SIZES.items()}
    d_mlp = next((name for name in _D_MLP if config.get(name) is not None), "")
    pad_id = config.get("pad_token_id", 1 if family == "roberta" else None)
    if pad_id is not None:
        pad_id = _whole(config, "pad_token_id", pad_id, least=0 if family == "roberta" else -1)
    offset = 0
    if family == "roberta":
        offset = (1 if pad_id is None else pad_id) + 1
        sizes["n_positions"] -= offset
    task = task_of(config) if task is None else task
    check_task(family, task)
    return Config(
        family=family,
        model_type=model_type,
        task=task,
        d_mlp=_whole(config, d_mlp, 4 * sizes["d_model"]),
        d_embed=_whole(config, "embedding_size", 128) if family in _OWN_EMBEDDING else 0,
        n_segments=_n_segments(config, family),
        n_layer_groups=_whole(config, "num_hidden_groups", 1) if family == "albert" else 0,
        position_offset=offset,
        pad_id=pad_id,
        norm_eps=_norm_eps(config, family),
        activation=_activation(config, family),
        causal=_boolean(config, "is_decoder", False) or family == "gpt2",
        tied=_boolean(config, "tie_word_embeddings", True),
        pooler=task in _POOLED_TASKS.get(family, ()),
        labels=_labels(config),
        problem_type=_problem_type(config),
        scale_by_width=_boolean(config, "scale_attn_weights", True),
        scale_by_layer=_boolean(config, "scale_attn_by_inverse_layer_idx", False),
        **sizes,
    )


def config_to_hf(config: Config) -> dict[str, Any]:
    """The `config.json` that Hugging Face transformers reads for this model."""
    size_name = {"distilbert": 1, "gpt2": 2}.get(config.family, 0)
    names = {field: names[min(size_name, len(names) - 1)] for field, names in _SIZES.items()}
    names["n_positions"] = "n_positions" if config.family == "gpt2" else "max_position_embeddings"
    sizes = {name: getattr(config, field) for field, name in names.items()}
    sizes[names["n_positions"]] += config.position_offset
    activation = {"gelu_tanh": "gelu_new"}.get(config.activation, config.activation)
    content: dict[str, Any] = {
        "model_type": config.model_type,
        "architectures": [class_name(config.model_type, config.family, config.task)],
        **sizes,
        _D_MLP[size_name]: config.d_mlp,
        "tie_word_embeddings": config.tied,
        "pad_token_id": config.pad_id,
    }
    if config.family == "gpt2":
        content |= {
            "activation_function": activation,
            "layer_norm_epsilon": config.norm_eps,
            "scale_attn_weights": config.scale_by_width,
            "scale_attn_by_inverse_layer_idx": config.scale_by_layer,
        }
    else:
        key = "activation" if config.family == "distilbert" else "hidden_act"
        content |= {key: activation, "is_decoder": config.causal}
        if config.family != "distilbert":
            content |= {"layer_norm_eps": config.norm_eps, "type_vocab_size": config.n_segments}
    if config.family in _OWN_EMBEDDING:
        content["embedding_size"] = config.d_embed
    if config.family == "albert":
        content["num_hidden_groups"] = config.n_layer_groups
    if config.problem_type:
        content["problem_type"] = config.problem_type
    if config.labels:
        content["id2label"] = {str(index): label for index, label in enumerate(config.labels)}
        content["label2id"] = {label: index for index, label in enumerate(config.labels)}
    return content


def _size(config: Mapping[str, Any], names: tuple[str, ...]) -> int:
    name = next((name for name in names if config.get(name) is not None), None)
    if name is None:
        raise CheckpointError(f"config.json: {' or '.join(names)} is missing.")
    return _whole(config, name, 0)


def _whole(config: Mapping[str, Any], name: str, default: int, *, least: int = 1) -> int:
    value = config.get(name, default)
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        kind = "a positive whole number" if least == 1 else f"a whole number from {least} on"
        raise CheckpointError(f"config.json: {name} is {value!r}; expected {kind}.")
    return value


def _boolean(config: Mapping[str, Any], name: str, default: bool) -> bool:
    value = config.get(name, default)
    if not isinstance(value, bool):
        raise CheckpointError(f"config.json: {name} is {value!r}; expected true or false.")
    return value


def _problem_type(config: Mapping[str, Any]) -> str:
    name = config.get("problem_type")
    if name is not None and name not in _PROBLEM_TYPES:
        raise CheckpointError(
            f"config.json: problem_type is {name!r}; expected one of {', '.join(_PROBLEM_TYPES)}."
        )
    return name or ""


def _activation(config: Mapping[str, Any], family: str) -> str:
    key = {"distilbert": "activation", "gpt2": "activation_function"}.get(family, "hidden_act")
    default = "gelu_new" if family in ("gpt2", "albert") else "gelu"
    name = config.get(key, default)
    if not isinstance(name, str) or name not in _ACTIVATION_NAMES:
        raise CheckpointError(
            f"config.json: activation {name!r} is not implemented; "
            f"known are {', '.join(sorted(_ACTIVATION_NAMES))}."
        )
    return _ACTIVATION_NAMES[name]


def _norm_eps(config: Mapping[str, Any], family: str) -> float:
    # DistilBERT has no such field: its code fixes 1e-12.
    name = {"gpt2": "layer_norm_epsilon", "distilbert": ""}.get(family, "layer_norm_eps")
    value = config.get(name, 1e-5 if family == "gpt2" else 1e-12)
    if not isinstance(value, int | float) or not 0 <= value < float("inf"):
        raise CheckpointError(f"config.json: {name} is {value!r}; expected a small number.")
    return float(value)


def _n_segments(config: Mapping[str, Any], family: str) -> int:
    return 0 if family in ("distilbert", "gpt2") else _whole(config, "type_vocab_size", 2, least=0)


def _labels(config: Mapping[str, Any]) -> tuple[str, ...]:
    names = config.get("id2label")
    if not names:
        count = _whole(config, "num_labels", 2)
        if count > LARGEST_LABELS:
            raise CheckpointError(
                f"config.json: num_labels is {count}; expected at most {LARGEST_LABELS}."
            )
        return tuple(f"LABEL_{index}" for index in range(count))
    if not isinstance(names, Mapping) or not all(str(index).isdecimal() for index in names):
        raise CheckpointError(
            f"config.json: id2label is {names!r}; expected a name for each class number."
        )
    return tuple(str(names[index]) for index in sorted(names, key=int))


def _reject_unsupported(config: Mapping[str, Any]) -> None:
    if config.get("position_embedding_type", "absolute") not in ("absolute", None):
        raise CheckpointError(
            f"config.json: position_embedding_type {config['position_embedding_type']!r} is not "
            "implemented; expected 'absolute'."
        )
    if quantised := config.get("quantization_config"):
        raise CheckpointError(
            f"config.json: quantised weights ({quantised}) are not read; "
            "take the checkpoint they were made from."
        )
    if config.get("add_cross_attention"):
        raise CheckpointError("config.json: cross attention is not implemented.")
    if config.get("inner_group_num", 1) != 1:
        raise CheckpointError("config.json: inner_group_num above 1 is not implemented.")
