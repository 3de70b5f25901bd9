"""The stacks of layers that a model's attention modules form, and what they are called.

"model.decoder.layers.3.encoder_attn" is layer 3 of the stack "decoder.cross". Layers are counted in
the order of the calls, because not every module knows its number, and one module may be called
several times.
"""

import functools
import re
from collections.abc import Iterable, Sequence

__all__ = ["names_of", "pattern_of", "title_of"]

_CROSS = re.compile(r"cross|encoder_?attn|encoder_attention|encdec|enc_dec")
# What a part of a module's name says about the stack it is in; the first that fits.
_WORDS = (
    ("vision", r"vision|visual|image|vit\b|patch"),
    ("audio", r"audio|speech|acoustic"),
    ("text", r"text|language"),
    ("qformer", r"q_?former"),
    ("encoder", r"encoder"),
    ("decoder", r"decoder"),
)


@functools.cache
def pattern_of(name: str) -> str:
    """A module's name without its numbers: what the layers of a stack share."""
    return ".".join("*" if part.isdigit() else part for part in name.split("."))


def title_of(model: str, stack: str) -> str:
    """A model's name with that of its stack, but for modules whose names say nothing."""
    return model if stack == "layers" else f"{model}, {stack}"


def names_of(patterns: Iterable[str], known: dict[str, str]) -> dict[str, str]:
    """A name for each pattern; those in `known` keep theirs.

    The shortest that tells them apart: a word ("vision"), a word and self or cross
    ("decoder.cross"), all words, or what the modules are called.
    """
    found = dict(known)
    waiting = [one for one in dict.fromkeys(patterns) if one not in found]
    for level in range(5):
        named = {one: _candidates(one)[level] for one in waiting}
        taken = set(found.values())
        for one, name in named.items():
            if name not in taken and list(named.values()).count(name) == 1:
                found[one] = name
        waiting = [one for one in waiting if one not in found]
    return found


def _candidates(pattern: str) -> Sequence[str]:
    """From the shortest name to the one that nothing else has."""
    parts = pattern.lower().split(".")
    before = parts[: parts.index("*")] if "*" in parts else parts[:-1]
    kind = "cross" if any(_CROSS.search(part) for part in parts[len(before) :]) else "self"
    words = list(dict.fromkeys(word for part in before if (word := _word(part))))
    short = words[0] if words else "layers"
    whole = ".".join(part for part in pattern.split(".") if part != "*")
    return short, f"{short}.{kind}", ".".join([*words, kind]), whole or "model", pattern


def _word(part: str) -> str:
    return next((word for word, said in _WORDS if re.search(said, part)), "")
