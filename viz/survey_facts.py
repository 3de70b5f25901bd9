"""What a survey's manifest says, as lines for people to read."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from minibert.attached.layout import title_of

__all__ = ["facts", "title"]

# Of a list, as many entries are shown.
_LISTED = 6
# Sizes stand elsewhere, and how documents are read in portions changes no number.
_LEFT_OUT = ("config", "format", "window")
_IN_ONE_LINE = ("largest_difference", "versions")


def title(manifest: Mapping[str, Any]) -> str:
    """The name of the model, and of an attached one that of its stack where it has one."""
    model = manifest.get("model", {})
    if not isinstance(model, Mapping):
        return _name_of_path(model)
    name, stack = _name_of_path(model.get("name", "a model")), model.get("stack")
    return title_of(name, stack["name"]) if isinstance(stack, Mapping) else name


def facts(manifest: Mapping[str, Any]) -> list[list[str]]:
    """Pairs of a name and a text: what people ask for first in front."""
    first = {name: manifest[name] for name in ("model", "corpus") if name in manifest}
    return _facts({**first, **manifest}, "")


def _facts(manifest: Mapping[str, Any], before: str) -> list[list[str]]:
    found: list[list[str]] = []
    for name, value in manifest.items():
        label = f"{before}{name}".replace("_", " ")
        if name in _LEFT_OUT or value in (None, [], ()):
            continue
        if isinstance(value, Mapping) and name not in _IN_ONE_LINE:
            found += _facts(value, f"{label}: ")
        elif isinstance(value, Mapping):
            # The largest drift first; versions have an order of their own.
            pairs = list(value.items())
            if name == "largest_difference":
                pairs.sort(key=lambda one: one[1], reverse=True)
            found.append([label, _list([f"{one} {_plain(of)}" for one, of in pairs])])
        elif isinstance(value, Sequence) and not isinstance(value, str):
            found.append([label, _list([_plain(one) for one in value])])
        else:
            found.append([label, _name_of_path(value) if name == "name" else _plain(value)])
    return found


def _list(entries: Sequence[str]) -> str:
    more = f", and {len(entries) - _LISTED} more" if len(entries) > _LISTED else ""
    return ", ".join(entries[:_LISTED]) + more


def _name_of_path(name: object) -> str:
    """A model's name; of a path only its end, since reports are passed on to others."""
    text = str(name)
    is_path = os.path.isabs(text) or text.startswith((".", "~"))
    return Path(text).name if is_path else text


def _plain(value: object) -> str:
    if isinstance(value, Mapping):
        return " ".join(f"{name} {_plain(one)}" for name, one in value.items())
    if isinstance(value, Sequence) and not isinstance(value, str):
        return ": ".join(map(_plain, value))
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.3g}" if isinstance(value, float) else str(value)
