"""What can be written, and that it does what arithmetic says; test_edit_peers.py asks others."""

import copy
import pickle
from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from torch import Tensor

from minibert.errors import EditError
from minibert.trace.edit import as_edit, hide, mean, noise, replace, zero
from tests.families import VOCABULARY
from tests.trace.editing import (
    FAMILIES,
    HEADS,
    LAYERS,
    LENGTH,
    NAMES,
    PER_HEAD,
    close,
    model_of,
    random_like,
    sentences,
    whole,
)

families = st.sampled_from(list(FAMILIES))
layers, heads = st.integers(0, LAYERS - 1), st.integers(0, HEADS - 1)


PLACES: dict[str, list[Any]] = {
    "heads": [None, 1, (2, 0)],
    "positions": [None, -1, [2, -4], range(1, 4), slice(2, -4, 2), np.array([1, 3])],
    "sentences": [None, 1, [0, -1], torch.tensor([2, 0])],
    "entries": [None, -1, [1, -3]],
}


@settings(max_examples=25, phases=[Phase.generate])
@given(data=st.data())
def test_an_edit_writes_the_chosen_cells_and_no_other(data: st.DataObject) -> None:
    name, family = data.draw(st.sampled_from(NAMES)), data.draw(st.sampled_from(["gpt2", "bert"]))
    model, per_head = model_of(family), name in PER_HEAD
    at = {place: data.draw(st.sampled_from(some)) for place, some in PLACES.items()}
    heads, kind = at.pop("heads") if per_head else at.pop("heads") and None, data.draw(KINDS)
    at["entries"] = None if name.endswith("_scale") else at["entries"]
    keep = ("scores", "probs")
    plain, other = (model.trace(whole(family, seed), keep=keep) for seed in (0, 5))
    before = getattr(plain[1], name)
    new = getattr(other[1], name) if kind == "trace" else random_like(before).abs() + 0.5
    chosen = {place: range(size)[one] if isinstance(one, slice) else one for place, one, size in (
        ("heads", heads, HEADS), ("sentences", at["sentences"], 3),
        ("positions", at["positions"], LENGTH), ("entries", at["entries"], before.shape[-1]),
    )}  # fmt: skip
    axes = [chosen["sentences"], *([chosen["heads"]] if per_head else []), chosen["positions"]]
    cells = torch.ones(before.shape, dtype=torch.bool)
    for axis, some in enumerate([*axes, chosen["entries"]]):
        if some is not None:
            here = torch.zeros(before.shape[axis], dtype=torch.bool)
            here[torch.as_tensor(some if hasattr(some, "tolist") else np.array(some))] = True
            cells &= here.view([-1 if axis == n else 1 for n in range(before.dim())])
    part = new if heads is None else new[:, heads if isinstance(heads, int) else list(heads)]
    values = {"tensor": part, "trace": other, "number": 0.75, "function": lambda v: v * 0 + 0.75}
    edit = as_edit(values[kind]).at(**at)
    found = plain.rerun({(name, 1, heads)[: 2 + (heads is not None)]: edit}, keep=keep)
    expected = torch.where(cells, new if kind in ("tensor", "trace") else 0.75, before)
    assert torch.equal(getattr(found[1], name), expected), (name, kind, heads, at)


KINDS = st.sampled_from(["tensor", "trace", "number", "function"])


def test_entries_that_are_not_there_or_differ_by_sentence_are_refused() -> None:
    model = model_of("gpt2")
    for tokens, key, edit, words in (
        (whole("gpt2"), ("z", 1), zero.at(entries=5), "no entry 5; expected 0 to 4"),
        (sentences("gpt2"), ("probs", 1), zero.at(entries=0), "entries are keys"),
    ):
        with pytest.raises(EditError, match=words):
            model.trace(tokens, edit={key: edit})


def test_a_mean_is_over_sentences_and_real_positions() -> None:
    model, tokens = model_of("bert"), sentences("bert")
    batches = [sentences("bert", seed=seed) for seed in (1, 2)]
    alone = [model.trace(batch[sentence]) for batch in batches for sentence in range(3)]
    over = mean([model.trace(batch) for batch in batches])
    for name in (name for name in NAMES if name not in ("scores", "probs")):
        rows = [row for trace in alone for row in getattr(trace[1], name)[0].movedim(-2, 0)]
        expected = torch.stack(rows).mean(0).unsqueeze(-2)
        found = getattr(model.trace(tokens, edit={(name, 1): over})[1], name)
        assert close(found, expected.expand_as(found)), name
        if name in PER_HEAD:
            edit = {(name, 1, (2, 1)): over}
            found = getattr(model.trace(tokens, edit=edit)[1], name)[:, [2, 1]]
            assert close(found, expected[[2, 1]].expand_as(found)), name


