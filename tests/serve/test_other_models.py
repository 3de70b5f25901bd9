"""The engine behind a page for grouped, rotary, gated, windowed and capped models."""

from typing import Any

import numpy as np
import pytest
import torch
from small_traces import OTHER_KINDS, other_model

import minibert
from minibert.errors import EditError, MinibertError
from minibert.quantities import QUANTITIES
from minibert.trace.edit import zero
from minibert.viz.neuron_view import get_attention
from minibert.viz.serve.engine import Engine
from minibert.viz.serve.requests import Question
from tests.served import text_request

TEXT = "Once upon a time there was a small horse"


@pytest.fixture(scope="module", params=list(OTHER_KINDS))
def engine(request: pytest.FixtureRequest) -> Engine:
    """A random model with the tokenizer of an embedded one."""
    masked = request.param == "modernbert"
    tokenizer = minibert.load("tiny-bert" if masked else "tiny-gpt2").tokenizer
    assert tokenizer is not None
    task = "masked-lm" if masked else "causal-lm"
    model = other_model(request.param, vocab_size=tokenizer.vocab_size, task=task)
    model.tokenizer, model.name = tokenizer, request.param
    return Engine(model)


def edited(engine: Engine, *edits: dict[str, Any]) -> Any:
    request = text_request(TEXT, edits=edits)
    return engine.read(request, "logits", None).blocks["values"]


def test_the_blocks_of_a_pass_are_the_models_numbers(engine: Engine) -> None:
    trace = engine.model.trace(TEXT)
    header = engine.trace(text_request(TEXT)).body["header"]
    assert header.get("soft_cap") == engine.config.attention_soft_cap
    for entry in header["arrays"]:
        (block,) = engine.block(text_request(TEXT), (entry["block"],)).blocks.values()
        assert list(block.shape) == entry["shape"]
        expected = trace[entry["layer"]].quantity(entry["quantity"])[0].numpy()
        if entry["quantity"] == "probs":
            np.testing.assert_allclose((block / 255.0) ** 2, expected, atol=4e-3)
        else:
            np.testing.assert_array_equal(block, expected)


def test_every_quantity_is_read_or_refused_by_reason(engine: Engine) -> None:
    trace = engine.model.trace(TEXT)
    for name, quantity in QUANTITIES.items():
        layer = 1 if quantity.per_layer else None
        if name in engine.config.absent_quantities:
            with pytest.raises(MinibertError, match=name):
                engine.read(text_request(TEXT), name, layer)
            continue
        found = engine.read(text_request(TEXT), name, layer).blocks["values"]
        expected = getattr(trace if layer is None else trace[layer], name)[0].float().numpy()
        np.testing.assert_array_equal(found, expected)


def test_keys_and_values_are_edited_by_key_value_head(engine: Engine) -> None:
    config = engine.config
    last = config.n_kv_heads - 1
    for name in ("key", "value", "key_unrotated"):
        found = edited(engine, {"quantity": name, "change": "zero", "layer": 1, "head": last})
        expected = engine.model.trace(TEXT, edit={(name, 1, last): zero}).logits[0]
        np.testing.assert_array_equal(found, expected.numpy())
        beyond = {"quantity": name, "change": "zero", "layer": 1, "head": last + 1}
        with pytest.raises(EditError, match=rf"no head {last + 1}; expected 0 to {last}"):
            edited(engine, beyond)
    # A single place of it, and the mean over positions, reach the same head.
    place = {"quantity": "key", "layer": 2, "head": last, "position": 3}
    found = edited(engine, {**place, "change": "set", "neuron": 5, "value": 0.25})

    def one_number(key: torch.Tensor) -> torch.Tensor:
        key[:, last, 3, 5] = 0.25
        return key

    expected = engine.model.trace(TEXT, edit={("key", 2): one_number}).logits[0]
    np.testing.assert_allclose(found, expected.numpy(), rtol=1e-5, atol=1e-5)


def test_what_the_model_does_not_have_is_not_edited(engine: Engine) -> None:
    for name in engine.config.absent_quantities:
        with pytest.raises(EditError, match=name):
            edited(engine, {"quantity": name, "change": "zero", "layer": 1})


def test_a_weight_that_is_set_stays_in_the_window(engine: Engine) -> None:
    size = engine.config.windows[2] if engine.config.windows else 0
    edit = {"quantity": "probs", "change": "set", "layer": 2, "key": 1, "value": 0.5}
    request = text_request(TEXT, edits=[edit])
    clean = engine.model.trace(TEXT)[2].probs[0].numpy()
    probs = engine.read(request, "probs", 2).blocks["values"]
    np.testing.assert_allclose(probs.sum(-1), 1, atol=1e-5)
    assert (probs[clean == 0] == 0).all()
    seen = clean[..., 1] > 0
    alone = clean[..., 1] == 1
    np.testing.assert_allclose(probs[..., 1][seen & ~alone], 0.5, atol=1e-6)
    if size:
        with pytest.raises(EditError, match="layer 2, because that layer has a window"):
            engine.read(text_request(TEXT, edits=[{**edit, "position": 7}]), "probs", 2)


def test_a_head_in_many_texts_has_the_key_that_it_reads(engine: Engine) -> None:
    (*_, answer) = engine.collect(((TEXT,), ("a small horse",)), 2, 3)
    assert answer is not None
    for name in ("query", "key"):
        each = [
            getattr(engine.model.trace(text)[2, 3], name)[0] for text in (TEXT, "a small horse")
        ]
        np.testing.assert_array_equal(answer.blocks[name], torch.cat(each).numpy())
    window = engine.config.window(2)
    assert (answer.body["softCap"], answer.body["window"]) == (
        engine.config.attention_soft_cap,
        window,
    )


def test_a_sweep_and_a_next_token_are_those_of_the_model(engine: Engine) -> None:
    (*_, answer) = engine.sweep(text_request(TEXT), Question(3, 7))
    trace = engine.model.trace(TEXT)
    changed = trace.rerun({("z", 1, 2): zero}).logits[0, 3].log_softmax(-1)[7]
    expected = changed - trace.logits[0, 3].log_softmax(-1)[7]
    assert answer is not None
    assert answer.blocks["values"][1, 2] == pytest.approx(float(expected.detach()), abs=1e-4)
    assert engine.about().body["built"]["keyHeads"] == engine.config.n_kv_heads
    if engine.predicts == "causal":
        step = engine.step(text_request(TEXT), {"temperature": 0.0})
        assert step.body["chosen"]["id"] == int(trace.logits[0, -1].argmax())


def test_get_attention_gives_each_head_the_key_that_it_reads(engine: Engine) -> None:
    found = get_attention(engine.model, None, None, "a small horse", include_queries_and_keys=True)[
        "all"
    ]
    trace = engine.model.trace("a small horse")
    for head in range(4):
        expected = trace[1, head].key[0].tolist()
        assert found["keys"][1][head] == pytest.approx(np.array(expected), abs=1e-6)
