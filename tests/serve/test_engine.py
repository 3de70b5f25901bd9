"""The engine behind a page, against Python directly, for models of every kind."""

import dataclasses
import json
from typing import Any

import numpy as np
import pytest
import torch
from small_traces import OTHER_KINDS, other_model

import minibert
from minibert.analysis.lens import logit_lens
from minibert.errors import EditError, MinibertError, TokenizationError
from minibert.layers.config import Config
from minibert.model import Model
from minibert.quantities import QUANTITIES
from minibert.trace.edit import mean, replace, zero
from minibert.viz.neuron_view import get_attention
from minibert.viz.payload import pool
from minibert.viz.serve.engine import Answer, Engine, Passes
from minibert.viz.serve.requests import Question
from tests.served import text_request

EMBEDDED = ("tiny-bert", "tiny-gpt2")
TEXT = {
    "tiny-bert": "the horse [MASK] away .",
    "tiny-gpt2": "The boys saw the horse there",
    **dict.fromkeys(OTHER_KINDS, "Once upon a time there was a small horse"),
}
# As many tokens as the text has.
OTHER = {"tiny-bert": "one boat was down now", "tiny-gpt2": "One day in the garden there"}
EDIT = {"quantity": "z", "change": "zero", "layer": 1, "head": 2}


@pytest.fixture(scope="module", params=EMBEDDED)
def engine(request: pytest.FixtureRequest) -> Engine:
    return Engine(minibert.load(request.param))


@pytest.fixture(scope="module", params=[*EMBEDDED, *OTHER_KINDS])
def any_engine(request: pytest.FixtureRequest) -> Engine:
    """That of an embedded model, or of a random one with the tokenizer of one."""
    if request.param in EMBEDDED:
        return Engine(minibert.load(request.param))
    masked = request.param == "modernbert"
    tokenizer = minibert.load("tiny-bert" if masked else "tiny-gpt2").tokenizer
    assert tokenizer is not None
    task = "masked-lm" if masked else "causal-lm"
    model = other_model(request.param, vocab_size=tokenizer.vocab_size, task=task)
    model.tokenizer, model.name = tokenizer, request.param
    return Engine(model)


def edited(engine: Engine, *edits: dict[str, Any]) -> Any:
    request = text_request(TEXT[engine.name], edits=edits)
    return engine.read(request, "logits", None).blocks["values"]


def swept(engine: Engine, *request: Any) -> Answer:
    (*turns, answer) = engine.sweep(*request)
    assert turns == [None] * engine.config.n_layers
    assert answer is not None
    return answer


def test_about_is_the_models_config(engine: Engine) -> None:
    about, config = engine.about().body, engine.config
    bert = engine.name == "tiny-bert"
    assert about == {
        "model": engine.name, "family": config.family, "layers": 4, "heads": 4, "dHead": 32,
        "dModel": 128, "dMlp": 512, "positions": config.n_positions,
        "vocabulary": config.vocab_size, "pairs": bert,
        "predicts": "masked" if bert else "causal", "mask": "[MASK]" if bert else None,
        "built": {
            "norm": "after" if bert else "before", "normKind": "layer", "plusOne": False,
            "firstNorm": True, "eps": config.norm_eps, "parallel": False, "keyHeads": 4,
            "queryKeyNorm": "none", "rotary": False, "gated": False,
            "activation": config.activation, "headActivation": config.activation,
            "embedScale": 1.0, "positions": True, "positionOffset": 0, "segments": bert,
            "embedNorm": bert, "embedProject": False, "finalNorm": not bert, "transform": bert,
            "logitSoftCap": None,
        },
    }  # fmt: skip


def test_the_folder_of_a_model_is_nobodys_business(tmp_path: Any) -> None:
    model = minibert.load()
    named = Model(model.config, tokenizer=model.tokenizer, name=str(tmp_path / "mine"))
    assert Engine(named).about().body["model"] == "mine"


def test_a_pass_holds_what_the_views_draw(any_engine: Engine) -> None:
    text = TEXT[any_engine.name]
    trace = any_engine.model.trace(text)
    answer = any_engine.trace(text_request(text), ("probs-2", "thumbnails"))
    header = answer.body["header"]
    assert header["tokens"]["text"] == list(trace.tokens.strings[0])
    assert header["texts"] == [text]
    assert not header["edited"]
    # This text is too short for thumbnails.
    assert list(answer.blocks) == ["probs-2"]
    names = [entry["block"] for entry in header["arrays"]]
    assert len(names) == len(set(names)) == 4 * len(header["layers"])
    assert header.get("soft_cap") == any_engine.config.attention_soft_cap
    for entry in header["arrays"]:
        (block,) = any_engine.block(text_request(text), (entry["block"],)).blocks.values()
        assert list(block.shape) == entry["shape"]
        assert block.dtype.name == entry["dtype"]
        expected = trace[entry["layer"]].quantity(entry["quantity"])[0].numpy()
        if entry["quantity"] == "probs":
            np.testing.assert_allclose((block / 255.0) ** 2, expected, atol=4e-3)
        else:
            np.testing.assert_array_equal(block, expected)


