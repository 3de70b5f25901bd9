"""Positions are a sentence's own: in a ragged batch each sentence gets what it gets alone.

Every public function about a trace is called on drawn batches, in float64. One that is added to
the library is added to `RESULTS`, where it gives tensors with axes, or to `FUNCTIONS`, where it
gives one tensor a sentence.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

from minibert import analysis
from minibert.answers.explain import explain
from minibert.errors import EditError, TraceError
from minibert.layers.config import Config
from minibert.model import Model
from minibert.text.tokens import Tokens
from minibert.trace.edit import Hide, hide, mean, noise, replace, zero
from minibert.trace.read import Trace
from tests.families import LAYER_NAMES

DRAWS, SENTENCES, VOCABULARY, MOST = 10, 3, 29, 7
FAMILIES = ("bert", "gpt2")
METRIC = analysis.logit_difference(7, 13)


@cache
def model_of(family: str) -> Model:
    causal = family == "gpt2"
    task, kinds = ("causal-lm", 0) if causal else ("masked-lm", 2)
    config = Config(family, task, VOCABULARY, 11, 2, 2, 6, 5, causal=causal, n_segments=kinds)
    model = Model.from_config(config, seed=3)
    generator = torch.Generator().manual_seed(4)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0, 0.5, generator=generator)
    return model.double()


class Drawn:
    """A batch of sentences, and positions to ask about."""

    def __init__(self, seed: int) -> None:
        draw = torch.Generator().manual_seed(seed)

        def number(low: int, high: int) -> int:
            return int(torch.randint(low, high, (), generator=draw))

        self.lengths = [number(2, MOST + 1) for _ in range(SENTENCES)]
        # All sentences of one length are not a ragged batch.
        self.lengths[0] += len(set(self.lengths)) == 1
        ids = torch.randint(VOCABULARY, (SENTENCES, max(self.lengths)), generator=draw)
        mask = torch.arange(max(self.lengths)) < torch.tensor(self.lengths)[:, None]
        self.tokens = Tokens.from_ids(ids, mask=mask)
        # The same lengths, to read values from.
        self.others = Tokens.from_ids(ids.flip(1), mask=mask)
        # One that every sentence has, counted from either end, and one of each.
        self.position = number(-min(self.lengths), min(self.lengths))
        self.each = [number(-length, length) for length in self.lengths]
        self.token = number(0, VOCABULARY)
        shortest = min(self.lengths)
        chosen = torch.randperm(shortest, generator=draw)[: number(1, min(3, shortest) + 1)]
        self.at = (chosen - shortest * number(0, 2)).tolist()
        self.name = LAYER_NAMES[number(0, len(LAYER_NAMES))]


def traced(model: Model, tokens: Tokens, draw: Drawn) -> Trace:
    trace = model.trace(tokens, grad=True)
    trace.backward(read(trace, draw).sum())
    return trace


def read(trace: Trace, draw: Drawn) -> Tensor:
    """A number for each sentence: a logit at its last token."""
    ends = [int(length) - 1 for length in trace.tokens.mask.sum(1)]
    return trace.logits[range(len(ends)), ends, draw.token]


# The result of each function as tensors with their axes. One that is asked about one position a
# sentence is given `each`: the positions of the sentences in the batch, or that of the one alone.
Axes = tuple[str, ...]
Named = list[tuple[Tensor, Axes]]
KEYS, COLUMNS = ("layer", "batch", "key"), ("row", "batch", "position", "rest")


def lens(trace: Trace, draw: Drawn, positions: Any) -> Named:
    found = analysis.logit_lens(trace, positions=positions, keep_logits=True)
    assert found.logits is not None
    return [(found.logits, COLUMNS), (found.ids, COLUMNS)]


def attributed(trace: Trace, draw: Drawn, each: list[int]) -> Named:
    found = [
        analysis.why_logit(trace, draw.token, position=place, sentence=n).values
        for n, place in enumerate(each)
    ]
    return [(torch.stack(found), ("batch", "component"))]


def norms(trace: Trace, draw: Drawn, each: list[int]) -> Named:
    heads = analysis.head_norms(trace, 1)
    return [
        (heads.values, ("batch", "head", "query", "key")),
        (heads.vectors, ("batch", "head", "key")),
        (analysis.summed_norms(trace, 0).values, ("batch", "query", "key")),
    ]


RESULTS: dict[str, Callable[[Trace, Drawn, list[int]], Named]] = {
    "rollout_of one for all": lambda t, d, each: [
        (analysis.rollout_of(t, d.position).values, KEYS)
    ],
    "rollout_of one for each": lambda t, d, each: [
        (analysis.rollout_of(t, each, residual=0.25).values, KEYS)
    ],
    "relevance_of": lambda t, d, each: [
        (analysis.relevance_of(t, each).values, KEYS),
        (analysis.relevance_of(t, -1).values, KEYS),
    ],
    "logit_lens": lambda t, d, each: [
        *lens(t, d, None),
        *((value, (*axes[:2], "chosen", *axes[3:])) for value, axes in lens(t, d, [d.position])),
    ],
    "decompose": lambda t, d, each: [
        (analysis.decompose(t).values, COLUMNS),
        (analysis.decompose(t, positions=d.position).values, ("row", "batch", "chosen", "rest")),
    ],
    "why_logit": attributed,
    "norms": norms,
}


Function = Callable[[Trace, Trace, Drawn], list[Tensor]]


def edited(trace: Trace, edit: Any, name: str) -> list[Tensor]:
    """Each sentence's logits, without its padding."""
    logits, lengths = trace.rerun({(name, 1): edit}).logits, trace.tokens.lengths
    return [row[:length] for row, length in zip(logits, lengths, strict=True)]


