"""The engines of a page, in its file and behind it, compute what Python computes."""

import json
import random
from typing import Any

import numpy as np
import pytest
import torch
from live.conftest import NEAR, Case
from live.drawn import drawn_edits, real_texts
from live.engines import opened

import minibert
from minibert.analysis.lens import logit_lens
from minibert.answers.generate import Sampling
from minibert.trace.edit import zero
from minibert.viz.engine_edits import checked_edits, editable, python_edits
from minibert.viz.payload import encode_probs

HORSE = "The horse pulled the cart up the hill."


@pytest.fixture(scope="module")
def gpt2():
    model = minibert.load("tiny-gpt2")
    with opened(model) as engine:
        found = Case("tiny-gpt2", model, engine)
        found.engines[0] = (found.engines[0][0], 1e-6)
        yield found


def texts_of(case: Case, count: int, seed: int) -> list[list[str]]:
    """Texts that the model reads: of a causal one without a second."""
    alone = case.model.config.causal
    return [list(texts[:1] if alone else texts) for texts in real_texts(count, seed)]


def value(trace: Any, name: str, layer: int | None) -> Any:
    return getattr(trace if layer is None else trace[layer], name)[0].float().numpy()


def compare(case: Case, request: dict[str, Any], trace: Any) -> None:
    """Every quantity, and the most probable tokens at each place that is predicted."""
    for engine, near in case.able(request["texts"]):
        answer, numbers, _ = engine.trace(request, case.everything)
        header = answer["header"]
        assert header["tokens"]["text"] == list(trace.tokens.strings[0])
        changed = {edit["quantity"] for edit in request["edits"]}
        assert header["edited"] == bool(changed & {"scores", "probs"})
        for (name, layer), found in zip(case.everything, numbers, strict=True):
            # Scores may be −inf.
            np.testing.assert_allclose(
                found, value(trace, name, layer), rtol=0, atol=near, err_msg=f"{name} {layer}"
            )
        for said in answer["predictions"]:
            logits = trace.logits[0] if case.of_text else trace.logits[0, said["position"]]
            check_candidates(case.model, said["candidates"], logits)


def check_candidates(model: Any, candidates: list[dict[str, Any]], logits: torch.Tensor) -> None:
    """They are the best of the logits, with their probabilities and what they are called."""
    logits = logits.double()
    ids = [one["id"] for one in candidates]
    best = logits.topk(len(ids))
    # Where an edit makes logits equal any order is right.
    torch.testing.assert_close(logits[ids], best.values, atol=NEAR, rtol=0)
    assert [one["prob"] for one in candidates] == pytest.approx(
        logits.softmax(-1)[ids].tolist(), abs=NEAR
    )
    if (best.values[:-1] - best.values[1:]).min() > 2 * NEAR:
        assert ids == best.indices.tolist()
    string = model.config.labels.__getitem__ if len(logits) < 9 else model.tokenizer.string
    assert [one["text"] for one in candidates] == [string(one) for one in ids]


def test_every_quantity_is_that_of_python_before_and_after_edits(case):
    draw, config = random.Random(0), case.model.config
    assert set(editable(config)) == {name for name, _ in case.everything}
    kinds, lengths = set(), set()
    for texts in texts_of(case, 4, seed=30):
        # The same words in another order: often, but not always, as many tokens.
        other = [" ".join(reversed(text.split())) for text in texts]
        clean, another = case.trace(texts), case.trace(other)
        sizes = (clean.tokens.lengths[0], another.tokens.lengths[0])
        lengths.add(sizes[0])
        compare(case, {"texts": texts, "edits": []}, clean)
        edits = drawn_edits(draw, sizes, config)
        kinds |= {(edit["quantity"], edit["change"]) for edit in edits}
        mapping = python_edits(
            checked_edits(edits, config, *sizes), config, clean=clean, other=another
        )
        compare(case, {"texts": texts, "edits": edits, "other": other}, clean.rerun(mapping))
    assert max(lengths) >= min(config.n_positions, 400)
    assert len(kinds) > 6, kinds


def test_a_sweep_is_the_difference_that_zero_makes(case):
    texts, layers, heads = [HORSE], case.model.config.n_layers, case.model.config.n_heads
    edits = [{"quantity": "mlp_out", "change": "zero", "layer": 1}]
    clean, given = case.trace(texts), {("mlp_out", 1): zero}
    position = 0 if case.of_text else 4

    def log_probs(edit: Any) -> torch.Tensor:
        logits = clean.rerun(edit).logits[0]
        return (logits if case.of_text else logits[position]).double().log_softmax(-1)

    before = log_probs(given)
    token = int(before.argmax())
    expected = [
        [
            float((log_probs(given | {("z", n, head): zero}) - before)[token])
            for head in range(heads)
        ]
        for n in range(layers)
    ]
    for engine, _ in case.engines:
        request = {"texts": texts, "edits": edits}
        found = engine.answer(
            "sweep", request=request, question={"position": position, "id": token}
        )
        assert found["shape"] == [layers, heads]
        np.testing.assert_allclose(
            np.reshape(found["values"], (layers, heads)), expected, atol=NEAR
        )


