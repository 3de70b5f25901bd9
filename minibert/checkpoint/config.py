"""Between the `config.json` of a Hugging Face checkpoint and a Config.

`config_from_hf` reads one, `config_to_hf` writes one. families/ says which field of Config stands
where, and what becomes of every other field: it is read; or irrelevant, with the reason why no
number depends on it; or refused when it is not what minibert computes. A test perturbs every field
that transformers has and compares the numbers. A field that transformers itself does not know in
a family changes nothing there, and nothing here.

`dropout_of` and `dropout_to_hf` do the same for the shares of dropout, which only training reads;
tests/checkpoint/test_dropout.py compares them with transformers in training mode.
"""

from collections.abc import Mapping

from minibert.checkpoint.families import FAMILIES
from minibert.checkpoint.families.form import WHOLE, Judged, Share, refuse, value_of
from minibert.errors import CheckpointError, did_you_mean
from minibert.layers import config as shapes
from minibert.layers.config import FAMILIES as CHOICES
from minibert.layers.config import LARGEST_LABELS, Config, Dropout, check_task
from minibert.untrusted import Json

_PROBLEM_TYPES = ("single_label_classification", "multi_label_classification", "regression")


def config_from_hf(config: Json, task: str | None = None) -> Config:
    """The Config of a Hugging Face `config.json`, read into a dictionary.

    `task` overrides what `architectures` says; "none" leaves the task head out.

    Raises CheckpointError for an unknown family, task or activation, a missing or
    impossible size, and for every field that the contract refuses.
    """
    model_type = config.get("model_type")
    if not isinstance(model_type, str) or model_type not in MODEL_TYPES:
        reason = UNREAD.get(model_type, "") if isinstance(model_type, str) else ""
        raise CheckpointError(
            f"config.json: model_type {model_type!r:.200} is not a family minibert knows"
            f"{did_you_mean(model_type, MODEL_TYPES)}; known are "
            f"{', '.join(sorted(MODEL_TYPES))}.{reason} Other models that transformers "
            "runs are attached to from Python: minibert.attach(AutoModel.from_pretrained(...)). "
            "See docs/families.md#the-families"
        )
    name = MODEL_TYPES[model_type]
    family = FAMILIES[name]
    check_contract(config, model_type)
    said = family.read(config)
    task = task_of(config) if task is None else task
    check_task(name, task)
    return Config(
        family=name,
        model_type=model_type,
        task=task,
        labels=_labels(config),
        problem_type=_problem_type(config),
        **{"causal": bool(shapes.FAMILIES[name].causal), "pooler": task in family.pooled, **said},
    )


def config_to_hf(config: Config) -> Json:
    """The `config.json` that Hugging Face transformers reads for this model.

    Raises CheckpointError for choices that the family's checkpoints have no place for.
    """
    family = FAMILIES[config.family]
    content: Json = {
        "model_type": config.model_type,
        "architectures": [class_name(config.model_type, config.family, config.task)],
    }
    content |= family.write(config)
    if config.problem_type:
        content["problem_type"] = config.problem_type
    if config.labels:
        content["id2label"] = {str(index): label for index, label in enumerate(config.labels)}
        content["label2id"] = {label: index for index, label in enumerate(config.labels)}
    return content


def _problem_type(config: Json) -> str:
    name = config.get("problem_type")
    if name is not None and name not in _PROBLEM_TYPES:
        raise refuse("problem_type", name, f"one of {', '.join(_PROBLEM_TYPES)}")
    return name or ""


def _labels(config: Json) -> tuple[str, ...]:
    names = config.get("id2label")
    if not names:
        count = value_of(config, "num_labels", WHOLE, 2)
        if count > LARGEST_LABELS:
            raise refuse("num_labels", count, f"at most {LARGEST_LABELS}")
        return tuple(f"LABEL_{index}" for index in range(count))
    known = isinstance(names, Mapping) and len(names) <= LARGEST_LABELS
    numbers = {str(index): index for index in names} if known else {}
    if not numbers or any(str(index) not in numbers for index in range(len(names))):
        raise CheckpointError(
            f"config.json: id2label is {names!r:.200}; expected a name for each class number, "
            f"from 0 without a gap, at most {LARGEST_LABELS}."
        )
    return tuple(str(names[numbers[str(index)]]) for index in range(len(names)))


CONTRACT: Mapping[str, Mapping[str, Judged]] = {
    model_type: family.contract
    for family in FAMILIES.values()
    for model_type in family.class_prefixes
}


