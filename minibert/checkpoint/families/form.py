"""What a family is made of: names of tensors, kinds of fields in config.json, verdicts, windows.

A `Field` says how one field is checked, read into Config and written back, a `Group` how several
are; a `Judged` what becomes of a field that Config does not have.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Protocol, runtime_checkable

from minibert.errors import CheckpointError
from minibert.layers.config import ACTIVATIONS, Config
from minibert.untrusted import Json

Fields = dict[str, Any]
"""Fields of Config, by name."""
Convert = Callable[[Any], Any]

_ACTIVATION_NAMES = {
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_python": "gelu",
    "swish": "silu",
} | {name: name for name in ACTIVATIONS}
_MOST = 1e15


def _same(value: object) -> object:
    return value


@dataclass(frozen=True)
class Field:
    """What one field of Config is called in a config.json, and how it stands there."""

    names: tuple[str, ...]
    """The first is written; all of them are read and must agree."""
    read: Callable[[Json], object]
    """Its value in a config.json; raises CheckpointError for what it cannot be."""
    write: Convert = _same
    said: Json = field(default_factory=dict)
    """What `read` takes, as JSON: the type, the least, what null stands for, the default."""


def refuse(name: str, value: object, expected: str) -> CheckpointError:
    """The error for a value that a field of config.json cannot have."""
    return CheckpointError(f"config.json: {name} is {value!r:.200}; expected {expected}.")


@dataclass(frozen=True)
class Kind:
    """What the value of a field may be, and how Config has it."""

    fits: Callable[[Any], bool]
    expected: str
    taken: Convert = _same
    said: Json = field(default_factory=dict)


def value_of(config: Json, name: str, kind: Kind, default: object = None) -> Any:
    """The value of a field. Raises CheckpointError for one that it cannot have."""
    value = config.get(name, default)
    if not kind.fits(value):
        raise refuse(name, value, kind.expected)
    return kind.taken(value)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def whole_from(least: int) -> Kind:
    """A whole number from `least` on, which a float can hold."""
    kind = "a positive whole number" if least == 1 else f"a whole number from {least} on"
    return Kind(
        lambda value: isinstance(value, int) and _is_number(value) and least <= value < 2**63,
        f"{kind}, below 2**63",
        said={"type": "whole", "least": least},
    )


WHOLE = whole_from(1)
BOOLEAN = Kind(lambda value: isinstance(value, bool), "true or false", said={"type": "boolean"})
POSITIVE = Kind(
    lambda value: _is_number(value) and 0 < value <= _MOST,
    f"a positive number of at most {_MOST:.0e}",
    float,
    {"type": "number"},
)
_EPSILON = Kind(
    lambda value: _is_number(value) and 0 <= value <= 1,
    "a number from 0 to 1",
    float,
    {"type": "share"},
)


def _or_null(kind: Kind, null: object) -> Kind:
    """The kind, or null, which stands for that value."""
    return Kind(
        lambda value: value is None or kind.fits(value),
        kind.expected,
        lambda value: null if value is None else kind.taken(value),
        {**kind.said, "null": null},
    )


def _field(name: str, kind: Kind, default: object, write: Convert = _same) -> Field:
    said = {**kind.said, "default": default}
    return Field((name,), lambda config: value_of(config, name, kind, default), write, said)


def size(*names: str, default: int | None = None) -> Field:
    """A size, under one of its names. Without a default the file has to say it."""

    def read_size(config: Json) -> int:
        given = [name for name in names if config.get(name) is not None]
        if not given and default is None:
            raise CheckpointError(f"config.json: {' or '.join(names)} is missing.")
        sizes = {name: value_of(config, name, WHOLE) for name in given} or {names[0]: default or 0}
        if len(set(sizes.values())) > 1:
            raise CheckpointError(
                f"config.json: {' and '.join(sizes)} are two names of one size and differ "
                f"({', '.join(map(str, sizes.values()))}); take one of them out."
            )
        return next(iter(sizes.values()))

    return Field(names, read_size, said={"type": "size", "default": default})


def whole(name: str, default: int, *, least: int = 1) -> Field:
    """A whole number from `least` on."""
    return _field(name, whole_from(least), default)


def optional(name: str, default: int = 0) -> Field:
    """A positive whole number; null stands for 0, which Config takes for its own default."""
    return _field(name, _or_null(WHOLE, 0), default or None)


def boolean(name: str, default: bool) -> Field:
    """True or false."""
    return _field(name, BOOLEAN, default)


def number(name: str, default: float) -> Field:
    """A number above 0; a whole one is written as such."""
    return _field(name, POSITIVE, default, _plain)


def positive(name: str, default: float | None) -> Field:
    """A number above 0, or null for none."""
    return _field(name, _or_null(POSITIVE, None), default)


def norm_eps(name: str, default: float) -> Field:
    """What a norm adds to a variance."""
    return _field(name, _EPSILON, default)


def pad(default: int | None, *, needed: bool = False) -> Field:
    """The padding id, or null. RoBERTa needs one: it counts its positions from there."""
    kind = whole_from(0) if needed else _or_null(whole_from(-1), None)
    return _field("pad_token_id", kind, default)


def activation(
    name: str, default: str, *, tanh: str = "gelu_new", special: Mapping[str, str] | None = None
) -> Field:
    """The name of an activation; `tanh` is how gelu_tanh is written.

    `special` has names that mean something else in this family: theirs -> ours.
    """
    known = _ACTIVATION_NAMES | dict(special or {})

    def read_name(config: Json) -> str:
        value = config.get(name, default)
        if not isinstance(value, str) or value not in known:
            raise CheckpointError(
                f"config.json: activation {value!r:.200} is not implemented; "
                f"known are {', '.join(sorted(known))}."
            )
        return known[value]

    def write(ours: str) -> str:
        if ours == "gelu_tanh":
            return tanh
        return ours if known[ours] == ours else next(k for k, v in known.items() if v == ours)

    said = {"type": "name", "default": default, "known": known}
    return Field((name,), read_name, write, said)


def ends(default: int | None) -> Field:
    """The ids that end a text. A vocabulary without the default id has none."""

    def read_ids(config: Json) -> tuple[int, ...]:
        if "eos_token_id" in config:
            return end_ids(config["eos_token_id"], "config.json")
        count = config.get("vocab_size")
        fits = default is not None and isinstance(count, int) and count > default
        return (default,) if fits and default is not None else ()

    return Field(("eos_token_id",), read_ids, lambda ids: list(ids) or None)


def end_ids(value: object, where: str) -> tuple[int, ...]:
    """The ids that `eos_token_id` names: one, several, or none.

    Raises CheckpointError for what is not a token id.
    """
    ids = [] if value is None else value if isinstance(value, list | tuple) else [value]
    if not all(isinstance(one, int) and not isinstance(one, bool) and one >= 0 for one in ids):
        raise CheckpointError(f"{where}: eos_token_id is {value!r:.200}; expected an id, or ids.")
    return tuple(ids)


def _plain(value: float) -> float | int:
    return int(value) if math.isfinite(value) and value == int(value) else value


def usual_fields(
    *,
    d_mlp: int,
    activation: Field,
    norm_eps: Field,
    tied: bool,
    padding: Field,
    n_positions: int | None = None,
) -> dict[str, Field]:
    """The fields that most families have by these names.

    The numbers are what a family takes where one is missing.
    """
    return {
        "vocab_size": size("vocab_size"),
        "d_model": size("hidden_size"),
        "n_layers": size("num_hidden_layers"),
        "n_heads": size("num_attention_heads"),
        "n_positions": size("max_position_embeddings", default=n_positions),
        "d_mlp": whole("intermediate_size", d_mlp),
        "activation": activation,
        "norm_eps": norm_eps,
        "tied": boolean("tie_word_embeddings", tied),
        "pad_id": padding,
    }


@dataclass(frozen=True)
class Judged:
    """What is done with one field: "read", "irrelevant" or "refused"."""

    verdict: str
    reason: str = ""
    allowed: tuple[object, ...] = ()
    """Of a refused field the values that are accepted."""


READ = Judged("read")
TRAINING = Judged("irrelevant", "of training: dropout and first weights")
OTHER_HEAD = Judged("irrelevant", "of a task head that is not read (multiple choice)")
SPEED = Judged("irrelevant", "time or memory, not numbers")
ONE_WAY = Judged("irrelevant", "the family has no other mode in transformers")
CROSS = Judged("refused", "cross attention is not implemented", (False, None))
HEAD_WIDTH = Judged("refused", "the family's heads are hidden_size / num_attention_heads", (None,))
WHOLE_HEAD = Judged("refused", "the family turns whole heads", (1.0, 1, None))
# Of families that are causal and nothing else.
DECODER: Mapping[str, Judged] = {
    **dict.fromkeys(("is_decoder", "add_cross_attention"), ONE_WAY),
    "is_causal": Judged("refused", "attention to later tokens is not implemented", (True,)),
}
_FORM = Judged("irrelevant", "the form of what transformers returns, not its numbers")
_ABOUT = Judged("irrelevant", "about the file, not the model")

SUMMARY = ("summary_type", "summary_use_proj", "summary_activation")
EVERY: Mapping[str, Judged] = {
    **dict.fromkeys(("model_type", "architectures"), READ),
    **dict.fromkeys(("id2label", "num_labels", "problem_type"), READ),
    **dict.fromkeys(("output_hidden_states", "output_attentions", "return_dict"), _FORM),
    **dict.fromkeys(("transformers_version", "_name_or_path"), _ABOUT),
    **dict.fromkeys(("chunk_size_feed_forward", "use_cache"), SPEED),
    "label2id": Judged("irrelevant", "the inverse of id2label, which is read"),
    "dtype": Judged("irrelevant", "the file says its type; load(dtype=) chooses the model's"),
    "initializer_range": TRAINING,
    "bos_token_id": Judged("irrelevant", "the tokenizer says how a text begins"),
    "eos_token_id": Judged("irrelevant", "the family does not generate"),
    "is_encoder_decoder": Judged("refused", "two models in one are not implemented", (False,)),
    # No fields of today's classes any more, but they did change what a model computes.
    "pruned_heads": Judged("refused", "pruned heads are not implemented", ({}, None)),
    "quantization_config": Judged(
        "refused",
        "quantised weights are not read; take the checkpoint they were made from",
        (None,),
    ),
    "position_embedding_type": Judged(
        "refused", "relative positions are not implemented", ("absolute", None)
    ),
    "per_layer_config": Judged("refused", "all layers have one set of choices", ({}, None)),
}


FULL, SLIDING = "full_attention", "sliding_attention"
# Config refuses more.
_MOST_LAYERS = 2**9


@runtime_checkable
class Group(Protocol):
    """Fields of Config that follow from several fields of a config.json."""

    @property
    def names(self) -> tuple[str, ...]:
        """The fields of config.json that it reads, beside those of the family."""

    def read(self, config: Json, said: Json) -> Fields:
        """Fields of Config; `said` has what the family's fields say."""

    def write(self, config: Config) -> Json:
        """What `read` reads, as config.json says it; replaces what the fields give."""


