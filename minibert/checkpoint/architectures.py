"""Which family and task head the class names of Hugging Face transformers stand for."""

from collections.abc import Mapping
from typing import Any

from minibert.checkpoint.families import FAMILIES
from minibert.errors import CheckpointError
from minibert.layers.families import FAMILIES as CHOICES

__all__ = ["MODEL_TYPES", "UNREAD", "class_name", "task_of"]

# model_type -> family; the classes of a family share their tensors' names.
MODEL_TYPES = {
    model_type: name for name, family in FAMILIES.items() for model_type in family.class_prefixes
}
# What to do about a model_type that resembles a known one.
UNREAD = {
    "gemma3": " gemma3 is a model of texts and images; its text model alone is gemma3_text "
    "(save it as a Gemma3ForCausalLM).",
}
_TASK_OF_CLASS = {
    "Model": "none",
    "ForMaskedLM": "masked-lm",
    "ForNextSentencePrediction": "next-sentence",
    "ForPreTraining": "pre-training",
    "ForCausalLM": "causal-lm",
    "LMHeadModel": "causal-lm",
    "ForSequenceClassification": "sequence-classification",
    "ForTokenClassification": "token-classification",
    "ForQuestionAnswering": "question-answering",
}


def task_of(config: Mapping[str, Any]) -> str:
    """The task that `architectures` names: "none" for a bare body or when it is not said."""
    architectures = config.get("architectures") or []
    if not isinstance(architectures, list | tuple):
        raise CheckpointError(f"config.json: architectures is {architectures!r}; expected a list.")
    if not architectures:
        return "none"
    model_type = config["model_type"]
    family = FAMILIES[MODEL_TYPES[model_type]]
    prefix = family.class_prefixes[model_type]
    tasks = CHOICES[MODEL_TYPES[model_type]].tasks
    known = {prefix + end: task for end, task in _TASK_OF_CLASS.items() if task in tasks}
    known |= {name: task for task, name in family.class_names.items()}
    if str(architectures[0]) not in known:
        raise CheckpointError(
            f"config.json: the task head of architecture {architectures[0]!r} is not implemented; "
            f"known are {', '.join(known)}. "
            'Load the model without its head: load(..., task="none").'
        )
    return known[str(architectures[0])]


def class_name(model_type: str, family: str, task: str) -> str:
    """The transformers class for a task: BertForMaskedLM, GPT2LMHeadModel."""
    suffixes = {task: suffix for suffix, task in reversed(_TASK_OF_CLASS.items())}
    usual = FAMILIES[family].class_prefixes[model_type] + suffixes[task]
    return FAMILIES[family].class_names.get(task, usual)
