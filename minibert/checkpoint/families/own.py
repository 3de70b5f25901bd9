"""Architectures of one's own: `Config` as it is, in a config.json, under the names of our modules.

No other library reads these files.
"""

from dataclasses import asdict, fields

from minibert.checkpoint.families import form
from minibert.checkpoint.families.form import Family, Field, Fields, Kind, Names, Own
from minibert.layers.config import CHOICES_BY_DEFAULT, Config
from minibert.layers.config import FAMILIES as CHOICES
from minibert.layers.rotary import Rotary
from minibert.untrusted import Json

_DEFAULTS: Json = {each.name: each.default for each in fields(Config)}
_DEFAULTS |= CHOICES_BY_DEFAULT | dict(CHOICES["minibert"].choices)
_SIZES = ("vocab_size", "n_positions", "n_layers", "n_heads", "d_model")
_OPTIONAL_SIZES = (
    "d_mlp", "d_vocab_out", "n_kv_heads", "d_head", "d_embed", "n_segments", "n_layer_groups",
)  # fmt: skip
_NUMBERS = ("embed_multiplier", "residual_multiplier", "logits_divisor")
_OPTIONAL_NUMBERS = ("query_scalar", "score_multiplier", "attention_soft_cap", "logit_soft_cap")
_SWITCHES = [name for name, default in _DEFAULTS.items() if isinstance(default, bool)]
_ROTARY = ("rotary", "local_rotary")
_NAMES = ("norm", "norm_place", "positions", "query_key_norm")


def _name(name: str) -> Field:
    """One of several names; Config says which."""
    kind = Kind(lambda value: isinstance(value, str), "a name")
    return Field((name,), lambda config: form.value_of(config, name, kind, _DEFAULTS[name]))


def _rotary(config: Json, name: str) -> Rotary | None:
    turned, known = config.get(name), [each.name for each in fields(Rotary)]
    if turned is None:
        return None
    expected = f"null, or an object of {', '.join(known)}"
    if not isinstance(turned, dict) or not turned.keys() <= set(known):
        raise form.refuse(name, turned, expected)
    lists = {each: tuple(value) for each, value in turned.items() if isinstance(value, list)}
    try:
        return Rotary(**(turned | lists))
    except TypeError as error:
        raise form.refuse(name, turned, expected) from error


def _read(config: Json, said: Json) -> Fields:
    windows = config.get("windows", [])
    if not isinstance(windows, list):
        raise form.refuse("windows", windows, "a list with a number for each layer")
    found = {name: _rotary(config, name) for name in _ROTARY}
    causal = form.value_of(config, "causal", form.BOOLEAN)
    return {**found, "windows": tuple(windows), "causal": causal}


def _write(config: Config) -> Json:
    turned = {name: getattr(config, name) for name in _ROTARY}
    found = {name: None if one is None else asdict(one) for name, one in turned.items()}
    return {**found, "windows": list(config.windows), "causal": config.causal}


_BODY = (
    "word", "position", "segment", "embed_norm", "embed_project", "pooler", "final_norm",
)  # fmt: skip
_LINEARS = ("query", "key", "value", "output", "query_norm", "key_norm")
_NORMS = ("attention_norm", "attention_output_norm", "mlp_norm", "mlp_output_norm")

OWN = Family(
    class_prefixes={"minibert": "Minibert"},
    names=Names(
        prefix="body",
        body={name: name for name in _BODY},
        layer="layers.{}",
        within={
            name: name
            for name in (
                *(f"attention.{each}" for each in _LINEARS),
                *(f"mlp.{each}" for each in ("gate", "up", "down")),
                *_NORMS,
            )
        },
        heads={
            "none": {},
            "masked-lm": {"decoder": "head.decoder"},
            "causal-lm": {"decoder": "head.decoder"},
            "token-classification": {"classifier": "head.classifier"},
        },
    ),
    fields={
        **{name: form.size(name) for name in _SIZES},
        **{name: form.whole(name, 0, least=0) for name in _OPTIONAL_SIZES},
        **{name: form.number(name, 1.0) for name in _NUMBERS},
        **{name: form.positive(name, None) for name in _OPTIONAL_NUMBERS},
        **{name: form.boolean(name, _DEFAULTS[name]) for name in _SWITCHES},
        **{name: _name(name) for name in _NAMES},
        "activation": form.activation("activation", "gelu", tanh="gelu_tanh"),
        "norm_eps": form.norm_eps("norm_eps", _DEFAULTS["norm_eps"]),
        "pad_id": form.pad(None),
        "end_ids": form.ends(None),
    },
    groups=(Own((*_ROTARY, "windows", "causal"), _read, _write),),
)