def test_every_quantity_is_read_or_refused_by_reason(any_engine: Engine) -> None:
    trace = any_engine.model.trace(TEXT[any_engine.name])
    for name, quantity in QUANTITIES.items():
        layer = 1 if quantity.per_layer else None
        if name in any_engine.config.absent_quantities:
            with pytest.raises(MinibertError, match=name):
                any_engine.read(text_request(TEXT[any_engine.name]), name, layer)
            continue
        found = any_engine.read(text_request(TEXT[any_engine.name]), name, layer).blocks["values"]
        expected = getattr(trace if layer is None else trace[layer], name)[0].float().numpy()
        np.testing.assert_array_equal(found, expected)


def test_the_predictions_are_those_of_predict(engine: Engine) -> None:
    text = TEXT[engine.name]
    (found,) = engine.trace(text_request(text)).body["predictions"]
    (expected,) = engine.model.predict(text, top=20)
    assert found["position"] == expected.position
    assert [one["text"] for one in found["candidates"]] == [c.label for c in expected.choices]
    assert [one["id"] for one in found["candidates"]] == [c.id for c in expected.choices]
    probs = [one["prob"] for one in found["candidates"]]
    assert probs == pytest.approx([choice.probability for choice in expected.choices], rel=1e-5)
    logits = engine.model(text)[0, expected.position]
    assert found["candidates"][3]["logit"] == pytest.approx(float(logits[expected.choices[3].id]))


def test_the_numbers_of_an_edited_pass_are_those_of_python(engine: Engine) -> None:
    text, other = TEXT[engine.name], OTHER[engine.name]
    clean, source = engine.model.trace(text), engine.model.trace(other)
    edits = [
        EDIT,
        {"quantity": "mlp_out", "change": "mean", "layer": 0},
        {"quantity": "attn_out", "change": "text", "layer": 3},
    ]
    expected = engine.model.trace(
        text,
        edit={("z", 1, 2): zero, ("mlp_out", 0): mean(clean), ("attn_out", 3): replace(source)},
    )
    request = text_request(text, edits=edits, other=[other])
    for name, quantity in QUANTITIES.items():
        if name in engine.config.absent_quantities:
            continue
        layer = 2 if quantity.per_layer else None
        answer = engine.read(request, name, layer)
        holder = expected if layer is None else expected[layer]
        wanted = getattr(holder, name)[0].float().numpy()
        assert answer.body["shape"] == list(wanted.shape)
        np.testing.assert_array_equal(answer.blocks["values"], wanted)


def test_keys_and_values_are_edited_by_key_value_head(any_engine: Engine) -> None:
    text = TEXT[any_engine.name]
    config = any_engine.config
    last = config.n_kv_heads - 1
    for name in {"key", "value", "key_unrotated"} - config.absent_quantities:
        found = edited(any_engine, {"quantity": name, "change": "zero", "layer": 1, "head": last})
        expected = any_engine.model.trace(text, edit={(name, 1, last): zero}).logits[0]
        np.testing.assert_array_equal(found, expected.numpy())
        beyond = {"quantity": name, "change": "zero", "layer": 1, "head": last + 1}
        with pytest.raises(EditError, match=rf"no head {last + 1}; expected 0 to {last}"):
            edited(any_engine, beyond)
    # A single place of it, and the mean over positions, reach the same head.
    place = {"quantity": "key", "layer": 2, "head": last, "position": 3}
    found = edited(any_engine, {**place, "change": "set", "neuron": 5, "value": 0.25})

    def one_number(key: torch.Tensor) -> torch.Tensor:
        key[:, last, 3, 5] = 0.25
        return key

    expected = any_engine.model.trace(text, edit={("key", 2): one_number}).logits[0]
    np.testing.assert_allclose(found, expected.numpy(), rtol=1e-5, atol=1e-5)


def test_what_the_model_does_not_have_is_not_edited(any_engine: Engine) -> None:
    for name in any_engine.config.absent_quantities:
        with pytest.raises(EditError, match=name):
            edited(any_engine, {"quantity": name, "change": "zero", "layer": 1})


