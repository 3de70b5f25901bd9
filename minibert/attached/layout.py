"""What is known of a model's attention after its first run: stacks, layers, heads, what holds.

"model.decoder.layers.3.encoder_attn" is layer 3 of the stack "decoder.cross". Layers are counted in
the order of the calls, because not every module knows its number, and one module may be called
several times.
"""

import functools
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from minibert.attached.call import Call

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
    kind = "cross" if crosses(pattern) else "self"
    words = list(dict.fromkeys(word for part in before if (word := _word(part))))
    short = words[0] if words else "layers"
    whole = ".".join(part for part in pattern.split(".") if part != "*")
    return short, f"{short}.{kind}", ".".join([*words, kind]), whole or "model", pattern


@functools.cache
def crosses(pattern: str) -> bool:
    """Whether the modules of a pattern look at the tokens of another stack, as their names say."""
    parts = pattern.lower().split(".")
    behind = parts[parts.index("*") :] if "*" in parts else parts[-1:]
    return any(_CROSS.search(part) for part in behind)


def _word(part: str) -> str:
    return next((word for word, said in _WORDS if re.search(said, part)), "")


#: The quantities of a live model, in the order in which they arise.
READABLE = ("query", "key", "value", "scores", "probs", "z")


@dataclass(frozen=True)
class Stack:
    """The layers of one kind of attention: heads and key-value heads of each."""

    name: str
    n_heads: tuple[int, ...]
    n_kv_heads: tuple[int, ...]

    @classmethod
    def of(cls, name: str, calls: Sequence[Call]) -> "Stack":
        """The stack of these calls."""
        return cls(
            name,
            tuple(call.query.shape[1] for call in calls),
            tuple(call.key.shape[1] for call in calls),
        )

    def __len__(self) -> int:
        return len(self.n_heads)

    def __str__(self) -> str:
        heads = "/".join(str(n) for n in sorted(set(self.n_heads)))
        shared = "/".join(str(n) for n in sorted(set(self.n_kv_heads)))
        kv = "" if self.n_kv_heads == self.n_heads else f" ({shared} key-value heads)"
        return f"{self.name}: {len(self)} layers x {heads} heads{kv}"

    def heads_of(self, name: str, layer: int) -> tuple[str, int]:
        """What the heads of a quantity are called, and how many there are in a layer."""
        grouped = name in ("key", "value") and self.n_kv_heads[layer] < self.n_heads[layer]
        return ("kv_head", self.n_kv_heads[layer]) if grouped else ("head", self.n_heads[layer])


@dataclass(frozen=True)
class LayerReport:
    """One layer: the module it is, and why scores and probs are not known there ("": they are)."""

    stack: str
    layer: int
    module: str
    problem: str = ""

    def __str__(self) -> str:
        return f"{self.stack} {self.layer} ({self.module}): {self.problem or 'probs · value is z'}"


@dataclass
class Report:
    """What the checks of a model's runs found."""

    layers: dict[tuple[str, int], LayerReport] = field(default_factory=dict)
    silent: dict[str, str] = field(default_factory=dict)
    """Attention modules that ran without the interface, with their class: nothing is read there."""

    @property
    def problems(self) -> tuple[str, ...]:
        """What does not hold, a sentence each; () where everything does."""
        layers = [str(one) for one in self.layers.values() if one.problem]
        silent = [
            f"{name} ({kind}) attends without transformers' attention interface: it is not read"
            for name, kind in self.silent.items()
        ]
        return (*layers, *silent)

    def note(self, reports: Iterable[LayerReport]) -> None:
        """Add what was found of some layers; a problem stays."""
        for one in reports:
            before = self.layers.get((one.stack, one.layer))
            if before is None or not before.problem:
                self.layers[one.stack, one.layer] = one

    def __str__(self) -> str:
        if not self.layers:
            return "Not run yet."
        held = sum(not one.problem for one in self.layers.values())
        first = f"{held} of {len(self.layers)} layers: probs · value is z."
        return "\n".join((first, *self.problems))
