"""Every public call, with one or two arguments that are wrong: a right result or a MinibertError.

Not drawn: flags of analyses and pages, of which Python takes the truth, and a metric or number that
raises by itself. Scores that are nan where nothing was measured say so in their documentation."""

import dataclasses
import math
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import cache
from typing import Any

import jaxtyping
import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

import minibert
from minibert import analysis, errors
from minibert.analysis.patterns import pattern_of
from minibert.checkpoint.headers import embedded_names
from minibert.course import check
from minibert.course.check import EXERCISES
from minibert.errors import EditError, MinibertError
from minibert.kernels.call import WANTS
from minibert.layers.config import FAMILIES, Config
from minibert.layers.layer import layer_quantities
from minibert.model import Model, from_transformers
from minibert.quantities import QUANTITIES
from minibert.survey.measures import measures_of
from minibert.text.inputs import NAMES
from minibert.text.tokens import Tokens
from minibert.trace.edit import mean, noise, replace, zero
from minibert.trace.read import Trace
from minibert.viz.page import VIEWS
from tests.command_line import run
from tests.families import hf_model

LAYERS, HEADS, LENGTH, VOCABULARY, POSITIONS = 2, 3, 7, 41, 13


@cache
def model(family: str = "gpt2", task: str = "causal-lm", layers: int = LAYERS) -> Model:
    """Small, with its weights far enough from 0; bert has segments and no causality."""
    causal = family == "gpt2"
    shape: dict[str, Any] = {"n_layers": layers, "n_heads": HEADS, "d_model": 15, "d_mlp": 17}
    shape |= {"causal": causal, "n_segments": 0 if causal else 2, "pooler": not causal}
    config = Config(family, task, VOCABULARY, POSITIONS, **shape)
    made = Model.from_config(config, seed=layers, name=f"a small {family}")
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.mul_(5)
    return made


def ids(seed: int = 0, batch: int = 1, length: int = LENGTH) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(2, VOCABULARY, (batch, length), generator=generator)


def trace(family: str = "gpt2", **options: Any) -> Trace:
    task = "causal-lm" if family == "gpt2" else "masked-lm"
    return model(family, task).trace(ids(), **options)


def padded() -> Trace:
    mask = torch.arange(LENGTH) < torch.tensor([[LENGTH], [3]])
    return model().trace(Tokens.from_ids(ids(batch=2), mask=mask))


def differentiated() -> Trace:
    made = model().trace(ids(), grad=True)
    made.backward(made.logits[0, -1, 5])
    return made


def metric(logits: Tensor) -> Tensor:
    return logits[:, -1, 5] - logits[:, -1, 7]


NUMBERS = [None, True, 0, -1, 2, 1.5, 99, -99, 10**30, math.nan, math.inf, -math.inf, 1j]
TEXTS = ["", "x", "z", "probs", "a b", b"x", "\ud800"]
LISTS = [[], [[]], (), {}, [0], [99], [-99], [1.5], ["x"], [None], [True], [0, 0], [0, [1]]]
LISTS += [range(0), slice(None), slice(5, 2), slice("a", None), {1: 2}, {"z"}]
ARRAYS = [
    torch.tensor(1),
    torch.tensor(99),
    torch.tensor(1.5),
    torch.tensor(math.nan),
    torch.tensor([]),
    torch.tensor([0, 1]),
    torch.zeros(2, 0, dtype=torch.int64),
    torch.zeros(2, 3),
    torch.full((1, LENGTH, 15), math.nan),
    torch.ones(1, LENGTH, dtype=torch.bool),
    torch.zeros(1, LENGTH, 15, dtype=torch.complex64),
    torch.zeros(1, 2, 3, 4, 5, dtype=torch.int64),
    np.int64(1),
    np.float64(1.5),
    np.zeros((2, 3)),
    np.array([0, 1]),
]
OTHERS = [object(), lambda *_: None, lambda *_: "x", zero, ValueError("x")]


# Things of this library that do not belong here, each made when it is drawn.
STRANGERS: list[Callable[[], Any]] = [
    model,
    lambda: model("bert", "masked-lm"),
    lambda: model("bert", "none"),
    lambda: model("bert", "next-sentence"),
    lambda: trace("bert"),
    lambda: trace(until=0),
    lambda: trace(edit={("z", 0): zero}),
    lambda: model(layers=5).trace(ids()),
    lambda: model().trace(ids(length=3)),
    padded,
    lambda: Tokens.from_ids(ids(batch=2)),
    lambda: trace()[0],
]