def test_a_weight_that_is_set_stays_in_the_window(any_engine: Engine) -> None:
    text = TEXT[any_engine.name]
    size = any_engine.config.windows[2] if any_engine.config.windows else 0
    edit = {"quantity": "probs", "change": "set", "layer": 2, "key": 1, "value": 0.5}
    request = text_request(text, edits=[edit])
    clean = any_engine.model.trace(text)[2].probs[0].numpy()
    probs = any_engine.read(request, "probs", 2).blocks["values"]
    np.testing.assert_allclose(probs.sum(-1), 1, atol=1e-5)
    assert (probs[clean == 0] == 0).all()
    seen = clean[..., 1] > 0
    alone = clean[..., 1] == 1
    np.testing.assert_allclose(probs[..., 1][seen & ~alone], 0.5, atol=1e-6)
    if size:
        with pytest.raises(EditError, match="layer 2, because that layer has a window"):
            any_engine.read(text_request(text, edits=[{**edit, "position": 7}]), "probs", 2)


@pytest.mark.parametrize(("quantity", "edited"), [("z", False), ("scores", True), ("probs", True)])
def test_weights_that_do_not_come_from_the_vectors_are_marked(
    engine: Engine, quantity: str, edited: bool
) -> None:
    edit = {"quantity": quantity, "change": "text", "layer": 1}
    request = text_request(TEXT[engine.name], edits=[edit], other=[OTHER[engine.name]])
    assert engine.trace(request).body["header"]["edited"] == edited


def test_a_sweep_is_a_pass_for_each_head(any_engine: Engine) -> None:
    text, position, token = TEXT[any_engine.name], 3, 7
    n_layers, n_heads = any_engine.config.n_layers, any_engine.config.n_heads
    request = text_request(text, edits=[{**EDIT, "layer": 2}])
    given = {("z", 2, 2): zero}

    def log_prob(edit: dict[Any, Any]) -> float:
        logits = any_engine.model.trace(text, edit=edit).logits[0, position]
        return float(logits.double().log_softmax(-1)[token])

    expected = [
        [log_prob(given | {("z", layer, head): zero}) - log_prob(given) for head in range(n_heads)]
        for layer in range(n_layers)
    ]
    answer = swept(any_engine, request, Question(position, token))
    assert answer.body == {"shape": [n_layers, n_heads]}
    np.testing.assert_allclose(answer.blocks["values"], expected, atol=2e-5)
    assert answer.blocks["values"][2, 2] == pytest.approx(0, abs=2e-5)


def test_a_sweep_with_an_edit_of_logits(engine: Engine) -> None:
    edit = {"quantity": "logits", "change": "set", "position": 3, "value": 0.5}
    answer = swept(engine, text_request(TEXT[engine.name], edits=[edit]), Question(3, 7))
    np.testing.assert_allclose(answer.blocks["values"], 0, atol=1e-6)


def test_a_step_writes_what_generate_writes() -> None:
    engine, text = Engine(minibert.load("tiny-gpt2")), TEXT["tiny-gpt2"]
    for seed in range(5):
        sampling = {"temperature": 0.9, "topK": 30, "topP": 0.8, "seed": seed}
        step = engine.step(text_request(text), sampling).body
        wanted = engine.model.generate(
            text, max_new_tokens=1, temperature=0.9, top_k=30, top_p=0.8, seed=seed
        )
        assert step["text"] == wanted.text
        assert step["chosen"]["id"] == wanted.new_ids[0]
        assert sum(step["drawn"]) <= 1 + 1e-9
        assert step["drawn"] == sorted(step["drawn"], reverse=True)
    greedy = engine.step(text_request(text), {"temperature": 0}).body
    assert greedy["chosen"] == greedy["candidates"][0]
    assert greedy["drawn"][:2] == [1, 0]


def test_a_step_follows_the_edits() -> None:
    engine, text = Engine(minibert.load("tiny-gpt2")), TEXT["tiny-gpt2"]
    edit = {"quantity": "attn_out", "change": "zero"}
    step = engine.step(text_request(text, edits=[edit]), {"temperature": 0}).body
    trace = engine.model.trace(text, edit={("attn_out", layer): zero for layer in range(4)})
    assert step["chosen"]["id"] == int(trace.logits[0, -1].argmax())


def test_a_next_token_is_that_of_the_model(any_engine: Engine) -> None:
    if any_engine.predicts == "causal":
        text = TEXT[any_engine.name]
        step = any_engine.step(text_request(text), {"temperature": 0.0})
        assert step.body["chosen"]["id"] == int(any_engine.model.trace(text).logits[0, -1].argmax())


