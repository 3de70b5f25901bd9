"""One frozen description of a model, whatever family its checkpoint comes from.

`Config.from_hf` reads the `config.json` of a Hugging Face checkpoint; `to_hf` writes one.
The words on the left of the tables below are Hugging Face's, the fields are ours.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from minibert.checkpoint.architectures import MODEL_TYPES, check_task, class_name, task_of
from minibert.errors import CheckpointError

ACTIVATIONS = ("gelu", "gelu_tanh", "gelu_fast", "quick_gelu", "relu", "silu", "tanh")
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
# Far above any model, and low enough that no shape made of two of them overflows.
_LARGEST = {"n_layers": 2**16, "labels": 2**20}
_LARGEST_SIZE = 2**28
_PROBLEM_TYPES = ("single_label_classification", "multi_label_classification", "regression")


@dataclass(frozen=True)
class Config:
    """The sizes and choices of one model. All counts are positive."""

    family: str
    task: str
    vocab_size: int
    n_positions: int
    """The longest input in tokens (RoBERTa's two reserved rows are not counted)."""
    n_layers: int
    n_heads: int
    d_model: int
    d_mlp: int
    model_type: str = ""
    d_embed: int = 0
    """Width of the embeddings; differs from d_model in ELECTRA and ALBERT. 0 means d_model."""
    n_segments: int = 0
    n_layer_groups: int = 0
    """Sets of weights that the layers share (ALBERT). 0 means one a layer."""
    position_offset: int = 0
    """RoBERTa counts positions from padding_idx + 1."""
    pad_id: int | None = None
    norm_eps: float = 1e-12
    activation: str = "gelu"
    causal: bool = False
    tied: bool = True
    """The output embedding is the input embedding."""
    pooler: bool = False
    labels: tuple[str, ...] = ()
    problem_type: str = ""
    """What a classification head answers: single_label_classification ("" means this one),
    multi_label_classification or regression."""
    scale_by_width: bool = True
    """Scores are divided by sqrt(d_head), as in Vaswani et al. 2017, section 3.2.1."""
    scale_by_layer: bool = False
    """Scores are divided by layer + 1 as well (GPT-2's scale_attn_by_inverse_layer_idx)."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "model_type", self.model_type or self.family)
        object.__setattr__(self, "d_embed", self.d_embed or self.d_model)
        object.__setattr__(self, "n_layer_groups", self.n_layer_groups or self.n_layers)
        _check(self)

    @property
    def d_head(self) -> int:
        """The width of one head: d_model / n_heads."""
        return self.d_model // self.n_heads

    @property
    def pre_norm(self) -> bool:
        """True where LayerNorm comes before a block (GPT-2), False where after (BERT)."""
        return self.family == "gpt2"

    @property
    def n_labels(self) -> int:
        """Classes that a classification head chooses from."""
        return len(self.labels)

    def attention_scale(self, layer: int) -> float:
        """The factor on query·key in this layer: 1/sqrt(d_head), unless the config differs."""
        scale = self.d_head**-0.5 if self.scale_by_width else 1.0
        return scale / (layer + 1) if self.scale_by_layer else scale

    @classmethod
    def from_hf(cls, config: Mapping[str, Any], *, task: str | None = None) -> "Config":
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
        return cls(
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

    def to_hf(self) -> dict[str, Any]:
        """The `config.json` that Hugging Face transformers reads for this model."""
        size_name = {"distilbert": 1, "gpt2": 2}.get(self.family, 0)
        names = {field: names[min(size_name, len(names) - 1)] for field, names in _SIZES.items()}
        names["n_positions"] = "n_positions" if self.family == "gpt2" else "max_position_embeddings"
        sizes = {name: getattr(self, field) for field, name in names.items()}
        sizes[names["n_positions"]] += self.position_offset
        activation = {"gelu_tanh": "gelu_new"}.get(self.activation, self.activation)
        config: dict[str, Any] = {
            "model_type": self.model_type,
            "architectures": [class_name(self.model_type, self.family, self.task)],
            **sizes,
            _D_MLP[size_name]: self.d_mlp,
            "tie_word_embeddings": self.tied,
            "pad_token_id": self.pad_id,
        }
        if self.family == "gpt2":
            config |= {
                "activation_function": activation,
                "layer_norm_epsilon": self.norm_eps,
                "scale_attn_weights": self.scale_by_width,
                "scale_attn_by_inverse_layer_idx": self.scale_by_layer,
            }
        else:
            key = "activation" if self.family == "distilbert" else "hidden_act"
            config |= {key: activation, "is_decoder": self.causal}
            if self.family != "distilbert":
                config |= {"layer_norm_eps": self.norm_eps, "type_vocab_size": self.n_segments}
        if self.family in _OWN_EMBEDDING:
            config["embedding_size"] = self.d_embed
        if self.family == "albert":
            config["num_hidden_groups"] = self.n_layer_groups
        if self.problem_type:
            config["problem_type"] = self.problem_type
        if self.labels:
            config["id2label"] = {str(index): label for index, label in enumerate(self.labels)}
            config["label2id"] = {label: index for index, label in enumerate(self.labels)}
        return config


def _check(config: Config) -> None:
    positive = ("vocab_size", "n_positions", "n_layers", "n_heads", "d_model", "d_mlp", "d_embed")
    for field in positive:
        value = getattr(config, field)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise CheckpointError(
                f"config: {field} is {value!r}; expected a positive whole number."
            )
    for field in (*positive, "n_segments", "position_offset"):
        value, most = getattr(config, field), _LARGEST.get(field, _LARGEST_SIZE)
        if value > most:
            raise CheckpointError(f"config: {field} is {value}; expected at most {most}.")
    if config.d_model % config.n_heads:
        raise CheckpointError(
            f"config: {config.n_heads} heads do not divide a width of {config.d_model}; "
            "d_model must be a multiple of n_heads."
        )
    if config.n_layer_groups > config.n_layers:
        raise CheckpointError(
            f"config: {config.n_layer_groups} layer groups for {config.n_layers} layers; "
            "expected at most one group a layer."
        )
    check_task(config.family, config.task)


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
        if count > _LARGEST["labels"]:
            raise CheckpointError(
                f"config.json: num_labels is {count}; expected at most {_LARGEST['labels']}."
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
