"""Edits that cannot be made are refused before the pass starts, with what to write instead."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from minibert.errors import EditError
from minibert.model import from_transformers
from minibert.trace.edit import as_point, hide, mean, noise, replace, zero
from tests.families import Sizes, hf_model
from tests.trace.editing import HEADS, LAYERS, LENGTH, NAMES, PER_HEAD, model_of, sentences, whole

NOWHERE = [LENGTH, -LENGTH - 1, [0, LENGTH], [], [2, 2], [0, -LENGTH], slice(20, 25)]
NO_PLACES = [slice("a", None), 1.5, True, "ab", [True], [None], {"a"}]


pytestmark = pytest.mark.usefixtures("unchecked")


@pytest.fixture
def started() -> Iterator[list[str]]:
    """The parts of the model of the BERT family that have begun to compute."""
    ran: list[str] = []
    body = model_of("bert").body
    handles = [
        module.register_forward_pre_hook(lambda *_, name=name: ran.append(name))
        for name, module in body.named_modules()
        if name
    ]
    yield ran
    for handle in handles:
        handle.remove()


def refused(edit: Any, started: list[str], match: str = "", **options: Any) -> None:
    """By `trace` and, where it says the same, by `rerun` and `rerun_each`."""
    model, tokens = model_of("bert"), whole("bert")
    plain = model.trace(tokens, **options)
    started.clear()
    with pytest.raises(EditError, match=match):
        model.trace(tokens, edit=edit, **options)
    with pytest.raises(EditError, match=match):
        plain.rerun(edit)
    if not options:
        with pytest.raises(EditError, match=match):
            plain.rerun_each([{}, edit], lambda logits: logits[:, 0, 0])
    assert started == []


NO_POINTS: list[tuple[Any, str]] = [
    ("prob", r"'prob' cannot be edited .did you mean 'probs'.*; there are embed.*probs.*logits"),
    (("mask", 0), "'mask' cannot be edited"),
    ("z", r"which layer\? Write \('z', layer\)"),
    (("embed", 0), "embed has no layers; write 'embed' alone"),
    (("z", LAYERS), r"\('z', 3\): there is no layer 3; expected 0 to 2"),
    (("z", "1"), "layer '1': expected a whole number"),
    (("z", 0, (0, HEADS)), "there is no head 3"),
    (("z", 0, (1, 1 - HEADS)), r"head \(1, .*: expected each one once"),
    (("resid_post", 0, 1), r"resid_post has no heads; write \('resid_post', 0\)"),
    (("z", 0, 1, 2), "is not a point"),
    (None, "None is not a point"),
]


NO_VALUES: list[tuple[Any, str]] = [
    (None, "NoneType is not an edit; expected a number, a tensor"),
    ("zero", "str is not an edit"),
    ([0.0] * 5, "list is not an edit; expected a tensor for numbers"),
    ([], "at least one edit"),
    (np.zeros(5), "ndarray is not an edit"),
    (1j, "complex is not an edit"),
    (True, "expected a number, a tensor or a trace, found True"),
    (float("nan"), "nan is not a finite number"),
    (float("inf"), "inf is not a finite number"),
    (torch.tensor(True), "torch.bool; expected floats"),
    (torch.zeros(5, dtype=torch.int64), r"torch.int64; expected floats, as value.float\(\)"),
    (torch.zeros(5, dtype=torch.complex64), "torch.complex64; expected floats"),
    (torch.full((5,), torch.nan), "NaN or infinite"),
    (torch.zeros(5, device="meta"), "meta device"),
    (
        torch.zeros(5, dtype=torch.float64),
        r"torch.float64; convert it with value.to\(torch.float32\)",
    ),
    (1e39, "not a finite number in torch.float32"),
    (torch.full((5,), torch.inf), "NaN or infinite"),
    (torch.zeros(7), r"\(z, 1\): a value of shape \(7,\) does not fit \(3, 3, 13, 5\) \(batch"),
    (torch.zeros(3, 3, 13, 1, 5), "does not fit"),
    (torch.zeros(2, 3, 13, 5), "does not fit"),
    (torch.zeros(0), "does not fit"),
    (mean, r"mean has to be called: write mean\(over=trace\)"),
    (noise, r"noise has to be called: write noise\(seed\)"),
    (hide, r"hide has to be called: write hide\(keys\)"),
    (hide(3), r"\(z, 1\): hide edits scores; write"),
    (replace, r"replace has to be called"),
]


NO_KEYS: list[tuple[Any, str]] = [
    (13, "there is no key 13"),
    ([], "at least one"),
    ("3", "key"),
    (slice(None), "the query at position 0 of sentence 0 has no key left"),
    (range(13), r"Limit the edit with hide\(keys, positions"),
]


OVERLAPPING: list[Any] = [
    (("z", 1), ("z", -2)),
    (("z", 1, 0), ("z", 1, -3)),
    (("z", 1, (0, 1)), ("z", 1, (1, 2))),
    (("z", 1, 0), ("z", 1, (0,))),
    ("embed", ("embed",)),
]


def refused_edits() -> list[tuple[Any, str]]:
    """Edits and what is said of them; made where annotations are not checked."""
    return [
        *(({key: zero}, words) for key, words in NO_POINTS),
        *(({("z", 1): value}, words) for value, words in NO_VALUES),
        *(({("scores", 1): hide(keys)}, words) for keys, words in NO_KEYS),
        *((dict.fromkeys(keys, zero), "Two edits overlap") for keys in OVERLAPPING),
        *(
            (edit, "expected a dictionary such as")
            for edit in ("z", "", 3, [], ["z"], [("z", 0)], {("z", 0)})
        ),
        *(
            ({(name, 1): replace(0.0, **{where + "s": at})}, where)
            for name in ("z", "probs", "resid_post")
            for at in (*NOWHERE, *NO_PLACES)
            for where in ("position", "sentence")
        ),
    ]


@pytest.mark.usefixtures("unchecked")
def test_what_cannot_be_edited_is_refused_before_the_pass(started: list[str]) -> None:
    for edit, words in refused_edits():
        refused(edit, started, words)
    refused({"logits": zero}, started, "a trace with until=1 has no logits", until=1)
    for name in NAMES:
        refused({(name, 1): zero}, started, "edit layers below 1", until=1)


NO_EDITS: list[tuple[Any, str]] = [
    (lambda: replace(None), r"replace\(None\)"),
    (lambda: mean([]), "at least one trace"),
    (lambda: mean(torch.zeros(3)), "expected a trace"),
    (lambda: mean(3), "expected a trace"),
    (lambda: mean("text"), "expected a trace"),
    (lambda: mean([model_of("bert").trace([[2, 3]]), None]), "expected a trace"),
    (lambda: hide(None), "expected the positions of the keys"),
    (lambda: hide(2).at(entries=3), "name the keys in hide"),
    (lambda: noise(1.5), "seed=1.5"),
    (lambda: noise(True), "seed=True"),
    (lambda: noise("3"), "seed='3'"),
    (lambda: noise(std=-1.0), "std=-1.0"),
    (lambda: noise(std=float("nan")), "std=nan"),
    (lambda: noise(std="1"), "std='1'"),
]


def test_an_edit_that_makes_no_sense_is_refused_when_it_is_made() -> None:
    for call, match in NO_EDITS:
        with pytest.raises(EditError, match=match):
            call()


def test_a_value_for_some_positions_has_their_number(started: list[str]) -> None:
    model, tokens = model_of("bert"), whole("bert")
    for rows in (1, 2, LENGTH):
        model.trace(tokens, edit={("z", 1): replace(torch.zeros(rows, 5), positions=[3, 4])})
    refused({("z", 1): replace(torch.zeros(3, 5), positions=[3, 4])}, started, "does not fit")
    refused({("z", 1, 0): replace(torch.zeros(3, 3, 13, 5))}, started, "does not fit")


def test_a_trace_without_the_positions_or_of_another_batch_is_refused(started: list[str]) -> None:
    model, tokens = model_of("bert"), whole("bert")
    plain = model.trace(tokens)
    for ids, words in (
        ([[5] * (LENGTH - 1)], "need at least as many tokens"),
        ([[5]], "need at least as many tokens"),
        ([[5] * LENGTH] * 2, "has 2 sentences, and this one 3"),
    ):
        source = model.trace(ids)
        refused({("probs", 1): source}, started, "does not fit|2 sentences")
        for name in ("z", "resid_post"):
            refused({(name, 1): source}, started, words)
            edit = {(name, 1): replace(source, positions=[0])}
            if len(ids) == 2:
                refused(edit, started, words)
                continue
            found, before = (getattr(each[1], name) for each in (plain.rerun(edit), plain))
            theirs = getattr(source[1], name)
            assert torch.equal(found[..., 0, :], theirs[..., 0, :].expand_as(found[..., 0, :]))
            assert torch.equal(found[..., 1:, :], before[..., 1:, :])
    longer = model.trace([[5] * 20])
    found = plain.rerun({("z", 1): longer})[1].z
    assert torch.equal(found, longer[1].z[:, :, :LENGTH].expand_as(found))
    refused({("z", 1, 0): replace(longer, positions=slice(3, 20), sentences=7)}, started, "7")


def test_a_trace_of_a_model_with_fewer_layers_is_refused(started: list[str]) -> None:
    source = from_transformers(hf_model("bert", "BertModel", Sizes(layers=1))).trace([[5] * LENGTH])
    for value in (source, mean(source)):
        refused({("z", 2): value}, started, r"\(z, 2\): the trace to read from has 1 layers")


def test_a_trace_that_stopped_below_is_refused(started: list[str]) -> None:
    source_until = 1
    source = model_of("bert").trace(whole("bert"), until=source_until)
    for value in (source, mean(source)):
        refused({("z", 2): value}, started, f"has {source_until + 1} layers")
        refused({"logits": value}, started, f"until={source_until}, so it has no logits")
    model_of("bert").trace(whole("bert"), edit={("z", source_until): source, "embed": source})


def test_a_mean_of_matrices_is_over_texts_of_one_length(started: list[str]) -> None:
    model, name = model_of("bert"), "probs"
    fits, shorter = model.trace([[5] * LENGTH]), model.trace([[5] * 7])
    refused({(name, 1): mean([fits, shorter])}, started, "does not fit")
    refused({(name, 1): mean(shorter)}, started, "does not fit")
    refused({(name, 1): mean(model.trace(sentences("bert")))}, started, "without padding")


@given(
    name=st.sampled_from([*NAMES, "embed", "logits", "mask", "", "Z"]),
    layer=st.integers(-5, 5) | st.sampled_from([None, "0", 1.0, True]),
    heads=st.integers(-5, 5) | st.lists(st.integers(-4, 4), max_size=4).map(tuple) | st.none(),
    parts=st.integers(1, 3),
)
def test_a_key_is_a_point_that_exists_or_an_error(
    name: str, layer: Any, heads: Any, parts: int
) -> None:
    config = model_of("bert").config
    key = (name, layer, heads)[:parts]
    chosen = heads if isinstance(heads, tuple) else (heads,)
    number = isinstance(layer, int) and not isinstance(layer, bool) and -LAYERS <= layer < LAYERS
    whole = name in ("embed", "logits") and parts == 1
    heads_fit = heads is not None and len({h % HEADS for h in chosen}) == len(chosen) > 0
    heads_fit = heads_fit and all(-HEADS <= head < HEADS for head in chosen)
    per_head = parts < 3 or (name in PER_HEAD and heads_fit)
    if whole or (name in NAMES and parts > 1 and number and per_head):
        point = as_point(key, config)
        assert point.name == name
        assert point.layer == (None if whole else layer % LAYERS)
        if parts == 3:
            assert point.head_list == [head % HEADS for head in chosen]
    else:
        with pytest.raises(EditError):
            as_point(key, config)
