"""What sets one family of models apart: its task heads, and its choices among those of Config.

A choice that is missing here is Config's own default. A config.json may change it where the family
allows that.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["FAMILIES", "TASKS", "FamilyChoices"]

TASKS = (
    "none",
    "masked-lm",
    "next-sentence",
    "pre-training",
    "causal-lm",
    "sequence-classification",
    "token-classification",
    "question-answering",
)
_CLASSES = TASKS[5:]
_DECODER = ("none", "causal-lm", *_CLASSES)


@dataclass(frozen=True)
class FamilyChoices:
    """The task heads that a family has, what it fixes, and whether it may be causal."""

    tasks: tuple[str, ...]
    choices: Mapping[str, Any] = field(default_factory=dict)
    causal: bool | None = None
    """True: always; False: never; None: as its config says."""


_EMBED_NORM = {"norm_place": "after", "embed_norm": True}
_NO_BIAS = {"query_bias": False, "output_bias": False, "mlp_bias": False, "norm_bias": False}
_LLAMA = {
    "norm": "rms",
    "norm_place": "before",
    "final_norm": True,
    "positions": "rotary",
    "gated": True,
    **_NO_BIAS,
}
_GEMMA = _LLAMA | {"norm_plus_one": True, "embed_scaled": True}
_GEMMA_2 = _GEMMA | {"norm_place": "both"}

FAMILIES: dict[str, FamilyChoices] = {
    "bert": FamilyChoices(TASKS, _EMBED_NORM),
    "roberta": FamilyChoices(("none", "masked-lm", "causal-lm", *_CLASSES), _EMBED_NORM),
    "distilbert": FamilyChoices(("none", "masked-lm", *_CLASSES), _EMBED_NORM, causal=False),
    "electra": FamilyChoices(
        ("none", "masked-lm", "pre-training", "causal-lm", *_CLASSES), _EMBED_NORM
    ),
    "albert": FamilyChoices(
        ("none", "masked-lm", "pre-training", *_CLASSES), _EMBED_NORM, causal=False
    ),
    "gpt2": FamilyChoices(_DECODER, {"norm_place": "before", "final_norm": True}),
    "gpt_neox": FamilyChoices(
        _DECODER,
        {"norm_place": "before", "final_norm": True, "positions": "rotary", "parallel": True},
        causal=True,
    ),
    "llama": FamilyChoices(_DECODER, _LLAMA, causal=True),
    "mistral": FamilyChoices(_DECODER, _LLAMA, causal=True),
    "qwen2": FamilyChoices(_DECODER, _LLAMA | {"query_bias": True}, causal=True),
    "qwen3": FamilyChoices(_DECODER, _LLAMA | {"query_key_norm": "head"}, causal=True),
    "gemma": FamilyChoices(_DECODER[:-1], _GEMMA, causal=True),
    "gemma2": FamilyChoices(_DECODER[:-1], _GEMMA_2, causal=True),
    "gemma3": FamilyChoices(
        ("none", "causal-lm", "sequence-classification"),
        _GEMMA_2 | {"query_key_norm": "head"},
        causal=True,
    ),
    "phi3": FamilyChoices(_DECODER[:-1], _LLAMA, causal=True),
    "olmo2": FamilyChoices(
        ("none", "causal-lm", "sequence-classification"),
        _LLAMA | {"norm_place": "output", "query_key_norm": "width"},
        causal=True,
    ),
    "modernbert": FamilyChoices(
        ("none", "masked-lm", *_CLASSES),
        {
            "norm_place": "before",
            "embed_norm": True,
            "final_norm": True,
            "first_norm": False,
            "positions": "rotary",
            "gated": True,
            **_NO_BIAS,
        },
        causal=False,
    ),
}
