"""What each analysis has to find in the planted models.

A finding is two numbers: the share of what was looked for in what was planted, and the largest
share of anything else. Each names the heads without which it must not be found.
"""

from collections.abc import Callable
from typing import Any

import torch
from planted_heads import (
    BEFORE,
    DELIMITER,
    NEXT,
    POSITION,
    TOKEN,
    TOKENS,
)
from torch import Tensor

from minibert import analysis
from minibert.analysis.flow import relevance, rollout
from minibert.model import Model
from minibert.trace.read import Trace

Finding = tuple[float, float]
PREVIOUS, DELIMITERS, BLANK, DUPLICATE, INDUCTION = (0, 0), (0, 1), (0, 3), (1, 0), (1, 1)

# 23 different tokens behind a delimiter, and the first 13 of them again.
HALF = 3 + torch.randperm(TOKENS - 3, generator=torch.Generator().manual_seed(3))
TEXT = torch.cat([torch.tensor([DELIMITER]), HALF[:23], HALF[:13]])
LAST = len(TEXT) - 1
EARLIER = LAST - 23
"""Where the last token stood before; what came next is what the model says."""
RIGHT, WRONG, ABSENT = int(TEXT[EARLIER + 1]), int(TEXT[3]), int(HALF[-1])
METRIC = analysis.logit_difference(RIGHT, WRONG)


def number(trace: Trace) -> Tensor:
    return METRIC(trace).sum()


def found(values: Tensor, *places: Any) -> Finding:
    """The share of the size of all values that the places hold, and the largest other one."""
    total = values.abs().sum()
    if total == 0:
        return 0.0, 0.0
    shares = values.abs() / total
    rest = shares.clone()
    for place in places:
        rest[place] = 0
    return float(shares.sum() - rest.sum()), float(rest.max())


def both(*findings: Finding) -> Finding:
    """The worst of several: each of them has to be found."""
    return min(share for share, _ in findings), max(rest for _, rest in findings)


def corrupted(model: Model, position: int = EARLIER) -> Trace:
    """The text with another token at one place: nothing can be copied."""
    text = TEXT.clone()
    text[position] = ABSENT
    return model.trace(text)


def score(name: str, place: tuple[int, int]) -> Callable[[Model], Finding]:
    def finding(model: Model) -> Finding:
        repeated = analysis.repeated_ids(TOKENS, low=3, draws=5)
        scores = analysis.head_scores(model, TEXT, repeated=repeated, delimiters=[DELIMITER])
        table = getattr(scores, name)
        rest = table - table[BLANK]
        rest[place] = 0
        return float(table[place]), float(rest.max())

    return finding


def lens(model: Model) -> Finding:
    result = analysis.logit_lens(model.trace(TEXT), positions=[LAST], target=RIGHT)
    assert result.target_probs is not None
    before, after = result.target_probs[:, 0, 0].tolist()
    # Before it is copied, it is one of the vocabulary.
    return after, abs(before - 1 / TOKENS)


def attribution(model: Model) -> Finding:
    result = analysis.logit_attribution(model.trace(TEXT), RIGHT, against=WRONG)
    return found(result.values, result.place("component", "head 1-1"))


def decomposition(model: Model) -> Finding:
    parts = analysis.decompose(model.trace(TEXT), positions=[LAST])
    written = [parts.place("component", label) for label in ("head 1-1", "head 0-0")]
    copied, before = (
        found(parts.at(batch=0, position=0, d_model=slots.start + token), place)
        for place, slots, token in zip(
            written, (NEXT, BEFORE), (RIGHT, TEXT[LAST - 1]), strict=True
        )
    )
    return both(copied, before)


def qk_previous(model: Model) -> Finding:
    matrix = analysis.qk_circuit(model, *PREVIOUS).matrix()
    positions = torch.arange(POSITION.start + 1, POSITION.stop)
    return found(matrix, (positions, positions - 1))


