"""From the names of a checkpoint to ours: one table a family, strict and loud.

This is the only file that knows Hugging Face's tensor names. A table maps our module to theirs;
weight and bias follow. `fit` compares a checkpoint with a model before a single value is read:
everything missing, unexpected or mis-shaped is listed at once.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache

import torch
from torch import Tensor

from minibert.checkpoint import Entry
from minibert.config import Config
from minibert.errors import CheckpointError

__all__ = ["Source", "fit", "sources", "to_checkpoint"]


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


@dataclass(frozen=True)
class _Family:
    prefix: str
    body: Mapping[str, str]
    layer: str
    within: Mapping[str, str]
    heads: Mapping[str, Mapping[str, str]]
    unused: tuple[str, ...] = ()
    """Patterns of names that the family's checkpoints carry and no model needs."""
    conv1d: bool = False
    aliases: Mapping[str, str] = field(default_factory=dict)
    """Other names of a tensor in older files."""


_BERT_BODY = {
    "word": "embeddings.word_embeddings",
    "position": "embeddings.position_embeddings",
    "segment": "embeddings.token_type_embeddings",
    "embed_norm": "embeddings.LayerNorm",
    "pooler": "pooler.dense",
}
_BERT_LAYER = {
    "attention.query": "attention.self.query",
    "attention.key": "attention.self.key",
    "attention.value": "attention.self.value",
    "attention.output": "attention.output.dense",
    "attention_norm": "attention.output.LayerNorm",
    "mlp.up": "intermediate.dense",
    "mlp.down": "output.dense",
    "mlp_norm": "output.LayerNorm",
}
_PLAIN_HEADS = {
    "sequence-classification": {"classifier": "classifier"},
    "token-classification": {"classifier": "classifier"},
    "question-answering": {"classifier": "qa_outputs"},
}
_TWO_STEP_CLASSIFIER = {
    "sequence-classification": {
        "transform": "classifier.dense",
        "classifier": "classifier.out_proj",
    }
}
_BERT_LM = {
    "transform": "cls.predictions.transform.dense",
    "norm": "cls.predictions.transform.LayerNorm",
    "decoder.weight": "cls.predictions.decoder.weight",
    "decoder.bias": "cls.predictions.bias",
}
_ROBERTA_LM = {
    "transform": "lm_head.dense",
    "norm": "lm_head.layer_norm",
    "decoder.weight": "lm_head.decoder.weight",
    "decoder.bias": "lm_head.bias",
}
_ALBERT_LM = {
    "transform": "predictions.dense",
    "norm": "predictions.LayerNorm",
    "decoder.weight": "predictions.decoder.weight",
    "decoder.bias": "predictions.bias",
}
_ELECTRA_LM = {
    "transform": "generator_predictions.dense",
    "norm": "generator_predictions.LayerNorm",
    "decoder": "generator_lm_head",
}
_GPT2_LAYER = {
    "attention_norm": "ln_1",
    "attention.query": "attn.c_attn",
    "attention.key": "attn.c_attn",
    "attention.value": "attn.c_attn",
    "attention.output": "attn.c_proj",
    "mlp_norm": "ln_2",
    "mlp.up": "mlp.c_fc",
    "mlp.down": "mlp.c_proj",
}
_BUFFERS = (r"embeddings\.(position_ids|token_type_ids)$",)