def check_contract(config: Json, model_type: str) -> None:
    """Raise CheckpointError for the first field that is not what minibert computes."""
    for name, judged in CONTRACT[model_type].items():
        # Compared with their types, because True equals 1.
        allowed = [(type(value), value) for value in judged.allowed]
        if judged.verdict != "refused" or name not in config:
            continue
        if (type(config[name]), config[name]) not in allowed:
            accepted = " or ".join(map(repr, judged.allowed))
            raise CheckpointError(
                f"config.json: {name} is {config[name]!r:.200}, expected {accepted}: "
                f"{judged.reason}. See docs/families.md#fields-of-a-configjson"
            )
    own_code = config.get("auto_map")
    known = FAMILIES[MODEL_TYPES[model_type]].taken_over
    if isinstance(own_code, Mapping) and any(
        "Model" in str(name) and not (known and str(code).startswith(known))
        for name, code in own_code.items()
    ):
        raise CheckpointError(
            f"config.json: auto_map names code of its own for the model ({own_code!r:.200}), which "
            "minibert does not run. Save the model as one of transformers' own classes. "
            "See docs/security.md#what-is-promised"
        )


# model_type -> family; the classes of a family share their tensors' names.
MODEL_TYPES = {
    model_type: name for name, family in FAMILIES.items() for model_type in family.class_prefixes
}
# What to do about a model_type that resembles a known one.
UNREAD = {
    "gemma3": " gemma3 is a model of texts and images; its text model alone is gemma3_text "
    "(save it as a Gemma3ForCausalLM)."
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


def task_of(config: Json) -> str:
    """The task that `architectures` names: "none" for a bare body or when it is not said."""
    architectures = config.get("architectures") or []
    if not isinstance(architectures, list | tuple):
        raise CheckpointError(f"config.json: architectures is {architectures!r}; expected a list.")
    if not architectures:
        return "none"
    known = known_classes(config["model_type"])
    if str(architectures[0]) not in known:
        raise CheckpointError(
            f"config.json: the task head of architecture {architectures[0]!r} is not implemented; "
            f"known are {', '.join(known)}. "
            'Load the model without its head: load(..., task="none").'
        )
    return known[str(architectures[0])]


def known_classes(model_type: str) -> dict[str, str]:
    """The transformers classes of a model_type, and the task of each."""
    family = FAMILIES[MODEL_TYPES[model_type]]
    prefix, tasks = family.class_prefixes[model_type], CHOICES[MODEL_TYPES[model_type]].tasks
    known = {prefix + end: task for end, task in _TASK_OF_CLASS.items() if task in tasks}
    return known | {name: task for task, name in family.class_names.items()}


def class_name(model_type: str, family: str, task: str) -> str:
    """The transformers class for a task: BertForMaskedLM, GPT2LMHeadModel."""
    suffixes = {task: suffix for suffix, task in reversed(_TASK_OF_CLASS.items())}
    usual = FAMILIES[family].class_prefixes[model_type] + suffixes[task]
    return FAMILIES[family].class_names.get(task, usual)


def dropout_of(about: Json, config: Config) -> Dropout:
    """The shares that a config.json names for this model.

    Raises CheckpointError for what is not a share.
    """
    family = FAMILIES[config.family]
    rates = {name: _rate(about, (key,)) for name, key in family.dropout.items()}
    if config.task in family.head_dropout:
        rates["head"] = _rate(about, family.head_dropout[config.task])
    return Dropout(**rates)


def dropout_to_hf(dropout: Dropout, config: Config) -> dict[str, float]:
    """The fields of config.json for these shares.

    Raises CheckpointError for shares that the family's config.json has no place for.
    """
    family = FAMILIES[config.family]
    keys = dict(family.dropout)
    if config.task in family.head_dropout:
        keys["head"] = family.head_dropout[config.task][0]
    written: dict[str, float] = {}
    for name in ("embed", "probs", "attn_out", "mlp_post", "mlp_out", "head"):
        rate = getattr(dropout, name)
        if name not in keys and rate:
            raise CheckpointError(
                f"dropout: {name} is {rate}, and a config.json of {config.family} has no place for "
                "it; expected 0."
            )
        if name in keys and written.setdefault(keys[name][0], rate) != rate:
            raise CheckpointError(
                f"dropout: {name} is {rate}, and {keys[name][0]} of config.json is "
                f"{written[keys[name][0]]} for another quantity; expected one share for both."
            )
    return written


def _rate(about: Json, keys: tuple[Share, ...]) -> float:
    given = [(name, about[name]) for name, _ in keys if about.get(name) is not None]
    name, rate = given[0] if given else keys[-1]
    if not isinstance(rate, int | float) or isinstance(rate, bool) or not 0 <= rate < 1:
        raise CheckpointError(
            f"config.json: {name} is {rate!r:.80}; expected a share from 0 to less than 1."
        )
    return float(rate)