def qk_induction(model: Model) -> Finding:
    circuit = analysis.qk_circuit(model, *INDUCTION)
    tokens = torch.arange(TOKENS)
    return found(circuit.matrix(), (tokens + TOKEN.start, tokens + BEFORE.start))


def ov_induction(model: Model) -> Finding:
    tokens = torch.arange(TOKENS)
    matrix = analysis.ov_circuit(model, *INDUCTION).matrix()
    return found(matrix, (tokens + TOKEN.start, tokens + NEXT.start))


def composition(kind: str) -> Callable[[Model], Finding]:
    def finding(model: Model) -> Finding:
        return found(analysis.composition_scores(model, kind).values, (*PREVIOUS, *INDUCTION))

    return finding


def copying(model: Model) -> Finding:
    return found(analysis.copying_scores(model).values, INDUCTION)


def ov_tokens(model: Model) -> Finding:
    table = analysis.ov_on_tokens(model, *INDUCTION, sources=HALF[:23], targets=HALF[:23]).values
    share, rest = found(table.clamp(min=0), (torch.arange(23), torch.arange(23)))
    return share, rest


def qk_tokens(head: tuple[int, int], *, delimiter: bool) -> Callable[[Model], Finding]:
    def finding(model: Model) -> Finding:
        ids = TEXT[:24]
        table = analysis.qk_on_tokens(model, *head, queries=ids, keys=ids).values.softmax(-1)
        rows = torch.arange(24)
        share, rest = found(table, (rows, 0 * rows if delimiter else rows))
        return share, 24 * rest

    return finding


def rolled_out(model: Model) -> Finding:
    trace = model.trace(TEXT)
    whole = found(rollout(trace, residual=0).values[0, LAST], EARLIER)
    row = analysis.rollout_of(trace, LAST, residual=0)
    return both(found(row.values[1, 0], EARLIER + 1), found(row.values[0, 0], EARLIER), whole)


def flow(model: Model) -> Finding:
    return found(analysis.attention_flow(model.trace(TEXT), LAST, residual=0).values[0], EARLIER)


def head_norms(model: Model) -> Finding:
    norms = analysis.head_norms(model.trace(TEXT), 1).at(batch=0, query=LAST)
    # The duplicate head moves the place of the earlier token, this one the token behind it.
    return both(found(norms[0], EARLIER), found(norms[1], EARLIER + 1))


def summed_norms(model: Model) -> Finding:
    norms = analysis.summed_norms(model.trace(TEXT), 1).at(batch=0, query=LAST)
    return found(norms, [EARLIER, EARLIER + 1])


def block_norms(model: Model) -> Finding:
    norms = analysis.block_norms(model.trace(TEXT), 1).at(batch=0, query=LAST)
    return found(norms[:LAST], [EARLIER, EARLIER + 1])


def differentiated(model: Model) -> Trace:
    trace = model.trace(TEXT, grad=True)
    trace.backward(number(trace))
    return trace


def gradient(model: Model) -> Finding:
    values = analysis.gradient_x_attention(differentiated(model)).values[:, 0]
    return found(values, (*INDUCTION, LAST, EARLIER + 1))


def relevant(model: Model) -> Finding:
    trace = differentiated(model)
    row = analysis.relevance_of(trace, LAST).values[0, 0]
    assert torch.allclose(relevance(trace).values[0, LAST], row)
    # A position is always relevant to itself.
    return found(row[:LAST], EARLIER + 1)


def integrated(layer: int, place: Any) -> Callable[[Model], Finding]:
    def finding(model: Model) -> Finding:
        result = analysis.integrated_attention(model.trace(TEXT), number, layer=layer, steps=32)
        assert abs(result.gap) < 0.01 * abs(result.difference) + 1e-6
        return found(result.values[0], place)

    return finding


