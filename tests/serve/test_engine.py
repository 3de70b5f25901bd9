"""The engine behind a page: what it says, keeps and refuses; its numbers are in tests/live."""

from typing import Any

import numpy as np
import pytest
import torch
from live.drawn import random_model
from live.engines import EngineHere

import minibert
from minibert.errors import EditError, MinibertError, TokenizationError
from minibert.layers.config import Config
from minibert.model import Model
from minibert.quantities import QUANTITIES
from minibert.viz.serve.engine import Engine, Passes
from tests.served import request, text_request

TEXT = {"tiny-bert": "the horse [MASK] away .", "tiny-gpt2": "The boys saw the horse there"}
EDIT = {"quantity": "z", "change": "zero", "layer": 1, "head": 2}
GROUPED = "Once upon a time there was a small horse"


@pytest.fixture(scope="module", params=list(TEXT))
def here(request: pytest.FixtureRequest) -> EngineHere:
    return EngineHere(minibert.load(request.param))


@pytest.fixture(scope="module", params=["llama", "gemma2"])
def grouped(request: pytest.FixtureRequest) -> EngineHere:
    """Of a model whose heads share keys, with windows."""
    return EngineHere(random_model(request.param))


def test_about_is_the_models_config(here: EngineHere) -> None:
    about, config = here.answer("about"), here.engine.config
    bert = here.engine.name == "tiny-bert"
    assert about.pop("built")["norm"] == ("after" if bert else "before")
    assert about == {
        "model": here.engine.name, "family": config.family, "layers": 4, "heads": 4, "dHead": 32,
        "dModel": 128, "dMlp": 512, "positions": config.n_positions,
        "vocabulary": config.vocab_size, "pairs": bert,
        "predicts": "masked" if bert else "causal", "mask": "[MASK]" if bert else None,
    }  # fmt: skip


def test_the_folder_of_a_model_is_nobodys_business(tmp_path: Any) -> None:
    model = minibert.load()
    named = Model(model.config, tokenizer=model.tokenizer, name=str(tmp_path / "mine"))
    assert EngineHere(named).answer("about")["model"] == "mine"


def test_every_quantity_is_read_or_refused_by_reason(grouped: EngineHere) -> None:
    """Also those that the engine in a page does not compute."""
    model = grouped.engine.model
    trace, asked = model.trace(GROUPED), request([GROUPED])
    for name, quantity in QUANTITIES.items():
        layer = 1 if quantity.per_layer else None
        if name in model.config.absent_quantities:
            with pytest.raises(MinibertError, match=name):
                grouped.ask("read", request=asked, quantity=name, layer=layer)
            edit = {"quantity": name, "change": "zero", "layer": layer}
            with pytest.raises(EditError, match=name):
                grouped.trace(request([GROUPED], [edit]))
            continue
        found = grouped.answer("read", request=asked, quantity=name, layer=layer)["values"]
        expected = getattr(trace if layer is None else trace[layer], name)[0].float().numpy()
        np.testing.assert_array_equal(found, expected)


def test_a_weight_that_is_set_stays_in_the_window(grouped: EngineHere) -> None:
    edit = {"quantity": "probs", "change": "set", "layer": 1, "key": 1, "value": 0.5}
    clean = grouped.engine.model.trace(GROUPED)[1].probs[0].numpy()
    _, (probs,), _ = grouped.trace(request([GROUPED], [edit]), [("probs", 1)])
    np.testing.assert_allclose(probs.sum(-1), 1, atol=1e-5)
    assert (probs[clean == 0] == 0).all()
    seen = clean[..., 1]
    np.testing.assert_allclose(probs[..., 1][(seen > 0) & (seen < 1)], 0.5, atol=1e-6)
    if grouped.engine.config.window(1):
        with pytest.raises(EditError, match="layer 1, because that layer has a window"):
            grouped.trace(request([GROUPED], [{**edit, "position": 7}]))


SIZES: dict[str, Any] = {
    "vocab_size": 4096, "n_positions": 37, "n_layers": 3, "n_heads": 2, "d_model": 14, "d_mlp": 17,
}  # fmt: skip


