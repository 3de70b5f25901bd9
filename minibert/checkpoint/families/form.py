"""The form of a family: what its checkpoints call their tensors, and what its config.json says."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from minibert.checkpoint.families.fields import Field, Json
from minibert.checkpoint.families.verdicts import EVERY, READ, Judged
from minibert.layers.config import Config


@dataclass(frozen=True)
class Names:
    """How the checkpoints of one family name their tensors.

    A table maps our module to theirs; weight and bias follow. Modules of `within` that have one
    name lie in one tensor, in the order of the table.
    """

    prefix: str
    """Stands before the names of the body, where a file has a task head."""
    body: Mapping[str, str]
    layer: str
    within: Mapping[str, str]
    heads: Mapping[str, Mapping[str, str]]
    unused: tuple[str, ...] = ()
    """Patterns of names that the family's checkpoints carry and no model needs."""
    conv1d: bool = False
    """Weights of layers are stored as (in, out)."""
    by_head: bool = False
    """A tensor of several modules holds, head after head, the rows of each."""
    aliases: Mapping[str, str] = field(default_factory=dict)
    """Other names of a tensor in older files."""
    prefixes: Mapping[str, str] = field(default_factory=dict)
    """The prefix in files with this task head, where it is another."""
    live: Mapping[str, str] = field(default_factory=dict)
    """Names of files -> what a transformers object calls the same tensor."""


def _nothing(*given: object) -> dict[str, Any]:
    return {}


@dataclass(frozen=True)
class Family:
    """One family of models, as Hugging Face's files have it."""

    class_prefixes: Mapping[str, str]
    """model_type -> what the names of its classes begin with."""
    names: Names
    fields: Mapping[str, Field]
    """Field of Config -> where config.json says it."""
    verdicts: Mapping[str, Judged] = field(default_factory=dict)
    """What becomes of the other fields of config.json."""
    read: Callable[[Json, Json], dict[str, Any]] = _nothing
    """(config.json, what its fields say) -> fields of Config that take more than one field."""
    write: Callable[[Config], dict[str, Any]] = _nothing
    """What `read` reads, as config.json says it; replaces what the fields give."""
    pooled: tuple[str, ...] = ()
    """Tasks whose body ends in a pooler: tanh(W·hidden[0] + b)."""
    class_names: Mapping[str, str] = field(default_factory=dict)
    """Task -> the name of its class, where it does not follow from the prefix."""
    taken_over: str = ""
    """How `auto_map` of old files names code that transformers has taken over since."""

    @property
    def contract(self) -> Mapping[str, Judged]:
        """The verdict on every field that a config.json of this family may have."""
        read = dict.fromkeys((name for each in self.fields.values() for name in each.names), READ)
        return {**EVERY, **self.verdicts, **read}
