"""Every public call, with one or two arguments that are wrong: a right result or a MinibertError.

Not drawn: flags of analyses and pages, of which Python takes the truth, and a metric or number that
raises by itself. Scores that are nan where nothing was measured say so in their documentation."""

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import jaxtyping
import numpy as np
import pytest
import torch
from bad_input import (
    VOCABULARY,
    WRONG,
    differentiated,
    ids,
    metric,
    model,
    tensors_of,
    trace,
    words_for,
)
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import minibert
from minibert import analysis
from minibert.errors import EditError, MinibertError
from minibert.model import Model
from minibert.text.tokens import Tokens
from minibert.trace.edit import mean, noise, replace, zero
from minibert.trace.read import Trace
from tests.families import hf_model
from tests.patching_calls import patching_calls

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
ROLLED = TRACED | {"layer": None, "reduce": "mean", "residual": 0.5}
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
    "model.generate": (
        lambda **given: model().generate(**given),
        {"text": [3, 4], "max_new_tokens": 2, "temperature": 0.8, "top_k": None, "top_p": None}
        | {"seed": 0, "stream": None},
    ),
    "model.to_state_dict": (lambda names: model().to_state_dict(names), {"names": "transformers"}),
    "from_transformers": (
        lambda **given: Model.from_transformers(**given),
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
    "product": (lambda query: trace()[0, 1].product(query), {"query": 3}),
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
        TRACED | {"points": "resid_post", "top": 5, "positions": None, "target": None},
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
    "block_norms": (analysis.block_norms, TRACED | {"layer": 0}),
    "relevance_of": (analysis.relevance_of, {"trace": differentiated, "position": 3}),
    "ablate_heads": (analysis.ablate_heads, SWEPT | {"edit": zero}),
    "patch_heads": (analysis.patch_heads, PATCHED | {"name": "z"}),
    "patch_positions": (analysis.patch_positions, PATCHED | {"name": "resid_post"}),
    "logit_difference": (
        lambda right, wrong: analysis.ablate_heads(
            trace(), analysis.logit_difference(right, wrong)
        ),
        {"right": 5, "wrong": 7},
    ),
}
CALLS |= patching_calls(trace, lone, SWEPT, PATCHED)
MAKERS = (model, trace, differentiated, zeroed, hugging_face)
LEFT_OUT: dict[str, Callable[[Any], bool]] = {
    "metric": lambda value: isinstance(value, Model),
    # A module is a function, and may be an edit or get the pieces of a text.
    **dict.fromkeys(("edit", "value", "number", "stream"), lambda value: isinstance(value, Model)),
}
UNMEASURED = ("head_scores",)


@pytest.fixture(scope="module", autouse=True)
def unchecked() -> Iterator[None]:
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
def test_a_wrong_argument_gives_a_right_result_or_an_error_that_names_it(
    name: str, data: st.DataObject
) -> None:
    good = CALLS[name][1]
    chosen = data.draw(st.sets(st.sampled_from(sorted(good)), min_size=1, max_size=2))
    bad = {argument: data.draw(wrong(argument)) for argument in sorted(chosen)}
    result = result_of(name, made(good | bad))
    if isinstance(result, MinibertError):
        message = str(result).casefold()
        assert any(word in message for each in bad.items() for word in words_for(*each)), message


def test_answers_that_are_not_one_for_each_sentence_are_called_tokens() -> None:
    for tokens in ([], [5, 7]):
        message = rf"{len(tokens)} answers for 1 sentences; expected one token for each"
        with pytest.raises(EditError, match=message):
            analysis.ablate_heads(trace(), analysis.answer_probability(tokens))


def test_a_whole_number_of_another_type_is_that_number() -> None:
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
    name: Any, layer: Any, head: Any, value: Any, seed: int
) -> None:
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
def test_a_flag_that_is_neither_true_nor_false_is_refused(
    flag: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    model, wrong = minibert.load(), {flag: "no"}
    calls: dict[str, Any] = {"packed": model.trace, "grad": model.trace, "truncate": model.tokenize}
    with pytest.raises(minibert.MinibertError, match=f"{flag}='no': expected True or False"):
        calls.get(flag, minibert.load)("the horse", **wrong)
