"""Between the `config.json` of a Hugging Face checkpoint and a Config.

`config_from_hf` reads one, `config_to_hf` writes one. The words on the left of the tables below
are ours, those on the right are Hugging Face's. contract.py says what becomes of every field.
"""

from collections.abc import Mapping
from typing import Any

from minibert.checkpoint.architectures import MODEL_TYPES, class_name, task_of
from minibert.checkpoint.contract import check_contract
from minibert.errors import CheckpointError
from minibert.layers.config import ACTIVATIONS, LARGEST_LABELS, Config, check_task

__all__ = ["config_from_hf", "config_to_hf", "end_ids"]

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
# Our field -> the family's own name for it; the usual one is also read in every family.
_USUAL = {
    "vocab_size": "vocab_size",
    "d_model": "hidden_size",
    "n_layers": "num_hidden_layers",
    "n_heads": "num_attention_heads",
    "n_positions": "max_position_embeddings",
}
_SIZES = {
    "distilbert": _USUAL | {"d_model": "dim", "n_layers": "n_layers", "n_heads": "n_heads"},
    "gpt2": {
        "vocab_size": "vocab_size",
        "d_model": "n_embd",
        "n_layers": "n_layer",
        "n_heads": "n_head",
        "n_positions": "n_positions",
    },
}
_D_MLP = {"distilbert": "hidden_dim", "gpt2": "n_inner"}
# What transformers takes for a config.json that does not say.
_DEFAULT_D_MLP = {"electra": 1024, "albert": 16384}
_DEFAULT_PAD = {"roberta": 1, "gpt2": None}
_DEFAULT_GPT2_END = 50256
_OWN_EMBEDDING = ("electra", "albert")
_DECODERS = ("bert", "roberta", "electra")
_PROBLEM_TYPES = ("single_label_classification", "multi_label_classification", "regression")


def config_from_hf(config: Mapping[str, Any], task: str | None = None) -> Config:
    """The Config of a Hugging Face `config.json`, read into a dictionary.

    `task` overrides what `architectures` says; "none" leaves the task head out.

    Raises CheckpointError for an unknown family, task or activation, a missing or
    impossible size, and for every field that the contract refuses.
    """
    model_type = config.get("model_type")
    if not isinstance(model_type, str) or model_type not in MODEL_TYPES:
        raise CheckpointError(
            f"config.json: model_type {model_type!r:.200} is not a family minibert knows; "
            f"known are {', '.join(sorted(MODEL_TYPES))}."
        )
    family = MODEL_TYPES[model_type]
    check_contract(config, model_type)
    sizes = {ours: _size(config, family, ours) for ours in _USUAL}
    pad_id, offset = _pad_id(config, family), 0
    if family == "roberta":
        offset = (pad_id or 0) + 1
        sizes["n_positions"] -= offset
    task = task_of(config) if task is None else task
    check_task(family, task)
    return Config(
        family=family,
        model_type=model_type,
        task=task,
        d_mlp=_d_mlp(config, family, sizes["d_model"]),
        d_embed=_whole(config, "embedding_size", 128) if family in _OWN_EMBEDDING else 0,
        n_segments=_n_segments(config, family),
        n_layer_groups=_whole(config, "num_hidden_groups", 1) if family == "albert" else 0,
        position_offset=offset,
        pad_id=pad_id,
        end_ids=_end_ids(config, sizes["vocab_size"]) if family == "gpt2" else (),
        norm_eps=_norm_eps(config, family),
        activation=_activation(config, family),
        causal=family == "gpt2" or (family in _DECODERS and _boolean(config, "is_decoder", False)),
        tied=_boolean(config, "tie_word_embeddings", True),
        pooler=task in _POOLED_TASKS.get(family, ()),
        labels=_labels(config),
        problem_type=_problem_type(config),
        query_scalar=None
        if family != "gpt2" or _boolean(config, "scale_attn_weights", True)
        else 1.0,
        scale_by_layer=family == "gpt2"
        and _boolean(config, "scale_attn_by_inverse_layer_idx", False),
        **sizes,
    )


def config_to_hf(config: Config) -> dict[str, Any]:
    """The `config.json` that Hugging Face transformers reads for this model."""
    family = config.family
    names = _SIZES.get(family, _USUAL)
    sizes = {theirs: getattr(config, ours) for ours, theirs in names.items()}
    sizes[names["n_positions"]] += config.position_offset
    activation = {"gelu_tanh": "gelu_new"}.get(config.activation, config.activation)
    content: dict[str, Any] = {
        "model_type": config.model_type,
        "architectures": [class_name(config.model_type, family, config.task)],
        **sizes,
        _D_MLP.get(family, "intermediate_size"): config.d_mlp,
        _activation_field(family): activation,
        "tie_word_embeddings": config.tied,
        "pad_token_id": config.pad_id,
    }
    if family == "gpt2":
        content |= {
            "layer_norm_epsilon": config.norm_eps,
            "scale_attn_weights": config.query_scalar is None,
            "scale_attn_by_inverse_layer_idx": config.scale_by_layer,
            "eos_token_id": list(config.end_ids) or None,
        }
    elif family != "distilbert":
        content |= {"layer_norm_eps": config.norm_eps, "type_vocab_size": config.n_segments}
    if family in _DECODERS:
        content["is_decoder"] = config.causal
    if family in _OWN_EMBEDDING:
        content["embedding_size"] = config.d_embed
    if family == "albert":
        content["num_hidden_groups"] = config.n_layer_groups
    if config.problem_type:
        content["problem_type"] = config.problem_type
    if config.labels:
        content["id2label"] = {str(index): label for index, label in enumerate(config.labels)}
        content["label2id"] = {label: index for index, label in enumerate(config.labels)}
    return content


