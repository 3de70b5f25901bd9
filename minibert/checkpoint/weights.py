"""From the names of a checkpoint to ours, strict and loud.

`fit` compares a checkpoint with a model before a single value is read:
everything missing, unexpected or mis-shaped is listed at once.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from minibert.checkpoint.files import Entry
from minibert.checkpoint.names import FAMILIES, Family
from minibert.errors import CheckpointError
from minibert.layers.config import Config

__all__ = [
    "Source",
    "check_names",
    "fit",
    "has_own_decoder",
    "sources",
    "to_checkpoint",
    "to_state_dict",
]

# As many as fit a message beside the counts of all.
_MOST_LISTED = 12


@dataclass(frozen=True)
class Source:
    """Where one of our parameters comes from."""

    names: tuple[str, ...]
    """Checkpoint names, the usual one first."""
    transposed: bool = False
    """Stored as (in, out), as GPT-2's Conv1D does."""
    part: tuple[int, int] | None = None
    """(which, of how many) equal parts along the output axis: GPT-2's fused query, key, value."""

    def view(self, stored: Tensor) -> Tensor:
        """Our parameter as a view of the stored tensor."""
        tensor = stored.t() if self.transposed else stored
        return tensor if self.part is None else tensor.chunk(self.part[1])[self.part[0]]


@lru_cache
def sources(config: Config) -> Mapping[str, Source]:
    """Our parameter name -> where a checkpoint of this family holds it, for every parameter.

    Names of the body come without the family's prefix ("bert."), which files have or lack.
    """
    family = FAMILIES[config.family]
    found: dict[str, Source] = {}
    for ours, theirs in family.body.items():
        found |= _both(f"body.{ours}", theirs)
    for group in range(config.n_layer_groups):
        for ours, theirs in family.within.items():
            name = f"{family.layer.format(group)}.{theirs}"
            found |= _both(f"body.groups.{group}.{ours}", name, family.conv1d)
    for ours, theirs in family.heads.get(config.task, {}).items():
        if ours.endswith((".weight", ".bias")):
            found[f"head.{ours}"] = Source(_names(family, theirs, config))
        else:
            found |= _both(f"head.{ours}", theirs)
    return found


def _both(ours: str, theirs: str, conv1d: bool = False) -> dict[str, Source]:
    linear = conv1d and not ours.endswith("norm")
    which = ("query", "key", "value")
    name = ours.rsplit(".", 1)[-1]
    part = (which.index(name), 3) if conv1d and name in which else None
    return {
        f"{ours}.weight": Source((f"{theirs}.weight",), linear, part),
        f"{ours}.bias": Source((f"{theirs}.bias",), False, part),
    }


def _names(family: Family, name: str, config: Config) -> tuple[str, ...]:
    """The names a tensor may have. An untied decoder has a bias of its own, which then counts."""
    alias = family.aliases.get(name)
    if alias is None:
        return (name,)
    return (name, alias) if config.tied else (alias, name)


