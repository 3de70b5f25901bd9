"""The engine of a live page computes what Python computes, with edits and without."""

import base64
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from live.drawn import drawn_edits, python_edits, real_texts
from live.engine_process import EngineProcess
from small_traces import OTHER_KINDS, SERVED_KINDS, other_model
from test_front_end import node

import minibert
from minibert.answers.generate import Sampling
from minibert.layers.layer import layer_quantities
from minibert.trace.edit import zero
from minibert.viz.engine_edits import OFF_PAGES
from minibert.viz.live import live_page
from minibert.viz.payload import encode_probs, pool
from minibert.viz.serve.engine import Engine
from minibert.viz.serve.requests import Question
from tests.served import text_request

MODELS = ("tiny-bert", "tiny-gpt2", "tiny-llama")
TOLERANCE = 1e-4


@pytest.fixture(scope="module", params=MODELS)
def both(request: pytest.FixtureRequest) -> Iterator[tuple[Any, EngineProcess]]:
    """A model, and the engine of its page."""
    yield from opened(request.param)


@pytest.fixture(scope="module")
def continued() -> Iterator[tuple[Any, EngineProcess]]:
    """A model that writes text, and the engine of its page."""
    yield from opened("tiny-gpt2")


def opened(name: str) -> Iterator[tuple[Any, EngineProcess]]:
    yield from opened_model(minibert.load(name))


def opened_model(model: Any) -> Iterator[tuple[Any, EngineProcess]]:
    page = live_page(model)
    engine = EngineProcess(node())
    about = engine.open(page.header, page.weights)
    assert (about["model"], about["heads"]) == (model.name, model.config.n_heads)
    yield model, engine
    engine.close()


def random_model(kind: str, **changes: Any) -> Any:
    """A random model of another kind, with the tokenizer of an embedded one."""
    if kind in ("qwen3", "olmo2"):
        kind, changes = "llama", {"family": kind, "windows": ()} | changes
    if kind in SERVED_KINDS:
        kind, changes = "llama", SERVED_KINDS[kind] | changes
    masked = kind == "modernbert" or changes.get("causal") is False
    tokenizer = minibert.load("tiny-bert" if masked else "tiny-gpt2").tokenizer
    assert tokenizer is not None
    task = {"task": "masked-lm" if masked else "causal-lm", "vocab_size": tokenizer.vocab_size}
    model = other_model(kind, **(task | changes))
    model.tokenizer = tokenizer
    return model


BERT = {"family": "bert", "causal": False, "n_kv_heads": 4, "windows": (), "n_segments": 2}
CLASSES = {"task": "sequence-classification", "labels": ("bad", "good", "neither")}


def everything(model: Any) -> list[tuple[str, int | None]]:
    layers = range(model.config.n_layers)
    names = [name for name in layer_quantities(model.config) if name not in OFF_PAGES]
    return [
        ("embed", None),
        *((name, layer) for layer in layers for name in names),
        ("logits", None),
    ]


def of_python(trace: Any, name: str, layer: int | None) -> np.ndarray[Any, Any]:
    value = getattr(trace if layer is None else trace[layer], name)
    return value[0].numpy()


def compare(model: Any, engine: EngineProcess, request: dict[str, Any], trace: Any) -> None:
    """Every quantity, and the five most probable tokens at each place that is predicted."""
    answer, numbers, _ = engine.trace(request, everything(model))
    assert answer["header"]["tokens"]["text"] == list(trace.tokens.strings[0])
    for (name, layer), found in zip(everything(model), numbers, strict=True):
        expected = of_python(trace, name, layer)
        # Scores may be −inf.
        assert found.shape == expected.shape
        assert np.allclose(found, expected, rtol=0, atol=TOLERANCE), f"{name} of layer {layer}"
    for prediction in answer["predictions"]:
        of_text = model.config.task == "sequence-classification"
        logits = trace.logits[0] if of_text else trace.logits[0, prediction["position"]]
        chosen = [candidate["id"] for candidate in prediction["candidates"]][:5]
        # Where an edit makes logits equal any order is right.
        best = logits.topk(min(5, len(logits)))
        assert torch.allclose(logits[chosen], best.values, atol=TOLERANCE, rtol=0)
        probs = logits.double().softmax(-1)[chosen]
        found = [candidate["prob"] for candidate in prediction["candidates"]][:5]
        assert np.allclose(found, probs.numpy(), atol=TOLERANCE)
        if len(set(logits.tolist())) == len(logits):
            assert chosen == best.indices.tolist()


def test_every_quantity_is_that_of_python(both: tuple[Any, EngineProcess]) -> None:
    model, engine = both
    lengths = set()
    for texts in real_texts(100, seed=1):
        trace = model.trace(model.tokenize(*texts, truncate=True))
        lengths.add(trace.tokens.lengths[0])
        compare(model, engine, {"texts": texts, "edits": []}, trace)
    assert max(lengths) == model.config.n_positions