_FAMILIES = {
    "bert": _Family(
        prefix="bert",
        body=_BERT_BODY,
        layer="encoder.layer.{}",
        within=_BERT_LAYER,
        heads={
            **_PLAIN_HEADS,
            "masked-lm": _BERT_LM,
            "causal-lm": _BERT_LM,
            "next-sentence": {"classifier": "cls.seq_relationship"},
            "pre-training": _BERT_LM | {"next_sentence": "cls.seq_relationship"},
        },
        unused=_BUFFERS,
        aliases={"cls.predictions.bias": "cls.predictions.decoder.bias"},
    ),
    "roberta": _Family(
        prefix="roberta",
        body=_BERT_BODY,
        layer="encoder.layer.{}",
        within=_BERT_LAYER,
        heads=_PLAIN_HEADS
        | _TWO_STEP_CLASSIFIER
        | {"masked-lm": _ROBERTA_LM, "causal-lm": _ROBERTA_LM},
        unused=_BUFFERS,
        aliases={"lm_head.bias": "lm_head.decoder.bias"},
    ),
    "electra": _Family(
        prefix="electra",
        body={k: v for k, v in _BERT_BODY.items() if k != "pooler"}
        | {"embed_project": "embeddings_project"},
        layer="encoder.layer.{}",
        within=_BERT_LAYER,
        heads=_PLAIN_HEADS
        | _TWO_STEP_CLASSIFIER
        | {
            "masked-lm": _ELECTRA_LM,
            "causal-lm": _ELECTRA_LM,
            "pre-training": {
                "transform": "discriminator_predictions.dense",
                "classifier": "discriminator_predictions.dense_prediction",
            },
        },
        unused=(*_BUFFERS, r"^generator_lm_head\.bias$"),
    ),
    "albert": _Family(
        prefix="albert",
        body=_BERT_BODY
        | {"embed_project": "encoder.embedding_hidden_mapping_in", "pooler": "pooler"},
        layer="encoder.albert_layer_groups.{}.albert_layers.0",
        within={
            "attention.query": "attention.query",
            "attention.key": "attention.key",
            "attention.value": "attention.value",
            "attention.output": "attention.dense",
            "attention_norm": "attention.LayerNorm",
            "mlp.up": "ffn",
            "mlp.down": "ffn_output",
            "mlp_norm": "full_layer_layer_norm",
        },
        heads=_PLAIN_HEADS
        | {
            "masked-lm": _ALBERT_LM,
            "pre-training": _ALBERT_LM | {"next_sentence": "sop_classifier.classifier"},
        },
        unused=_BUFFERS,
        aliases={"predictions.bias": "predictions.decoder.bias"},
    ),
    "distilbert": _Family(
        prefix="distilbert",
        body={name: _BERT_BODY[name] for name in ("word", "position", "embed_norm")},
        layer="transformer.layer.{}",
        within={
            "attention.query": "attention.q_lin",
            "attention.key": "attention.k_lin",
            "attention.value": "attention.v_lin",
            "attention.output": "attention.out_lin",
            "attention_norm": "sa_layer_norm",
            "mlp.up": "ffn.lin1",
            "mlp.down": "ffn.lin2",
            "mlp_norm": "output_layer_norm",
        },
        heads=_PLAIN_HEADS
        | {
            "masked-lm": {
                "transform": "vocab_transform",
                "norm": "vocab_layer_norm",
                "decoder": "vocab_projector",
            },
            "sequence-classification": {
                "transform": "pre_classifier",
                "classifier": "classifier",
            },
        },
        unused=_BUFFERS,
    ),
    "gpt2": _Family(
        prefix="transformer",
        body={"word": "wte", "position": "wpe", "final_norm": "ln_f"},
        layer="h.{}",
        within=_GPT2_LAYER,
        heads=_PLAIN_HEADS
        | {
            "causal-lm": {"decoder": "lm_head"},
            "sequence-classification": {"classifier": "score"},
        },
        unused=(r"h\.\d+\.attn\.(bias|masked_bias)$", r"^multiple_choice_head\."),
        conv1d=True,
    ),
}


