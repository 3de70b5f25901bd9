"""What sets one family of models apart: its task heads, and its choices among those of Config.

A choice that is missing here is Config's own default. A config.json may change it where the family
allows that.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from minibert.errors import CheckpointError

__all__ = [
    "FAMILIES",
    "TASKS",
    "FamilyChoices",
    "check_task",
    "discriminates",
    "predicts_tokens",
]

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
    """The task heads that a family has, how they are made, what it fixes, whether it may be causal.

    narrow_head          the vocabulary head is as wide as the embeddings, not as the stream
    head_activation      that of the vocabulary head, whatever the config says; None: the config's
    first_activation     that of the layer between the first token and the classes of a text; None:
                         there is no such layer, or a pooler in its place
    classifier_layer     a layer and a norm stand in front of every classifier
    discriminates        pre-training says of each token whether it was replaced
    orders_sentences     the second head of pre-training has as many outputs as there are labels
    """

    tasks: tuple[str, ...]
    choices: Mapping[str, Any] = field(default_factory=dict)
    causal: bool | None = None
    """True: always; False: never; None: as its config says."""
    narrow_head: bool = False
    head_activation: str | None = None
    first_activation: str | None = None
    classifier_layer: bool = False
    discriminates: bool = False
    orders_sentences: bool = False


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
    "roberta": FamilyChoices(
        ("none", "masked-lm", "causal-lm", *_CLASSES),
        _EMBED_NORM,
        head_activation="gelu",
        first_activation="tanh",
    ),
    "distilbert": FamilyChoices(
        ("none", "masked-lm", *_CLASSES), _EMBED_NORM, causal=False, first_activation="relu"
    ),
    "electra": FamilyChoices(
        ("none", "masked-lm", "pre-training", "causal-lm", *_CLASSES),
        _EMBED_NORM,
        narrow_head=True,
        head_activation="gelu",
        first_activation="gelu",
        discriminates=True,
    ),
    "albert": FamilyChoices(
        ("none", "masked-lm", "pre-training", *_CLASSES),
        _EMBED_NORM,
        causal=False,
        narrow_head=True,
        orders_sentences=True,
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
    "granite": FamilyChoices(("none", "causal-lm"), _LLAMA, causal=True),
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
        classifier_layer=True,
    ),
}


def discriminates(family: str, task: str) -> bool:
    """True where the head says of each token whether it was replaced (ELECTRA's pre-training)."""
    return task == "pre-training" and FAMILIES[family].discriminates


def predicts_tokens(family: str, task: str) -> bool:
    """True where the head has one logit a vocabulary entry at each position."""
    return task in ("masked-lm", "causal-lm", "pre-training") and not discriminates(family, task)


def check_task(family: str, task: str) -> None:
    """Raise CheckpointError for an unknown family, and when it has no such task head."""
    if not isinstance(family, str) or family not in FAMILIES:
        raise CheckpointError(
            f"config: family is {family!r:.200}; expected one of {', '.join(FAMILIES)}."
        )
    tasks = FAMILIES[family].tasks
    if not isinstance(task, str) or task not in tasks:
        raise CheckpointError(
            f"{family} has no task head {task!r:.200}; it has {', '.join(tasks)}. "
            "See docs/families.md#the-families"
        )
