"""Each number that the arithmetic view works out is the model's own; so are those of many texts."""

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from live.drawn import real_texts
from live.engine_process import EngineProcess
from test_front_end import node

import minibert
from minibert.viz.live import live_page

# Steps are in double precision, from numbers that the engine rounded to single.
RELATIVE = 1e-5
# Of the engine against Python.
ABSOLUTE = 1e-4
# What the engine has no name for: LayerNorm at the start of a branch, and before the decoder.
BETWEEN = ("attention_input", "mlp_input", "head_hidden")
WHOLE = ("embed", "logits", "head_hidden")
LAYERED = (
    *("query", "key", "value", "z", "head_out", "attn_out", "resid_mid"),
    *("mlp_pre", "mlp_post", "mlp_out", "resid_post"),
)


@pytest.fixture(scope="module", params=["tiny-bert", "tiny-gpt2"])
def both(request: pytest.FixtureRequest) -> Iterator[tuple[Any, EngineProcess]]:
    """A model, and the engine of its page."""
    model = minibert.load(request.param)
    page, engine = live_page(model), EngineProcess(node())
    engine.open(page.header, page.weights)
    yield model, engine
    engine.close()


def names_of(model: Any) -> list[tuple[str, int | None]]:
    layered = (*LAYERED, *(("attention_input", "mlp_input") if model.config.pre_norm else ()))
    layers = range(model.config.n_layers)
    return [*((name, None) for name in WHOLE), *((n, layer) for layer in layers for n in layered)]


def width_of(model: Any, name: str) -> int:
    config = model.config
    if name in ("query", "key", "value", "z"):
        return int(config.d_head)
    return int({"mlp_pre": config.d_mlp, "mlp_post": config.d_mlp, "logits": config.vocab_size}.get(
        name, config.d_model
    ))  # fmt: skip


def drawn_places(draw: random.Random, model: Any, length: int) -> list[dict[str, Any]]:
    """Each quantity of each layer at two drawn places."""
    return [
        {
            "quantity": name,
            "layer": layer or 0,
            "head": draw.randrange(model.config.n_heads),
            "position": draw.randrange(length),
            "dimension": draw.randrange(width_of(model, name)),
        }
        for name, layer in 2 * names_of(model)
    ]


def of_python(trace: Any, place: dict[str, Any]) -> float:
    name, position, dimension = place["quantity"], place["position"], place["dimension"]
    if name in WHOLE:
        return float(getattr(trace, name)[0, position, dimension])
    value = getattr(trace[place["layer"]], name)[0]
    if name in ("query", "key", "value", "z", "head_out"):
        value = value[place["head"]]
    return float(value[position, dimension])


def test_the_steps_of_each_number_come_to_what_the_model_has(
    both: tuple[Any, EngineProcess],
) -> None:
    model, engine = both
    draw = random.Random(5)
    for texts in real_texts(4, seed=6):
        trace = model.trace(model.tokenize(*texts, truncate=True))
        places = drawn_places(draw, model, trace.tokens.lengths[0])
        answers = engine.worked({"texts": texts, "edits": []}, places)
        for place, answer in zip(places, answers, strict=True):
            value, given, largest = answer["value"], answer["given"], answer["largest"]
            assert abs(value - given) <= RELATIVE * max(abs(given), largest), place
            if place["quantity"] not in BETWEEN:
                assert abs(value - of_python(trace, place)) <= ABSOLUTE, place


def test_after_an_edit_the_steps_say_what_the_model_would_have_computed(
    both: tuple[Any, EngineProcess],
) -> None:
    model, engine = both
    text = "The horse pulled the cart up the hill."
    place = {"quantity": "z", "layer": 1, "head": 2, "position": 3, "dimension": 4}
    edit = {"quantity": "z", "change": "zero", "layer": 1, "head": 2}
    (answer,) = engine.worked({"texts": [text], "edits": [edit]}, [place])
    assert answer["given"] == 0
    assert answer["value"] == pytest.approx(of_python(model.trace(text), place), abs=ABSOLUTE)


def test_the_prediction_at_any_position_is_that_of_python(both: tuple[Any, EngineProcess]) -> None:
    model, engine = both
    text = "The horse pulled the cart up the hill."
    logits = model.trace(text).logits[0, 3]
    found = engine.candidates({"texts": [text], "edits": []}, 3)
    assert [one["id"] for one in found[:5]] == logits.topk(5).indices.tolist()
    probs = logits.double().softmax(-1)
    assert [one["prob"] for one in found] == pytest.approx(
        [float(probs[one["id"]]) for one in found], abs=ABSOLUTE
    )


def test_queries_and_keys_of_many_texts_are_those_of_each(both: tuple[Any, EngineProcess]) -> None:
    model, engine = both
    texts = [["She read the letter twice."], ["Bees make honey, and bears like honey."]]
    found = engine.collect(texts, 2, 1)
    traces = [model.trace(*one) for one in texts]
    assert [one["tokens"]["text"] for one in found["from"]] == [
        list(trace.tokens.strings[0]) for trace in traces
    ]
    for name in ("query", "key"):
        expected = np.concatenate([getattr(t[2, 1], name)[0].numpy() for t in traces])
        assert np.allclose(np.reshape(found[name], expected.shape), expected, atol=ABSOLUTE)
