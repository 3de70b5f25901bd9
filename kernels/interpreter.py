"""Triton's interpreter, told to prepare its language once a launch.

It replaces every operation of `triton.language` at each call of a jitted function from another, a
third of the time of a kernel of many small functions. Once is enough: the launch takes it back.
"""

from typing import Any


def prepare_once_a_launch() -> None:
    """Make launches quicker where Triton's interpreter is as known; otherwise change nothing."""
    from triton.runtime import interpreter

    there: Any = interpreter
    known = ("_patch_lang", "_LangPatchScope", "tl")
    if not all(hasattr(there, name) for name in known) or hasattr(there, "_prepared"):
        return
    prepare, nothing_to_take_back = there._patch_lang, there._LangPatchScope
    #: Under which names `prepare` found the language since the launch began.
    prepared: set[tuple[bool, bool]] = set()

    def once(function: Any) -> Any:
        seen = [id(value) for value in function.__globals__.values()]
        names = (id(there.tl) in seen, id(there.tl.core) in seen)
        if names in prepared:
            return nothing_to_take_back()
        scope = prepare(function)
        take_back = scope.restore

        def restore() -> None:
            prepared.clear()
            take_back()

        prepared.add(names)
        scope.restore = restore
        return scope

    there._prepared, there._patch_lang = prepared, once