def end_ids(value: Any, where: str) -> tuple[int, ...]:
    """The ids that `eos_token_id` names: one, several, or none.

    Raises CheckpointError for what is no token id.
    """
    ids = [] if value is None else value if isinstance(value, list | tuple) else [value]
    if not all(isinstance(one, int) and not isinstance(one, bool) and one >= 0 for one in ids):
        raise CheckpointError(
            f"{where}: eos_token_id is {value!r:.200}; expected a token id, or a list of them."
        )
    return tuple(ids)


def _end_ids(config: Mapping[str, Any], vocab_size: int) -> tuple[int, ...]:
    if "eos_token_id" in config:
        return end_ids(config["eos_token_id"], "config.json")
    return (_DEFAULT_GPT2_END,) if vocab_size > _DEFAULT_GPT2_END else ()


def _size(config: Mapping[str, Any], family: str, ours: str) -> int:
    names = dict.fromkeys((_SIZES.get(family, _USUAL)[ours], _USUAL[ours]))
    given = {name: config[name] for name in names if config.get(name) is not None}
    if not given:
        raise CheckpointError(f"config.json: {' or '.join(names)} is missing.")
    sizes = {name: _whole(config, name, 0) for name in given}
    if len(set(sizes.values())) > 1:
        raise CheckpointError(
            f"config.json: {' and '.join(sizes)} are two names of one size and differ "
            f"({', '.join(map(str, sizes.values()))}); take one of them out."
        )
    return next(iter(sizes.values()))


def _d_mlp(config: Mapping[str, Any], family: str, d_model: int) -> int:
    name = _D_MLP.get(family, "intermediate_size")
    if family == "gpt2":
        return 4 * d_model if config.get(name) is None else _whole(config, name, 0)
    return _whole(config, name, _DEFAULT_D_MLP.get(family, 3072))


def _pad_id(config: Mapping[str, Any], family: str) -> int | None:
    value = config.get("pad_token_id", _DEFAULT_PAD.get(family, 0))
    if value is None and family != "roberta":
        return None
    # RoBERTa counts its positions from this id on.
    return _whole(config, "pad_token_id", value, least=0 if family == "roberta" else -1)


def _whole(config: Mapping[str, Any], name: str, default: int, *, least: int = 1) -> int:
    value = config.get(name, default)
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        kind = "a positive whole number" if least == 1 else f"a whole number from {least} on"
        raise CheckpointError(f"config.json: {name} is {value!r:.200}; expected {kind}.")
    return value


def _boolean(config: Mapping[str, Any], name: str, default: bool) -> bool:
    value = config.get(name, default)
    if not isinstance(value, bool):
        raise CheckpointError(f"config.json: {name} is {value!r:.200}; expected true or false.")
    return value


def _problem_type(config: Mapping[str, Any]) -> str:
    name = config.get("problem_type")
    if name is not None and name not in _PROBLEM_TYPES:
        raise CheckpointError(
            f"config.json: problem_type is {name!r:.200}; expected one of "
            f"{', '.join(_PROBLEM_TYPES)}."
        )
    return name or ""


def _activation_field(family: str) -> str:
    return {"distilbert": "activation", "gpt2": "activation_function"}.get(family, "hidden_act")


def _activation(config: Mapping[str, Any], family: str) -> str:
    key = _activation_field(family)
    default = "gelu_new" if family in ("gpt2", "albert") else "gelu"
    name = config.get(key, default)
    if not isinstance(name, str) or name not in _ACTIVATION_NAMES:
        raise CheckpointError(
            f"config.json: activation {name!r:.200} is not implemented; "
            f"known are {', '.join(sorted(_ACTIVATION_NAMES))}."
        )
    return _ACTIVATION_NAMES[name]


def _norm_eps(config: Mapping[str, Any], family: str) -> float:
    # DistilBERT has no such field: its code fixes 1e-12.
    name = {"gpt2": "layer_norm_epsilon", "distilbert": ""}.get(family, "layer_norm_eps")
    value = config.get(name, 1e-5 if family == "gpt2" else 1e-12)
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value <= 1:
        raise CheckpointError(
            f"config.json: {name} is {value!r:.200}; expected a number from 0 to 1."
        )
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
    known = isinstance(names, Mapping) and len(names) <= LARGEST_LABELS
    numbers = {str(index): index for index in names} if known else {}
    if not numbers or any(str(index) not in numbers for index in range(len(names))):
        raise CheckpointError(
            f"config.json: id2label is {names!r:.200}; expected a name for each class number, "
            f"from 0 on without a gap, at most {LARGEST_LABELS}."
        )
    return tuple(str(names[numbers[str(index)]]) for index in range(len(names)))
