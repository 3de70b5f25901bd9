"""The engine behind a page: what it says, keeps and refuses; its numbers are in tests/live."""

import numpy as np
import pytest
from live.drawn import random_model
from live.engines import EngineHere

import minibert
from minibert.errors import EditError, MinibertError, TokenizationError
from minibert.model import Model
from minibert.quantities import QUANTITIES
from minibert.viz.serve.engine import Engine, Passes
from tests.served import request

TEXT = {"tiny-bert": "the horse [MASK] away .", "tiny-gpt2": "The boys saw the horse there"}
GROUPED = "Once upon a time there was a small horse"


@pytest.fixture(scope="module", params=list(TEXT))
def here(request):
    return EngineHere(minibert.load(request.param))


@pytest.fixture(scope="module", params=["llama", "gemma2"])
def grouped(request):
    """Of a model whose heads share keys, with windows."""
    return EngineHere(random_model(request.param))


def test_about_is_the_models_config(here):
    about, config = here.answer("about"), here.engine.config
    bert = here.engine.name == "tiny-bert"
    assert about.pop("built")["norm"] == ("after" if bert else "before")
    assert about == {
        "model": here.engine.name, "family": config.family, "layers": 4, "heads": 4, "dHead": 32,
        "dModel": 128, "dMlp": 512, "positions": config.n_positions,
        "vocabulary": config.vocab_size, "pairs": bert,
        "predicts": "masked" if bert else "causal", "mask": "[MASK]" if bert else None,
        "features": None,
    }  # fmt: skip


def test_every_quantity_is_read_or_refused_by_reason(grouped):
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


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["the horse " * 300], r"has 602 tokens, and tiny-bert has \d+ positions"),
        (["a" * 100_001], "has 100001 characters"),
        (["the horse", ""], "empty|no token"),
        (["\ud800"], "surrogate"),
    ],
)
def test_a_text_that_cannot_be_read_is_refused(texts, message):
    with pytest.raises(TokenizationError, match=message):
        EngineHere(minibert.load()).trace(request(texts))


@pytest.mark.parametrize(
    ("ask", "question", "message"),
    [
        *(("block", {"blocks": [name]}, "There is no block")
          for name in ("probs-4", "probs-00", "../x", "thumbnails", "z-1")),
        ("read", {"quantity": "Z", "layer": 0}, "is not a quantity"),
        ("read", {"quantity": "z", "layer": None}, "say which layer"),
        ("read", {"quantity": "z", "layer": 4}, "no layer 4"),
        ("read", {"quantity": "logits", "layer": 0}, "leave the layer out"),
        ("candidates", {"position": 99}, "position 99"),
        ("weights", {"quantity": "attention.query.weight", "layer": 4, "row": 0}, "layer 4"),
        ("weights", {"quantity": "attention.query.weight", "layer": 0, "row": 128}, "no row 128"),
        ("sweep", {"question": {"position": 0, "id": 9999}}, "expected a position below"),
        ("trace", {"edits": [{}]}, "Edit 1"),
    ],
)  # fmt: skip
def test_what_a_model_does_not_have_is_refused(here, ask, question, message):
    question = {**question, "request": request([TEXT[here.engine.name]], question.get("edits", ()))}
    with pytest.raises(MinibertError, match=message):
        here.answer(ask, **question)


def test_a_model_is_asked_only_what_it_can_do(here):
    if here.engine.predicts == "causal":
        with pytest.raises(TokenizationError, match="takes one text"):
            here.trace(request(["a", "b"]))
    else:
        with pytest.raises(MinibertError, match="writes no next token"):
            here.answer("step", request=request(["a"]), sampling={"temperature": 1})
    assert here.answer("weights", quantity="nothing.weight", layer=2) == {"found": None}
    with pytest.raises(TokenizationError, match="has no tokenizer: put"):
        Engine(Model(here.engine.config))


def test_passes_are_kept_within_a_budget_and_made_again():
    model, one = minibert.load(), Passes()
    one.get("", lambda: model.trace("the horse ran"))
    passes = Passes(most_bytes=6 * one.n_bytes)
    made: list[str] = []

    def get(text: str) -> None:
        passes.get(text, lambda: made.append(text) or model.trace(text))

    texts = [f"the horse {word}" for word in ("ran", "sat", "ate", "was", "had", "saw", "is", "a")]
    for text in (*texts, texts[-1]):
        get(text)
        assert passes.n_bytes <= passes.most_bytes
    assert 4 < len(passes) < len(texts)
    assert made == texts
    get(texts[0])
    assert made == [*texts, texts[0]]
