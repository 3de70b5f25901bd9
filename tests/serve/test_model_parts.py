"""What the server answers beside passes: weights, predictions anywhere, a head of many texts."""

import numpy as np
import pytest

import minibert
from minibert.errors import MinibertError
from minibert.viz.serve.engine import Engine
from tests.served import text_request

TEXT = {"tiny-bert": "the horse [MASK] away .", "tiny-gpt2": "Once upon a time there"}
OTHER = "one boat was down now"


@pytest.fixture(scope="module", params=list(TEXT))
def engine(request: pytest.FixtureRequest) -> Engine:
    return Engine(minibert.load(request.param))


def test_weights_are_the_models_own(engine: Engine) -> None:
    named = dict(engine.model.named_parameters())
    row = engine.weights("attention.query.weight", 2, 5)
    assert np.array_equal(row.blocks["values"], named["body.groups.2.attention.query.weight"][5])
    assert row.body == {"shape": [128]}
    bias = engine.weights("body.position.weight", None, None)
    assert np.array_equal(bias.blocks["values"], named["body.position.weight"])
    assert engine.weights("attention.gate.weight", 2, None).body is None
    with pytest.raises(MinibertError, match="has 128 rows; there is no row 128"):
        engine.weights("attention.query.weight", 2, 128)
    with pytest.raises(MinibertError, match="no layer 4; the model has 4"):
        engine.weights("attention.query.weight", 4, None)


def test_candidates_are_those_of_any_position(engine: Engine) -> None:
    text = TEXT[engine.name]
    logits = engine.model.trace(text).logits[0, 1]
    found = engine.candidates(text_request(text), 1).body
    assert [one["id"] for one in found[:5]] == logits.topk(5).indices.tolist()
    with pytest.raises(MinibertError, match="Position 99 is none of"):
        engine.candidates(text_request(text), 99)


def test_a_head_of_many_texts_is_that_of_each(engine: Engine) -> None:
    texts = ((TEXT[engine.name],), (OTHER,))
    (*turns, answer) = engine.collect(texts, 1, 3)
    assert turns == [None, None]
    assert answer is not None
    traces = [engine.model.trace(*one) for one in texts]
    for name in ("query", "key"):
        expected = np.concatenate([getattr(trace[1, 3], name)[0] for trace in traces])
        assert np.array_equal(answer.blocks[name], expected)
    assert [one["texts"] for one in answer.body["from"]] == [list(one) for one in texts]
    assert answer.body["scale"] == pytest.approx(32**-0.5)
    with pytest.raises(MinibertError, match="There is no head 4 of layer 0"):
        next(engine.collect(texts, 0, 4))