def check_names(config: Config, entries: Mapping[str, Entry], *, where: str) -> None:
    """Raise CheckpointError for names that cannot be this model's, before anything is built.

    That is for two names of one tensor, and for fewer layers than the config says.
    """
    family = FAMILIES[config.family]
    originals: dict[str, str] = {}
    for name in entries:
        other = originals.setdefault(_modern(name, family.prefix), name)
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
    family = FAMILIES[config.family]
    by_name = _by_name(family, entries)
    table = sources(config)
    found: dict[str, tuple[Source, Entry]] = {}
    problems: list[str] = []
    for ours, shape in wanted.items():
        source = table[ours]
        entry = next((by_name[name] for name in source.names if name in by_name), None)
        if entry is None:
            problems.append(f"missing     {source.names[0]}  (shape {_stored(source, shape)})")
            continue
        if entry.shape != _stored(source, shape):
            problems.append(
                f"mis-shaped  {source.names[0]}: shape {entry.shape}, "
                f"expected {_stored(source, shape)}"
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
    table, by_name = sources(config), _by_name(FAMILIES[config.family], entries)
    if "head.decoder.weight" not in table:
        return False
    word, decoder = (
        by_name.get(table[ours].names[0]) for ours in ("body.word.weight", "head.decoder.weight")
    )
    if word is None or decoder is None:
        return False
    alike = (word.shape, word.dtype) == (decoder.shape, decoder.dtype)
    same = alike and torch.equal(word.load(), decoder.load())
    for region in (word.region, decoder.region):
        if region is not None:
            region.release()
    return not same


def _by_name(family: Family, entries: Mapping[str, Entry]) -> dict[str, Entry]:
    return {_modern(name, family.prefix): entry for name, entry in entries.items()}


def _report(where: str, config: Config, problems: list[str]) -> str:
    kinds = {problem.split()[0] for problem in problems}
    hints = []
    if "missing" in kinds and config.task != "none":
        hints.append(
            'A tensor of the task head missing? load(..., task="none") reads the body alone.'
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


def _modern(name: str, prefix: str) -> str:
    """A checkpoint name without the family's prefix and without TensorFlow's LayerNorm names."""
    name = re.sub(r"\.gamma$", ".weight", re.sub(r"\.beta$", ".bias", name))
    return name.removeprefix(f"{prefix}.")


def _stored(source: Source, shape: tuple[int, ...]) -> tuple[int, ...]:
    if source.part is not None:
        shape = (shape[0] * source.part[1], *shape[1:])
    return shape[::-1] if source.transposed else shape


def _unexpected(config: Config, wanted: Iterable[str], names: Iterable[str]) -> Iterator[str]:
    family = FAMILIES[config.family]
    known = _known(config, wanted)
    patterns = [re.compile(pattern) for pattern in family.unused]
    for name in sorted(names):
        if name not in known and not any(pattern.search(name) for pattern in patterns):
            yield name


def _known(config: Config, wanted: Iterable[str]) -> set[str]:
    """The names of the wanted parameters, of every task head of the family and of the pooler.

    Another part of the body that this Config does not build would change the numbers.
    """
    family = FAMILIES[config.family]
    table = sources(config)
    optional = [ours for ours in table if ours.startswith("body.pooler.")]
    names = {name for ours in (*wanted, *optional) for name in table[ours].names}
    for head in family.heads.values():
        for ours, theirs in head.items():
            whole = ours.endswith((".weight", ".bias"))
            names |= {theirs} if whole else {f"{theirs}.weight", f"{theirs}.bias"}
    return names | set(family.aliases.values())


def to_checkpoint(config: Config, parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Our parameters under the names and in the layout of Hugging Face's files.

    Views, no copies, except GPT-2's query, key and value, which are joined, and the bias of an
    untied decoder, which has two names.
    """
    family = FAMILIES[config.family]
    prefix = f"{family.prefix}." if config.task != "none" else ""
    joined: dict[str, list[Tensor]] = {}
    flipped: set[str] = set()
    for ours, tensor in parameters.items():
        source = sources(config)[ours]
        name = source.names[0] if ours.startswith("head.") else prefix + source.names[0]
        joined.setdefault(name, []).append(tensor.detach())
        flipped |= {name} if source.transposed else set()
    whole = {
        name: parts[0] if len(parts) == 1 else torch.cat(parts) for name, parts in joined.items()
    }
    for usual, *others in (source.names for source in sources(config).values()):
        # transformers has a place for both names and counts one that is absent as missing.
        if not config.tied and usual in whole:
            whole |= {other: whole[usual].clone() for other in others}
    return {name: tensor.t() if name in flipped else tensor for name, tensor in whole.items()}


def to_state_dict(config: Config, parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """What `state_dict()` of the transformers class gives: tied weights under each of their names.

    Tensors share memory with the parameters, as in `to_checkpoint`.
    """
    tensors, family = to_checkpoint(config, parameters), FAMILIES[config.family]
    table = sources(config)
    if not config.tied or "head.decoder.weight" not in table:
        return tensors
    word = table["body.word.weight"].names[0]
    tensors[table["head.decoder.weight"].names[0]] = tensors[f"{family.prefix}.{word}"]
    for usual, *others in (source.names for source in table.values()):
        tensors |= {other: tensors[usual] for other in others if usual in tensors}
    return tensors
