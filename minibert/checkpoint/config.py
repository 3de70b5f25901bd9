"""Between the `config.json` of a Hugging Face checkpoint and a Config.

`config_from_hf` reads one, `config_to_hf` writes one. families/ says which field of Config stands
where; contract.py says what becomes of every field of a config.json.
"""

from collections.abc import Mapping
from typing import Any

from minibert.checkpoint.architectures import MODEL_TYPES, UNREAD, class_name, task_of
from minibert.checkpoint.contract import check_contract
from minibert.checkpoint.families import FAMILIES
from minibert.checkpoint.families.fields import end_ids, read_whole, refuse
from minibert.errors import CheckpointError
from minibert.layers import families
from minibert.layers.config import LARGEST_LABELS, Config
from minibert.layers.families import check_task

__all__ = ["config_from_hf", "config_to_hf", "end_ids"]

_PROBLEM_TYPES = ("single_label_classification", "multi_label_classification", "regression")


def config_from_hf(config: Mapping[str, Any], task: str | None = None) -> Config:
    """The Config of a Hugging Face `config.json`, read into a dictionary.

    `task` overrides what `architectures` says; "none" leaves the task head out.

    Raises CheckpointError for an unknown family, task or activation, a missing or
    impossible size, and for every field that the contract refuses.
    """
    model_type = config.get("model_type")
    if not isinstance(model_type, str) or model_type not in MODEL_TYPES:
        reason = UNREAD.get(model_type, "") if isinstance(model_type, str) else ""
        raise CheckpointError(
            f"config.json: model_type {model_type!r:.200} is not a family minibert knows; "
            f"known are {', '.join(sorted(MODEL_TYPES))}.{reason} Other models that transformers "
            "runs are attached to from Python: minibert.attach(AutoModel.from_pretrained(...)). "
            "See docs/families.md#the-families"
        )
    name = MODEL_TYPES[model_type]
    family = FAMILIES[name]
    check_contract(config, model_type)
    said = {ours: field.read(config) for ours, field in family.fields.items()}
    task = task_of(config) if task is None else task
    check_task(name, task)
    return Config(
        family=name,
        model_type=model_type,
        task=task,
        pooler=task in family.pooled,
        labels=_labels(config),
        problem_type=_problem_type(config),
        **{"causal": bool(families.FAMILIES[name].causal), **said, **family.read(config, said)},
    )


def config_to_hf(config: Config) -> dict[str, Any]:
    """The `config.json` that Hugging Face transformers reads for this model.

    Raises CheckpointError for choices that the family's checkpoints have no place for.
    """
    family = FAMILIES[config.family]
    content: dict[str, Any] = {
        "model_type": config.model_type,
        "architectures": [class_name(config.model_type, config.family, config.task)],
    }
    for ours, field in family.fields.items():
        content[field.names[0]] = field.write(getattr(config, ours))
    content |= family.write(config)
    if config.problem_type:
        content["problem_type"] = config.problem_type
    if config.labels:
        content["id2label"] = {str(index): label for index, label in enumerate(config.labels)}
        content["label2id"] = {label: index for index, label in enumerate(config.labels)}
    return content


def _problem_type(config: Mapping[str, Any]) -> str:
    name = config.get("problem_type")
    if name is not None and name not in _PROBLEM_TYPES:
        raise refuse("problem_type", name, f"one of {', '.join(_PROBLEM_TYPES)}")
    return name or ""


def _labels(config: Mapping[str, Any]) -> tuple[str, ...]:
    names = config.get("id2label")
    if not names:
        count = read_whole(config, "num_labels", 2)
        if count > LARGEST_LABELS:
            raise refuse("num_labels", count, f"at most {LARGEST_LABELS}")
        return tuple(f"LABEL_{index}" for index in range(count))
    known = isinstance(names, Mapping) and len(names) <= LARGEST_LABELS
    numbers = {str(index): index for index in names} if known else {}
    if not numbers or any(str(index) not in numbers for index in range(len(names))):
        raise CheckpointError(
            f"config.json: id2label is {names!r:.200}; expected a name for each class number, "
            f"from 0 on without a gap, at most {LARGEST_LABELS}."
        )
    return tuple(str(names[numbers[str(index)]]) for index in range(len(names)))