@dataclass(frozen=True)
class Own:
    """What one family alone has."""

    names: tuple[str, ...]
    read: Callable[[Json, Json], Fields]
    write: Callable[[Config], Json]


@dataclass(frozen=True)
class Windows:
    """The windows of those layers that `layer_types` calls sliding."""

    size: Callable[[Json], int | None]
    slides: Callable[[Json, int], bool]
    """Whether a layer does so where the file has no layer_types."""
    said: Callable[[int | None], Json]
    """The fields that say the size."""
    others: tuple[str, ...]
    """The fields that these read."""

    @property
    def names(self) -> tuple[str, ...]:
        """The fields of config.json that are read."""
        return ("layer_types", *self.others)

    def read(self, config: Json, said: Json) -> Fields:
        """The windows of Config."""
        size, n_layers = self.size(config), said["n_layers"]
        types = config.get("layer_types")
        if types is None:
            layers = range(min(n_layers, _MOST_LAYERS))
            types = [SLIDING if self.slides(config, layer) else FULL for layer in layers]
        elif not isinstance(types, list | tuple) or any(
            one not in (FULL, SLIDING) for one in types
        ):
            raise refuse("layer_types", types, f"a list of {FULL} and {SLIDING}")
        elif len(types) != n_layers:
            raise refuse("layer_types", types, f"one for each of {n_layers} layers")
        if SLIDING not in types:
            return {"windows": ()}
        if size is None:
            raise CheckpointError(
                "config.json: layers have sliding_attention, and sliding_window is null or turned "
                "off; expected a number of tokens."
            )
        return {"windows": tuple(size if one == SLIDING else 0 for one in types)}

    def write(self, config: Config) -> Json:
        """The size and layer_types."""
        sizes = config.windows or (0,) * config.n_layers
        types = [SLIDING if size else FULL for size in sizes]
        return {"layer_types": types} | self.said(_window_of(config))