def test_every_quantity_is_that_of_python_after_edits(both: tuple[Any, EngineProcess]) -> None:
    model, engine = both
    draw = random.Random(2)
    changes = set()
    for texts in real_texts(25, seed=3):
        # The same words in another order: often, but not always, as many tokens.
        other = [" ".join(reversed(text.split())) for text in texts]
        clean, another = (
            model.trace(model.tokenize(*one, truncate=True)) for one in (texts, other)
        )
        sizes = (clean.tokens.lengths[0], another.tokens.lengths[0])
        edits = drawn_edits(draw, *sizes, model.config)
        changes |= {(edit["quantity"], edit["change"]) for edit in edits}
        edit = python_edits(edits, model.config.n_layers, clean, another)
        request = {"texts": texts, "edits": edits, "other": other}
        compare(model, engine, request, model.trace(clean.tokens, edit=edit))
    assert len(changes) > 25, changes


def test_a_text_that_is_typed_gives_the_bits_of_one_that_is_there(
    continued: tuple[Any, EngineProcess],
) -> None:
    model, typing = continued
    text = "the horse and the boat were in the river"
    for last in (text, text.replace("boat", "house")):
        # Letter by letter, then many taken back.
        for end in (*range(3, len(text)), 20):
            typing.trace({"texts": [text[:end]], "edits": []})
        _, found, _ = typing.trace({"texts": [last], "edits": []}, everything(model))
        fresh = opened("tiny-gpt2")
        _, engine = next(fresh)
        _, expected, _ = engine.trace({"texts": [last], "edits": []}, everything(model))
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_array_equal(one, other)
        assert next(fresh, None) is None


@pytest.mark.parametrize("kind", [*OTHER_KINDS, "qwen3", "olmo2"])
def test_models_of_other_kinds_give_python_s_numbers_before_and_after_edits(kind: str) -> None:
    model = random_model(kind)
    draw = random.Random(4)
    for _, engine in opened_model(model):
        for texts in real_texts(12, seed=5):
            texts = texts[:1] if model.config.causal else texts
            clean = model.trace(model.tokenize(*texts, truncate=True))
            compare(model, engine, {"texts": texts, "edits": []}, clean)
            length = clean.tokens.lengths[0]
            edits = drawn_edits(draw, length, length, model.config)
            mapping = python_edits(edits, model.config.n_layers, clean, clean)
            request = {"texts": texts, "edits": edits, "other": texts}
            compare(model, engine, request, clean.rerun(mapping))


@pytest.mark.parametrize("changes", [{}, {**BERT, "rotary": None, "pooler": True}])
def test_a_model_that_gives_classes_says_what_python_says(changes: Any) -> None:
    model = random_model("llama", **CLASSES, **changes)
    for _, engine in opened_model(model):
        for texts in real_texts(6, seed=6):
            texts = texts[:1] if model.config.causal else texts
            tokens = model.tokenize(*texts, truncate=True)
            clean = model.trace(tokens)
            compare(model, engine, {"texts": texts, "edits": []}, clean)
            edits = [{"quantity": "z", "change": "zero", "layer": 1, "head": 2}]
            without = clean.rerun({("z", 1, 2): zero})
            compare(model, engine, {"texts": texts, "edits": edits}, without)
            swept = engine.sweep({"texts": texts, "edits": []}, {"position": 0, "id": 1})
            change = without.logits[0].log_softmax(-1)[1] - clean.logits[0].log_softmax(-1)[1]
            assert swept[1, 2] == pytest.approx(float(change), abs=TOLERANCE)
            if sum(len(text.split()) for text in texts) > 20:
                continue
            served = Engine(model)
            (*_, answer) = served.sweep(text_request(*texts), Question(0, 1))
            assert answer is not None
            np.testing.assert_allclose(answer.blocks["values"], swept, atol=TOLERANCE)
            (said,) = served.trace(text_request(*texts)).body["predictions"]
            (own,) = engine.trace({"texts": texts, "edits": []})[0]["predictions"]
            assert [one["text"] for one in said["candidates"]] == [
                one["text"] for one in own["candidates"]
            ]


@pytest.mark.parametrize("text", ["a boring story .", "a beautiful story ."])
def test_the_trained_classifier_says_what_python_says(text: str) -> None:
    for model, engine in opened("tiny-bert-sentiment"):
        trace = model.trace(text)
        compare(model, engine, {"texts": [text], "edits": []}, trace)
        (said,) = engine.trace({"texts": [text], "edits": []})[0]["predictions"]
        order = trace.logits[0].argsort(descending=True).tolist()
        assert [one["text"] for one in said["candidates"]] == [
            model.config.labels[n] for n in order
        ]


def test_a_sweep_is_the_difference_that_zero_makes(both: tuple[Any, EngineProcess]) -> None:
    model, engine = both
    tokens = model.tokenize("The horse pulled the cart up the hill.")
    position, before = 4, {("mlp_out", 1): zero}
    request = {
        "texts": list(tokens.texts[0]),
        "edits": [{"quantity": "mlp_out", "change": "zero", "layer": 1}],
    }
    log_probs = model.trace(tokens, edit=before).logits[0, position].double().log_softmax(-1)
    found = engine.sweep(request, {"position": position, "id": (token := int(log_probs.argmax()))})
    assert found.shape == (model.config.n_layers, model.config.n_heads)
    for (layer, head), change in np.ndenumerate(found):
        trace = model.trace(tokens, edit={**before, ("z", layer, head): zero})
        expected = trace.logits[0, position].double().log_softmax(-1)[token] - log_probs[token]
        assert change == pytest.approx(float(expected), abs=TOLERANCE)