WRONG = (
    st.sampled_from([*NUMBERS, *TEXTS, *LISTS, *ARRAYS, *OTHERS])
    | st.integers(-20, 50)
    # Larger ones leave float32 on the way through a model.
    | st.floats(-1e15, 1e15)
    | st.text(max_size=5)
    | st.lists(st.integers(-20, 50), max_size=3)
    | st.sampled_from(STRANGERS).map(lambda make: make())
)


def tensors_of(result: Any) -> Iterator[Tensor]:
    """Every tensor that a result holds."""
    if isinstance(result, Tensor):
        yield result
    elif isinstance(result, Trace):
        yield from result.kept.values()
        for record in result.records:
            yield from record.values()
    elif dataclasses.is_dataclass(result) and not isinstance(result, type):
        for each in dataclasses.fields(result):
            yield from tensors_of(getattr(result, each.name))
    elif isinstance(result, Mapping):
        for each in result.values():
            yield from tensors_of(each)
    elif isinstance(result, list | tuple):
        for each in result:
            yield from tensors_of(each)


TOKEN_ARGUMENTS = ["token", "against", "target", "queries", "keys", "sources", "targets"]
TOKEN_ARGUMENTS += ["right", "wrong", "ids"]
SYNONYMS = {
    **dict.fromkeys(TOKEN_ARGUMENTS, ("token", "vocabulary")),
    **dict.fromkeys(("text", "tokens", "repeated"), ("ids", "text", "token", "segment")),
    "where": ("trace[",),
    "pair": ("second text", "ids"),
    # What is read from a trace has its shape, and a model its task.
    **dict.fromkeys(("source", "value", "over", "edit"), ("shape", "length", "logits", "layers")),
    **dict.fromkeys(("trace", "model"), ("texts have", "task", "until", "backward", "layers")),
}


def words_for(argument: str, value: Any) -> set[str]:
    """What an error may call an argument: its name, its value, or what is wrong with it."""
    named = {argument, argument.removesuffix("s"), *SYNONYMS.get(argument, ())}
    named |= {type(value).__name__, str(value)[:20], repr(value)[:20]}
    if isinstance(value, list | tuple | set | np.ndarray):
        named |= set(map(str, value))
    if isinstance(value, Tensor):
        named |= {str(tuple(value.shape)), str(value.dtype)}
        named |= {str(value.item())} if value.numel() == 1 else set()
    return {word.casefold() for word in named if word}


Call = Callable[..., Any]
Z = {("z", 0): zero}


def hashable(value: Any) -> Any:
    """A key of a dictionary has to be hashable: that is Python's own law."""
    try:
        hash(value)
    except TypeError:
        assume(False)
    return value


def zeroed() -> Trace:
    return trace(edit=Z)


def edited(name: Any, layer: Any, head: Any) -> Trace:
    return trace().rerun({hashable((name, layer, head)): zero})


@cache
def lone() -> Model:
    """The embedded model, which has a tokenizer."""
    return minibert.load("tiny-bert")


@cache
def hugging_face() -> Any:
    return hf_model("gpt2", "GPT2LMHeadModel")


TRACED = {"trace": trace}
ROLLED = TRACED | {"layer": None, "residual": 0.5}
SWEPT = TRACED | {"metric": metric, "positions": None, "batch": 64}
PATCHED = SWEPT | {"source": zeroed}
TEXT = {"text": ids(), "pair": None}

