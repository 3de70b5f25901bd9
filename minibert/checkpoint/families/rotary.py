"""Rotary positions in a config.json, of both eras.

transformers 5 writes `rope_parameters`: one dictionary, or one for each type of layer. Before,
there were `rope_theta` and `rope_scaling`. Where both stand, `rope_scaling` counts, as in
transformers.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from minibert.checkpoint.families import form
from minibert.checkpoint.families.form import Fields
from minibert.errors import CheckpointError
from minibert.layers.config import Config
from minibert.layers.rotary import SCALINGS, Rotary
from minibert.untrusted import Json


@dataclass(frozen=True)
class Turned:
    """How the families whose layers all turn alike say it."""

    base: str = "rope_theta"
    fraction: str = ""
    """The field with the part of a head that is turned; "" where that is all of it."""
    usual_fraction: float = 1.0
    scalings: tuple[str, ...] = tuple(SCALINGS)
    usual_original: int | None = None
    """Of original_max_position_embeddings beside the parameters; None: max_position_embeddings."""

    @property
    def names(self) -> tuple[str, ...]:
        """The fields of config.json that are read."""
        found = ("rope_parameters", "rope_scaling", self.base, "original_max_position_embeddings")
        return (*found, self.fraction) if self.fraction else found

    def read(self, config: Json, said: Json) -> Fields:
        """The rotary and n_positions of Config."""
        given = _dictionary(config, "rope_scaling") or _dictionary(config, "rope_parameters")
        if nested := sorted(given.keys() & {form.FULL, form.SLIDING}):
            raise CheckpointError(
                f"config.json: rope_parameters has {', '.join(nested)}; expected one set of "
                "parameters, because all layers of this family rotate in the same way."
            )
        usual: Json = {"rope_theta": config.get(self.base, 10000.0)}
        if self.fraction:
            usual["partial_rotary_factor"] = config.get(self.fraction, self.usual_fraction)
        positions = said["n_positions"]
        # Beside the parameters it counts more than among them, as in transformers.
        if "original_max_position_embeddings" in config:
            given["original_max_position_embeddings"] = config["original_max_position_embeddings"]
        elif self.usual_original is not None:
            given["original_max_position_embeddings"] = self.usual_original
        rotary = _read_parameters(usual | given, said, bool(self.fraction))
        if rotary.scaling not in self.scalings:
            raise form.refuse("rope_type", rotary.scaling, f"one of {', '.join(self.scalings)}")
        if rotary.scaling in ("linear", "dynamic"):
            positions = int(positions * rotary.factor)
        elif rotary.scaling == "yarn":
            positions = max(positions, int(rotary.n_original * rotary.factor))
        return {"rotary": rotary, "n_positions": positions}

    def write(self, config: Config) -> Json:
        """The fields that say it."""
        rotary = config.rotary
        if rotary is None:
            return {}
        given = _write_parameters(rotary, config, bool(self.fraction))
        content: Json = {"rope_parameters": given}
        if rotary.scaling in ("linear", "dynamic"):
            content["max_position_embeddings"] = rotary.n_original or round(
                config.n_positions / rotary.factor
            )
        if self.usual_original is not None and rotary.scaling != "default":
            content["original_max_position_embeddings"] = rotary.n_original
        return content


@dataclass(frozen=True)
class TurnedByType:
    """How the families say it whose layers with a window turn by themselves."""

    bases: Mapping[str, tuple[str, float]]
    """Type of layer -> the field with its base, and the base where none is given."""
    scaled: tuple[str, ...]
    """The types that `rope_scaling` is meant for."""

    @property
    def names(self) -> tuple[str, ...]:
        """The fields of config.json that are read."""
        return ("rope_parameters", "rope_scaling", *(name for name, _ in self.bases.values()))

    def read(self, config: Json, said: Json) -> Fields:
        """rotary, local_rotary and n_positions of Config."""
        found = {}
        parameters = _dictionary(config, "rope_parameters")
        for kind, (name, base) in self.bases.items():
            given = _dictionary(parameters, kind)
            if kind in self.scaled:
                given = given | _dictionary(config, "rope_scaling")
            given = {"rope_theta": config.get(name, base)} | given
            # transformers looks for it beside the types, not among their parameters.
            given["truncate"] = parameters.get("truncate", True)
            found[kind] = _read_parameters(given, said, False)
        # Only dynamic acts beyond max_position_embeddings; the others' texts end there.
        longer = [one.factor for one in found.values() if one.scaling == "dynamic"]
        positions = int(said["n_positions"] * min(longer, default=1))
        return {
            "rotary": found[form.FULL],
            "local_rotary": found[form.SLIDING],
            "n_positions": positions,
        }

    def write(self, config: Config) -> Json:
        """The fields that say it."""
        if config.rotary is None:
            return {}
        local = config.local_rotary or config.rotary
        written: Json = {
            kind: _write_parameters(rotary, config, False)
            for kind, rotary in ((form.FULL, config.rotary), (form.SLIDING, local))
        }
        for given in written.values():
            if not given.pop("truncate", True):
                written = written | {"truncate": False}
        dynamic = [one for one in (config.rotary, local) if one.scaling == "dynamic"]
        content: Json = {"rope_parameters": written}
        if dynamic:
            content["max_position_embeddings"] = dynamic[0].n_original
        return content


def _dictionary(config: Json, name: str) -> Json:
    value = config.get(name)
    if value is not None and not isinstance(value, Mapping):
        raise form.refuse(name, value, "a dictionary")
    return dict(value or {})


def _read_parameters(given: Json, said: Json, partial: bool) -> Rotary:
    """The Rotary of one set of parameters, in which rope_theta stands."""
    scaling = given.get("rope_type", given.get("type", "default"))
    if not isinstance(scaling, str) or scaling not in SCALINGS:
        raise form.refuse("rope_type", scaling, f"one of {', '.join(SCALINGS)}")
    d_head = said.get("d_head") or said["d_model"] // said["n_heads"]
    fraction = form.value_of(given, "partial_rotary_factor", form.POSITIVE, 1.0)
    if (fraction != 1 and not partial) or fraction > 1:
        raise form.refuse("partial_rotary_factor", fraction, "1, or less where the family has that")
    return Rotary(
        dims=int(d_head * fraction),
        base=form.value_of(given, "rope_theta", form.POSITIVE),
        scaling=scaling,
        **{ours: read(given, said["n_positions"]) for _, ours, read in _SCALINGS[scaling]},
    )


def _write_parameters(rotary: Rotary, config: Config, partial: bool) -> Json:
    """The parameters that say this Rotary."""
    given: Json = {"rope_type": rotary.scaling, "rope_theta": rotary.base}
    if partial:
        # Half a dimension more where the fraction, multiplied again, would fall short.
        fraction = rotary.dims / config.d_head
        exact = int(config.d_head * fraction) == rotary.dims
        given["partial_rotary_factor"] = fraction if exact else (rotary.dims + 0.5) / config.d_head
    elif rotary.dims != config.d_head:
        raise CheckpointError(
            f"config: rotary turns {rotary.dims} of {config.d_head} dimensions of a head, and "
            f"{config.family} checkpoints turn all; expected as many."
        )
    for name, ours, _ in _SCALINGS[rotary.scaling]:
        value = getattr(rotary, ours)
        given |= {name: list(value) if isinstance(value, tuple) else value} if name else {}
    return given


def _number(name: str, usual: float | None = None) -> Callable[[Json, int], float]:
    """A number above 0; null and 0 stand for `usual`, where there is one."""
    return lambda given, _: (
        usual if usual and not given.get(name) else form.value_of(given, name, form.POSITIVE)
    )


def _original(given: Json, positions: int) -> int:
    least = 2 if given.get("rope_type", given.get("type")) == "longrope" else 1
    return form.value_of(
        given, "original_max_position_embeddings", form.whole_from(least), positions
    )


def _factor(given: Json, positions: int) -> float:
    if given.get("factor") is not None:
        return form.value_of(given, "factor", form.POSITIVE)
    return positions / _original(given, positions)


def _yarn_amplitude(given: Json, positions: int) -> float:
    factor = _factor(given, positions)

    def grown(weight: float) -> float:
        return 0.1 * weight * math.log(factor) + 1 if factor > 1 else 1.0

    if given.get("attention_factor") is not None:
        return form.value_of(given, "attention_factor", form.POSITIVE)
    if given.get("mscale") and given.get("mscale_all_dim"):
        above, below = (
            grown(form.value_of(given, name, form.POSITIVE))
            for name in ("mscale", "mscale_all_dim")
        )
        return above / below
    return grown(1.0)


def _longrope_amplitude(given: Json, positions: int) -> float:
    # Ding et al. 2024, section 3.3, as transformers has it.
    factor, original = _factor(given, positions), _original(given, positions)
    if given.get("attention_factor") is not None:
        return form.value_of(given, "attention_factor", form.POSITIVE)
    return math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 else 1.0


def _factors(name: str) -> Callable[[Json, int], tuple[float, ...]]:
    def read(given: Json, _: int) -> tuple[float, ...]:
        value = given.get(name)
        if not isinstance(value, list | tuple):
            raise form.refuse(name, value, "a list of numbers")
        return tuple(form.value_of({name: each}, name, form.POSITIVE) for each in value)

    return read


Parameter = tuple[str, str, Callable[[Json, int], Any]]
"""The name in config.json ("" where nothing says it), the field of Rotary, and how it is read."""
_STRETCHED: tuple[Parameter, ...] = (
    ("factor", "factor", _number("factor")),
    ("", "n_original", lambda _, positions: positions),
)
_ORIGINAL: Parameter = ("original_max_position_embeddings", "n_original", _original)
_SCALINGS: dict[str, tuple[Parameter, ...]] = {
    "default": (),
    "linear": _STRETCHED,
    "dynamic": _STRETCHED,
    "llama3": (
        ("factor", "factor", _number("factor")),
        _ORIGINAL,
        ("low_freq_factor", "low", _number("low_freq_factor")),
        ("high_freq_factor", "high", _number("high_freq_factor")),
    ),
    "yarn": (
        ("factor", "factor", _factor),
        _ORIGINAL,
        ("beta_slow", "low", _number("beta_slow", 1.0)),
        ("beta_fast", "high", _number("beta_fast", 32.0)),
        (
            "truncate",
            "truncate",
            lambda given, _: form.value_of(given, "truncate", form.BOOLEAN, True),
        ),
        ("attention_factor", "amplitude", _yarn_amplitude),
    ),
    "longrope": (
        _ORIGINAL,
        ("attention_factor", "amplitude", _longrope_amplitude),
        ("short_factor", "short_factors", _factors("short_factor")),
        ("long_factor", "long_factors", _factors("long_factor")),
    ),
}
