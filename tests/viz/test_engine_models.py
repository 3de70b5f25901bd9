"""What a page is told of how a model is built."""

from typing import Any

import pytest

from minibert.layers.config import FAMILIES, Config
from minibert.layers.rotary import Rotary
from minibert.model import Model
from minibert.viz.live import built_of


def model_of(family: str, **changes: Any) -> Model:
    sizes = {"vocab_size": 41, "n_positions": 53, "n_layers": 2, "n_heads": 2, "d_model": 8}
    rotary = FAMILIES[family].choices.get("positions") == "rotary"
    more = {"task": "none", "d_mlp": 17, "causal": bool(FAMILIES[family].causal)}
    if rotary:
        more["rotary"] = Rotary(4)
    return Model.from_config(Config(family=family, **(sizes | more | changes)), seed=1)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_is_built_of_its_choices(family: str) -> None:
    more = {"roberta": {"position_offset": 2}, "electra": {"d_embed": 4}}.get(family, {})
    model = model_of(family, **more)
    built, config = built_of(model), model.config
    choices = {
        "norm": "norm_place", "normKind": "norm", "plusOne": "norm_plus_one", "eps": "norm_eps",
        "firstNorm": "first_norm", "parallel": "parallel", "keyHeads": "n_kv_heads",
        "queryKeyNorm": "query_key_norm", "gated": "gated", "embedNorm": "embed_norm",
        "finalNorm": "final_norm", "activation": "activation", "logitSoftCap": "logit_soft_cap",
        "positionOffset": "position_offset",
    }  # fmt: skip
    assert {name: built[name] for name in choices} == {
        name: getattr(config, field) for name, field in choices.items()
    }
    assert built["rotary"] is not built["positions"]
    assert built["embedProject"] is (family in ("albert", "electra"))
    assert built["embedScale"] == pytest.approx(8**0.5 if config.embed_scaled else 1)