@dataclass(frozen=True)
class OneWindow:
    """The window of `sliding_window`, which all layers have."""

    usual: int | None
    names: tuple[str, ...] = ("sliding_window",)

    def read(self, config: Json, said: Json) -> Fields:
        """The windows of Config."""
        size = read_window(config, self.usual)
        n_layers = min(said["n_layers"], _MOST_LAYERS)
        return {"windows": () if size is None else (size,) * n_layers}

    def write(self, config: Config) -> Json:
        """The size, or null."""
        size = _window_of(config)
        if size is not None and 0 in config.windows:
            raise CheckpointError(
                f"config: some layers have windows and some have none; {config.family} checkpoints "
                "have one window for all layers, or none."
            )
        return {"sliding_window": size}


def read_window(config: Json, usual: int | None) -> int | None:
    """`sliding_window`: a positive whole number, or None."""
    window: int | None = value_of(config, "sliding_window", _or_null(WHOLE, None), usual)
    return window


def _window_of(config: Config) -> int | None:
    """The one size of all windows; None where no layer has one.

    Raises CheckpointError for several sizes: a config.json has place for one.
    """
    sizes = set(config.windows) - {0}
    if len(sizes) > 1:
        raise CheckpointError(
            f"config: windows of {', '.join(map(str, sorted(sizes)))} tokens; expected one size, "
            "because a config.json holds only one."
        )
    return next(iter(sizes), None)


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


