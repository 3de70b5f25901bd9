"""Which models the pages know from the inside: how BERT and GPT-2 are built, and nothing else."""

from minibert.layers.config import CHOICES_BY_DEFAULT, Config
from minibert.layers.families import FAMILIES

__all__ = ["other_choice"]

# What static/engine and static/views/whole take for granted, of both families.
_CHOICES = CHOICES_BY_DEFAULT | {
    "windows": (),
    "attention_soft_cap": None,
    "logit_soft_cap": None,
}


def other_choice(config: Config) -> str:
    """The first choice of a BERT's or GPT-2's config that is not as these are built; "" for none.

    A family other than these two has no choice to name: asking is an error of the caller.
    """
    wanted = _CHOICES | dict(FAMILIES[config.family].choices)
    wanted |= {
        "n_kv_heads": config.n_heads,
        "d_head": config.d_model // config.n_heads,
        "d_embed": config.d_model,
        "n_layer_groups": config.n_layers,
    }
    given = ((name, getattr(config, name)) for name in wanted)
    return next((f"{name} is {value!r}" for name, value in given if value != wanted[name]), "")