def test_a_run_is_to_the_views_what_a_static_page_is(case):
    layers = range(case.model.config.n_layers)
    names = [f"{name}-{n}" for n in layers for name in ("probs", "query", "key", "value")]
    long = ["word " * 90] if case.model.config.n_positions > 90 else [HORSE]
    for texts in ([HORSE], long):
        trace = case.trace(texts)
        about = trace.view(why=False).examples[0].about
        for engine, near in case.engines:
            answer, _, found = engine.trace({"texts": texts, "edits": []}, blocks=names)
            header = answer["header"]
            for field in set(about) - {"arrays", "lens", "notes", "scale", "rotary"}:
                assert header.get(field) == json.loads(json.dumps(about[field])), field
            assert header["scale"] == pytest.approx(about["scale"])
            assert {entry["block"] for entry in header["arrays"]} == set(names)
            for name, data in zip(names, found, strict=True):
                check_block(trace, name, data, near)


def check_block(trace: Any, name: str, data: bytes, near: float) -> None:
    kind, _, layer = name.partition("-")
    expected = getattr(trace[int(layer)], kind)[0].numpy()
    if kind != "probs":
        given = np.frombuffer(data, np.float32).reshape(expected.shape)
        np.testing.assert_allclose(given, expected, rtol=0, atol=near)
        return
    off = np.abs(np.frombuffer(data, np.uint8).astype(int) - encode_probs(expected).ravel())
    # The last bit of a weight may move a code across a border.
    assert off.max() <= (near > 0)
    assert off.mean() < 1e-3


@pytest.mark.parametrize("edits", [[], [{"quantity": "mlp_out", "change": "zero", "layer": 1}]])
def test_what_each_layer_would_predict_is_the_lens_of_the_pass(case, edits):
    trace = case.trace([HORSE]).rerun({("mlp_out", 1): zero} if edits else {})
    for engine, _ in case.engines:
        request = {"texts": [HORSE], "edits": edits}
        lens = engine.trace(request)[0]["header"]["lens"]
        if case.of_text or lens is None:
            assert (lens, case.of_text) == (None, True)
            continue
        found = json.loads(engine.trace(request, blocks=[lens["block"]])[2][0])
        expected = logit_lens(trace, points=("embed", "resid_post"), top=5)
        probs = expected.probs[:, 0].numpy()
        assert found["points"] == list(expected.rows)
        # They are written with five decimals.
        np.testing.assert_allclose(found["probs"], probs, rtol=0, atol=NEAR)
        # Two tokens as probable as one another may stand in either order.
        apart = np.abs(np.diff(probs)) > 2 * NEAR
        clear = np.pad(apart, ((0, 0), (0, 0), (1, 0)), constant_values=True)
        clear &= np.pad(apart, ((0, 0), (0, 0), (0, 1)), constant_values=False)
        ids = expected.ids[:, 0].tolist()
        strings = [[[expected.words[i] for i in ranks] for ranks in row] for row in ids]
        assert (np.array(found["strings"]) == np.array(strings))[clear].all()


def test_a_text_that_is_typed_gives_the_bits_of_one_that_is_there(gpt2):
    _, (typing, _) = gpt2.engines
    text = "the horse and the boat were in the river"
    for last in (text, text.replace("boat", "house")):
        # Letter by letter, then many taken back.
        for end in (*range(3, len(text)), 20):
            typing.trace({"texts": [text[:end]], "edits": []})
        request = {"texts": [last], "edits": []}
        _, found, _ = typing.trace(request, gpt2.everything)
        with opened(gpt2.model) as fresh:
            _, expected, _ = fresh.trace(request, gpt2.everything)
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(
    ("temperature", "top_k", "top_p"),
    [(1.0, None, None), (0, None, None), (0.7, 3, None), (1.3, None, 0.8), (1e-39, None, None),
     (0.9, 40, 0.5)],
)  # fmt: skip
def test_the_next_token_is_drawn_with_python_s_probabilities(gpt2, temperature, top_k, top_p):
    asked = {"temperature": temperature, "topK": top_k, "topP": top_p, "seed": 3}
    edits = [{"quantity": "z", "change": "zero", "layer": 0, "head": 1}]
    for text in ("Once upon a time", "The", "She said: é"):
        logits = gpt2.model.trace(text, edit={("z", 0, 1): zero}).logits[0, -1]
        probs = Sampling(temperature, top_k, top_p).probs(logits)
        for engine, near in gpt2.engines:
            request = {"texts": [text], "edits": edits}
            step = engine.answer("step", request=request, sampling=asked)
            check_candidates(gpt2.model, step["candidates"], logits)
            ids = [one["id"] for one in step["candidates"]]
            assert step["drawn"] == pytest.approx(probs[ids].tolist(), abs=near)
            chosen = step["chosen"]["id"]
            assert probs[chosen] > 0
            whole = [*gpt2.model.tokenizer.encode(text), chosen]
            assert step["text"] == gpt2.model.tokenizer.decode(whole, skip_special=False)