def integrated_tokens(model: Model) -> Finding:
    trace = model.trace(TEXT)
    # The same places without any token.
    baseline = trace.embed.clone()
    baseline[..., TOKEN] = 0
    result = analysis.integrated_embeddings(
        trace,
        lambda edited: edited.logits[0, -1, RIGHT] - edited.logits[0, -1, ABSENT],
        baseline=baseline,
        steps=64,
    )
    given = result.by_token()[0]
    share, rest = found(given, [EARLIER, EARLIER + 1, LAST])
    # Each of the three has its part.
    return share, max(rest, 1.0 * bool((given[[EARLIER, EARLIER + 1, LAST]] <= 0).any()))


def ablation(model: Model) -> Finding:
    sweep = analysis.ablate_heads(model.trace(TEXT), METRIC)
    lost = -sweep.relative[:, 0]
    planted = torch.stack([lost[PREVIOUS], lost[INDUCTION]])
    rest = lost.clone()
    rest[PREVIOUS] = rest[INDUCTION] = 0
    return float(planted.min()), float(rest.abs().max())


def recovered(values: Tensor, *places: Any) -> Finding:
    rest = values.clone()
    for place in places:
        rest[place] = 0
    return min(float(values[place]) for place in places), float(rest.abs().max())


def patching_heads(model: Model) -> Finding:
    sweep = analysis.patch_heads(corrupted(model), model.trace(TEXT), METRIC)
    return recovered(sweep.recovered, PREVIOUS, INDUCTION)


def patching_behind(model: Model) -> Finding:
    """What the previous-token head wrote behind the earlier occurrence is all that was missing."""
    sweep = analysis.patch_positions(corrupted(model), model.trace(TEXT), METRIC, positions=[-1])
    return recovered(sweep.recovered, (0, EARLIER + 1), (1, LAST))


def patching_value(model: Model) -> Finding:
    source, trace = model.trace(TEXT), corrupted(model, EARLIER + 1)
    sweep = analysis.patch_positions(trace, source, METRIC, name="resid_pre")
    return recovered(sweep.recovered, (0, EARLIER + 1), (1, EARLIER + 1))


# BERT says the token before, which head 0-0 copied; 0-1 looks at the next, 0-2 at delimiters.
BEFORE_LAST = analysis.logit_difference(int(TEXT[LAST - 1]), WRONG)


def bert_ablation(model: Model) -> Finding:
    sweep = analysis.ablate_heads(model.trace(TEXT), BEFORE_LAST)
    return recovered(-sweep.relative[:, 0], PREVIOUS)


def bert_patching(model: Model) -> Finding:
    trace, source = corrupted(model, LAST - 1), model.trace(TEXT)
    by_position = analysis.patch_positions(trace, source, BEFORE_LAST, name="resid_pre")
    return both(
        recovered(analysis.patch_heads(trace, source, BEFORE_LAST).recovered, PREVIOUS),
        recovered(by_position.recovered, (0, LAST - 1)),
    )


def bert_gradient(model: Model) -> Finding:
    trace = model.trace(TEXT, grad=True)
    trace.backward(BEFORE_LAST(trace).sum())
    return both(
        found(analysis.gradient_x_attention(trace).values[0, 0], (0, LAST, LAST - 1)),
        found(analysis.relevance_of(trace, LAST).values[0, 0, :LAST], LAST - 1),
        found(
            analysis.integrated_attention(
                trace, lambda edited: BEFORE_LAST(edited).sum(), layer=0
            ).values[0],
            (0, LAST, LAST - 1),
        ),
    )


def bert_norms(model: Model) -> Finding:
    trace = model.trace(TEXT)
    return both(
        found(analysis.head_norms(trace, 0).at(batch=0, query=LAST), (0, LAST - 1)),
        found(analysis.summed_norms(trace, 0).at(batch=0, query=LAST), LAST - 1),
        found(analysis.block_norms(trace, 0).at(batch=0, query=LAST)[:LAST], LAST - 1),
    )
