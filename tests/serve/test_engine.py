"""The engine behind a page, against Python directly."""

from typing import Any

import numpy as np
import pytest
import torch

import minibert
from minibert.errors import EditError, MinibertError, TokenizationError
from minibert.layers.config import Config
from minibert.model import Model
from minibert.quantities import QUANTITIES
from minibert.trace.edit import mean, replace, zero
from minibert.viz.payload import pool
from minibert.viz.serve.engine import Answer, Engine, Passes
from minibert.viz.serve.requests import Question
from tests.served import text_request

TEXT = {"tiny-bert": "the horse [MASK] away .", "tiny-gpt2": "The boys saw the horse there"}
OTHER = {"tiny-bert": "one boat was down now", "tiny-gpt2": "One day in the garden there"}
EDIT = {"quantity": "z", "change": "zero", "layer": 1, "head": 2}


@pytest.fixture(scope="module", params=list(TEXT))
def engine(request: pytest.FixtureRequest) -> Engine:
    return Engine(minibert.load(request.param))


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


def test_a_pass_holds_what_the_views_draw(engine: Engine) -> None:
    text = TEXT[engine.name]
    trace = engine.model.trace(text)
    answer = engine.trace(text_request(text), ("probs-2", "thumbnails"))
    header = answer.body["header"]
    assert header["tokens"]["text"] == list(trace.tokens.strings[0])
    assert header["texts"] == [text]
    assert not header["edited"]
    # This text is too short for thumbnails.
    assert list(answer.blocks) == ["probs-2"]
    names = [entry["block"] for entry in header["arrays"]]
    assert len(names) == len(set(names)) == 16
    for entry in header["arrays"]:
        (block,) = engine.block(text_request(text), (entry["block"],)).blocks.values()
        assert list(block.shape) == entry["shape"]
        assert block.dtype.name == entry["dtype"]
        expected = trace[entry["layer"]].quantity(entry["quantity"])[0].numpy()
        if entry["quantity"] == "probs":
            np.testing.assert_allclose((block / 255.0) ** 2, expected, atol=4e-3)
        else:
            np.testing.assert_array_equal(block, expected)


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


@pytest.mark.parametrize(("quantity", "edited"), [("z", False), ("scores", True), ("probs", True)])
def test_weights_that_do_not_come_from_the_vectors_are_marked(
    engine: Engine, quantity: str, edited: bool
) -> None:
    edit = {"quantity": quantity, "change": "text", "layer": 1}
    request = text_request(TEXT[engine.name], edits=[edit], other=[OTHER[engine.name]])
    assert engine.trace(request).body["header"]["edited"] == edited


def test_a_sweep_is_a_pass_for_each_head(engine: Engine) -> None:
    text, position, token = TEXT[engine.name], 3, 7
    request = text_request(text, edits=[{**EDIT, "layer": 2}])
    given = {("z", 2, 2): zero}

    def log_prob(edit: dict[Any, Any]) -> float:
        logits = engine.model.trace(text, edit=edit).logits[0, position]
        return float(logits.double().log_softmax(-1)[token])

    expected = [
        [log_prob(given | {("z", layer, head): zero}) - log_prob(given) for head in range(4)]
        for layer in range(4)
    ]
    answer = swept(engine, request, Question(position, token))
    assert answer.body == {"shape": [4, 4]}
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