Share = tuple[str, float]
"""A share of dropout: its name in config.json, and what it is where it is absent."""


def shares(usual: float, **names: str) -> dict[str, Share]:
    """The share of each quantity, by its name in config.json, all the same where it is absent."""
    return {quantity: (name, usual) for quantity, name in names.items()}


TEXTS, TOKENS = "sequence-classification", "token-classification"
#: The share that transformers' generic heads take, whatever the checkpoint says about others.
GENERIC_HEADS = {TOKENS: (("classifier_dropout", 0.1), ("hidden_dropout", 0.1))}


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
    groups: tuple[Group, ...] = ()
    """Fields of Config that take more than one field of config.json."""
    pooled: tuple[str, ...] = ()
    """Tasks whose body ends in a pooler: tanh(W·hidden[0] + b)."""
    class_names: Mapping[str, str] = field(default_factory=dict)
    """Task -> the name of its class, where it does not follow from the prefix."""
    taken_over: str = ""
    """How `auto_map` of old files names code that transformers has taken over since."""
    dropout: Mapping[str, Share] = field(default_factory=dict)
    """The share of each quantity that becomes 0 in training."""
    head_dropout: Mapping[str, tuple[Share, ...]] = field(default_factory=dict)
    """Task -> the share of its head; of several names the first may be null, the last counts
    then."""

    def read(self, config: Json) -> Fields:
        """The fields of Config that a config.json says."""
        said = {ours: field.read(config) for ours, field in self.fields.items()}
        found = dict(said)
        for group in self.groups:
            found |= group.read(config, said)
        return found

    def write(self, config: Config) -> Json:
        """What `read` reads, as config.json says it."""
        content = {
            field.names[0]: field.write(getattr(config, ours))
            for ours, field in self.fields.items()
        }
        for group in self.groups:
            content |= group.write(config)
        return content

    @property
    def contract(self) -> Mapping[str, Judged]:
        """The verdict on every field that a config.json of this family may have."""
        names = [*(field.names for field in self.fields.values()), *(g.names for g in self.groups)]
        read = dict.fromkeys(chain.from_iterable(names), READ)
        heads = self.head_dropout.values() if self.head_dropout is not GENERIC_HEADS else ()
        dropped = (name for name, _ in (*self.dropout.values(), *chain(*heads)))
        return {**EVERY, **dict.fromkeys(dropped, TRAINING), **self.verdicts, **read}
