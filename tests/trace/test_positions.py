"""Positions are a sentence's own: in a ragged batch each gets what it gets alone.

`FUNCTIONS` names every public function that takes positions. One that is added to the library is
added here: a function of a trace, of a trace to read values from, of positions that every sentence
has, and of the number of a key, that gives one tensor a sentence.
"""

import random
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

from minibert.analysis import logit_difference
from minibert.answers.explain import explain
from minibert.errors import EditError
from minibert.loading import from_transformers
from minibert.model import Model
from minibert.text.tokens import Tokens
from minibert.trace.edit import Hide, hide, mean, noise, replace, zero
from minibert.trace.places import Places
from minibert.trace.read import Trace
from tests.families import LAYER_NAMES, VOCABULARY, Sizes, hf_model

LIMIT = 1e-9
BATCHES = 60
LONGEST = 9
METRIC = logit_difference(7, 13)


@cache
def model_of(family: str) -> Model:
    name = {"bert": "BertForMaskedLM", "gpt2": "GPT2LMHeadModel"}[family]
    sizes = Sizes(layers=2, heads=2)
    return from_transformers(hf_model(family, name, sizes, torch.float64))


def texts(lengths: list[int], draw: random.Random) -> Tokens:
    """Sentences of these lengths; what stands in the padding means something elsewhere."""
    ids = [[draw.randrange(2, VOCABULARY) for _ in range(max(lengths))] for _ in lengths]
    mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    return Tokens.from_ids(ids, mask=mask)


def of_each(trace: Trace, values: Tensor) -> list[Tensor]:
    """Rows of a batch as one tensor a sentence, without its padding."""
    lengths = Places.of(trace.allowed).lengths
    return [row[:length] for row, length in zip(values, lengths, strict=True)]


def edited(edit: Any, name: str) -> Callable[[Trace], list[Tensor]]:
    return lambda trace: of_each(trace, trace.rerun({(name, 1): edit}).logits)


def swept(edits: list[Any], positions: Any) -> Callable[[Trace], list[Tensor]]:
    def run(trace: Trace) -> list[Tensor]:
        found = trace.rerun_each([{key: edit} for key, edit in edits], METRIC, positions=positions)
        return list(found.unbind(1))

    return run


def explained(trace: Trace, position: int, key: int) -> list[Tensor]:
    found = []
    for sentence in range(len(trace.tokens)):
        got = explain(trace, layer=1, head=1, query=position, key=key, sentence=sentence)
        found.append(torch.cat([got.scores, got.probs, got.z, got.product]))
    return found


Function = Callable[[Trace, Trace, list[int], str], list[Tensor]]
FUNCTIONS: dict[str, Function] = {
    "zero.at": lambda t, _, at, name: edited(zero.at(positions=at), nonzero(name))(t),
    "replace a number": lambda t, _, at, name: edited(replace(0.3, positions=at), name)(t),
    "replace a trace": lambda t, other, at, name: edited(replace(other, positions=at), name)(t),
    "mean": lambda t, _, at, name: edited(mean(source_of(t), positions=at), vector(name))(t),
    "noise": lambda t, _, at, name: edited(noise(5, positions=at), vector(name))(t),
    "noise everywhere": lambda t, _, at, name: edited(noise(5), vector(name))(t),
    "hide": lambda t, _, at, name: edited(hide(at[0], positions=other_than(at[0])), "scores")(t),
    "rerun_each": lambda t, _, at, name: swept(
        [
            ((nonzero(name), 0), zero),
            (("z", 1, 1), replace(0.2, positions=at)),
            ("embed", noise(1)),
        ],
        at,
    )(t),
    "rerun_each, the last position": lambda t, _, at, name: swept(
        [((name, 1), replace(0.2, positions=at)), (("mlp_out", 0), zero)], None
    )(t),
    "logit_difference": lambda t, _, at, name: [*METRIC(t)],
    "logit_difference of a model's logits": lambda t, _, at, name: [
        *METRIC(t.model(t.tokens), lengths=t.tokens.lengths)
    ],
    "explain": lambda t, _, at, name: explained(t, at[-1], 0),
    "text": lambda t, _, at, name: [
        torch.cat([getattr(t.text(i)[1, 0], n).flatten() for n in (*LAYER_NAMES, "probs")])
        for i in range(len(t.tokens))
    ],
}


def other_than(key: int) -> int:
    """A query that has another key than this one, however short the sentence."""
    return 1 if key == 0 else -1


def nonzero(name: str) -> str:
    """The same, but for what a norm divides by."""
    return "z" if name.endswith("_scale") else name


def vector(name: str) -> str:
    """Of a matrix neither mean nor noise is the same for texts of other lengths."""
    return "z" if name in ("scores", "probs") else name


@cache
def averages_of(family: str) -> Trace:
    return model_of(family).trace(texts([5, 3], random.Random(7)))


def source_of(trace: Trace) -> Trace:
    return averages_of(trace.config.family)


@pytest.mark.parametrize("family", ["bert", "gpt2"])
def test_each_sentence_of_a_ragged_batch_gets_what_it_gets_alone(
    family: str, unchecked: None
) -> None:
    draw, model = random.Random(13), model_of(family)
    for _ in range(BATCHES // 2):
        lengths = [draw.randint(2, LONGEST) for _ in range(draw.randint(2, 4))]
        # Positions that every sentence has, and has once.
        span = range(min(lengths)) if draw.random() < 0.5 else range(-min(lengths), 0)
        at = draw.sample(span, draw.randint(1, min(3, len(span))))
        tokens, name = texts(lengths, draw), draw.choice(LAYER_NAMES)
        trace, source = model.trace(tokens), model.trace(texts(lengths, draw))
        sentence = draw.randrange(len(lengths))
        alone, alone_source = model.trace(tokens[sentence]), source.text(sentence)
        for function, run in FUNCTIONS.items():
            together = run(trace, source, at, name)
            assert len(together) == len(lengths)
            found, expected = together[sentence], run(alone, alone_source, at, name)[0]
            assert found.shape == expected.shape, function
            error = (found - expected).abs().max()
            assert error <= LIMIT, (function, name, lengths, at, sentence)


def test_a_position_that_a_sentence_does_not_have_is_refused_by_name(unchecked: None) -> None:
    model = model_of("gpt2")
    trace = model.trace(texts([7, 3], random.Random(1)))
    for at in (3, -4, [0, 3]):
        for edit in (zero.at(positions=at), hide(at, positions=-1), replace(1.0, positions=at)):
            name = "scores" if isinstance(edit.change, Hide) else "z"
            with pytest.raises(EditError, match=rf"\({name}, 1\): sentence 1: there is no"):
                trace.rerun({(name, 1): edit})
        with pytest.raises(EditError, match="sentence 1: there is no position"):
            trace.rerun_each([{}], METRIC, positions=at if isinstance(at, list) else [at])
    found = trace.rerun({("z", 1): zero.at(positions=3, sentences=0)})
    assert found[1].z[0, :, 3].count_nonzero() == 0
    assert torch.equal(found[1].z[1], trace[1].z[1])
