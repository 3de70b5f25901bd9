"""Which family and task head the class names of Hugging Face transformers stand for."""

from collections.abc import Mapping
from typing import Any

from minibert.errors import CheckpointError

__all__ = ["MODEL_TYPES", "class_name", "task_of"]

# model_type -> family; the classes of a family share their tensors' names.
MODEL_TYPES = {
    "bert": "bert",
    "roberta": "roberta",
    "xlm-roberta": "roberta",
    "camembert": "roberta",
    "distilbert": "distilbert",
    "electra": "electra",
    "albert": "albert",
    "gpt2": "gpt2",
}
_CLASS_PREFIX = {
    "bert": "Bert",
    "roberta": "Roberta",
    "xlm-roberta": "XLMRoberta",
    "camembert": "Camembert",
    "distilbert": "DistilBert",
    "electra": "Electra",
    "albert": "Albert",
    "gpt2": "GPT2",
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
    prefix = _CLASS_PREFIX[config["model_type"]]
    suffix = str(architectures[0]).removeprefix(prefix)
    if suffix not in _TASK_OF_CLASS:
        known = ", ".join(prefix + name for name in _TASK_OF_CLASS)
        raise CheckpointError(
            f"config.json: the task head of architecture {architectures[0]!r} is not implemented; "
            f'known are {known}. Load the model without its head: load(..., task="none").'
        )
    return _TASK_OF_CLASS[suffix]


def class_name(model_type: str, family: str, task: str) -> str:
    """The transformers class for a task: BertForMaskedLM, GPT2LMHeadModel."""
    suffixes = {task: suffix for suffix, task in reversed(_TASK_OF_CLASS.items())}
    suffix = suffixes[task]
    if task == "causal-lm" and family in ("bert", "gpt2"):
        suffix = "LMHeadModel"
    return _CLASS_PREFIX[model_type] + suffix