def test_a_run_is_to_the_views_what_a_static_page_is(both: tuple[Any, EngineProcess]) -> None:
    model, engine = both
    layers = range(model.config.n_layers)
    for texts in (("The horse turned.", "It was strong, naïve and unaffable."), ("word " * 90,)):
        trace = model.trace(model.tokenize(*texts))
        page = trace.view()
        example = page.examples[0]
        held = {block.name: base64.b64decode(block.data) for block in example.blocks}
        names = [f"{name}-{layer}" for layer in layers for name in ("probs", "query", "key")]
        names += ["thumbnails"] if "thumbnails" in held else []
        answer, _, found = engine.trace({"texts": texts, "edits": []}, blocks=names)
        header = answer["header"]
        for field in set(example.about) - {"arrays", "lens", "notes", "causal", "scale"}:
            assert header[field] == example.about[field], field
        assert header["scale"] == pytest.approx(example.about["scale"])
        assert header["causal"] == model.config.causal
        assert ("thumbnails" in held) == any(e["block"] == "thumbnails" for e in header["arrays"])
        for name, data in zip(names, found, strict=True):
            kind, _, layer = name.partition("-")
            if kind in ("query", "key"):
                expected = getattr(trace[int(layer)], kind)[0].numpy()
                given = np.frombuffer(data, np.float32).reshape(expected.shape)
                assert np.abs(given - expected).max() <= TOLERANCE
            else:
                codes = np.frombuffer(data, np.uint8).astype(int)
                probs = [trace[n].probs[0].numpy() for n in layers]
                expected = encode_probs(
                    np.stack([pool(one) for one in probs])
                    if kind == "thumbnails"
                    else probs[int(layer)]
                )
                # The last bit of a weight may move a code across a border.
                assert np.abs(codes - expected.ravel()).max() <= 1
                assert (codes != expected.ravel()).mean() < 1e-3


@pytest.mark.parametrize(
    ("sampling", "given"),
    [
        ({"temperature": 1.0}, (1.0, None, None)),
        ({"temperature": 0}, (0, None, None)),
        ({"temperature": 0.7, "topK": 3}, (0.7, 3, None)),
        ({"temperature": 1.3, "topP": 0.8}, (1.3, None, 0.8)),
        ({"temperature": 1e-39}, (1e-39, None, None)),
        ({"temperature": 0.9, "topK": 40, "topP": 0.5}, (0.9, 40, 0.5)),
    ],
)
def test_the_next_token_is_drawn_with_python_s_probabilities(
    continued: tuple[Any, EngineProcess], sampling: dict[str, Any], given: tuple[Any, ...]
) -> None:
    model, engine = continued
    asked = {"topK": None, "topP": None, "seed": 3, **sampling}
    for text in ("Once upon a time", "The", "She said: é"):
        request = {
            "texts": [text],
            "edits": [{"quantity": "z", "change": "zero", "layer": 0, "head": 1}],
        }
        logits = model.trace(text, edit={("z", 0, 1): zero}).logits[0, -1]
        probs = Sampling(*given).probs(logits)
        step = engine.step(request, asked)
        ids = [candidate["id"] for candidate in step["candidates"]]
        assert ids == logits.topk(len(ids)).indices.tolist()
        assert step["drawn"] == pytest.approx(probs[ids].tolist(), abs=TOLERANCE)
        chosen = step["chosen"]["id"]
        assert probs[chosen] > 0
        ids_with_it = [*model.tokenizer.encode(text), chosen]
        assert step["text"] == model.tokenizer.decode(ids_with_it, skip_special=False)


def test_another_seed_draws_another_token_and_the_same_the_same(
    continued: tuple[Any, EngineProcess],
) -> None:
    model, engine = continued
    request = {"texts": ["Once upon a time there was a"], "edits": []}
    sampling = {"temperature": 1.0, "topK": 5, "topP": None}
    drawn = [
        engine.step(request, {**sampling, "seed": seed})["chosen"]["id"] for seed in range(400)
    ]
    again = [engine.step(request, {**sampling, "seed": seed})["chosen"]["id"] for seed in range(20)]
    assert again == drawn[:20]
    probs = Sampling(top_k=5).probs(model(model.tokenize(request["texts"][0]))[0, -1])
    ids = probs.topk(5).indices
    counts = torch.tensor([drawn.count(int(i)) for i in ids])
    expected = probs[ids] * len(drawn)
    assert counts.sum() == len(drawn)
    # Chi-squared with 4 degrees of freedom is above 23.5 once in 10,000 draws.
    assert ((counts - expected) ** 2 / expected).sum() < 23.5
