"""Finite weights that are too large for the number type: no door gives NaN without a word."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from command_line import run as command_run
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from torch import Tensor

import minibert
from minibert.errors import MinibertError
from minibert.model import Model, from_transformers
from minibert.survey import survey
from minibert.transformer_lens import HookedTransformer
from tests.families import hf_model
from tests.rotary import theirs
from tests.rotary.classes import FAMILIES as ROTARY
from tests.rotary.classes import LANGUAGE
from tests.rotary.drawn import drawn
from tests.trace.editing import FAMILIES as ENCODERS
from tests.trace.test_laws import every_family

IDS = torch.tensor([[5, 7, 11, 13], [5, 3, 2, 7]])


def seen(trace: Any) -> list[Tensor]:
    return [trace.stack("probs"), trace.stack("z"), trace.stack("resid_post")]


def gradients(trace: Any) -> list[Tensor]:
    trace.backward(trace.logits[..., 0].sum())
    return [trace.grad.embed, *(trace.grad.stack(name) for name in ("probs", "resid_post"))]


DOORS: dict[str, Callable[[Model], list[Tensor]]] = {
    "call": lambda model: [model(IDS)],
    "packed": lambda model: list(model.packed(IDS)),
    "trace": lambda model: [(trace := model.trace(IDS)).logits, *seen(trace)],
    "gradient": lambda model: [(trace := model.trace(IDS, grad=True)).logits, *seen(trace)],
    "gradients": lambda model: gradients(model.trace(IDS, grad=True)),
    "edited": lambda model: seen(model.trace(IDS).rerun({("z", 0): lambda z: z / 2})),
    "until": lambda model: seen(model.trace(IDS, until=1)),
    "statistics": lambda model: [model.trace(IDS, statistics=("entropy",))[0].statistics.entropy],
    "packed trace": lambda model: [model.trace(IDS, packed=True).text(1).logits],
    "sweep": lambda model: [model.trace(IDS).rerun_each([{}], lambda logits: logits[:, -1, 0])],
    "hooked": lambda model: [HookedTransformer(model)(IDS)],
    "written": lambda model: [torch.tensor(model.generate(IDS[0], max_new_tokens=2).ids)],
}


@every_family
@settings(max_examples=2, phases=[Phase.generate])
@given(data=st.data())
def test_weights_that_are_too_large_are_said_in_every_door(
    family: str, data: st.DataObject
) -> None:
    if family in ROTARY:
        chosen = data.draw(drawn(family))
        original = theirs.model_of(chosen, LANGUAGE[family], torch.float32)
    else:
        original = hf_model(family, ENCODERS[family])
    model = from_transformers(original)
    place = data.draw(st.sampled_from([n for n, p in model.named_parameters() if p.dim() == 2]))
    weight = model.get_parameter(place)
    factor = data.draw(st.sampled_from([1e22, 1e35, 2.6e38]))
    with torch.no_grad():
        # A row for a word that is read.
        weight[7 % len(weight)] = factor * weight[7 % len(weight)].sign()
    for name, door in DOORS.items():
        if name == "until" and model.config.n_layers == 1:
            continue
        if name in ("hooked", "written") and not model.config.generates:
            continue
        if name == "hooked" and model.config.norm_place != "before":
            continue
        assert said_or_finite(partial(door, model)), (name, place)
    assert said_or_finite(lambda: read_live(minibert.attach(original).trace(IDS))), place


def written_out(*arguments: str) -> list[Tensor]:
    done = command_run(*arguments)
    assert done.exit_code == 0 or isinstance(done.exception, SystemExit), done
    if done.exit_code:
        raise MinibertError(done.stderr)
    return [torch.tensor(math.nan if "nan" in done.stdout.lower().split() else 0.0)]


TEXT = "the horse ran away and the boat turned slowly"
#: What takes a text, given the model and a folder with it.
OF_TEXT: dict[str, Callable[[Model, str], list[Tensor]]] = {
    "survey": lambda model, _: [torch.tensor(survey(model, [TEXT, TEXT]).table("to_self"))],
    "why": lambda model, _: [model.trace(TEXT).why(1, 0, query=4, key=2).values],
    "explain": lambda _, folder: written_out(
        "explain", TEXT, "--model", folder, "--layer", "1", "--head", "0", "--query", "5"
    ),
    "predict": lambda _, folder: written_out("predict", TEXT, "--model", folder),
    "generate": lambda _, folder: written_out(
        "generate", TEXT, "--model", folder, "--max-new-tokens", "2"
    ),
}


@pytest.mark.parametrize("name", ["tiny-gpt2", "tiny-llama"])
@settings(max_examples=3, phases=[Phase.generate])
@given(data=st.data())
def test_what_reads_a_text_says_that_weights_are_too_large(
    name: str, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    model = minibert.load(name)
    place = data.draw(st.sampled_from([n for n, p in model.named_parameters() if p.dim() == 2]))
    with torch.no_grad():
        weight = model.get_parameter(place)
        weight.copy_(data.draw(st.sampled_from([1e19, 1e35, 2.6e38])) * weight.sign())
    folder = str(model.save(tmp_path_factory.mktemp("huge")))
    for door, run in OF_TEXT.items():
        assert said_or_finite(partial(run, model, folder)), (door, place)


def read_live(trace: Any) -> list[Tensor]:
    return [trace.logits, trace.stack("z"), trace.stack("probs")]


def said_or_finite(door: Callable[[], list[Tensor]]) -> bool:
    """A logit may be −inf: the probability of its word is 0."""
    try:
        return all(bool((each < math.inf).all()) for each in door())
    except MinibertError as error:
        return "NaN" in str(error)
