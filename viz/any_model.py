"""A page that runs a model of a folder that is dropped on it; nothing leaves the machine.

What static/engine/folder.js reads folders by is written here as JSON, from the tables that
`minibert.load` reads them by: the families' tensors and fields, what is refused, and the defaults.
"""

from dataclasses import MISSING, fields

from minibert.checkpoint.config import known_classes
from minibert.checkpoint.families import FAMILIES
from minibert.checkpoint.families.bert_like import ROBERTA
from minibert.checkpoint.families.form import Family, Group, OneWindow, Windows
from minibert.checkpoint.families.gpt import GPT2
from minibert.checkpoint.families.rotary import Turned, TurnedByType
from minibert.layers.config import CHOICES_BY_DEFAULT, Config, discriminates
from minibert.layers.config import FAMILIES as CHOICES
from minibert.quantities import QUANTITIES
from minibert.text.tokenizer_files import WELL_KNOWN
from minibert.untrusted import Json
from minibert.viz.document import page_header
from minibert.viz.engine_edits import OFF_PAGES, REFUSED_CHANGES
from minibert.viz.live import JUDGED_TEXT, LIVE_TEXTS, RUN_TASKS, LivePage

# The choices of the first, and the rotation or factors of the others, folder.js does not read.
ANY_FAMILIES = tuple(name for name in FAMILIES if name not in ("minibert", "granite", "phi3"))


def any_page() -> LivePage:
    """The page that opens with a place to drop a Hugging Face folder on."""
    live = {
        "tables": {
            "families": {
                model_type: _family(name, FAMILIES[name], model_type)
                for name in ANY_FAMILIES
                for model_type in FAMILIES[name].class_prefixes
            },
            "quantities": [
                (name, one.axes[1:]) for name, one in QUANTITIES.items() if name not in OFF_PAGES
            ],
            "refusedChanges": REFUSED_CHANGES,
            "roles": list(WELL_KNOWN.items()),
            "tasks": RUN_TASKS,
        },
        "texts": {
            "masked": LIVE_TEXTS[False],
            "none": LIVE_TEXTS[False],
            "causal": LIVE_TEXTS[True],
            "classes": JUDGED_TEXT,
        },
    }
    return LivePage(page_header(live=live))


def _family(name: str, family: Family, model_type: str) -> Json:
    choices, names = CHOICES[name], family.names
    given = {one.name: one.default for one in fields(Config) if one.default is not MISSING}
    return {
        "family": name,
        "classes": {
            named: task
            for named, task in known_classes(model_type).items()
            if not discriminates(name, task)
        },
        "defaults": given
        | CHOICES_BY_DEFAULT
        | dict(choices.choices)
        | {
            "causal": bool(choices.causal),
            "of_vocabulary": choices.head_activation,
            "first_activation": choices.first_activation,
            "narrow_head": choices.narrow_head,
            "projects": name == "albert",
            "continues": "causal-lm" in choices.tasks,
        },
        "fields": {
            ours: {"names": field.names, **field.said}
            for ours, field in family.fields.items()
            if field.said
        },
        "refused": {
            field: {"allowed": judged.allowed, "reason": judged.reason}
            for field, judged in family.contract.items()
            if judged.verdict == "refused"
        },
        "groups": [_group(family, group) for group in family.groups],
        "names": {
            "prefixes": [names.prefix, *names.prefixes.values()],
            "body": names.body,
            "layer": names.layer,
            "within": list(names.within.items()),
            "heads": names.heads,
            "unused": names.unused,
            "conv1d": names.conv1d,
            "byHead": names.by_head,
            "aliases": names.aliases,
            "live": names.live,
        },
    }


def _group(family: Family, group: Group) -> Json:
    """Which rule of folder.js reads these fields, and its numbers."""
    if isinstance(group, Turned):
        return {
            "rule": "turned",
            "base": group.base,
            "fraction": group.fraction,
            "usualFraction": group.usual_fraction,
        }
    if isinstance(group, TurnedByType):
        return {"rule": "turnedByType", "bases": group.bases, "scaled": group.scaled}
    if isinstance(group, OneWindow):
        return {"rule": "window", "usual": group.usual}
    if isinstance(group, Windows):
        return {"rule": "windows", "by": group.others[-1]}
    rules = {id(ROBERTA): "offset", id(GPT2): "scaled"}
    return {"rule": rules.get(id(family), "pooling")}