@lru_cache
def sources(config: Config) -> Mapping[str, Source]:
    """Our parameter name -> where a checkpoint of this family holds it, for every parameter.

    Names of the body come without the family's prefix ("bert."), which files have or lack.
    """
    family = _FAMILIES[config.family]
    found: dict[str, Source] = {}
    for ours, theirs in family.body.items():
        found |= _both(f"body.{ours}", theirs)
    for group in range(config.n_layer_groups):
        for ours, theirs in family.within.items():
            name = f"{family.layer.format(group)}.{theirs}"
            found |= _both(f"body.groups.{group}.{ours}", name, family.conv1d)
    for ours, theirs in family.heads.get(config.task, {}).items():
        if ours.endswith((".weight", ".bias")):
            found[f"head.{ours}"] = Source((theirs, *_alias(family, theirs)))
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


def _alias(family: _Family, name: str) -> tuple[str, ...]:
    return (family.aliases[name],) if name in family.aliases else ()


def fit(
    config: Config,
    wanted: Mapping[str, tuple[int, ...]],
    entries: Mapping[str, Entry],
    *,
    where: str,
    allow_unexpected: bool = False,
) -> dict[str, tuple[Source, Entry]]:
    """Our parameter name -> its source and entry, for every wanted parameter.

    `wanted` gives the shape of each. Raises CheckpointError listing everything missing, unexpected and mis-shaped.
    """
    family = _FAMILIES[config.family]
    by_name = {_modern(name, family.prefix): entry for name, entry in entries.items()}
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
        problems += [f"unexpected  {name}" for name in _unexpected(config, family, by_name)]
    if problems:
        raise CheckpointError(_report(where, config, problems))
    return found


def _report(where: str, config: Config, problems: list[str]) -> str:
    hint = 'A tensor of the task head missing? load(..., task="none") reads the body alone.'
    if any(problem.startswith("unexpected") for problem in problems):
        hint += " Tensors of something else? allow_unexpected=True leaves them out."
    listed = "\n  ".join(sorted(problems))
    return (
        f"{where} does not fit a {config.model_type} model with task {config.task!r}:\n"
        f"  {listed}\n{hint}"
    )


def _modern(name: str, prefix: str) -> str:
    """A checkpoint name without the family's prefix and without TensorFlow's LayerNorm names."""
    name = re.sub(r"\.gamma$", ".weight", re.sub(r"\.beta$", ".bias", name))
    return name.removeprefix(f"{prefix}.")


def _stored(source: Source, shape: tuple[int, ...]) -> tuple[int, ...]:
    if source.part is not None:
        shape = (shape[0] * source.part[1], *shape[1:])
    return shape[::-1] if source.transposed else shape


def _unexpected(config: Config, family: _Family, names: Iterable[str]) -> Iterator[str]:
    known = _known(config)
    patterns = [re.compile(pattern) for pattern in family.unused]
    for name in sorted(names):
        if name not in known and not any(pattern.search(name) for pattern in patterns):
            yield name


@lru_cache
def _known(config: Config) -> frozenset[str]:
    """Every name this family's checkpoints use, those of other task heads included."""
    family = _FAMILIES[config.family]
    names = {name for source in sources(config).values() for name in source.names}
    for table in family.heads.values():
        for ours, theirs in table.items():
            whole = ours.endswith((".weight", ".bias"))
            names |= {theirs} if whole else {f"{theirs}.weight", f"{theirs}.bias"}
    return frozenset(names | set(family.aliases.values()))


def to_checkpoint(config: Config, parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Our parameters under the names and in the layout of Hugging Face's files; views, no copies
    except GPT-2's query, key and value, which are joined.
    """
    family = _FAMILIES[config.family]
    prefix = f"{family.prefix}." if config.task != "none" else ""
    joined: dict[str, list[Tensor]] = {}
    flipped: set[str] = set()
    for ours, tensor in parameters.items():
        source = sources(config)[ours]
        name = source.names[0] if ours.startswith("head.") else prefix + source.names[0]
        joined.setdefault(name, []).append(tensor.detach())
        flipped |= {name} if source.transposed else set()
    whole = {name: parts[0] if len(parts) == 1 else torch.cat(parts) for name, parts in joined.items()}
    return {name: tensor.t() if name in flipped else tensor for name, tensor in whole.items()}
