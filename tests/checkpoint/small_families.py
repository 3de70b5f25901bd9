"""Small transformers models of the families with rotary positions, and what their files may say."""

import json
from typing import Any

import torch
import transformers

from tests.rotary.classes import ARCHITECTURES, LANGUAGE

VOCABULARY, POSITIONS, LABELS, LAYERS, D_HEAD = 41, 31, 3, 3, 6

_COMMON = {
    "vocab_size": VOCABULARY,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "intermediate_size": 23,
    "max_position_embeddings": POSITIONS,
    "num_labels": LABELS,
    "pad_token_id": 0,
    "eos_token_id": 3,
    "initializer_range": 0.15,
}
# A width that is not that of all heads.
_GROUPED = {**_COMMON, "hidden_size": 20, "num_key_value_heads": 2, "head_dim": D_HEAD}
_WHOLE = {**_COMMON, "hidden_size": 4 * D_HEAD}
# model_type -> the beginning of the classes' names, and the configuration.
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt_neox": ("GPTNeoX", {**_WHOLE, "rotary_pct": 0.34}),
    "llama": ("Llama", _GROUPED),
    "mistral": ("Mistral", {**_GROUPED, "sliding_window": 5}),
    "qwen2": ("Qwen2", _GROUPED),
    "qwen3": (
        "Qwen3",
        {**_GROUPED, "use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1},
    ),
    "gemma": ("Gemma", _GROUPED),
    "gemma2": ("Gemma2", {**_GROUPED, "sliding_window": 5}),
    "gemma3_text": ("Gemma3Text", {**_GROUPED, "sliding_window": 5, "sliding_window_pattern": 2}),
    # transformers computes the width of its heads, whatever head_dim says, when it checks rotary.
    "phi3": ("Phi3", {**_WHOLE, "num_key_value_heads": 2, "sliding_window": 5}),
    "olmo2": ("Olmo2", _GROUPED),
    "granite": ("Granite", _WHOLE),
    "modernbert": ("ModernBert", {**_WHOLE, "local_attention": 6, "global_attn_every_n_layers": 2}),
}


def hf_class(family: str) -> Any:
    """The class of this family's configurations."""
    return getattr(transformers, f"{FAMILIES[family][0]}Config")


def hf_config(family: str, **changed: Any) -> Any:
    """A small transformers configuration; `changed` says what is different in it."""
    return hf_class(family)(**{**FAMILIES[family][1], **changed})


def hf_model(family: str, name: str, **changed: Any) -> Any:
    """A small transformers model; its biases and norms are random, too."""
    config = hf_config(family, **changed)
    if name.endswith("QuestionAnswering"):
        config.num_labels = 2
    config.architectures = [name]
    torch.manual_seed(0)
    model = getattr(transformers, name)._from_config(config, attn_implementation="eager").eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(0.2 * torch.randn(parameter.shape))
    return model


def as_json(config: Any) -> dict[str, Any]:
    """What the config.json of a checkpoint says."""
    content: dict[str, Any] = json.loads(config.to_json_string(use_diff=False))
    return content


# What changes the set of tensors: of a body, an output embedding, and ModernBERT's classifiers.
BIASES: dict[str, dict[str, Any]] = {
    "gpt_neox": {"attention_bias": False, "tie_word_embeddings": True},
    "llama": {"attention_bias": True, "mlp_bias": True, "num_key_value_heads": None},
    "qwen3": {"attention_bias": True, "head_dim": 10},
    "gemma": {"attention_bias": True, "tie_word_embeddings": False},
    "gemma2": {"attention_bias": True},
    "gemma3_text": {"attention_bias": True},
    "phi3": {"num_key_value_heads": None, "tie_word_embeddings": True},
    "olmo2": {"attention_bias": True},
    "granite": {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True},
    "modernbert": {
        "attention_bias": True,
        "mlp_bias": True,
        "norm_bias": True,
        "decoder_bias": False,
        "classifier_bias": True,
    },
}
CASES: list[tuple[str, str, dict[str, Any]]] = [
    *((family, name, {}) for family, name in ARCHITECTURES),
    *((family, LANGUAGE[family], changed) for family, changed in BIASES.items()),
    ("modernbert", "ModernBertForSequenceClassification", BIASES["modernbert"]),
]
