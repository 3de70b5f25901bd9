"""The numbers that the arithmetic view works out, and that the whole draws, are the model's."""

import random
import re
from collections import defaultdict
from typing import Any

import numpy as np
import pytest
from live.conftest import NEAR, WORDS
from live.drawn import real_texts
from live.equations import check_steps
from small_traces import SERVED_KINDS

from minibert.analysis import embedding_parts
from minibert.layers.layer import layer_quantities
from minibert.viz.engine_edits import OFF_PAGES

# Steps are in double precision, from numbers that the engine rounded to single.
RELATIVE = 1e-5
# What is told by the view of attention weights, and what another layer gave.
ELSEWHERE = ("scores", "probs", "resid_pre")
HEADED = ("query_unrotated", "key_unrotated", "query", "key", "value", "z", "head_out")
pytestmark = pytest.mark.parametrize("case", WORDS, indirect=True)


def names_of(model: Any) -> list[tuple[str, int | None]]:
    """The quantities that the view works out, with their layers; the norms between them too."""
    config = model.config
    whole = ["embed", "head_hidden", "logits"]
    if model.body.embed_project is not None:
        whole.append("embed_input")
    if config.final_norm and not config.generates:
        whole.append("hidden")
    table = [name for name in layer_quantities(config) if name not in (*OFF_PAGES, *ELSEWHERE)]
    if config.norm_place in ("before", "both"):
        table += ["attention_input", "mlp_input"]
    if config.norm_place in ("output", "both"):
        table += ["attention_output", "mlp_output"]
    layers = range(config.n_layers)
    return [*((name, None) for name in whole), *((n, layer) for layer in layers for n in table)]


def drawn_places(draw: random.Random, trace: Any) -> list[dict[str, Any]]:
    """Each quantity of each layer at two drawn places."""
    return [
        {
            "quantity": name,
            "layer": layer or 0,
            "head": draw.randrange(trace.config.n_heads),
            "position": draw.randrange(trace.tokens.lengths[0]),
            "dimension": draw.randrange(vector_of_python(trace, name, layer or 0, 0).shape[-1]),
        }
        for name, layer in 2 * names_of(trace.model)
    ]


def of_python(trace: Any, place: dict[str, Any]) -> float:
    name, layer, position = place["quantity"], place["layer"], place["position"]
    value = vector_of_python(trace, name, layer, place["head"])
    return float(value[position, place["dimension"]])


def vector_of_python(trace: Any, name: str, layer: int, head: int) -> Any:
    """(position, …) of a quantity, or of a norm between two quantities."""
    model, at = trace.model, trace[layer]
    if name in ("embed", "logits"):
        return getattr(trace, name)[0]
    if name == "embed_input":
        rows = embedding_parts(model, trace.tokens)
        return model.body.embed_norm(rows.word + rows.position + rows.segment)[0]
    if name in ("hidden", "head_hidden"):
        hidden = model.body.final(trace[model.config.n_layers - 1].resid_post)
        return (hidden if name == "hidden" else model.head.decoder_input(hidden))[0]
    if name in HEADED:
        return getattr(trace[layer, head], name)[0]
    own = model.body.layers[layer]
    if name == "attention_input":
        return at.query_input[0, head]
    if name == "mlp_input":
        return own.mlp_input(at.resid_pre if model.config.parallel else at.resid_mid)[0]
    if name == "attention_output":
        return own.attention_output_norm(at.attn_out)[0]
    return (own.mlp_output_norm(at.mlp_out) if name == "mlp_output" else getattr(at, name))[0]


def test_the_steps_of_each_number_come_to_what_the_model_has(case):
    """Each quantity at two places: its steps come to the engine's number, and Python's."""
    model, engine = case.model, case.page
    draw = random.Random(7)
    for texts in real_texts(3, seed=8):
        texts = texts[: 1 if model.config.causal else 2]
        trace = model.trace(model.tokenize(*texts, truncate=True))
        places = drawn_places(draw, trace)
        found = engine.answer("worked", request={"texts": texts, "edits": []}, places=places)
        assert {name for name, _ in names_of(model)} == set(found["offered"])
        for place, answer in zip(places, found["answers"], strict=True):
            value, given, largest = answer["value"], answer["given"], answer["largest"]
            assert abs(value - given) <= RELATIVE * max(abs(given), largest), place
            assert abs(value - of_python(trace, place)) <= NEAR, place
            check_steps(answer["steps"])


