"""Results of every form that a picture has, with made-up numbers that are all different."""

from types import SimpleNamespace
from typing import Any

import torch
from figure_texts import tokens
from torch import Tensor

from minibert.analysis.composition import CompositionScores
from minibert.analysis.edges import PatchEstimates
from minibert.analysis.flow import OfPosition
from minibert.analysis.lens import LogitLens
from minibert.analysis.patching import CausalTraces, Effects
from minibert.analysis.patterns import PATTERNS, HeadScores
from minibert.analysis.reasons import Why
from minibert.analysis.stream import Component, Decomposition
from minibert.result import Result

L, H, BATCH = 3, 5, 2
Drawn = Result[Tensor]


def numbers(*shape: int) -> Tensor:
    """Shares between 0 and 1, all different."""
    count = torch.Size(shape).numel()
    return ((torch.arange(count) * 0.6180339887) % 1).reshape(shape)


def signed(*shape: int) -> Tensor:
    """Numbers on both sides of 0."""
    return numbers(*shape) - 0.5


def edited(count: int, both: dict[str, Any]) -> dict[str, Drawn]:
    """What is patched, restored and blocked."""
    ends = {"clean": numbers(BATCH), "patched": numbers(BATCH)}
    last = both["tokens"][0][-1]
    return {
        "sweep": Effects(signed(L, BATCH, H), "layer batch head", "Patching", **both, **ends),
        "head x token": Effects(
            signed(L, BATCH, H, count), "layer batch head position", "Patching", **both, **ends
        ),
        "blocked": Effects(
            signed(L, BATCH, 2), "layer batch blocked", labels={"blocked": ("a", last)},
            signed=True, clean=ends["clean"],
        ),
        "traced": CausalTraces(
            signed(L, BATCH, count), "layer batch position", "Restoring", **both,
            clean=ends["clean"], corrupt=ends["patched"], subject=((1, 2), (0,)), window=1, std=0.5,
        ),
        "estimates": PatchEstimates(
            signed(L, BATCH, H, count), "layer batch head position", "Patching z", **both
        ),
    }  # fmt: skip


def results(count: int = 7, hostile: bool = False) -> dict[str, Drawn]:
    """One of each, about a sentence of `count` tokens and a shorter one that is padded."""
    N, words = count, tokens(count, hostile)
    labels = (words, words[: N - 2])
    given = {"unit": "unit of the numbers", "tokens": labels}
    both = {"signed": True, **given}
    parts = (Component("embed"), *(Component("head", n, h) for n in range(L) for h in range(H)))
    names = {"component": parts}
    where = {"positions": (3, 1), "labels": {"batch": ["“fox” at 3", "“the” at 1"]}}
    rows = {"row": [f"resid_post {n}" for n in range(L)]}
    lens = {
        "ids": torch.arange(L * BATCH * N * 2).reshape(L, BATCH, N, 2) % 31,
        "positions": (tuple(range(N)), tuple(range(N - 2))),
        "words": dict(enumerate(tokens(31, hostile))),
    }
    return {
        "query x key": Result(numbers(BATCH, N, N), "batch query key", "Rollout", **given),
        "heads": Result(signed(L, BATCH, H, N, N), "layer batch head query key", "Heads", **both),
        "head x query": Result(numbers(BATCH, H, N, N), "batch head query key", "Norms", **given),
        "token": Result(signed(BATCH, N), "batch position", "Loss", **both),
        "layer x head": Result(numbers(L, BATCH, H), "layer batch head", "Changes", **given),
        "vocabulary": Result(
            9 * signed(N, N), "query key", "QK", labels={"query": words, "key": words}, signed=True
        ),
        "position": OfPosition(numbers(L, BATCH, N), "layer batch key", "Of", **given, **where),
        "attribution": Why(
            signed(16), "component", "Logit", "nats", names, signed=True, number=1.0,
            reading=SimpleNamespace(split=None),
        ),
        "decomposition": Decomposition(
            signed(16, BATCH, N, 13), "component batch position d_model", "resid_post 2",
            labels=names, tokens=labels, layer=2, point="resid_post",
            positions=lens["positions"],
        ),
        "lens": LogitLens(
            numbers(L, BATCH, N, 2), "row batch position rank", "Logit lens", labels=rows,
            limits=(0.0, 1.0), **given, **lens,
        ),
        "patterns": HeadScores.of({name: numbers(L, H) for name in PATTERNS}),
        **edited(N, both),
        "composition": CompositionScores(
            numbers(L, H, L, H), "layer head later_layer later_head", "K-composition", "score"
        ),
    }  # fmt: skip