# MAKERS among the good values make the value when it is needed.
CALLS: dict[str, tuple[Call, dict[str, Any]]] = {
    "model": (lambda text, pair: model()(text, pair), TEXT),
    "model.trace": (
        lambda **given: model().trace(**given),
        TEXT | {"keep": (), "until": None, "edit": None},
    ),
    "model.packed": (lambda text, pair: model().packed(text, pair), TEXT),
    "model.tokenize": (lambda text, pair: lone().tokenize(text, pair), {"text": "x", "pair": None}),
    "model.predict": (lambda **given: minibert.load("tiny-gpt2").predict("a", **given), {"top": 2}),
    "model.live": (lambda **given: minibert.load("tiny-gpt2").live(**given), {"height": 300}),
    "model.generate": (
        lambda **given: model().generate(**given),
        {"text": [3, 4], "max_new_tokens": 2, "temperature": 0.8, "top_k": None, "top_p": None}
        | {"seed": 0, "stream": None},
    ),
    "from_transformers": (
        lambda **given: from_transformers(**given),
        {"model": hugging_face, "task": None, "dtype": None},
    ),
    "Tokens.from_ids": (
        lambda ids, mask, segments: model()(Tokens.from_ids(ids, mask=mask, segments=segments)),
        {"ids": [3, 4], "mask": None, "segments": None},
    ),
    "trace[]": (lambda layer, head: trace()[layer, head].probs, {"layer": 0, "head": 1}),
    "trace[layer]": (lambda where: trace()[where].z, {"where": 0}),
    "trace.stack": (lambda name: trace().stack(hashable(name)), {"name": "z"}),
    "window": (
        lambda name, queries, keys: trace()[0].window(hashable(name), queries=queries, keys=keys),
        {"name": "probs", "queries": slice(None), "keys": slice(2)},
    ),
    "trace.rerun": (lambda edit, keep: trace().rerun(edit, keep=keep), {"edit": Z, "keep": ()}),
    "a point": (edited, {"name": "z", "layer": 0, "head": 1}),
    "an edit": (lambda value: trace().rerun({("z", 0): value}), {"value": zero}),
    "replace": (
        lambda value, **places: trace().rerun({("z", 0): replace(value, **places)}),
        {"value": 0.5, "positions": 0, "sentences": 0},
    ),
    "mean": (lambda over: trace().rerun({("z", 0): mean(over)}), {"over": trace}),
    "noise": (
        lambda seed, std: trace().rerun({("z", 0): noise(seed, std=std)}),
        {"seed": 0, "std": 1.0},
    ),
    "rerun_each": (
        lambda **given: trace().rerun_each(**given),
        {"edits": [Z], "metric": metric, "positions": None, "batch": 64},
    ),
    "trace.backward": (lambda scalar: differentiated().backward(scalar), {"scalar": None}),
    "trace.grad[]": (lambda where: differentiated().grad[where].probs, {"where": 0}),
    "trace.grad.stack": (lambda name: differentiated().grad.stack(hashable(name)), {"name": "z"}),
    "head_scores": (
        analysis.head_scores,
        {"model": model, "tokens": ids(), "delimiters": [3]}
        | {"repeated": analysis.repeated_ids(VOCABULARY, length=5, draws=2)},
    ),
    "draws_for": (analysis.draws_for, {"model": model, "length": 5}),
    "repeated_ids": (
        analysis.repeated_ids,
        {"vocab_size": VOCABULARY, "length": 5, "draws": 2, "seed": 0, "low": 0}
        | {"exclude": (), "first": None, "last": None},
    ),
    "logit_lens": (
        analysis.logit_lens,
        TRACED | {"points": "resid_post", "top": 5, "positions": None},
    ),
    "why_logit": (
        analysis.why_logit,
        TRACED | {"token": 5, "against": None, "position": -1, "sentence": 0},
    ),
    "decompose": (
        analysis.decompose,
        TRACED | {"layer": -1, "point": "resid_post", "positions": None},
    ),
    "embedding_parts": (
        analysis.embedding_parts,
        {"model": model, "text": ids(), "positions": None, "segments": None},
    ),
    "shared_dimensions": (analysis.shared_dimensions, TRACED | {"top": 2}),
    "composition_scores": (analysis.composition_scores, {"model": model, "kind": "K"}),
    "rollout_of": (analysis.rollout_of, ROLLED | {"position": 3}),
    "head_norms": (analysis.head_norms, TRACED | {"layer": 0}),
    "summed_norms": (analysis.summed_norms, TRACED | {"layer": 0}),
    "relevance_of": (analysis.relevance_of, {"trace": differentiated, "position": 3}),
    "ablate_heads": (analysis.ablate_heads, SWEPT | {"edit": zero}),
    "patch_heads": (analysis.patch_heads, PATCHED | {"name": "z"}),
    "patch_positions": (
        analysis.patch_positions,
        PATCHED | {"name": "z", "heads": True, "layers": [0], "aligned": None},
    ),
    "logit_difference": (
        lambda right, wrong: analysis.ablate_heads(
            trace(), analysis.logit_difference(right, wrong)
        ),
        {"right": 5, "wrong": 7},
    ),
}
CALLS |= {
    "causal_tracing": (
        analysis.causal_tracing,
        SWEPT
        | {"subject": 1, "name": "resid_post", "window": 1, "samples": 1, "std": 0.5, "seed": 0},
    ),
    "attention_knockout": (
        analysis.attention_knockout,
        SWEPT | {"blocked": {"a": (-1, 0)}, "window": 1},
    ),
    "answer_probability": (
        lambda token: analysis.ablate_heads(trace(), analysis.answer_probability(token)),
        {"token": 5},
    ),
    "phrase_positions": (
        lambda phrase: analysis.phrase_positions(lone().trace("the horse"), phrase),
        {"phrase": "horse"},
    ),
    "load a fresh head": (
        lambda task, labels, head_seed: minibert.load(
            "tiny-bert", task=task, labels=labels, head_seed=head_seed
        ),
        {"task": "sequence-classification", "labels": ["no", "yes"], "head_seed": 0},
    ),
}
MAKERS = (model, trace, differentiated, zeroed, hugging_face)
LEFT_OUT: dict[str, Callable[[Any], bool]] = {
    "metric": lambda value: isinstance(value, Model),
    # A module is a function, and may be an edit or get the pieces of a text.
    **dict.fromkeys(("edit", "value", "number", "stream"), lambda value: isinstance(value, Model)),
}
UNMEASURED = ("head_scores",)