def swept(trace: Trace, edits: list[Any], positions: Any) -> list[Tensor]:
    found = trace.rerun_each([{key: edit} for key, edit in edits], METRIC, positions=positions)
    return list(found.unbind(1))


def explained(trace: Trace, position: int) -> list[Tensor]:
    found = []
    for sentence in range(len(trace.tokens)):
        got = explain(trace, layer=1, head=1, query=position, key=0, sentence=sentence)
        found.append(torch.cat([got.scores, got.probs, got.z, got.product]))
    return found


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
    return model_of(family).trace([[3, 5, 7, 11, 13], [2, 9, 4, 1, 8]])


FUNCTIONS: dict[str, Function] = {
    "zero.at": lambda t, _, d: edited(t, zero.at(positions=d.at), nonzero(d.name)),
    "replace a number": lambda t, _, d: edited(t, replace(0.3, positions=d.at), d.name),
    "replace a trace": lambda t, other, d: edited(t, replace(other, positions=d.at), d.name),
    "mean": lambda t, _, d: edited(
        t, mean(averages_of(t.config.family), positions=d.at), vector(d.name)
    ),
    "noise": lambda t, _, d: edited(t, noise(5, positions=d.at), vector(d.name)),
    "noise everywhere": lambda t, _, d: edited(t, noise(5), vector(d.name)),
    "hide": lambda t, _, d: edited(t, hide(d.at[0], positions=other_than(d.at[0])), "scores"),
    "rerun_each": lambda t, _, d: swept(
        t,
        [
            ((nonzero(d.name), 0), zero),
            (("z", 1, 1), replace(0.2, positions=d.at)),
            ("embed", noise(1)),
        ],
        d.at,
    ),
    "rerun_each, the last position": lambda t, _, d: swept(
        t, [((d.name, 1), replace(0.2, positions=d.at)), (("mlp_out", 0), zero)], None
    ),
    "explain": lambda t, _, d: explained(t, d.at[-1]),
}


def of_sentence(value: Tensor, axes: Axes, sentence: int, length: int) -> Tensor:
    """One sentence's part without padding, the batch axis still there."""
    cut = {"batch": slice(sentence, sentence + 1)}
    cut |= {axis: slice(length) for axis in ("position", "query", "key")}
    return value[tuple(cut.get(axis, slice(None)) for axis in axes)]


def of_padding(value: Tensor, axes: Axes, sentence: int, length: int) -> Tensor:
    """What a sentence's own queries have of the keys that are padding."""
    cut = {"batch": sentence, "query": slice(length), "key": slice(length, None)}
    return value[tuple(cut.get(axis, slice(None)) for axis in axes)]


# 0 for keys that are padding; of the others what stands there means nothing.
WITHOUT_PADDING = ("rollout", "relevance")


