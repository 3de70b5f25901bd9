"""What a model is built of: the choices of its Config by which a page works its numbers out."""

from typing import Any, Protocol

from minibert.layers.bodies import Body
from minibert.layers.config import Config
from minibert.layers.families import FAMILIES

__all__ = ["built_of"]


class BuiltModel(Protocol):
    """What is read of a model."""

    config: Config
    body: Body


def built_of(model: BuiltModel) -> dict[str, Any]:
    """The parts of a model as static/core/data/source.js has them."""
    config = model.config
    return {
        "norm": config.norm_place,
        "normKind": config.norm,
        "plusOne": config.norm_plus_one,
        "firstNorm": config.first_norm,
        "eps": config.norm_eps,
        "parallel": config.parallel,
        "keyHeads": config.n_kv_heads,
        "queryKeyNorm": config.query_key_norm,
        "rotary": config.rotary is not None,
        "gated": config.gated,
        "activation": config.activation,
        "headActivation": FAMILIES[config.family].head_activation or config.head_activation,
        "embedScale": model.body.word_scale,
        "positions": model.body.position is not None,
        "positionOffset": config.position_offset,
        "segments": config.n_segments > 0,
        "embedNorm": config.embed_norm,
        "embedProject": model.body.embed_project is not None,
        "finalNorm": config.final_norm,
        "transform": not config.generates,
        "logitSoftCap": config.logit_soft_cap,
    }