def test_a_mean_of_a_matrix_is_over_sentences() -> None:
    model, ids = model_of("bert"), torch.randint(2, VOCABULARY, (5, LENGTH))
    tokens, over = whole("bert"), [model.trace(ids[:2]), model.trace(ids[2:])]
    for name in ("scores", "probs"):
        expected = getattr(model.trace(ids)[1], name).mean(0)
        found = getattr(model.trace(tokens, edit={(name, 1): mean(over)})[1], name)
        assert close(found, expected.expand_as(found))
        limited = model.trace(tokens, edit={(name, 1, 2): mean(over, positions=[3, 1])})
        assert close(getattr(limited[1, 2], name)[0, [3, 1]], expected[2, [3, 1]])


def test_noise_is_the_same_for_the_same_seed_and_differs_between_points() -> None:
    model, tokens = model_of("bert"), whole("bert")
    plain = model.trace(tokens)

    def added(edit: Any, key: Any) -> Tensor:
        return model.trace(tokens, edit={key: edit})[key[1]].z - plain[key[1]].z

    first = added(noise(5), ("z", 1))
    assert torch.equal(first, added(noise(5), ("z", 1)))
    others = [added(noise(6), ("z", 1)), added(noise(5), ("z", 0))]
    for other in others:
        assert (first - other).abs().mean() > 0.5
    assert torch.allclose(first[0], first[1], atol=1e-5)
    # 195 numbers.
    assert abs(first[0].std() - 1) < 0.2
    assert abs(first[0].mean()) < 0.2
    assert close(added(noise(5, std=0.25), ("z", 1)), 0.25 * first)
    assert (added(noise(5, positions=[2]), ("z", 1))[:, :, 3:] == 0).all()
    assert torch.equal(added(noise(5, std=0), ("z", 1)), torch.zeros_like(first))


@settings(max_examples=8)
@given(
    family=families,
    edits=st.dictionaries(
        st.tuples(st.sampled_from(NAMES), layers, st.none() | heads), st.floats(-2, 2), min_size=2
    ),
    data=st.data(),
)
def test_several_edits_act_in_the_order_of_the_data(
    family: str, edits: dict[Any, float], data: st.DataObject
) -> None:
    model, tokens = model_of(family), whole(family)
    # A scale of a norm is divided by, so 0 is refused.
    entries = {
        (n, layer, head) if head is not None and n in PER_HEAD else (n, layer): (
            abs(number) + 0.5 if n.endswith("_scale") else number
        )
        for (n, layer, head), number in edits.items()
    }
    shuffled = dict(data.draw(st.permutations(list(entries.items()))))
    trace = model.trace(tokens, edit=entries)
    assert torch.equal(trace.logits, model.trace(tokens, edit=shuffled).logits)
    for (name, layer, *head), number in entries.items():
        if head or not any(key[:2] == (name, layer) and len(key) == 3 for key in entries):
            found = getattr(trace[layer, head[0]] if head else trace[layer], name)
            assert (found == torch.tensor(number, dtype=found.dtype)).all()


def test_a_function_sees_what_earlier_edits_made() -> None:
    model, tokens = model_of("gpt2"), sentences("gpt2")
    seen = {}

    def look(name: str) -> Callable[[Tensor], Tensor]:
        return lambda value: seen.setdefault(name, value)

    edit = {("attn_out", 1): look("attn_out"), ("z", 1, 0): 3.0, ("value", 1): look("value")}
    trace = model.trace(tokens, edit={**edit, ("resid_post", 0): 0.5})
    assert torch.equal(seen["attn_out"], trace[1].attn_out)
    assert torch.equal(seen["value"], trace[1].value)
    assert (trace[1, 0].z == 3).all()
    assert (trace[1].resid_pre == 0.5).all()


def test_a_function_may_change_what_it_is_given_and_harms_nobody() -> None:
    model, tokens = model_of("gpt2"), whole("gpt2")
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    plain = model.trace(tokens)
    before = {name: plain.stack(name) for name in NAMES}
    for name in NAMES:
        for key in ((name, 1), (name, 1, 1)) if name in PER_HEAD else ((name, 1),):
            assert (
                (plain.rerun({key: lambda value: value.fill_(3.0)})[1].resid_post).isfinite().all()
            )
            # Nothing is divided by 0.
            some = replace(2.0) if name.endswith("_norm_scale") else zero
            plain.rerun({key: some.at(positions=[1])})
    assert all(torch.equal(plain.stack(name), before[name]) for name in NAMES)
    assert all(torch.equal(value, weights[name]) for name, value in model.state_dict().items())


def test_a_tensor_changed_after_the_pass_does_not_change_the_trace() -> None:
    vector = torch.ones(model_of("bert").config.d_model)
    trace = model_of("bert").trace(sentences("bert"), edit={("resid_mid", 1): vector})
    vector.fill_(5)
    assert (trace[1].resid_mid == 1).all()


