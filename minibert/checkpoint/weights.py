"""From the names of a checkpoint to ours, strict and loud.

`fit` compares a checkpoint with a model before a single value is read: everything missing,
unexpected or mis-shaped is listed at once.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

import torch
from torch import Tensor

from minibert.checkpoint.families import FAMILIES
from minibert.checkpoint.files import Entry
from minibert.checkpoint.names import Source, both, by_name, modern, sources
from minibert.errors import CheckpointError
from minibert.layers.config import Config


def view(source: Source, stored: Tensor) -> Tensor:
    """Our parameter as a view of the stored tensor; a copy where `source.is_view` is False."""
    tensor = stored.t() if source.transposed else stored
    if source.part is None:
        return tensor
    blocks = tensor.unflatten(0, (source.part.n_blocks, source.part.block))
    return blocks.narrow(1, source.part.start, source.part.rows).flatten(0, 1)


# As many as fit a message beside the counts of all.
_MOST_LISTED = 12


def check_names(config: Config, entries: Mapping[str, Entry], *, where: str) -> None:
    """Raise CheckpointError for names that cannot be this model's, before anything is built.

    That is for two names of one tensor, and for fewer layers than the config says.
    """
    family = FAMILIES[config.family].names
    originals: dict[str, str] = {}
    for name in entries:
        other = originals.setdefault(modern(name, family), name)
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
    table, stored = sources(config), by_name(config, entries)
    found: dict[str, tuple[Source, Entry]] = {}
    problems: list[str] = []
    for ours, shape in wanted.items():
        source = table[ours]
        entry = next((stored[name] for name in source.names if name in stored), None)
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
        problems += [f"unexpected  {name}" for name in _unexpected(config, wanted, stored)]
    if problems:
        raise CheckpointError(_report(where, config, problems))
    return found


def has_own_decoder(config: Config, entries: Mapping[str, Entry]) -> bool:
    """True when the checkpoint has an output embedding that differs from the input embedding.

    Then it counts, whatever the config says about tying: so it is in transformers 5.
    """
    table, stored = sources(config), by_name(config, entries)
    if "head.decoder.weight" not in table:
        return False
    word, decoder = (
        next((stored[name] for name in table[ours].names if name in stored), None)
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
            names |= {one.names[0] for one in both(ours, Source((theirs,))).values()}
    return names | {*family.aliases.values(), *family.live.values()}


def to_checkpoint(config: Config, parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Our parameters under the names and in the layout of Hugging Face's files.

    Views, no copies, except parameters that share a tensor, which are joined, and the bias of an
    untied decoder, which has two names.
    """
    stored: dict[str, list[tuple[Source, Tensor]]] = {}
    table, names = sources(config), FAMILIES[config.family].names
    prefix = names.prefixes.get(config.task, names.prefix) if config.task != "none" else ""
    for ours, tensor in parameters.items():
        if ours not in table:
            raise CheckpointError(
                f"{ours} has no place in a checkpoint of {config.model_type}: the model was "
                'changed after it was loaded (folded, say), or loaded with weights="int8". Save '
                "the one it was made from."
            )
        source = table[ours]
        of_body = prefix and not ours.startswith("head.")
        name = f"{prefix}.{source.names[0]}" if of_body else source.names[0]
        stored.setdefault(name, []).append((source, tensor.detach()))
    if not config.tied:
        # transformers has a place for both names and counts one that is absent as missing.
        for usual, other in names.aliases.items():
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
