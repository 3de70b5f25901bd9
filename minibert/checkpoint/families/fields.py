"""The kinds of fields in a config.json: how each is checked, read into Config, and written back."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from minibert.errors import CheckpointError
from minibert.layers.config import ACTIVATIONS

Json = Mapping[str, Any]
"""What a config.json holds; any field may have any type."""

_ACTIVATION_NAMES = {
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_python": "gelu",
    "swish": "silu",
} | {name: name for name in ACTIVATIONS}
_MOST = 1e15


@dataclass(frozen=True)
class Field:
    """What one field of Config is called in a config.json, and how it stands there."""

    names: tuple[str, ...]
    """The first is written; all of them are read and must agree."""
    read: Callable[[Json], Any]
    """Its value in a config.json; raises CheckpointError for what it cannot be."""
    write: Callable[[Any], Any] = lambda value: value


def refuse(name: str, value: object, expected: str) -> CheckpointError:
    """The error for a value that a field of config.json cannot have."""
    return CheckpointError(f"config.json: {name} is {value!r:.200}; expected {expected}.")


def read_whole(config: Json, name: str, default: Any, *, least: int = 1) -> int:
    """A whole number from `least` on."""
    value = config.get(name, default)
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        kind = "a positive whole number" if least == 1 else f"a whole number from {least} on"
        raise refuse(name, value, kind)
    return value


def read_boolean(config: Json, name: str, default: bool) -> bool:
    """True or false."""
    value = config.get(name, default)
    if not isinstance(value, bool):
        raise refuse(name, value, "true or false")
    return value


def read_positive(config: Json, name: str, default: Any = None) -> float:
    """A number above 0."""
    value = config.get(name, default)
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value <= _MOST:
        raise refuse(name, value, f"a positive number of at most {_MOST:.0e}")
    return float(value)


def size(*names: str, default: int | None = None) -> Field:
    """A size, under one of its names. Without a default the file has to say it."""

    def read(config: Json) -> int:
        given = [name for name in names if config.get(name) is not None]
        if not given and default is None:
            raise CheckpointError(f"config.json: {' or '.join(names)} is missing.")
        sizes = {name: read_whole(config, name, 0) for name in given} or {names[0]: default or 0}
        if len(set(sizes.values())) > 1:
            raise CheckpointError(
                f"config.json: {' and '.join(sizes)} are two names of one size and differ "
                f"({', '.join(map(str, sizes.values()))}); take one of them out."
            )
        return next(iter(sizes.values()))

    return Field(names, read)


def whole(name: str, default: int, *, least: int = 1) -> Field:
    """A whole number from `least` on."""
    return Field((name,), lambda config: read_whole(config, name, default, least=least))


def optional(name: str, default: int = 0) -> Field:
    """A positive whole number; null stands for 0, which Config takes for its own default."""

    def read(config: Json) -> int:
        value = config.get(name, default or None)
        return 0 if value is None else read_whole(config, name, default)

    return Field((name,), read)


def boolean(name: str, default: bool) -> Field:
    """True or false."""
    return Field((name,), lambda config: read_boolean(config, name, default))


def number(name: str, default: float) -> Field:
    """A number above 0; a whole one is written as such."""
    return Field((name,), lambda config: read_positive(config, name, default), _plain)


def positive(name: str, default: float | None) -> Field:
    """A number above 0, or null for none."""

    def read(config: Json) -> float | None:
        value = config.get(name, default)
        return None if value is None else read_positive(config, name, default)

    return Field((name,), read)


def norm_eps(name: str, default: float) -> Field:
    """What a norm adds to a variance."""

    def read(config: Json) -> float:
        value = config.get(name, default)
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value <= 1:
            raise refuse(name, value, "a number from 0 to 1")
        return float(value)

    return Field((name,), read)


def activation(
    name: str, default: str, *, tanh: str = "gelu_new", special: Mapping[str, str] | None = None
) -> Field:
    """The name of an activation; `tanh` is how gelu_tanh is written.

    `special` has names that mean something else in this family: theirs -> ours.
    """
    known = _ACTIVATION_NAMES | dict(special or {})

    def read(config: Json) -> str:
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

    return Field((name,), read, write)


def pad(default: int | None, *, needed: bool = False) -> Field:
    """The padding id, or null. RoBERTa needs one: it counts its positions from there."""

    def read(config: Json) -> int | None:
        value = config.get("pad_token_id", default)
        if value is None and not needed:
            return None
        return read_whole(config, "pad_token_id", default, least=0 if needed else -1)

    return Field(("pad_token_id",), read)


def ends(default: int | None) -> Field:
    """The ids that end a text. A vocabulary without the default id has none."""

    def read(config: Json) -> tuple[int, ...]:
        if "eos_token_id" in config:
            return end_ids(config["eos_token_id"], "config.json")
        count = config.get("vocab_size")
        fits = default is not None and isinstance(count, int) and count > default
        return (default,) if fits and default is not None else ()

    return Field(("eos_token_id",), read, lambda ids: list(ids) or None)


def end_ids(value: object, where: str) -> tuple[int, ...]:
    """The ids that `eos_token_id` names: one, several, or none.

    Raises CheckpointError for what is no token id.
    """
    ids = [] if value is None else value if isinstance(value, list | tuple) else [value]
    if not all(isinstance(one, int) and not isinstance(one, bool) and one >= 0 for one in ids):
        raise CheckpointError(
            f"{where}: eos_token_id is {value!r:.200}; expected a token id, or a list of them."
        )
    return tuple(ids)


def _plain(value: float) -> float | int:
    return int(value) if math.isfinite(value) and value == int(value) else value
