"""What a page says of why a head looks somewhere is what `trace.why` says."""

import json
from copy import deepcopy
from typing import Any

import numpy as np
import pytest
from attention_pages import example_of, unpacked
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from vocabulary_models import ROTARY_CLASSES, VOCABULARY_CLASSES, both

import minibert
from minibert.errors import AttentionError, MinibertError, TraceError
from minibert.viz import Page, view

WORDS = " river window summer horse garden letter morning" * 7
CLASSES = dict(VOCABULARY_CLASSES) | dict(ROTARY_CLASSES)


def held(
    page: Page, index: int = 0, name: str = "why"
) -> dict[tuple[int, ...], tuple[float, float, list[Any]]]:
    """By (layer, head, query, key) the score, what is the same for every key, and the pairs."""
    example = example_of(page, index)
    fields = unpacked(page, name, None, index=index)
    names, heads = example["why"]["components"], example["heads"]
    found = {}
    for place, query, key, score, same, *pairs in fields.T.tolist():
        layer = example["layers"][place // len(heads)]
        triples = [
            (names[one], names[other], half(part))
            for one, other, part in zip(*(pairs[n::3] for n in range(3)), strict=True)
        ]
        pairs = [triple for triple in triples if triple[2]]
        found[layer, heads[place % len(heads)], query, key] = (half(score), half(same), pairs)
    return found


def half(bits: int) -> float:
    return float(np.uint16(bits).view(np.float16))


@pytest.mark.parametrize("family", ["bert", "gpt2", "llama", "gemma2", "qwen3", "olmo2"])
@settings(max_examples=3, phases=(Phase.generate,))
@given(data=st.data())
def test_every_weight_asked_for_has_its_largest_pairs(family: str, data: Any) -> None:
    _, model, _, tokens = both(family, CLASSES[family])
    model, last = deepcopy(model), model.config.n_layers - 1
    for layer in model.body.layers:
        # What heads write is small beside the embeddings in a model that was not trained.
        layer.attention.output.weight.data.mul_(8)
    edited = data.draw(st.booleans())
    trace = model.trace(tokens, edit={("z", 0): lambda z: 1.5 * z} if edited else None)
    head = st.integers(0, model.config.n_heads - 1)
    asked = data.draw(st.sets(st.tuples(st.integers(0, last), head))) | {(last, data.draw(head))}
    page, index = view(trace, why=asked), data.draw(st.integers(0, 1))
    found, text = held(page, index), trace.text(index)
    seen = [text[n].mask[0, 0].sum(-1) > 1 for n in range(last + 1)]
    assert set(found) == {
        (*place, *pair)
        for place in asked
        for pair in ((text[place].probs[0] >= 0.01) & seen[place[0]][:, None]).nonzero().tolist()
    }
    weights = json.loads(unpacked(page, "why read", None, index=index).tobytes())
    vectors = unpacked(page, "why vectors", None, index=index)
    assert len(weights) == len(found)
    places = st.lists(st.sampled_from(sorted(found)), min_size=1, max_size=3)
    followed = [
        place
        for place, weight in zip(found, weights, strict=True)
        if any(pair[1] + pair[3] for pair in weight)
    ]
    assert followed or edited
    for place in (*data.draw(places), *data.draw(st.permutations(followed))[:4]):
        (score, same, pairs), why = found[place], text.why(*place)
        telling = [pair for pair in why.top(why.values.numel()) if pair[1] not in why.same]
        scale, least = model.config.attention_scale(place[0]), 0.1 * abs(telling[0][2])
        for pair, below in zip(pairs, weights[list(found).index(place)], strict=False):
            terms = vectors[below[0]].astype(float) * vectors[below[2]] * scale
            assert abs(terms.sum() - pair[2]) <= 2e-3 * abs(terms).sum()
            for side, own, other, read in (
                ("query", pair[0], pair[1], below[1]),
                ("key", pair[1], pair[0], below[3]),
            ):
                if own.startswith("head") and abs(pair[2]) >= 1.002 * least:
                    check_read(read, why.side(side, of=other), own, least)
                elif not own.startswith("head") or abs(pair[2]) <= 0.998 * least:
                    assert read == []
        assert score == pytest.approx(why.score, rel=1e-3, abs=1e-4)
        parts = [why.at(query_component=one, key_component=other) for one, other, _ in pairs]
        near = {"rel": 1e-3, "abs": 1e-6}
        assert [part for *_, part in pairs] == pytest.approx(
            [float(part) for part in parts], **near
        )
        equal = sum(float(why.at(key_component=one).sum()) for one in why.same)
        assert same == pytest.approx(equal, rel=1e-3, abs=1e-5)
        largest = [abs(part) for *_, part in telling[:4]]
        assert [abs(part) for *_, part in pairs] == pytest.approx(largest, **near)


def check_read(rows: list[Any], why: Any, head: str, least: float) -> None:
    """What the page holds of what a head read is what `follow` says, without what is smaller."""
    try:
        read = why.follow(head)
    except TraceError:
        # An edit wrote what the head gives.
        assert rows == []
        return
    check_parts(rows, dict(enumerate(read.by_token.tolist())), least)
    for token, _, wrote in rows:
        below = read.at_token(token)
        check_parts(wrote, {name: float(part) for name, part in below.largest(99)}, least)
        for name, _, deeper in wrote:
            if name.startswith("head"):
                check_read(deeper, below, name, least)
            else:
                assert deeper == []


def check_parts(rows: list[Any], parts: dict[Any, float], least: float) -> None:
    """The rows are the parts that are not smaller."""
    assert all(abs(part - parts[name]) <= 1e-3 * abs(part) for name, part, _ in rows)
    assert all(abs(part) >= 0.999 * least for _, part, _ in rows)
    assert {name for name in parts if abs(parts[name]) >= 1.001 * least} <= {row[0] for row in rows}


def test_features_split_the_same_weights_as_why_does() -> None:
    features = minibert.features.load("tiny-gpt2")
    trace = minibert.load("tiny-gpt2").trace(WORDS[: len(WORDS) * 2 // 7])
    page = view(trace, why=[(0, 1), (1, 2), (3, 0)], features=features)
    plain, found = held(page), held(page, name="why features")
    assert {place for place in plain if place[0]} == set(found)
    assert example_of(page)["why"]["features"] == ["resid_pre", 1]
    for place in list(found)[:: len(found) // 8]:
        (score, _, pairs), why = found[place], trace.why(*place, features=features, strongest=128)
        assert score == plain[place][0]
        parts = [float(why.at(query_component=one, key_component=other)) for one, other, _ in pairs]
        assert [part for *_, part in pairs] == pytest.approx(parts, rel=1e-3, abs=1e-4)
        largest = [abs(part) for _, key, part in why.top(50) if key not in why.same][:4]
        assert largest == pytest.approx([abs(part) for part in parts], rel=1e-4)
    for why, other in ((True, "tiny-gpt2"), (False, features)):
        with pytest.raises(AttentionError, match=r"minibert\.features\.load"):
            view(trace, why=why, features=other)
    with pytest.raises(MinibertError, match="not a part of any score"):
        view(trace, layers=[0], features=features)


def test_a_page_holds_its_largest_weights_unless_told_otherwise() -> None:
    trace = minibert.load("tiny-gpt2").trace(WORDS)
    page, without = view(trace), view(trace, why=False)
    assert 1.01 < page.size / without.size < 1.05
    asked = view(trace, why=(1, 3))
    assert 70 < (asked.size - without.size) / len(held(asked)) < 260
    found, least = held(page), example_of(page)["why"]["least"]
    weights = sorted(
        float(weight)
        for layer in range(4)
        for weight in trace[layer].probs[0, :, 1:].flatten().tolist()
    )
    assert weights[-len(found)] == pytest.approx(least, abs=1e-3)
    assert all(trace[place[:2]].probs[0][place[2:]] >= least - 1e-3 for place in found)
    assert "why" not in example_of(without)


def test_a_score_that_an_edit_wrote_has_no_parts() -> None:
    model = minibert.load("tiny-gpt2")
    trace = model.trace("the horse ran away", edit={("query", 1): lambda x: x + x.square()})
    assert {place[0] for place in held(view(trace, why=True))} == {0, 2, 3}
    with pytest.raises(AttentionError, match=r"why names layer 7, head 0"):
        view(trace, why=(7, 0))


def test_heads_that_were_asked_for_are_named_and_a_page_without_a_model_refuses() -> None:
    trace = minibert.load().trace("leaves fall in autumn")
    about = trace.view(why=[(1, 3), (0, 2)]).examples[0].about["why"]
    assert about["heads"] == ["0-2", "1-3"]
    assert "heads" not in trace.view().examples[0].about["why"]
    with pytest.raises(AttentionError, match="needs the trace of a model"):
        trace.view(why=(1, 3), vectors=False)
