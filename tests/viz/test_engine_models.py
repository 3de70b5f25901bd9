"""What a page is told of how a model is built, and which models it does not work out."""

from typing import Any

import pytest

from minibert.layers.config import Config
from minibert.layers.families import FAMILIES
from minibert.layers.rotary import Rotary
from minibert.model import Model
from minibert.viz.engine_models import built_of, undrawn_of


def model_of(family: str, **changes: Any) -> Model:
    sizes = {"vocab_size": 41, "n_positions": 53, "n_layers": 2, "n_heads": 2, "d_model": 8}
    rotary = FAMILIES[family].choices.get("positions") == "rotary"
    more = {"task": "none", "d_mlp": 17, "causal": bool(FAMILIES[family].causal)}
    if rotary:
        more["rotary"] = Rotary(4)
    return Model.from_config(Config(family=family, **(sizes | more | changes)), seed=1)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_is_built_of_its_choices_or_one_of_them_is_named(family: str) -> None:
    model = model_of(family, **({"position_offset": 2} if family == "roberta" else {}))
    built, config = built_of(model), model.config
    expected = {
        "roberta": "its positions are counted from 2 on (position_offset)",
        "albert": "its embeddings, of width 8 (d_embed), go through a matrix",
    }.get(family, "")
    assert undrawn_of(model) == expected
    assert (built is None) == bool(expected)
    if built is None:
        return
    choices = {
        "norm": "norm_place", "normKind": "norm", "plusOne": "norm_plus_one", "eps": "norm_eps",
        "firstNorm": "first_norm", "parallel": "parallel", "keyHeads": "n_kv_heads",
        "queryKeyNorm": "query_key_norm", "gated": "gated", "embedNorm": "embed_norm",
        "finalNorm": "final_norm", "activation": "activation", "logitSoftCap": "logit_soft_cap",
    }  # fmt: skip
    assert {name: built[name] for name in choices} == {
        name: getattr(config, field) for name, field in choices.items()
    }
    assert built["rotary"] is not built["positions"]
    assert built["embedScale"] == pytest.approx(8**0.5 if config.embed_scaled else 1)


def test_embeddings_of_another_width_are_named() -> None:
    assert "of width 4 (d_embed)" in undrawn_of(model_of("electra", d_embed=4))
