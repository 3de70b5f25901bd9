"""One result of each kind in minibert.analysis, with made-up numbers that are all different."""

from typing import Any

import torch
from figure_texts import tokens

from minibert.analysis.attribution import LogitAttribution
from minibert.analysis.attribution_patching import PatchEstimates
from minibert.analysis.causal_tracing import CausalTraces
from minibert.analysis.circuits import OVCircuit, QKCircuit, SingularVectors
from minibert.analysis.comparison import ModelComparison
from minibert.analysis.components import Component
from minibert.analysis.composition import CompositionScores
from minibert.analysis.decomposition import Decomposition
from minibert.analysis.flow import Flow
from minibert.analysis.integrated import IntegratedAttention, IntegratedEmbeddings
from minibert.analysis.knockout import Knockouts
from minibert.analysis.lens import LogitLens
from minibert.analysis.losses import TokenLosses
from minibert.analysis.norms import BlockNorms, HeadNorms, SummedNorms
from minibert.analysis.patching import Sweep
from minibert.analysis.path_patching import PathPatches
from minibert.analysis.pattern_scores import PatternScores
from minibert.analysis.relevance import AttentionRelevance, PositionRelevance, Relevance
from minibert.analysis.rollout import PositionRollout, Rollout
from minibert.analysis.scores import PATTERNS, HeadScores
from minibert.analysis.shared_dimensions import SharedDimensions
from minibert.analysis.token_circuits import CopyingScores, TokenTable
from minibert.trace.edit import Point

L, H, BATCH = 3, 5, 2


def numbers(*shape: int) -> torch.Tensor:
    """Shares between 0 and 1, all different."""
    count = torch.Size(shape).numel()
    return ((torch.arange(count) * 0.6180339887) % 1).reshape(shape)


def signed(*shape: int) -> torch.Tensor:
    return numbers(*shape) - 0.5


def patched(count: int, labels: Any) -> list[Any]:
    """What is patched, restored and blocked."""
    places, ends = ((1, 2), (0,)), numbers(2, BATCH)
    return [
        PatchEstimates("resid_post", signed(L, BATCH, count), labels),
        PathPatches(
            signed(L * H, BATCH),
            *signed(2, BATCH),
            tuple(Point("z", n, h) for n in range(L) for h in range(H)),
            (Point("key", 2, 1),),
            L,
            H,
        ),
        CausalTraces(signed(L, BATCH, count), *ends, "mlp_out", 10, places, 0.5, labels),
        Knockouts(signed(2, L, BATCH), ends[0], ("subject", labels[0][-1]), 3),
    ]


def results(count: int = 7, hostile: bool = False) -> dict[str, Any]:
    """One of each, about a sentence of `count` tokens and a shorter one that is padded."""
    N, words = count, tokens(count, hostile)
    labels = (words, words[: N - 2])
    places = (tuple(range(N)), tuple(range(N - 2)))
    heads = tuple(f"{layer}-{head}" for layer in range(L) for head in range(H))
    parts = (Component("embed"), *(Component("head", n, h) for n in range(L) for h in range(H)))
    pair: Any = {"layer": 1, "head": 2, "left": signed(11, 3), "right": signed(3, 11)}
    names, one = dict(enumerate(tokens(31, hostile))), torch.tensor(1.0)
    found = [
        LogitAttribution(signed(16), parts, one, torch.tensor(2), None, torch.tensor(4), names),
        SingularVectors(signed(11, 3), torch.tensor([3.0, 2.0, 1.0]), signed(11, 3)),
        QKCircuit(**pair, query_bias=signed(3), key_bias=signed(3), scale=0.5),
        OVCircuit(**pair, value_bias=signed(3)),
        CompositionScores("K", numbers(L, H, L, H), heads),
        Decomposition(signed(16, BATCH, N, 13), parts, 2, "resid_post", places),
        Flow((3, 1), numbers(BATCH, N), labels),
        IntegratedAttention(1, signed(BATCH, H, N, N), 1.5, labels, 16),
        IntegratedEmbeddings(signed(BATCH, N, 13), 1.5, labels, 32),
        LogitLens(
            tuple(f"resid_post {n}" for n in range(L)),
            places,
            torch.arange(L * BATCH * N * 2).reshape(L, BATCH, N, 2) % 31,
            numbers(L, BATCH, N, 2),
            names=names,
            tokens=labels,
        ),
        HeadNorms(1, numbers(BATCH, H, N), numbers(BATCH, H, N, N), labels),
        SummedNorms(1, numbers(BATCH, N, N), labels),
        BlockNorms(1, numbers(BATCH, N, N), numbers(BATCH, N), labels),
        Sweep(
            signed(L, N),
            0.1,
            0.9,
            tuple(f"layer {n}" for n in range(L)),
            tuple(f"{n} {token}" for n, token in enumerate(words)),
        ),
        *patched(N, labels),
        TokenLosses(9 * numbers(BATCH, N), labels),
        ModelComparison(numbers(L, BATCH, H), numbers(L + 1, BATCH, N), None, ("embed",), labels),
        PatternScores(("first", "rare"), numbers(2, L, H)),
        SharedDimensions(numbers(L, H), 0.1, 4),
        AttentionRelevance(tuple(range(L)), signed(L, BATCH, H, N, N), labels),
        Relevance(numbers(BATCH, N, N) / 9 + torch.eye(N), labels),
        PositionRelevance((3, 1), numbers(L, BATCH, N), labels),
        Rollout(numbers(BATCH, N, N), labels),
        PositionRollout((3, 1), numbers(L, BATCH, N), labels),
        HeadScores(**{name: numbers(L, H) for name in PATTERNS}),
        TokenTable(9 * signed(N, N), words, words),
        CopyingScores(signed(L, H), torch.complex(signed(L, H, 4), signed(L, H, 4).flip(0))),
    ]
    return {type(result).__name__: result for result in found}
