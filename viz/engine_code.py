"""Edits of a page as the text of the Python program that makes them.

checked edits -> `python_code` -> import minibert … trace = model.trace(text, edit={…})
"""

from collections.abc import Iterable, Sequence

from minibert.layers.config import Config
from minibert.quantities import QUANTITIES
from minibert.viz.engine_edit_checks import EngineEdit
from minibert.viz.engine_edits import (
    PointKey,
    by_point,
    index_of,
    is_plain,
    needs,
    weighed_queries,
)

__all__ = ["python_code"]

_INDENT = "    "


def python_code(
    model: str,
    texts: Sequence[str],
    edits: Sequence[EngineEdit],
    config: Config,
    other: Sequence[str] = (),
) -> str:
    """A program whose `trace` is that of the texts with these edits.

    `model` is what `minibert.load` is given, `other` the texts that edits of change text read.
    """
    functions: list[str] = []
    entries = []
    for key, several in by_point(edits, config).items():
        if is_plain(several):
            entries.append((key, _plain(several[0])))
        else:
            name = f"change_{len(functions) + 1}"
            functions.append(_function(name, key, several, config))
            entries.append((key, name))
    loads = [f"model = minibert.load({model!r})"]
    if needs(edits, "mean"):
        loads.append(f"clean = model.trace({_call(texts)})")
    if needs(edits, "text"):
        loads.append(f"other = model.trace({_call(other)})")
    head = "\n".join(_imports(entries, functions)) + "\n\n" + "\n".join(loads)
    trace = f"trace = model.trace({_call(texts)}{_mapping(entries)})\n"
    return ("\n\n\n" if functions else "\n\n").join([head, *functions, trace])


def _call(texts: Iterable[str]) -> str:
    return ", ".join(map(repr, texts))


def _imports(entries: Sequence[tuple[PointKey, str]], functions: Sequence[str]) -> list[str]:
    """The import lines of what the program names."""
    lines = ["import minibert"]
    if any("-math.inf" in function for function in functions):
        lines.insert(0, "import math\n")
    used = {text.split("(")[0].split(".")[0] for _, text in entries}
    if names := sorted(used & {"hide", "mean", "replace", "zero"}):
        lines.append(f"from minibert.trace.edit import {', '.join(names)}")
    if any("set_weight(" in function for function in functions):
        lines.append("from minibert.viz.engine_edits import set_weight")
    return lines


def _mapping(entries: Sequence[tuple[PointKey, str]]) -> str:
    """The argument `edit`; equal edits of several layers are one line."""
    if not entries:
        return ""
    layers: dict[tuple[str, tuple[int, ...], str], list[int]] = {}
    lines = []
    for key, text in entries:
        if isinstance(key, str):
            lines.append(f"{key!r}: {text}")
        else:
            layers.setdefault((key[0], key[2:], text), []).append(key[1])
    for (name, head, text), found in layers.items():
        of_head = f", {head[0]}" if head else ""
        whole = found == list(range(found[0], found[0] + len(found))) and len(found) > 1
        if whole:
            span = f"{found[0]}, {found[-1] + 1}" if found[0] else f"{found[-1] + 1}"
            key = f"({name!r}, layer{of_head})"
            lines.append(f"**{{{key}: {text} for layer in range({span})}}")
        else:
            lines += [f"({name!r}, {layer}{of_head}): {text}" for layer in found]
    return ", edit={\n" + "".join(f"{_INDENT}{line},\n" for line in lines) + "}"


def _plain(edit: EngineEdit) -> str:
    """The call of the edit's own function."""
    places = "" if edit.position is None else f"positions={edit.position}"
    if edit.change == "zero":
        return f"zero.at({places})" if places else "zero"
    first = {"mean": "clean", "text": "other", "hide": f"{edit.key}", "set": f"{edit.value!r}"}
    name = edit.change if edit.change in ("mean", "hide") else "replace"
    return f"{name}({', '.join(filter(None, (first[edit.change], places)))})"


def _function(name: str, key: PointKey, several: Sequence[EngineEdit], config: Config) -> str:
    """The definition of a function that makes several edits of one point."""
    quantity, place = (key, "") if isinstance(key, str) else (key[0], f"[{_places(key[1:])}]")
    axes = QUANTITIES[quantity].axes
    if not isinstance(key, str) and len(key) == 3:
        axes = tuple(axis for axis in axes if axis not in ("head", "kv_head"))
    lines = [f"def {name}({quantity}):  # {', '.join(axes)}"]
    layer = 0 if isinstance(key, str) else key[1]
    lines += [f"{_INDENT}{_line(edit, place, axes, config, layer)}" for edit in several]
    return "\n".join([*lines, f"{_INDENT}return {quantity}"])


def _line(edit: EngineEdit, place: str, axes: tuple[str, ...], config: Config, layer: int) -> str:
    """One edit as a statement about the tensor that has its quantity's name."""
    name = edit.quantity
    if edit.change == "set" and name == "probs":
        query = weighed_queries(edit, config, layer)
        return f"set_weight(probs, query={query}, key={edit.key}, weight={edit.value!r})"
    cells = f"[{_places(index_of(edit))}]"
    if edit.change == "mean":
        axis = axes.index("position")
        average = f"clean{place}.{name}.mean({axis}, keepdim=True).expand_as({name})"
        return f"{name}{cells} = {average}{cells}"
    if edit.change == "text":
        return f"{name}{cells} = other{place}.{name}{cells}"
    return f"{name}{cells} = " + {"zero": "0.0", "hide": "-math.inf"}.get(
        edit.change, repr(edit.value)
    )


def _places(index: Iterable[int | slice]) -> str:
    return ", ".join(str(one) if isinstance(one, int) else ":" for one in index)