def test_long_texts_have_thumbnails() -> None:
    engine = Engine(minibert.load())
    request = text_request("the horse ran " * 24)
    (entry, *_), trace = (
        engine.trace(request).body["header"]["arrays"],
        engine.model.trace("the horse ran " * 24),
    )
    assert entry["quantity"] == "thumbnails"
    block = engine.block(request, ("thumbnails",)).blocks["thumbnails"]
    assert list(block.shape) == entry["shape"] == [4, 4, 64, 64]
    expected = pool(trace[3].probs[0].numpy())
    np.testing.assert_allclose((block[3] / 255.0) ** 2, expected, atol=4e-3)


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


def test_a_head_in_many_texts_has_the_key_that_it_reads(any_engine: Engine) -> None:
    text = TEXT[any_engine.name]
    (*turns, answer) = any_engine.collect(((text,), ("a small horse",)), 2, 3)
    assert answer is not None
    assert turns == [None, None]
    assert [one["texts"] for one in answer.body["from"]] == [
        [text],
        ["a small horse"],
    ]
    for name in ("query", "key"):
        each = [
            getattr(any_engine.model.trace(text)[2, 3], name)[0] for text in (text, "a small horse")
        ]
        np.testing.assert_array_equal(answer.blocks[name], torch.cat(each).numpy())
    window = any_engine.config.window(2)
    assert (answer.body["softCap"], answer.body["window"]) == (
        any_engine.config.attention_soft_cap,
        window,
    )
    with pytest.raises(MinibertError, match="layer 1, head 4"):
        list(any_engine.collect(((text,),), 1, 4))


def test_candidates_are_those_of_the_logits_at_any_position(engine: Engine) -> None:
    text = TEXT[engine.name]
    logits = engine.model.trace(text).logits[0, 1]
    first = engine.candidates(text_request(text), 1).body[0]
    assert first["id"] == int(logits.argmax())
    assert first["prob"] == pytest.approx(float(logits.softmax(-1).max()), rel=1e-5)
    with pytest.raises(MinibertError, match="position 99"):
        engine.candidates(text_request(text), 99)


def test_what_each_layer_would_predict_is_a_block_that_is_asked_for(engine: Engine) -> None:
    request = text_request(TEXT[engine.name])
    name = engine.trace(request).body["header"]["lens"]["block"]
    found = json.loads(engine.block(request, (name,)).blocks[name].tobytes())
    trace = engine.model.trace(TEXT[engine.name])
    expected = logit_lens(trace, points=("embed", "resid_post"), top=5)
    assert found["points"] == list(expected.rows)
    assert found["strings"] == [[list(ranks) for ranks in row[0]] for row in expected.strings]
    # They are written with five decimals.
    np.testing.assert_allclose(found["probs"], expected.probs[:, 0].numpy(), rtol=0, atol=5e-6)


def test_a_model_without_a_head_over_words_has_no_lens(engine: Engine) -> None:
    config = dataclasses.replace(engine.config, task="none", causal=engine.config.causal)
    bare = Engine(Model.from_config(config, tokenizer=engine.tokenizer, seed=0))
    request = text_request(TEXT[engine.name])
    assert bare.trace(request).body["header"]["lens"] is None
    with pytest.raises(MinibertError, match="no block 'lens'"):
        bare.block(request, ("lens",))


def test_get_attention_gives_each_head_the_key_that_it_reads(any_engine: Engine) -> None:
    found = get_attention(
        any_engine.model, None, None, "a small horse", include_queries_and_keys=True
    )["all"]
    trace = any_engine.model.trace("a small horse")
    for head in range(any_engine.config.n_heads):
        expected = trace[1, head].key[0].tolist()
        assert found["keys"][1][head] == pytest.approx(np.array(expected), abs=1e-6)


SIZES: dict[str, Any] = {
    "vocab_size": 4096, "n_positions": 37, "n_layers": 3, "n_heads": 2, "d_model": 14, "d_mlp": 17,
}  # fmt: skip


