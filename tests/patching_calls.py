"""Good arguments for tests/test_bad_input_calls.py: patching over pairs, and a fresh head."""

from collections.abc import Callable
from typing import Any

import minibert
from minibert import analysis
from minibert.model import Model
from minibert.trace.read import Trace

Arguments = dict[str, Any]


def patching_calls(
    trace: Callable[[], Trace], lone: Callable[[], Model], swept: Arguments, patched: Arguments
) -> dict[str, tuple[Callable[..., Any], Arguments]]:
    return {
        "patch_head_positions": (
            analysis.patch_head_positions,
            patched | {"name": "z", "layers": [0], "aligned": None},
        ),
        "causal_tracing": (
            analysis.causal_tracing,
            swept
            | {
                "subject": 1,
                "name": "resid_post",
                "window": 1,
                "samples": 1,
                "std": 0.5,
                "seed": 0,
            },
        ),
        "attention_knockout": (
            analysis.attention_knockout,
            swept | {"blocked": {"a": (-1, 0)}, "window": 1},
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
