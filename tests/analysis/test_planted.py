"""Every analysis finds the heads that were planted, and nothing without them.

A finding is two numbers: the share of what was looked for in what was planted, and the largest
share of anything else. Each names the heads without which it must not be found.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from planted_heads import (
    BEFORE,
    DELIMITER,
    NEXT,
    POSITION,
    TOKEN,
    TOKENS,
    planted_chain,
    planted_language_model,
    without_head,
)
from torch import Tensor
from vocabulary_models import previous_token_bert

from minibert import analysis
from minibert.errors import EditError
from minibert.model import Model
from minibert.trace.read import Trace

Finding = tuple[float, float]
PREVIOUS, DELIMITERS, DUPLICATE, INDUCTION = (0, 0), (0, 1), (1, 0), (1, 1)

# 23 different tokens behind a delimiter, and the first 13 of them again.
HALF = 3 + torch.randperm(TOKENS - 3, generator=torch.Generator().manual_seed(3))
TEXT = torch.cat([torch.tensor([DELIMITER]), HALF[:23], HALF[:13]])
LAST = len(TEXT) - 1
EARLIER = LAST - 23
"""Where the last token stood before; what came next is what the model says."""
RIGHT, WRONG, ABSENT = int(TEXT[EARLIER + 1]), int(TEXT[3]), int(HALF[-1])
METRIC = analysis.logit_difference(RIGHT, WRONG)
# BERT says the token before, which head 0-0 copied.
BEFORE_LAST = analysis.logit_difference(int(TEXT[LAST - 1]), WRONG)


def found(values: Tensor, *places: Any) -> Finding:
    """The share of the size of all values that the places hold, and the largest other one."""
    shares = values.abs() / values.abs().sum().clamp(min=1e-30)
    rest = shares.clone()
    for place in places:
        rest[place] = 0
    return float(shares.sum() - rest.sum()), float(rest.max())


def worst(*findings: Finding) -> Finding:
    """The worst of several: each of them has to be found."""
    return min(share for share, _ in findings), max(rest for _, rest in findings)


def each_of(values: Tensor, *places: Any) -> Finding:
    """The smallest of the places, and the largest other number."""
    rest = values.clone()
    for place in places:
        rest[place] = 0
    return min(float(values[place]) for place in places), float(rest.abs().max())


def corrupted(model: Model, position: int = EARLIER) -> Trace:
    """The text with another token at one place: nothing can be copied."""
    text = TEXT.clone()
    text[position] = ABSENT
    return model.trace(text)


def differentiated(model: Model, metric: Any) -> Trace:
    trace = model.trace(TEXT, grad=True)
    trace.backward(metric(trace).sum())
    return trace


def lens(model: Model) -> Finding:
    result = analysis.logit_lens(model.trace(TEXT), positions=[LAST], target=RIGHT)
    before, after = result.target_probs[:, 0, 0].tolist()
    # Before it is copied, it is one of the vocabulary.
    return after, abs(before - 1 / TOKENS)


def decomposition(model: Model) -> Finding:
    parts = analysis.decompose(model.trace(TEXT), positions=[LAST])
    written = [("head 1-1", NEXT, RIGHT), ("head 0-0", BEFORE, TEXT[LAST - 1])]
    return worst(
        *(
            found(
                parts.at(batch=0, position=0, d_model=slots.start + int(token)),
                parts.place("component", label),
            )
            for label, slots, token in written
        )
    )


def circuits(model: Model) -> Finding:
    tokens, positions = torch.arange(TOKENS), torch.arange(POSITION.start + 1, POSITION.stop)
    ov = analysis.ov_circuit(model, *INDUCTION).matrix()
    qk = analysis.qk_circuit(model, *INDUCTION).matrix()
    return worst(
        found(analysis.qk_circuit(model, *PREVIOUS).matrix(), (positions, positions - 1)),
        found(qk, (tokens + TOKEN.start, tokens + BEFORE.start)),
        found(ov, (tokens + TOKEN.start, tokens + NEXT.start)),
        found(analysis.copying_scores(model).values, INDUCTION),
    )


def on_tokens(model: Model) -> Finding:
    ids, rows = TEXT[:24], torch.arange(24)
    findings = []
    for head, keys in ((DUPLICATE, rows), (DELIMITERS, 0 * rows)):
        table = analysis.qk_on_tokens(model, *head, queries=ids, keys=ids).values.softmax(-1)
        share, rest = found(table, (rows, keys))
        findings.append((share, 24 * rest))
    moved = analysis.ov_on_tokens(model, *INDUCTION, sources=ids[1:], targets=ids[1:]).values
    return worst(*findings, found(moved.clamp(min=0), (rows[:23], rows[:23])))


def flows(model: Model) -> Finding:
    trace = model.trace(TEXT)
    row = analysis.rollout_of(trace, LAST, residual=0).values
    return worst(
        found(analysis.rollout(trace, residual=0).values[0, LAST], EARLIER),
        found(row[1, 0], EARLIER + 1),
        found(row[0, 0], EARLIER),
        found(analysis.attention_flow(trace, LAST, residual=0).values[0], EARLIER),
    )


def norms(model: Model) -> Finding:
    heads, summed, block = (
        function(model.trace(TEXT), 1).at(batch=0, query=LAST)
        for function in (analysis.head_norms, analysis.summed_norms, analysis.block_norms)
    )
    # The duplicate head moves the place of the earlier token, this one the token behind it.
    return worst(
        found(heads[0], EARLIER),
        found(heads[1], EARLIER + 1),
        found(summed, [EARLIER, EARLIER + 1]),
        found(block[:LAST], [EARLIER, EARLIER + 1]),
    )


def gradient(model: Model) -> Finding:
    trace = differentiated(model, METRIC)
    return worst(
        found(analysis.gradient_x_attention(trace).values[:, 0], (*INDUCTION, LAST, EARLIER + 1)),
        # A position is always relevant to itself.
        found(analysis.relevance_of(trace, LAST).values[0, 0, :LAST], EARLIER + 1),
    )


def integrated(model: Model) -> Finding:
    trace, findings = model.trace(TEXT), []
    for layer, place in ((0, (0, EARLIER + 1, EARLIER)), (1, (1, LAST, EARLIER + 1))):
        result = analysis.integrated_attention(
            trace, lambda t: METRIC(t).sum(), layer=layer, steps=32
        )
        findings.append(found(result.values[0], place))
    # The same places without any token.
    baseline = trace.embed.clone()
    baseline[..., TOKEN] = 0
    given = analysis.integrated_embeddings(
        trace,
        lambda t: t.logits[0, -1, RIGHT] - t.logits[0, -1, ABSENT],
        baseline=baseline,
        steps=64,
    ).by_token()[0]
    return worst(*findings, found(given, [EARLIER, EARLIER + 1, LAST]))


def ablation(model: Model) -> Finding:
    lost = -analysis.ablate_heads(model.trace(TEXT), METRIC).relative[:, 0]
    return each_of(lost, PREVIOUS, INDUCTION)


def patching(model: Model) -> Finding:
    source, trace = model.trace(TEXT), corrupted(model)
    heads = analysis.patch_heads(trace, source, METRIC)
    # What the previous-token head wrote behind the earlier occurrence is all that was missing.
    behind = analysis.patch_positions(trace, source, METRIC, positions=[-1])
    return worst(
        each_of(heads.recovered, PREVIOUS, INDUCTION),
        each_of(behind.recovered, (0, EARLIER + 1), (1, LAST)),
    )


def bert(model: Model) -> Finding:
    trace, metric, place = model.trace(TEXT), BEFORE_LAST, (0, LAST, LAST - 1)
    other, graded = corrupted(model, LAST - 1), differentiated(model, metric)
    whole = analysis.integrated_attention(trace, lambda t: metric(t).sum(), layer=0)
    return worst(
        each_of(-analysis.ablate_heads(trace, metric).relative[:, 0], PREVIOUS),
        each_of(analysis.patch_heads(other, trace, metric).recovered, PREVIOUS),
        found(analysis.gradient_x_attention(graded).values[0, 0], place),
        found(analysis.relevance_of(graded, LAST).values[0, 0, :LAST], LAST - 1),
        found(whole.values[0], place),
        found(analysis.head_norms(trace, 0).at(batch=0, query=LAST), place[::2]),
        found(analysis.block_norms(trace, 0).at(batch=0, query=LAST)[:LAST], LAST - 1),
    )


def attribution(model: Model) -> Finding:
    result = analysis.logit_attribution(model.trace(TEXT), RIGHT, against=WRONG)
    return found(result.values, result.place("component", "head 1-1"))


FINDINGS: dict[Callable[[Model], Finding], tuple[tuple[int, int], ...]] = {
    lens: (PREVIOUS, INDUCTION),
    attribution: (INDUCTION,),
    decomposition: (PREVIOUS, INDUCTION),
    circuits: (PREVIOUS, INDUCTION),
    on_tokens: (DUPLICATE, DELIMITERS, INDUCTION),
    norms: (PREVIOUS, DUPLICATE, INDUCTION),
    gradient: (PREVIOUS, INDUCTION),
    integrated: (PREVIOUS, INDUCTION),
    ablation: (PREVIOUS, INDUCTION),
    patching: (PREVIOUS, INDUCTION),
    flows: (PREVIOUS, (1, 0)),
    bert: (PREVIOUS,),
}


def planted(finding: Any) -> Model:
    others = {flows: planted_chain, bert: previous_token_bert}
    return others.get(finding, planted_language_model)()


@pytest.mark.parametrize("finding", FINDINGS)
def test_what_was_planted_is_found_and_not_without_any_of_its_heads(finding: Any) -> None:
    share, rest = finding(planted(finding))
    assert share > 0.99
    assert rest < 0.01
    for place in FINDINGS[finding]:
        try:
            share, rest = finding(without_head(planted(finding), *place))
        except EditError:
            # Both texts give the same: there is nothing to recover.
            continue
        assert not (share > 0.99 and rest < 0.01), place
