"""The picture of the whole draws Python's numbers, in boxes that stand as the layer is wired."""

import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from live.drawn import random_model
from live.engines import EngineProcess, opened
from live.test_worked import OTHERS
from small_traces import SERVED_KINDS

import minibert

ABSOLUTE = 1e-4
TEXT = "The horse pulled the cart up the hill."
POSITION = 4
# What stands between the streams of a layer, of models that are wired differently.
ATTENTION, ROTARY = (
    ("vectors", "probs", "z", "attn_out"),
    ("vectors", "turned", "probs", "z", "attn_out"),
)
MLP = ("mlp_pre", "mlp_post", "mlp_out")
MIDDLE, LAST = ("attention sum", "resid_mid"), ("mlp sum", "resid_post")
BEFORE = [
    ("resid_pre",), ("attention norm", *ROTARY), MIDDLE, ("mlp norm", *MLP), LAST
]  # fmt: skip
AFTER = [("resid_pre",), ATTENTION, MIDDLE, MLP, LAST]
WIRED: dict[str, list[tuple[str, ...]]] = {
    "tiny-bert": AFTER,
    **dict.fromkeys(SERVED_KINDS, AFTER),
    "tiny-gpt2": [
        ("resid_pre",), ("attention norm", *ATTENTION), MIDDLE, ("mlp norm", *MLP), LAST
    ],
    "tiny-llama": BEFORE,
    "llama": BEFORE,
    "qwen3": BEFORE,
    "modernbert": BEFORE,
    "gemma2": [
        ("resid_pre",), ("attention norm", *ROTARY, "attention output norm"), MIDDLE,
        ("mlp norm", *MLP, "mlp output norm"), LAST,
    ],
    "olmo2": [
        ("resid_pre",), (*ROTARY, "attention output norm"), MIDDLE, (*MLP, "mlp output norm"), LAST
    ],
    # Both branches read the stream before either is added to it.
    "gpt_neox": [
        ("resid_pre",), ("attention norm", *ROTARY), ("mlp norm", *MLP), MIDDLE, LAST
    ],
}  # fmt: skip


@pytest.fixture(scope="module", params=["tiny-bert", "tiny-gpt2", "tiny-llama", *OTHERS])
def named(request: pytest.FixtureRequest) -> Iterator[tuple[str, Any, EngineProcess]]:
    """A name of `WIRED`, its model, and the engine of its page."""
    name = request.param
    model = minibert.load(name) if name.startswith("tiny-") else random_model(name)
    with opened(model) as engine:
        yield name, model, engine


def whole(engine: EngineProcess, layer: int, position: int) -> dict[str, Any]:
    """The boxes of the picture that have numbers, the open layer's in parts."""
    request = {"texts": [TEXT], "edits": []}
    return engine.answer("whole", request=request, place={"layer": layer, "position": position})


def drawn_by_python(trace: Any, layer: int, box: str, row: str) -> Any:
    """(part, number) of a row of a box: a part of each head, or the token's vector alone."""
    at, rotary = trace[layer], trace.config.rotary is not None
    if box == "vectors":
        name = {"q": "query", "k": "key", "v": "value"}[row]
        unrotated = "_unrotated" if rotary and row != "v" else ""
        return getattr(at, name + unrotated)[0, :, POSITION]
    if box == "turned":
        return getattr(at, {"q": "query", "k": "key"}[row])[0, :, POSITION]
    if box == "probs":
        return at.probs[0, int(row) : int(row) + 1, POSITION]
    if box == "mlp_pre" and row:
        return getattr(at, {"gate": "mlp_gate", "in": "mlp_pre"}[row])[0, POSITION][None]
    value = getattr(at, box)[0]
    return value[:, POSITION] if box == "z" else value[POSITION][None]


def test_the_boxes_stand_as_the_layer_is_wired_and_hold_python_s_numbers(
    named: tuple[str, Any, EngineProcess],
) -> None:
    name, model, engine = named
    trace, config = model.trace(TEXT), model.config
    for layer in range(config.n_layers):
        parts = whole(engine, layer, POSITION)["open"]
        found = [tuple(box["id"] for box in part["boxes"]) for part in parts]
        expected = WIRED[name]
        if layer == 0 and not config.first_norm:
            expected = [tuple(one for one in part if one != "attention norm") for part in expected]
        assert found == expected
        for box in (box for part in parts for box in part["boxes"]):
            for row in box["rows"]:
                numbers = drawn_by_python(trace, layer, box["id"], row["name"])
                np.testing.assert_allclose(row["parts"], numbers.numpy(), rtol=0, atol=ABSOLUTE)
            check_fact(trace, layer, box)


def check_fact(trace: Any, layer: int, box: dict[str, Any]) -> None:
    """What a box says beside its numbers is of the same numbers."""
    fact, config, at = box.get("fact") or "", trace.config, trace[layer]
    if fact.startswith("length"):
        norm = float(getattr(at, box["id"])[0, POSITION].norm())
        assert float(fact.split()[1]) == pytest.approx(norm, abs=0.051)
    elif box["id"] == "probs":
        head, percent = re.fullmatch(r"head (\d+): .* ([\d.]+)\s?%", fact).groups()  # type: ignore[union-attr]
        weight = float(at.probs[0, int(head), POSITION].max())
        assert weight == pytest.approx(float(at.probs[0, :, POSITION].max()), abs=1e-6)
        assert float(percent) == pytest.approx(100 * weight, abs=0.51)
    elif box["id"] == "vectors":
        grouped = 1 < config.n_kv_heads < config.n_heads
        said = "heads 0–1 read key-value head 0, heads 2–3 read key-value head 1"
        assert fact == (said if grouped else "")
        groups = config.n_kv_heads if config.n_kv_heads < config.n_heads else None
        assert [row.get("groups") for row in box["rows"]] == [groups] * 3
