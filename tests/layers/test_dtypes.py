"""Every call in float64, float32, bfloat16 and float16: the numbers of float64, as near as it goes.

On an accelerator the same numbers come out, where there is one.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

from minibert import analysis
from minibert.model import Model, from_transformers
from minibert.trace.edit import noise, replace, zero
from tests.families import VOCABULARY, hf_model

NAMES = {"bert": "BertForMaskedLM", "gpt2": "GPT2LMHeadModel"}
# Largest difference from float64, in parts of the largest value.
TOLERANCES = {torch.float64: 1e-12, torch.float32: 2e-5, torch.float16: 2e-2, torch.bfloat16: 1e-1}
QUANTITIES = ("query", "scores", "probs", "z", "head_out", "attn_out", "mlp_post", "resid_post")
ACCELERATORS = [
    pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="none")),
    pytest.param(
        "mps", marks=pytest.mark.skipif(not torch.backends.mps.is_available(), reason="none")
    ),
]


@cache
def model(family: str, dtype: torch.dtype = torch.float64) -> Model:
    return from_transformers(hf_model(family, NAMES[family], dtype=torch.float32).to(dtype))


def ids(seed: int = 0) -> Tensor:
    return torch.randint(2, VOCABULARY, (2, 7), generator=torch.Generator().manual_seed(seed))


def near(found: Tensor, expected: Tensor, dtype: torch.dtype) -> None:
    assert found.shape == expected.shape
    expected = expected.double().cpu()
    error = (found.double().cpu() - expected).nan_to_num().abs().max()
    assert error <= TOLERANCES[dtype] * expected.nan_to_num().abs().max()


def read(model: Model) -> list[Tensor]:
    trace = model.trace(ids())
    return [trace.logits, *(getattr(trace[1], name) for name in QUANTITIES)]


def edited(model: Model) -> list[Tensor]:
    edits: list[dict[Any, Any]] = [
        {("z", 1, 0): zero},
        {("probs", 1, 0): lambda probs: probs * 0.5},
        {("resid_post", 0): noise(seed=3, std=0.1)},
        {("z", 1, 2): replace(model.trace(ids(1)), positions=[3])},
        {("scores", 1, 0): 0.5},
    ]
    return [model.trace(ids(), edit=edit).logits for edit in edits]


def swept(model: Model) -> list[Tensor]:
    trace = model.trace(ids()[:1])
    return [
        trace.rerun_each(
            [{("z", layer, head): zero} for layer in range(3) for head in range(3)],
            lambda logits: logits[:, -1, 5],
        )
    ]


def differentiated(model: Model) -> list[Tensor]:
    trace = model.trace(ids(), grad=True)
    trace.backward(trace.logits[0, 3, 5])
    return [trace.grad[1, 0].probs, trace.grad[0].z]


def analysed(model: Model) -> list[Tensor]:
    trace, graded = model.trace(ids()), model.trace(ids(), grad=True)
    graded.backward(graded.logits[0, 3, 5])

    results: list[Any] = [
        analysis.rollout_of(trace, 3),
        analysis.head_norms(trace, 1),
        analysis.composition_scores(model, "K"),
        analysis.decompose(trace),
        # Not token 5, whose logit is near 0 and rounded as the others are.
        analysis.why_logit(trace, 7, position=3),
        analysis.ablate_heads(model.trace(ids()[:1]), lambda logits: logits[:, 3, 7]),
        analysis.relevance_of(graded, 3),
    ]
    parts = [part for result in results for part in vars(result).values()]
    return [part for part in parts if isinstance(part, Tensor) and part.is_floating_point()]


CALLS = (read, edited, swept, differentiated, analysed)


@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.__name__)
def test_a_call_gives_the_numbers_of_float64_in_its_own_type(
    call: Callable[[Model], list[Tensor]],
) -> None:
    for family in NAMES:
        expected = call(model(family))
        for dtype in (torch.float32, torch.float16, torch.bfloat16):
            found = call(model(family, dtype))
            assert len(found) == len(expected)
            for mine, wide in zip(found, expected, strict=True):
                near(mine, wide, dtype)
            assert call in (swept, analysed) or {each.dtype for each in found} == {dtype}


def test_text_is_generated_in_every_number_type() -> None:
    wide = model("gpt2").generate(ids()[0], max_new_tokens=5, temperature=0)
    for dtype in TOLERANCES:
        written = model("gpt2", dtype).generate(ids()[0], max_new_tokens=5, temperature=0)
        assert written.ids == wide.ids


@pytest.mark.parametrize("device", ACCELERATORS)
def test_an_accelerator_gives_the_numbers_of_the_processor(device: str) -> None:
    for family in NAMES:
        there = from_transformers(hf_model(family, NAMES[family])).to(device)
        for call in CALLS:
            found, expected = call(there), call(model(family))
            assert {each.device.type for each in found} == {device}
            for mine, wide in zip(found, expected, strict=True):
                near(mine, wide, torch.float16)
    there = from_transformers(hf_model("gpt2", "GPT2LMHeadModel")).to(device)
    options: dict[str, Any] = {"max_new_tokens": 5, "temperature": 0}
    expected_ids = model("gpt2").generate(ids()[0], **options).ids
    assert there.generate(ids()[0], **options).ids == expected_ids