@pytest.fixture(scope="module", autouse=True)
def unchecked():
    """As people run it: without the checks of annotations that only tests have."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jaxtyping.config, "jaxtyping_disable", True)
        yield


def made(arguments: dict[str, Any]) -> dict[str, Any]:
    """The arguments, models and traces made where a function stands for them."""
    return {
        name: value() if any(value is maker for maker in MAKERS) else value
        for name, value in arguments.items()
    }


def result_of(name: str, arguments: dict[str, Any]) -> Any:
    """What a call gives, or its MinibertError; never nan out of finite numbers."""
    call, _ = CALLS[name]
    try:
        result = call(**arguments)
    except MinibertError as error:
        return error
    for tensor in tensors_of(result):
        finite = not tensor.is_floating_point() or bool(tensor.isfinite().all())
        assert finite or name in UNMEASURED
    return result


def wrong(argument: str) -> st.SearchStrategy[Any]:
    left_out = LEFT_OUT.get(argument, lambda _: False)
    return WRONG.filter(lambda value: not left_out(value))


@settings(max_examples=150)
@given(name=st.sampled_from(sorted(CALLS)), data=st.data())
def test_a_wrong_argument_gives_a_right_result_or_an_error_that_names_it(name, data):
    good = CALLS[name][1]
    chosen = data.draw(st.sets(st.sampled_from(sorted(good)), min_size=1, max_size=2))
    bad = {argument: data.draw(wrong(argument)) for argument in sorted(chosen)}
    result = result_of(name, made(good | bad))
    if isinstance(result, MinibertError):
        message = str(result).casefold()
        assert any(word in message for each in bad.items() for word in words_for(*each)), message


@pytest.mark.parametrize("tokens", [[], [5, 7]])
def test_answers_that_are_not_one_for_each_sentence_are_refused(tokens):
    with pytest.raises(EditError, match=rf"{len(tokens)} answers for 1 sentences; expected one"):
        analysis.ablate_heads(trace(), analysis.answer_probability(tokens))


def test_a_whole_number_of_another_type_is_that_number():
    kinds: tuple[Any, ...] = (np.int64, np.uint8, torch.tensor)
    for number, (name, (_, good)) in enumerate(CALLS.items()):
        for argument, value in good.items():
            if type(value) is int and value >= 0:
                kind = kinds[number % len(kinds)]
                found = result_of(name, made(good | {argument: kind(value)}))
                if isinstance(found, MinibertError):
                    continue
                expected = result_of(name, made(good))
                pairs = zip(tensors_of(found), tensors_of(expected), strict=True)
                assert all(torch.equal(*pair) for pair in pairs), (name, argument)


@settings(max_examples=20)
@given(name=WRONG, layer=WRONG, head=WRONG, value=WRONG, seed=st.integers(0, 2**20))
def test_an_edit_that_does_not_fit_is_refused_before_the_forward_starts(
    name, layer, head, value, seed
):
    assume(not callable(value) and not isinstance(value, Trace))
    parts = [hashable((wrong, right)) for wrong, right in ((name, "z"), (layer, 0), (head, 1))]
    point = tuple(pair[seed >> n & 1] for n, pair in enumerate(parts))
    started: list[Any] = []
    handle = model().body.word.register_forward_hook(lambda *_: started.append(1))
    try:
        model().trace(ids(), edit={point: value if seed % 3 else 0.5})
    except EditError:
        assert not started
    else:
        assert started
    finally:
        handle.remove()


@pytest.mark.parametrize("flag", ["packed", "grad", "truncate", "offline", "allow_unexpected"])
def test_a_flag_that_is_neither_true_nor_false_is_refused(flag, monkeypatch):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    model, wrong = minibert.load(), {flag: "no"}
    calls: dict[str, Any] = {"packed": model.trace, "grad": model.trace, "truncate": model.tokenize}
    with pytest.raises(minibert.MinibertError, match=f"{flag}='no': expected True or False"):
        calls.get(flag, minibert.load)("the horse", **wrong)


def _view(name: str) -> object:
    return trace().view(view=name)  # type: ignore[arg-type]


def _tasks(name: str) -> object:
    return Config("bert", name, VOCABULARY, POSITIONS, 1, 1, 4, 4)


def _command(*words: str) -> Callable[[str], object]:
    """What the command line answers, as an error, where a word is a wrong name."""

    def call(name: str) -> object:
        raise MinibertError(run(*(word or name for word in words)).stderr)

    return call


# By what is misspelled: the names that are known there, and a call with one of them.
DOORS: dict[str, tuple[Collection[str], Callable[[str], object]]] = {
    "model": (embedded_names(), lambda name: minibert.load(name, offline=True)),
    "task": (FAMILIES["bert"].tasks, _tasks),
    "family": (FAMILIES, lambda name: Config(name, "none", VOCABULARY, POSITIONS, 1, 1, 4, 4)),
    "public name": (
        set(minibert.__all__) - set(errors.__all__) - {"__version__"},
        lambda name: getattr(minibert, name),
    ),
    "quantity of a layer": (layer_quantities(), lambda name: getattr(trace()[0], name)),
    "quantity of a trace": (("logits", "hidden", "attentions"), lambda n: getattr(trace(), n)),
    "edit": (QUANTITIES, lambda name: trace().rerun({(name, 0): 0})),  # type: ignore[dict-item]
    "statistic": (WANTS, lambda name: trace(statistics=(name,))),
    "implementation": (tuple(minibert.implementations()), lambda name: trace(impl=name)),
    "option": (("keep", "until", "statistics", "packed"), lambda name: trace(**{name: None})),
    "input": (NAMES, lambda name: model().trace(**{name: [[1, 2]]})),  # type: ignore[call-overload]
    "view": (VIEWS, _view),
    "exercise": (EXERCISES, lambda name: check(name, 1)),
    "features": (("tiny-gpt2",), minibert.features.load),
    "measure": ([one.name for one in measures_of()], lambda name: measures_of(names=(name,))),
    "pattern": (analysis.PATTERNS, pattern_of),
    "command": (("explain", "predict", "survey", "serve", "verify"), _command("")),
    "choice of a command": (("causal-lm", "masked-lm"), _command("train", "--task", "", "a.txt")),
    "view of a command": (VIEWS, _command("view", "a", "--view", "")),
}


@pytest.mark.parametrize("door", DOORS)
@given(st.data())
@settings(max_examples=12)
def test_a_name_one_edit_away_is_answered_with_the_nearest_one(door: str, data: Any) -> None:
    known, call = DOORS[door]
    meant = data.draw(st.sampled_from(sorted(name for name in known if len(name) > 3)))
    place = data.draw(st.integers(1, len(meant) - 1))
    letter, taken = data.draw(st.sampled_from("aeqz")), data.draw(st.integers(0, 1))
    written = meant[:place] + letter * data.draw(st.integers(1 - taken, 1)) + meant[place + taken :]
    # A hyphen more or less is not a slip: the name is found.
    assume(written not in known)
    with pytest.raises((MinibertError, AttributeError)) as error:
        call(written)
    offered = re.search(r"[Dd]id you mean '([^']*)'", str(error.value))
    assert offered, str(error.value)
    assert offered[1] in known
    assert offered[1] == meant or len(offered[1]) - len(written) in (-1, 0, 1)