@pytest.mark.parametrize(
    ("family", "task", "predicts"),
    [
        ("bert", "none", "none"), ("bert", "masked-lm", "masked"),
        ("bert", "pre-training", "masked"), ("bert", "causal-lm", "causal"),
        ("bert", "next-sentence", "none"), ("roberta", "masked-lm", "masked"),
        ("distilbert", "question-answering", "none"), ("electra", "pre-training", "none"),
        ("albert", "token-classification", "none"), ("gpt2", "none", "none"),
        ("gpt2", "sequence-classification", "classes"),
    ],
)  # fmt: skip
def test_every_family_and_head_has_a_page(family: str, task: str, predicts: str) -> None:
    more: dict[str, Any] = {"causal": family == "gpt2" or task == "causal-lm"}
    if "classification" in task:
        more["labels"] = ("a", "b", "c")
    pooled = task in ("next-sentence", "pre-training") and family == "bert"
    config = Config(**SIZES, family=family, task=task, pooler=pooled, **more)
    model = Model.from_config(config, tokenizer=minibert.load().tokenizer, name="any")
    engine = Engine(model)
    assert engine.about().body["predicts"] == predicts
    request = text_request("the horse [MASK] away .", edits=[{**EDIT, "head": 1}])
    answer = engine.trace(request, ("probs-1",))
    assert len(answer.body["predictions"]) == (predicts != "none")
    assert answer.blocks["probs-1"].shape == (2, 7, 7)
    if predicts == "none":
        with pytest.raises(MinibertError, match=f"its task is {task}"):
            list(engine.sweep(request, Question(0, 0)))


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["the horse " * 300], r"has 602 tokens, and tiny-bert has \d+ positions"),
        (["a" * 100_001], "has 100001 characters"),
        ([""], "empty|no token"),
        (["the horse", ""], "empty|no token"),
        (["\ud800"], "surrogate"),
    ],
)
def test_a_text_that_cannot_be_read_is_refused(texts: list[str], message: str) -> None:
    with pytest.raises(TokenizationError, match=message):
        Engine(minibert.load()).trace(text_request(*texts))


def test_what_a_model_does_not_have_is_refused(engine: Engine) -> None:
    request, edited = text_request(TEXT[engine.name]), text_request(TEXT[engine.name], edits=[7])
    for name in ("probs-4", "probs-00", "../x", "thumbnails", "z-1", ""):
        with pytest.raises(MinibertError, match="There is no block"):
            engine.block(request, (name,))
    for quantity, layer, message in (
        ("Z", 0, "is no quantity"), ("z", None, "say which layer"), ("z", 4, "no layer 4"),
        ("logits", 0, "leave the layer out"), ("z", 2**40, "no layer"),
    ):  # fmt: skip
        with pytest.raises(MinibertError, match=message):
            engine.read(request, quantity, layer)
    with pytest.raises(EditError, match="Edit 1"):
        engine.trace(edited)
    size = engine.config.vocab_size
    with pytest.raises(MinibertError, match=f"below {size}"):
        list(engine.sweep(request, Question(0, size)))
    if engine.predicts == "causal":
        with pytest.raises(TokenizationError, match="takes one text"):
            engine.trace(text_request("a", "b"))
    else:
        with pytest.raises(MinibertError, match="writes no next token"):
            engine.step(request, {"temperature": 1})


def test_an_edit_that_leaves_no_numbers_is_refused(engine: Engine) -> None:
    edit = {"quantity": "resid_post", "change": "set", "value": 3e38, "layer": 3}
    edits = [{**edit, "neuron": neuron} for neuron in range(0, 128, 2)]
    with pytest.raises(MinibertError, match="NaN or infinity"):
        engine.trace(text_request(TEXT[engine.name], edits=edits))


def test_a_model_without_a_tokenizer_has_no_page() -> None:
    with pytest.raises(TokenizationError, match="a page takes text"):
        Engine(Model(minibert.load().config))


def test_passes_are_kept_within_a_budget_and_made_again() -> None:
    model, one = minibert.load(), Passes()
    one.get("", lambda: model.trace("the horse ran"))
    passes = Passes(most_bytes=6 * one.n_bytes)
    made: list[str] = []

    def get(text: str) -> None:
        passes.get(text, lambda: made.append(text) or model.trace(text))  # type: ignore[func-returns-value]

    texts = [f"the horse {word}" for word in ("ran", "sat", "ate", "was", "had", "saw", "is", "a")]
    for text in (*texts, texts[-1]):
        get(text)
        assert passes.n_bytes <= passes.most_bytes
    assert 4 < len(passes) < len(texts)
    assert made == texts
    get(texts[0])
    assert made == [*texts, texts[0]]


def test_a_pass_with_edits_shares_the_layers_below(engine: Engine) -> None:
    request = text_request(TEXT[engine.name], edits=[{**EDIT, "layer": 3}])
    engine.trace(request)
    before, after = engine.passes.n_bytes, len(engine.passes)
    engine.trace(request)
    assert (engine.passes.n_bytes, len(engine.passes)) == (before, after)
    clean, _ = engine._edited(text_request(TEXT[engine.name]))
    edited, _ = engine._edited(request)
    assert edited[1].z.data_ptr() == clean[1].z.data_ptr()
    assert not torch.equal(edited[3].resid_post, clean[3].resid_post)
