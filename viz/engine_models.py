"""Which models a page works out number by number: those built as BERT and GPT-2 are."""

from typing import Any

from minibert.layers.config import CHOICES_BY_DEFAULT, Config
from minibert.layers.families import FAMILIES

__all__ = ["built_of"]

# What static/views takes for granted where it works numbers out, of both families.
_CHOICES = CHOICES_BY_DEFAULT | {
    "windows": (),
    "attention_soft_cap": None,
    "logit_soft_cap": None,
}


def built_of(config: Config) -> dict[str, Any] | None:
    """The parts of a model as static/core/data/source.js has them.

    None for a model whose numbers the page does not work out one by one.
    """
    if config.family not in ("bert", "gpt2") or _other_choice(config):
        return None
    bert = config.family == "bert"
    return {
        "norm": "before" if config.pre_norm else "after",
        "eps": config.norm_eps,
        "activation": config.activation,
        "segments": bert and config.n_segments > 0,
        "embedNorm": bert,
        "finalNorm": not bert,
        "transform": bert,
    }


def _other_choice(config: Config) -> bool:
    """True for a BERT or GPT-2 with a choice that these models were not built with."""
    wanted = _CHOICES | dict(FAMILIES[config.family].choices)
    wanted |= {
        "n_kv_heads": config.n_heads,
        "d_head": config.d_model // config.n_heads,
        "d_embed": config.d_model,
        "n_layer_groups": config.n_layers,
    }
    return any(getattr(config, name) != value for name, value in wanted.items())
