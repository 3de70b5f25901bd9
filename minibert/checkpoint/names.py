"""The names of a checkpoint and ours: which stored tensor, or which rows of one, each parameter is.

Nothing here waits for torch.
"""

import math
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TypeVar

from minibert.checkpoint.families import FAMILIES
from minibert.checkpoint.families.form import Names
from minibert.layers.config import Config

Stored = TypeVar("Stored")


@dataclass(frozen=True)
class Part:
    """Which rows of a tensor are one parameter, where several parameters lie in one tensor."""

    start: int
    """Its first row in a block."""
    rows: int
    """How many rows of a block it has."""
    block: int
    """The rows of a block, those of the other parameters included."""
    n_blocks: int = 1
    """GPT-NeoX has a block a head, all others one."""
    sharing: int = 1
    """The parameters that lie in the tensor."""


@dataclass(frozen=True)
class Source:
    """Where one of our parameters comes from."""

    names: tuple[str, ...]
    """Checkpoint names, the usual one first."""
    transposed: bool = False
    """Stored as (in, out), as GPT-2's Conv1D does."""
    part: Part | None = None

    @property
    def shares(self) -> int:
        """How many parameters the stored tensor holds."""
        return 1 if self.part is None else self.part.sharing

    @property
    def is_view(self) -> bool:
        """True where a view of it copies nothing: rows of several blocks have to be gathered."""
        return self.part is None or self.part.n_blocks == 1

    def stored_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of the stored tensor, given our parameter's."""
        if self.part is not None:
            shape = (self.part.n_blocks * self.part.block, *shape[1:])
        return shape[::-1] if self.transposed else shape


@lru_cache
def sources(config: Config) -> Mapping[str, Source]:
    """Our parameter name -> where a checkpoint of this family holds it, for every parameter.

    Names of the body come without the family's prefix ("bert."), which files have or lack. A bias
    that this Config does not have is listed as well.
    """
    names = FAMILIES[config.family].names
    found: dict[str, Source] = {}
    for ours, theirs in names.body.items():
        found |= both(f"body.{ours}", Source((theirs,)))
    parts = _parts(names, config)
    for group in range(config.n_layer_groups):
        for ours, theirs in names.within.items():
            linear = names.conv1d and not ours.endswith("norm")
            source = Source((f"{names.layer.format(group)}.{theirs}",), linear, parts.get(ours))
            found |= both(f"body.groups.{group}.{ours}", source)
    for ours, theirs in names.heads.get(config.task, {}).items():
        found |= both(f"head.{ours}", Source((theirs,)))
    return {
        ours: replace(source, names=_names(names, source.names[0], config))
        for ours, source in found.items()
    }


def both(ours: str, module: Source) -> dict[str, Source]:
    """The sources of a module's weight and bias, given that of the module, or of one of both."""
    (theirs,) = module.names
    if ours.endswith((".weight", ".bias")):
        return {ours: module}
    return {
        f"{ours}.weight": replace(module, names=(f"{theirs}.weight",)),
        f"{ours}.bias": replace(module, names=(f"{theirs}.bias",), transposed=False),
    }


def _parts(names: Names, config: Config) -> dict[str, Part]:
    """The parts of the modules in a layer that share a tensor."""
    keys = config.n_kv_heads * config.d_head
    sizes = {
        "attention.query": config.n_heads * config.d_head,
        **dict.fromkeys(("attention.key", "attention.value"), keys),
        **dict.fromkeys(("mlp.gate", "mlp.up"), config.d_mlp),
    }
    n_blocks = config.n_heads if names.by_head else 1
    found = {}
    for theirs, count in Counter(names.within.values()).items():
        if count == 1:
            continue
        sharing = [ours for ours, name in names.within.items() if name == theirs]
        rows = [sizes[ours] // n_blocks for ours in sharing]
        for index, ours in enumerate(sharing):
            start = sum(rows[:index])
            found[ours] = Part(start, rows[index], sum(rows), n_blocks, count)
    return found


def _names(names: Names, name: str, config: Config) -> tuple[str, ...]:
    """The names a tensor may have. An untied decoder has a bias of its own, which then counts."""
    if name in names.live:
        return name, names.live[name]
    alias = names.aliases.get(name)
    if alias is None:
        return (name,)
    return (name, alias) if config.tied else (alias, name)


def by_name(config: Config, entries: Mapping[str, Stored]) -> dict[str, Stored]:
    """What is stored, by the names that `sources` gives."""
    names = FAMILIES[config.family].names
    return {modern(name, names): entry for name, entry in entries.items()}


def modern(name: str, names: Names) -> str:
    """A checkpoint name without the family's prefix and without TensorFlow's LayerNorm names."""
    name = re.sub(r"\.gamma$", ".weight", re.sub(r"\.beta$", ".bias", name))
    for prefix in (names.prefix, *names.prefixes.values()):
        if name.startswith(f"{prefix}."):
            return name.removeprefix(f"{prefix}.")
    return name


def count(config: Config, shapes: Mapping[str, tuple[int, ...]]) -> int:
    """The numbers of a model whose checkpoint has tensors of these shapes."""
    stored, used = by_name(config, shapes), set[str]()
    for ours, source in sources(config).items():
        shared = config.tied and ours == "head.decoder.weight"
        if not shared and (config.pooler or not ours.startswith("body.pooler.")):
            used |= set([name for name in source.names if name in stored][:1])
    return sum(math.prod(stored[name]) for name in used)