def test_the_parts_of_a_score_are_those_of_python_down_to_the_words(case):
    model, engine = case.model, case.page
    draw = random.Random(9)
    for texts in real_texts(3, seed=5):
        trace = model.trace(model.tokenize(*texts[:1], truncate=True))
        places = sorted(draw.randrange(trace.tokens.lengths[0]) for _ in range(2))
        asked = {
            "layer": model.config.n_layers - 1,
            "head": draw.randrange(model.config.n_heads),
            "query": places[1],
            "key": places[0],
        }
        expected = trace.why(**asked)
        found = engine.answer("why", request={"texts": texts[:1], "edits": []}, asked=asked)
        ours: dict[tuple[str, str], float] = defaultdict(float)
        for row in expected.table():
            pair = (together(model, row["query_component"]), together(model, row["key_component"]))
            ours[pair] += row["value"]
        theirs = {(query, key): score for query, key, score in found["pairs"]}
        assert theirs.keys() == ours.keys()
        assert set(found["same"]) == {together(model, one) for one in expected.same}
        near = 1e-3 * max(abs(score) for score in ours.values())
        assert all(abs(theirs[pair] - ours[pair]) <= near for pair in ours)
        for (query, key, score), sides in zip(found["pairs"], found["read"], strict=False):
            for own, (side, other) in enumerate((("query", key), ("key", query))):
                assert (sides[own] is None) == (not (query, key)[own].startswith("head"))
                if sides[own] and other != "embeddings":
                    why = expected.side(side, of=other)
                    check_read(model, why, (query, key)[own], score, sides[own], near)


def check_read(model: Any, why: Any, head: str, whole: float, found: Any, near: float) -> None:
    """What the head had read is what `follow` says; each level adds up to the one above."""
    tokens = why.follow(head)
    assert abs(found["sum"] - whole) <= near
    for token, part, written in found["largest"]:
        assert abs(part - tokens.by_token[token]) <= near
        assert abs(written["sum"] - part) <= near
        below = tokens.at_token(token)
        for name, wrote, read in written["largest"]:
            ours = sum(
                value
                for one, value in zip(below.components, below.values, strict=True)
                if together(model, one) == name
            )
            assert abs(wrote - ours) <= near
            if read:
                check_read(model, below, name, wrote, read, near)


def together(model: Any, label: str) -> str:
    """The name a page has for a component: embeddings that a matrix follows are one there."""
    return "embeddings" if model.body.embed_project and "embedding" in label else label


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
WIRED = {
    "tiny-bert": AFTER,
    **dict.fromkeys(SERVED_KINDS, AFTER),
    "tiny-gpt2": [
        ("resid_pre",), ("attention norm", *ATTENTION), MIDDLE, ("mlp norm", *MLP), LAST
    ],
    "tiny-llama": BEFORE,
    "llama": BEFORE,
    "dynamic": BEFORE,
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


def test_the_boxes_of_the_whole_stand_as_the_layer_is_wired_and_hold_python_s_numbers(case):
    name, model, engine = case.name, case.model, case.page
    request = {"texts": [TEXT], "edits": []}
    trace, config = model.trace(TEXT), model.config
    for layer in range(config.n_layers):
        place = {"layer": layer, "position": POSITION}
        parts = engine.answer("whole", request=request, place=place)["open"]
        found = [tuple(box["id"] for box in part["boxes"]) for part in parts]
        expected = WIRED["olmo2" if name == "wide" else name]
        if layer == 0 and not config.first_norm:
            expected = [tuple(one for one in part if one != "attention norm") for part in expected]
        assert found == expected
        for box in (box for part in parts for box in part["boxes"]):
            for row in box["rows"]:
                numbers = drawn_by_python(trace, layer, box["id"], row["name"])
                np.testing.assert_allclose(row["parts"], numbers.numpy(), rtol=0, atol=NEAR)
            check_fact(trace, layer, box)


def check_fact(trace: Any, layer: int, box: dict[str, Any]) -> None:
    """What a box says beside its numbers is of the same numbers."""
    fact, config, at = box.get("fact") or "", trace.config, trace[layer]
    if fact.startswith("length"):
        norm = float(getattr(at, box["id"])[0, POSITION].norm())
        assert float(fact.split()[1]) == pytest.approx(norm, abs=0.051)
    elif box["id"] == "probs":
        head, percent = re.fullmatch(r"head (\d+): .* ([\d.]+)\s?%", fact).groups()
        weight = float(at.probs[0, int(head), POSITION].max())
        assert weight == pytest.approx(float(at.probs[0, :, POSITION].max()), abs=1e-6)
        assert float(percent) == pytest.approx(100 * weight, abs=0.51)
    elif box["id"] == "vectors":
        grouped = 1 < config.n_kv_heads < config.n_heads
        said = "heads 0–1 read key-value head 0, heads 2–3 read key-value head 1"
        assert fact == (said if grouped else "")
        groups = config.n_kv_heads if config.n_kv_heads < config.n_heads else None
        assert [row.get("groups") for row in box["rows"]] == [groups] * 3
