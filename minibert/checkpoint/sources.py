"""Which stored tensor, or which rows of one, each of our parameters is."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

from torch import Tensor

from minibert.checkpoint.families import FAMILIES, Names
from minibert.layers.config import Config

__all__ = ["Part", "Source", "sources"]


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
        """True where `view` copies nothing: rows of several blocks have to be gathered."""
        return self.part is None or self.part.n_blocks == 1

    def view(self, stored: Tensor) -> Tensor:
        """Our parameter as a view of the stored tensor; a copy where `is_view` is False."""
        tensor = stored.t() if self.transposed else stored
        if self.part is None:
            return tensor
        blocks = tensor.unflatten(0, (self.part.n_blocks, self.part.block))
        return blocks.narrow(1, self.part.start, self.part.rows).flatten(0, 1)

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
        found |= _both(f"body.{ours}", Source((theirs,)))
    parts = _parts(names, config)
    for group in range(config.n_layer_groups):
        for ours, theirs in names.within.items():
            linear = names.conv1d and not ours.endswith("norm")
            source = Source((f"{names.layer.format(group)}.{theirs}",), linear, parts.get(ours))
            found |= _both(f"body.groups.{group}.{ours}", source)
    for ours, theirs in names.heads.get(config.task, {}).items():
        if ours.endswith((".weight", ".bias")):
            found[f"head.{ours}"] = Source((theirs,))
        else:
            found |= _both(f"head.{ours}", Source((theirs,)))
    return {
        ours: replace(source, names=_names(names, source.names[0], config))
        for ours, source in found.items()
    }


def _both(ours: str, module: Source) -> dict[str, Source]:
    """The sources of a module's weight and bias, given that of the module."""
    (theirs,) = module.names
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