@pytest.mark.parametrize("family", FAMILIES)
def test_a_sentence_of_a_batch_has_the_results_of_the_sentence_alone(
    family: str, unchecked: None
) -> None:
    model = model_of(family)
    for seed in range(DRAWS):
        draw = Drawn(seed)
        together = traced(model, draw.tokens, draw)
        batch = {name: result(together, draw, draw.each) for name, result in RESULTS.items()}
        source = model.trace(draw.others)
        lists = {name: run(together, source, draw) for name, run in FUNCTIONS.items()}
        for sentence, length in enumerate(draw.lengths):
            alone = traced(model, draw.tokens[sentence], draw)
            for name, result in RESULTS.items():
                wanted = result(alone, draw, draw.each[sentence : sentence + 1])
                for (value, axes), (expected, _) in zip(batch[name], wanted, strict=True):
                    ours = of_sentence(value, axes, sentence, length)
                    if name.startswith(WITHOUT_PADDING):
                        assert not of_padding(value, axes, sentence, length).any(), name
                    where = f"{name}, draw {seed}, sentence {sentence}"
                    torch.testing.assert_close(
                        ours, expected, rtol=0, atol=1e-9, msg=lambda text, w=where: f"{w}: {text}"
                    )
            for name, run in FUNCTIONS.items():
                ours, (expected,) = lists[name][sentence], run(alone, source.text(sentence), draw)
                assert ours.shape == expected.shape, name
                assert (ours - expected).abs().max() <= 1e-9, (name, seed, sentence)


POSITIONS: dict[str, Callable[[Trace, Any], Any]] = {
    "rollout_of": lambda trace, position: analysis.rollout_of(trace, position).positions,
    "relevance_of": lambda trace, position: analysis.relevance_of(trace, position).positions,
    "logit_lens": lambda t, p: tuple(p for [p] in analysis.logit_lens(t, positions=p).positions),
    "decompose": lambda t, p: tuple(p for [p] in analysis.decompose(t, positions=p).positions),
}


@pytest.fixture(scope="module")
def trace() -> Trace:
    """Sentences of 5, 2 and 4 tokens."""
    mask = torch.arange(5) < torch.tensor([5, 2, 4])[:, None]
    made = model_of("bert").trace(Tokens.from_ids(torch.ones(3, 5).long(), mask=mask), grad=True)
    made.backward(made.logits[:, 0, 1].sum())
    return made


@pytest.mark.parametrize("name", POSITIONS)
def test_results_say_the_positions_of_each_sentence_and_padding_is_refused(
    name: str, trace: Trace
) -> None:
    resolved = POSITIONS[name]
    assert resolved(trace, 1) == (1, 1, 1)
    assert resolved(trace, -1) == (4, 1, 3)
    for position in (2, -3, 4):
        message = f"sentence 1: there is no position {position}; expected 0 to 1"
        with pytest.raises(TraceError, match=message):
            resolved(trace, position)


@pytest.mark.parametrize("name", ["rollout_of", "relevance_of"])
def test_one_position_for_each_sentence_is_counted_in_it(name: str, trace: Trace) -> None:
    assert POSITIONS[name](trace, [4, -2, 2]) == (4, 0, 2)
    with pytest.raises(TraceError, match="There are 2 positions for 3 sentences"):
        POSITIONS[name](trace, [0, 0])
    with pytest.raises(TraceError, match="sentence 2: there is no position 4"):
        POSITIONS[name](trace, [4, 1, 4])


def test_without_a_choice_positions_are_all_real_tokens_of_each_sentence(trace: Trace) -> None:
    expected = (tuple(range(5)), (0, 1), tuple(range(4)))
    assert analysis.logit_lens(trace).positions == expected
    assert analysis.decompose(trace).positions == expected
    assert [len(each) for each in analysis.logit_lens(trace).tokens] == [5, 2, 4]


@pytest.mark.parametrize("name", POSITIONS)
def test_a_packed_trace_is_refused_with_the_way_out(name: str) -> None:
    tokens = Drawn(0).tokens
    with pytest.raises(TraceError, match=r"packed trace.*trace\.text\(0\)"):
        POSITIONS[name](model_of("bert").trace(tokens, packed=True), 0)


def test_a_position_that_a_sentence_does_not_have_is_refused_by_name(
    trace: Trace, unchecked: None
) -> None:
    for at in (2, -3, [0, 2]):
        for edit in (zero.at(positions=at), hide(at, positions=-1), replace(1.0, positions=at)):
            name = "scores" if isinstance(edit.change, Hide) else "z"
            with pytest.raises(EditError, match=rf"\({name}, 1\): sentence 1: there is no"):
                trace.rerun({(name, 1): edit})
        with pytest.raises(EditError, match="sentence 1: there is no position"):
            trace.rerun_each([{}], METRIC, positions=at if isinstance(at, list) else [at])
    found = trace.rerun({("z", 1): zero.at(positions=3, sentences=0)})
    assert found[1].z[0, :, 3].count_nonzero() == 0
    torch.testing.assert_close(found[1].z[1], trace[1].z[1])