@pytest.mark.parametrize("family", ["bert", "gpt2"])
def test_a_gradient_reaches_a_learned_edit(family: str) -> None:
    model, ids = model_of(family, torch.float64), torch.tensor([[5, 7, 11, 13, 17]])
    plain = model.trace(ids, keep=("scores", "probs"))
    positions = None if family == "bert" else [2, 4]
    for name in NAMES:
        learned = 0.1 * random_like(getattr(plain[1], name)[0, ..., -1, :])
        learned = (learned[:, None] if name in PER_HEAD else learned).requires_grad_()

        def loss(vector: Tensor, name: str = name) -> Tensor:
            edit = {(name, 1): replace(vector, positions=positions)}
            return plain.rerun(edit).logits.sin().sum()

        (gradient,) = torch.autograd.grad(loss(learned), [learned])
        direction, step = random_like(learned, 3), 1e-5
        with torch.no_grad():
            rise = loss(learned + step * direction) - loss(learned - step * direction)
        slope = (gradient * direction).sum()
        # Rows of scores that are all alike have the softmax of zeros: no gradient along them.
        assert abs(rise / (2 * step) - slope) <= 1e-6 * max(1.0, abs(slope.item())), name
        assert gradient.abs().max() > 0, name


def test_hidden_keys_get_no_weight_and_the_others_share_it() -> None:
    model, tokens = model_of("gpt2"), whole("gpt2")
    before = model.trace(tokens)[1, 2].probs
    for keys in (1, [1, 3], slice(1, 4, 2), -12):
        places = keys if isinstance(keys, list | slice) else [keys]
        edit = {("scores", 1, 2): hide(keys, positions=slice(4, None))}
        probs = model.trace(tokens, edit=edit)[1, 2].probs
        assert (probs[:, 4:, places] == 0).all()
        expected = before.clone()
        expected[:, 4:, places] = 0
        expected /= expected.sum(-1, keepdim=True)
        assert close(probs, expected)
        assert not close(probs, before)


def test_scores_that_leave_nothing_to_attend_to_are_refused() -> None:
    trace = model_of("gpt2").trace(sentences("gpt2")[0])
    cases: list[dict[Any, Any]] = [
        {
            ("scores", 0): hide([0, 1, 2], positions=5),
            ("scores", 0, 1): hide([3, 4, 5], positions=5),
        },
        {("scores", 1): lambda scores: scores - torch.inf},
        {("scores", 1, 2): lambda scores: scores * torch.nan},
    ]
    for edits in cases:
        for run in (trace.rerun, lambda edit: trace.rerun_each([edit], lambda z: z[:, 0, 0])):
            with pytest.raises(EditError, match="without a key"):
                run(edits)


@pytest.mark.parametrize("family", ["gpt2", "bert"])
def test_a_scale_that_nothing_can_be_divided_by_is_refused(family: str) -> None:
    trace = model_of(family, torch.float64).trace(sentences(family))
    keys: list[Any] = [("attention_norm_scale", 1), ("mlp_norm_scale", 1)]
    keys += ["final_norm_scale"] if family == "gpt2" else []
    # The reciprocal of the smallest of these is beyond float64.
    for key, edit in product(keys, (-0.0, 1e-320, zero, lambda scale: scale * torch.nan)):
        for run in (trace.rerun, lambda edit: trace.rerun_each([edit], lambda z: z[:, 0, 0])):
            with pytest.raises(EditError, match=r"_norm_scale.*: the norm divides by this"):
                run({key: edit})
    with pytest.raises(EditError, match=r"made 0 of it at position \d+ of sentence 1"):
        trace.rerun({("mlp_norm_scale", 1): replace(0.0, positions=-1, sentences=1)})


def halved(value: torch.Tensor) -> torch.Tensor:
    return value / 2


@pytest.mark.parametrize("again", [lambda edit: pickle.loads(pickle.dumps(edit)), copy.deepcopy])
def test_an_edit_does_the_same_after_it_was_pickled_or_copied(again: Any) -> None:
    model = model_of("gpt2")
    trace, other = model.trace(whole("gpt2", 0)), model.trace(whole("gpt2", 1), grad=True)
    other.backward(other.logits.sum())
    edits = {
        "zero": ("z", zero),
        "number": ("z", replace(0.5, positions=-1)),
        "tensor": ("z", replace(torch.full_like(trace[1].z, 0.25))),
        "trace": ("z", replace(other, positions=[0, 2])),
        "mean": ("z", mean(over=[trace, other])),
        "noise": ("z", noise(5, std=0.5)),
        "hidden keys": ("scores", hide(0, positions=-1)),
        "function": ("z", as_edit(halved)),
    }
    for kind, (name, edit) in edits.items():
        expected = trace.rerun({(name, 1): edit}).logits
        assert not torch.equal(expected, trace.logits), kind
        assert torch.equal(trace.rerun({(name, 1): again(edit)}).logits, expected), kind
    assert copy.deepcopy(edits["trace"][1]).traces[0] is other
