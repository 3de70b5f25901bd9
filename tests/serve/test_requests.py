"""Messages of a page: what is understood, and what is refused before anything is computed."""

import json
from typing import Any

import pytest

from minibert.viz.serve.engine import Message, Question, RequestError, TextRequest, read

REQUEST = {"texts": ["a"], "edits": []}


def message(**given: Any) -> dict[str, Any]:
    _, found = read(json.dumps({"number": 3, **given}))
    assert isinstance(found, Message), found
    return dict(found.given)


def test_a_question_is_read():
    sampling = {"temperature": 0.5, "topK": 3, "topP": None, "seed": 1}
    assert message(ask="about") == {}
    assert message(ask="trace", request=REQUEST, blocks=["probs-0"])["blocks"] == ("probs-0",)
    assert message(ask="read", request=REQUEST, quantity="z", layer=2)["layer"] == 2
    assert message(ask="step", request=REQUEST, sampling=sampling)["sampling"] == sampling
    assert message(ask="candidates", request=REQUEST, position=4)["position"] == 4
    found = message(ask="weights", quantity="body.word.weight", row=7)
    assert found == {"quantity": "body.word.weight", "layer": None, "row": 7}
    found = message(ask="sweep", request=REQUEST, question={"position": 1, "id": 9})
    assert found["question"] == Question(position=1, id=9)


def test_equal_requests_have_one_key():
    def key(**request: Any) -> str:
        return message(ask="block", request={**REQUEST, **request})["request"].key

    assert key() == key(other=["b"]) == TextRequest.plain(("a",)).key
    edit = {"quantity": "z", "change": "zero"}
    assert key(edits=[edit]) == key(edits=[dict(reversed(edit.items()))])
    assert (
        len({key(), key(texts=["a", "b"]), key(edits=[edit]), key(edits=[edit], other=["b"])}) == 4
    )


@pytest.mark.parametrize(
    "text",
    ["", "x", "[]", "3", "null", "{}", '{"number": -1}', '{"number": true}', '{"number": 1.5}',
     '{"number": 1e999}', '{"number": NaN}', '{"number": "1"}', "[" * 100_000, '{"a":' * 5_000,
     '{"number": ' + "9" * 5_000 + "}", "\x00", '{"number": 9007199254740992}'],
)  # fmt: skip
def test_what_has_no_number_is_no_message(text):
    with pytest.raises(RequestError, match="The message"):
        read(text)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({}, "ask is None"),
        ({"ask": "eval"}, "expected one of about, trace"),
        ({"ask": "trace"}, "None; expected an object with texts (a list of at most 1000"),
        ({"ask": "trace", "request": {"texts": "a"}}, "request is"),
        ({"ask": "trace", "request": {"texts": ["a", "b", "c"]}}, "one or two texts"),
        ({"ask": "trace", "request": {"texts": ["a"], "edits": {}}}, "request is"),
        ({"ask": "trace", "request": {"texts": ["a"], "edits": [7]}}, "request is"),
        ({"ask": "trace", "request": {"texts": ["a"], "more": 1}}, "request is"),
        ({"ask": "trace", "request": {**REQUEST, "other": "b"}}, "request is"),
        ({"ask": "trace", "request": REQUEST, "blocks": "probs-0"}, "is 'probs-0'; expected a"),
        ({"ask": "trace", "request": REQUEST, "blocks": ["a"] * 1001}, "blocks is"),
        ({"ask": "read", "request": REQUEST, "quantity": 3}, "quantity is 3; expected text"),
        ({"ask": "read", "request": REQUEST, "quantity": "z", "layer": -1}, "layer is -1"),
        ({"ask": "read", "request": REQUEST, "quantity": "z", "layer": True}, "layer is True"),
        ({"ask": "candidates", "request": REQUEST}, "position is None; expected a whole number"),
        ({"ask": "weights", "quantity": "a", "row": 2**53}, "row is 9007199254740992"),
        ({"ask": "sweep", "request": REQUEST, "question": {"position": 1}}, "question is"),
        ({"ask": "step", "request": REQUEST}, "sampling is None"),
        ({"ask": "step", "request": REQUEST, "sampling": {"temperature": "1"}}, "sampling is"),
        ({"ask": "step", "request": REQUEST, "sampling": {"temperature": 1, "topK": 0.5}}, "topK"),
        ({"ask": "step", "request": REQUEST, "sampling": {"temperature": 10**400}}, "sampling is"),
    ],
)
def test_what_is_wrong_is_said(given, why):
    number, found = read(json.dumps({"number": 3, **given}))
    assert number == 3
    assert isinstance(found, RequestError)
    assert why in str(found)
