"""What is known of a model's attention after its first run: stacks, layers, heads, what holds."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from minibert.attached.call import Call

__all__ = ["READABLE", "LayerReport", "Report", "Stack"]

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