@pytest.mark.parametrize(
    ("family", "task", "predicts"),
    [
        ("bert", "none", "none"), ("bert", "pre-training", "masked"),
        ("bert", "causal-lm", "causal"), ("bert", "next-sentence", "none"),
        ("roberta", "masked-lm", "masked"), ("distilbert", "question-answering", "none"),
        ("electra", "pre-training", "none"), ("albert", "token-classification", "none"),
        ("gpt2", "none", "none"), ("gpt2", "sequence-classification", "classes"),
    ],
)  # fmt: skip
def test_every_family_and_head_has_a_page(family: str, task: str, predicts: str) -> None:
    more: dict[str, Any] = {"causal": family == "gpt2" or task == "causal-lm"}
    if "classification" in task:
        more["labels"] = ("a", "b", "c")
    pooled = task in ("next-sentence", "pre-training") and family == "bert"
    config = Config(**SIZES, family=family, task=task, pooler=pooled, **more)
    here = EngineHere(Model.from_config(config, tokenizer=minibert.load().tokenizer, name="any"))
    assert here.answer("about")["predicts"] == predicts
    asked = request(["the horse [MASK] away ."], [{**EDIT, "head": 1}])
    answer, _, (probs,) = here.trace(asked, blocks=["probs-1"])
    assert len(answer["predictions"]) == (predicts != "none")
    assert len(probs) == 2 * 7 * 7
    if predicts == "none":
        assert answer["header"]["lens"] is None
        with pytest.raises(MinibertError, match=f"its task is {task}"):
            here.answer("sweep", request=asked, question={"position": 0, "id": 0})


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["the horse " * 300], r"has 602 tokens, and tiny-bert has \d+ positions"),
        (["a" * 100_001], "has 100001 characters"),
        (["the horse", ""], "empty|no token"),
        (["\ud800"], "surrogate"),
    ],
)
def test_a_text_that_cannot_be_read_is_refused(texts: list[str], message: str) -> None:
    with pytest.raises(TokenizationError, match=message):
        EngineHere(minibert.load()).trace(request(texts))


LARGE = [
    {"quantity": "resid_post", "change": "set", "value": 3e38, "layer": 3, "neuron": neuron}
    for neuron in range(0, 128, 2)
]


@pytest.mark.parametrize(
    ("ask", "question", "message"),
    [
        *(("block", {"blocks": [name]}, "There is no block")
          for name in ("probs-4", "probs-00", "../x", "thumbnails", "z-1")),
        ("read", {"quantity": "Z", "layer": 0}, "is no quantity"),
        ("read", {"quantity": "z", "layer": None}, "say which layer"),
        ("read", {"quantity": "z", "layer": 4}, "no layer 4"),
        ("read", {"quantity": "logits", "layer": 0}, "leave the layer out"),
        ("candidates", {"position": 99}, "position 99"),
        ("weights", {"quantity": "attention.query.weight", "layer": 4, "row": 0}, "layer 4"),
        ("weights", {"quantity": "attention.query.weight", "layer": 0, "row": 128}, "no row 128"),
        ("sweep", {"question": {"position": 0, "id": 9999}}, "expected a position below"),
        ("trace", {"edits": [{}]}, "Edit 1"),
        ("trace", {"edits": LARGE}, "NaN or infinity"),
    ],
)  # fmt: skip
def test_what_a_model_does_not_have_is_refused(
    here: EngineHere, ask: str, question: dict[str, Any], message: str
) -> None:
    question = {**question, "request": request([TEXT[here.engine.name]], question.get("edits", ()))}
    with pytest.raises(MinibertError, match=message):
        here.answer(ask, **question)


def test_a_model_is_asked_only_what_it_can_do(here: EngineHere) -> None:
    if here.engine.predicts == "causal":
        with pytest.raises(TokenizationError, match="takes one text"):
            here.trace(request(["a", "b"]))
    else:
        with pytest.raises(MinibertError, match="writes no next token"):
            here.answer("step", request=request(["a"]), sampling={"temperature": 1})
    assert here.answer("weights", quantity="nothing.weight", layer=2) == {"found": None}
    with pytest.raises(TokenizationError, match="a page takes text"):
        Engine(Model(here.engine.config))


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


def test_a_pass_with_edits_shares_the_layers_below(here: EngineHere) -> None:
    engine, text = here.engine, TEXT[here.engine.name]
    asked = text_request(text, edits=[{**EDIT, "layer": 3}])
    engine.trace(asked)
    before, after = engine.passes.n_bytes, len(engine.passes)
    engine.trace(asked)
    assert (engine.passes.n_bytes, len(engine.passes)) == (before, after)
    clean, _ = engine._edited(text_request(text))
    edited, _ = engine._edited(asked)
    assert edited[1].z.data_ptr() == clean[1].z.data_ptr()
    assert not torch.equal(edited[3].resid_post, clean[3].resid_post)
