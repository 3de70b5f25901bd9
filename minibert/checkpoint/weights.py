"""From the names of a checkpoint to ours, strict and loud.

`sources` says which stored tensor, or which rows of one, each parameter is. `fit` compares a
checkpoint with a model before a single value is read: everything missing, unexpected or mis-shaped
is listed at once.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

import torch
from torch import Tensor

from minibert.checkpoint.families import FAMILIES
from minibert.checkpoint.families.form import Names
from minibert.checkpoint.files import Entry
from minibert.errors import CheckpointError
from minibert.layers.config import Config


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
        found |= _both(f"head.{ours}", Source((theirs,)))
    return {
        ours: replace(source, names=_names(names, source.names[0], config))
        for ours, source in found.items()
    }


def _both(ours: str, module: Source) -> dict[str, Source]:
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


# As many as fit a message beside the counts of all.
_MOST_LISTED = 12


def check_names(config: Config, entries: Mapping[str, Entry], *, where: str) -> None:
    """Raise CheckpointError for names that cannot be this model's, before anything is built.

    That is for two names of one tensor, and for fewer layers than the config says.
    """
    family = FAMILIES[config.family].names
    originals: dict[str, str] = {}
    for name in entries:
        other = originals.setdefault(_modern(name, family), name)
        if other != name:
            raise CheckpointError(
                f"{where}: {other} and {name} are two names of one tensor; expected one of them. "
                "Take the other out of the file."
            )
    pattern = re.compile(re.escape(family.layer).replace(r"\{\}", r"(\d+)") + r"\.")
    matches = map(pattern.match, originals)
    layers = {match[1] for match in matches if match}
    if len(layers) < config.n_layer_groups:
        parts = "layer groups" if config.family == "albert" else "layers"
        raise CheckpointError(
            f"{where}: config.json says {config.n_layer_groups} {parts}, and the weights hold "
            f"{len(layers)} ({family.layer.format('N')}), beginning with "
            f"{', '.join(sorted(entries)[:2]) or 'nothing'}. Take config.json and weights from "
            "one checkpoint."
        )


def fit(
    config: Config,
    wanted: Mapping[str, tuple[int, ...]],
    entries: Mapping[str, Entry],
    *,
    where: str,
    allow_unexpected: bool = False,
) -> dict[str, tuple[Source, Entry]]:
    """Our parameter name -> its source and entry, for every wanted parameter.

    `wanted` gives the shape of each. Raises CheckpointError listing everything missing,
    unexpected and mis-shaped.
    """
    by_name = _by_name(config, entries)
    table = sources(config)
    found: dict[str, tuple[Source, Entry]] = {}
    problems: list[str] = []
    for ours, shape in wanted.items():
        source = table[ours]
        entry = next((by_name[name] for name in source.names if name in by_name), None)
        if entry is None:
            problems.append(f"missing     {source.names[0]}  (shape {source.stored_shape(shape)})")
            continue
        if entry.shape != source.stored_shape(shape):
            problems.append(
                f"mis-shaped  {source.names[0]}: shape {entry.shape}, "
                f"expected {source.stored_shape(shape)}"
            )
        found[ours] = (source, entry)
    if not allow_unexpected:
        problems += [f"unexpected  {name}" for name in _unexpected(config, wanted, by_name)]
    if problems:
        raise CheckpointError(_report(where, config, problems))
    return found


def has_own_decoder(config: Config, entries: Mapping[str, Entry]) -> bool:
    """True when the checkpoint has an output embedding that differs from the input embedding.

    Then it counts, whatever the config says about tying: so it is in transformers 5.
    """
    table, by_name = sources(config), _by_name(config, entries)
    if "head.decoder.weight" not in table:
        return False
    word, decoder = (
        next((by_name[name] for name in table[ours].names if name in by_name), None)
        for ours in ("body.word.weight", "head.decoder.weight")
    )
    if word is None or decoder is None:
        return False
    alike = (word.shape, word.dtype) == (decoder.shape, decoder.dtype)
    same = alike and torch.equal(word.load(), decoder.load())
    for region in (word.region, decoder.region):
        if region is not None:
            region.release()
    return not same


def _by_name(config: Config, entries: Mapping[str, Entry]) -> dict[str, Entry]:
    names = FAMILIES[config.family].names
    return {_modern(name, names): entry for name, entry in entries.items()}


def _report(where: str, config: Config, problems: list[str]) -> str:
    kinds = {problem.split()[0] for problem in problems}
    hints = []
    if "missing" in kinds and config.task != "none":
        hints.append(
            'A tensor of the task head missing? load(..., task="none") reads the body alone, and '
            "load(..., head_seed=0) makes a fresh head, to be trained."
        )
    if "unexpected" in kinds:
        hints.append("Tensors of something else? allow_unexpected=True leaves them out.")
    if not hints:
        hints.append("Take config.json and weights from one checkpoint.")
    # GPT-2's query, key and value have one tensor, which is listed once.
    listed = sorted(set(problems))
    shown = "\n  ".join(listed[:_MOST_LISTED])
    if len(listed) > _MOST_LISTED:
        counts = Counter(problem.split()[0] for problem in listed)
        shown += "\n  ... in all " + ", ".join(f"{n} {kind}" for kind, n in counts.items())
    return (
        f"{where} does not fit a {config.model_type} model with task {config.task!r}:\n"
        f"  {shown}\n{' '.join(hints)}"
    )


def _modern(name: str, names: Names) -> str:
    """A checkpoint name without the family's prefix and without TensorFlow's LayerNorm names."""
    name = re.sub(r"\.gamma$", ".weight", re.sub(r"\.beta$", ".bias", name))
    for prefix in (names.prefix, *names.prefixes.values()):
        if name.startswith(f"{prefix}."):
            return name.removeprefix(f"{prefix}.")
    return name


def _unexpected(config: Config, wanted: Iterable[str], names: Iterable[str]) -> Iterator[str]:
    family = FAMILIES[config.family].names
    known = _known(config, wanted)
    patterns = [re.compile(pattern) for pattern in family.unused]
    for name in sorted(names):
        if name not in known and not any(pattern.search(name) for pattern in patterns):
            yield name


def _known(config: Config, wanted: Iterable[str]) -> set[str]:
    """The names of the wanted parameters, of every task head of the family and of the pooler.

    Another part of the body that this Config does not build would change the numbers.
    """
    family = FAMILIES[config.family].names
    table = sources(config)
    optional = [ours for ours in table if ours.startswith("body.pooler.")]
    names = {name for ours in (*wanted, *optional) for name in table[ours].names}
    for head in family.heads.values():
        for ours, theirs in head.items():
            names |= {one.names[0] for one in _both(ours, Source((theirs,))).values()}
    return names | {*family.aliases.values(), *family.live.values()}


def to_checkpoint(config: Config, parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Our parameters under the names and in the layout of Hugging Face's files.

    Views, no copies, except parameters that share a tensor, which are joined, and the bias of an
    untied decoder, which has two names.
    """
    stored: dict[str, list[tuple[Source, Tensor]]] = {}
    table = sources(config)
    for ours, tensor in parameters.items():
        if ours not in table:
            raise CheckpointError(
                f"{ours} has no place in a checkpoint of {config.model_type}: the model was "
                "changed after it was loaded (folded, say). Save the one it was made from."
            )
        source = table[ours]
        name = source.names[0] if ours.startswith("head.") else _prefix(config) + source.names[0]
        stored.setdefault(name, []).append((source, tensor.detach()))
    if not config.tied:
        # transformers has a place for both names and counts one that is absent as missing.
        for usual, other in FAMILIES[config.family].names.aliases.items():
            if other in stored:
                stored[usual] = [(source, tensor.clone()) for source, tensor in stored[other]]
    return {name: _joined(parts) for name, parts in stored.items()}


def _joined(parts: list[tuple[Source, Tensor]]) -> Tensor:
    """The stored tensor of parameters that share it; their sources say in which order."""
    (source, tensor), *others = parts
    if source.part is not None and others:
        ordered = sorted(parts, key=lambda one: one[0].part.start if one[0].part else 0)
        blocks = [one.unflatten(0, (source.part.n_blocks, -1)) for _, one in ordered]
        tensor = torch.cat(blocks, dim=1).flatten(0, 1)
    return tensor.t() if source.transposed else tensor


def _prefix(config: Config) -> str:
    names = FAMILIES[config.family].names
    return f"{names.prefixes.get(config.task, names.prefix)}." if config.task != "none" else ""
