"""What the picture of the whole model asks a server for, against Python directly."""

import dataclasses
import json

import numpy as np
import pytest

import minibert
from minibert.analysis.lens import logit_lens
from minibert.errors import MinibertError
from minibert.model import Model
from minibert.viz.serve.engine import Engine
from tests.served import text_request

TEXTS = {
    "tiny-bert": ("the horse [MASK] away .", "one boat was down now"),
    "tiny-gpt2": ("The boys saw the horse there", "One day in the garden there"),
}


@pytest.fixture(scope="module", params=list(TEXTS))
def engine(request: pytest.FixtureRequest) -> Engine:
    return Engine(minibert.load(request.param))


def test_a_weight_is_the_models_own(engine: Engine) -> None:
    query = engine.model.body.layers[2].attention.query.weight
    answer = engine.weights("attention.query.weight", 2, 5)
    np.testing.assert_array_equal(answer.blocks["values"], query[5].numpy())
    assert answer.body == {"shape": [128]}
    assert engine.weights("attention.nothing.weight", 2, None).body is None
    word = engine.weights("body.word.weight", None, None)
    np.testing.assert_array_equal(word.blocks["values"], engine.model.body.word.weight.numpy())
    for asked in (("attention.query.weight", 4, 0), ("attention.query.weight", 0, 128)):
        with pytest.raises(MinibertError, match=r"layer 4|no row 128"):
            engine.weights(*asked)


def test_a_head_is_collected_from_many_texts(engine: Engine) -> None:
    texts = tuple((one,) for one in TEXTS[engine.name])
    (*turns, answer) = engine.collect(texts, 1, 3)
    assert turns == [None, None]
    assert answer is not None
    assert [one["texts"] for one in answer.body["from"]] == [list(one) for one in texts]
    for name in ("query", "key"):
        expected = [getattr(engine.model.trace(*one)[1, 3], name)[0].numpy() for one in texts]
        np.testing.assert_allclose(answer.blocks[name], np.concatenate(expected), rtol=1e-5)
    with pytest.raises(MinibertError, match="layer 1, head 4"):
        list(engine.collect(texts, 1, 4))


def test_candidates_are_those_of_the_logits_at_any_position(engine: Engine) -> None:
    text = TEXTS[engine.name][0]
    logits = engine.model.trace(text).logits[0, 1]
    first = engine.candidates(text_request(text), 1).body[0]
    assert first["id"] == int(logits.argmax())
    assert first["prob"] == pytest.approx(float(logits.softmax(-1).max()), rel=1e-5)
    with pytest.raises(MinibertError, match="position 99"):
        engine.candidates(text_request(text), 99)


def test_what_each_layer_would_predict_is_a_block_that_is_asked_for(engine: Engine) -> None:
    request = text_request(TEXTS[engine.name][0])
    name = engine.trace(request).body["header"]["lens"]["block"]
    found = json.loads(engine.block(request, (name,)).blocks[name].tobytes())
    trace = engine.model.trace(TEXTS[engine.name][0])
    expected = logit_lens(trace, points=("embed", "resid_post"), top=5)
    assert found["points"] == list(expected.labels)
    assert found["strings"] == [[list(ranks) for ranks in row[0]] for row in expected.strings]
    # They are written with five decimals.
    np.testing.assert_allclose(found["probs"], expected.probs[:, 0].numpy(), rtol=0, atol=5e-6)


def test_a_model_without_a_head_over_words_has_no_lens(engine: Engine) -> None:
    config = dataclasses.replace(engine.config, task="none", causal=engine.config.causal)
    bare = Engine(Model.from_config(config, tokenizer=engine.tokenizer, seed=0))
    request = text_request(TEXTS[engine.name][0])
    assert bare.trace(request).body["header"]["lens"] is None
    with pytest.raises(MinibertError, match="no block 'lens'"):
        bare.block(request, ("lens",))
