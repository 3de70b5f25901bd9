"""Which shares of dropout a config.json names, family by family, read and written back.

Compared with transformers in training mode by tests/checkpoint/test_dropout.py.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from minibert.errors import CheckpointError
from minibert.layers.config import Config
from minibert.layers.dropout import Dropout
from minibert.untrusted import Json

Key = tuple[str, float]
"""The name in config.json, and the share where it is absent."""
_TOKENS, _TEXT, _ANSWER = "token-classification", "sequence-classification", "question-answering"


@dataclass(frozen=True)
class _Names:
    """Where a family keeps the share of each quantity, and that of each task's head.

    A head has several keys where the first may be null; the last one counts then.
    """

    layers: Mapping[str, Key] = field(default_factory=dict)
    heads: Mapping[str, tuple[Key, ...]] = field(default_factory=dict)


_HIDDEN, _PROBS = ("hidden_dropout_prob", 0.1), ("attention_probs_dropout_prob", 0.1)
_AS_HIDDEN = (("classifier_dropout", 0.1), _HIDDEN)
# What transformers' generic heads take, whatever the checkpoint says of other shares.
_GENERIC = {_TOKENS: (("classifier_dropout", 0.1), ("hidden_dropout", 0.1))}
_BERT = _Names(
    {"embed": _HIDDEN, "probs": _PROBS, "attn_out": _HIDDEN, "mlp_out": _HIDDEN},
    dict.fromkeys((_TEXT, _TOKENS), _AS_HIDDEN),
)
_NEOX_HIDDEN = ("hidden_dropout", 0.0)
_NAMES = {
    **dict.fromkeys(("bert", "roberta", "electra"), _BERT),
    "albert": _Names(
        {
            "embed": ("hidden_dropout_prob", 0.0),
            "probs": ("attention_probs_dropout_prob", 0.0),
            "attn_out": ("hidden_dropout_prob", 0.0),
        },
        dict.fromkeys((_TEXT, _TOKENS), (("classifier_dropout_prob", 0.1),)),
    ),
    "distilbert": _Names(
        {
            "embed": ("dropout", 0.1),
            "probs": ("attention_dropout", 0.1),
            "mlp_out": ("dropout", 0.1),
        },
        {
            _TEXT: (("seq_classif_dropout", 0.2),),
            _TOKENS: (("dropout", 0.1),),
            _ANSWER: (("qa_dropout", 0.1),),
        },
    ),
    "gpt2": _Names(
        {
            "embed": ("embd_pdrop", 0.1),
            "probs": ("attn_pdrop", 0.1),
            "attn_out": ("resid_pdrop", 0.1),
            "mlp_out": ("resid_pdrop", 0.1),
        },
        _GENERIC,
    ),
    "gpt_neox": _Names(
        {
            "embed": _NEOX_HIDDEN,
            "probs": ("attention_dropout", 0.0),
            "attn_out": _NEOX_HIDDEN,
            "mlp_out": _NEOX_HIDDEN,
        },
        {_TOKENS: (("classifier_dropout", 0.1),)},
    ),
    "modernbert": _Names(
        {
            "embed": ("embedding_dropout", 0.0),
            "probs": ("attention_dropout", 0.0),
            "attn_out": ("attention_dropout", 0.0),
            "mlp_post": ("mlp_dropout", 0.0),
        },
        dict.fromkeys((_TEXT, _TOKENS, _ANSWER), (("classifier_dropout", 0.0),)),
    ),
}
_OTHERS = _Names({"probs": ("attention_dropout", 0.0)}, _GENERIC)


def dropout_of(about: Json, config: Config) -> Dropout:
    """The shares that a config.json names for this model.

    Raises CheckpointError for what is not a share.
    """
    names = _NAMES.get(config.family, _OTHERS)
    rates = {name: _rate(about, (key,)) for name, key in names.layers.items()}
    if config.task in names.heads:
        rates["head"] = _rate(about, names.heads[config.task])
    return Dropout(**rates)


def dropout_to_hf(dropout: Dropout, config: Config) -> dict[str, float]:
    """The fields of config.json for these shares.

    Raises CheckpointError for shares that the family's config.json has no place for.
    """
    names = _NAMES.get(config.family, _OTHERS)
    keys = dict(names.layers)
    if config.task in names.heads:
        keys["head"] = names.heads[config.task][0]
    written: dict[str, float] = {}
    for name in ("embed", "probs", "attn_out", "mlp_post", "mlp_out", "head"):
        rate = getattr(dropout, name)
        if name not in keys and rate:
            raise CheckpointError(
                f"dropout: {name} is {rate}, and a config.json of {config.family} has no place for "
                "it; expected 0."
            )
        if name in keys and written.setdefault(keys[name][0], rate) != rate:
            raise CheckpointError(
                f"dropout: {name} is {rate}, and {keys[name][0]} of config.json is "
                f"{written[keys[name][0]]} for another quantity; expected one share for both."
            )
    return written


def _rate(about: Json, keys: tuple[Key, ...]) -> float:
    given = [(name, about[name]) for name, _ in keys if about.get(name) is not None]
    name, rate = given[0] if given else keys[-1]
    if not isinstance(rate, int | float) or isinstance(rate, bool) or not 0 <= rate < 1:
        raise CheckpointError(
            f"config.json: {name} is {rate!r:.80}; expected a share from 0 to less than 1."
        )
    return float(rate)
