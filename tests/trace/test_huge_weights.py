"""Finite weights that are too large for the number type: no door gives NaN without a word."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from torch import Tensor

import minibert
from minibert.errors import MinibertError
from minibert.loading import from_transformers
from minibert.model import Model
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


DOORS: dict[str, Callable[[Model], list[Tensor]]] = {
    "call": lambda model: [model(IDS)],
    "packed": lambda model: list(model.packed(IDS)),
    "trace": lambda model: [(trace := model.trace(IDS)).logits, *seen(trace)],
    "gradient": lambda model: [(trace := model.trace(IDS, grad=True)).logits, *seen(trace)],
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


def read_live(trace: Any) -> list[Tensor]:
    return [trace.logits, trace.stack("z"), trace.stack("probs")]


def said_or_finite(door: Callable[[], list[Tensor]]) -> bool:
    """A logit may be −inf: the probability of its word is 0."""
    try:
        return all(bool((each < math.inf).all()) for each in door())
    except MinibertError as error:
        return "NaN" in str(error)
