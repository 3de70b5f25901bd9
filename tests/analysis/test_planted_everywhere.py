"""Every analysis finds the heads that were planted, and says of the others that they are nothing.

planted_findings.py has what is to be found, and the heads without which it must not be.
"""

from collections.abc import Callable

import pytest
from planted_findings import (
    DELIMITERS,
    DUPLICATE,
    EARLIER,
    INDUCTION,
    LAST,
    PREVIOUS,
    Finding,
    ablation,
    attribution,
    bert_ablation,
    bert_gradient,
    bert_norms,
    bert_patching,
    block_norms,
    composition,
    copying,
    decomposition,
    flow,
    gradient,
    head_norms,
    integrated,
    integrated_tokens,
    lens,
    ov_induction,
    ov_tokens,
    patching_behind,
    patching_heads,
    patching_value,
    qk_induction,
    qk_previous,
    qk_tokens,
    relevant,
    rolled_out,
    score,
    summed_norms,
)
from planted_heads import planted_chain, planted_language_model, without_head
from vocabulary_models import previous_token_bert

from minibert import analysis
from minibert.errors import EditError
from minibert.model import Model

CHAIN = "one head a layer"
ONLY = (1, 0)
BERT = "bert"
FINDINGS: dict[str, tuple[Callable[[Model], Finding], tuple[tuple[int, int], ...]]] = {
    "head_scores previous": (score("previous", PREVIOUS), (PREVIOUS,)),
    "head_scores delimiter": (score("delimiter", DELIMITERS), (DELIMITERS,)),
    "head_scores duplicate": (score("duplicate", DUPLICATE), (DUPLICATE,)),
    "head_scores induction": (score("induction", INDUCTION), (PREVIOUS, INDUCTION)),
    "logit_lens": (lens, (PREVIOUS, INDUCTION)),
    "logit_attribution": (attribution, (INDUCTION,)),
    "decompose": (decomposition, (PREVIOUS, INDUCTION)),
    "qk_circuit previous": (qk_previous, (PREVIOUS,)),
    "qk_circuit induction": (qk_induction, (INDUCTION,)),
    "ov_circuit": (ov_induction, (INDUCTION,)),
    "composition_scores K": (composition("K"), (PREVIOUS, INDUCTION)),
    "copying_scores": (copying, (INDUCTION,)),
    "ov_on_tokens": (ov_tokens, (INDUCTION,)),
    "qk_on_tokens duplicate": (qk_tokens(DUPLICATE, delimiter=False), (DUPLICATE,)),
    "qk_on_tokens delimiter": (qk_tokens(DELIMITERS, delimiter=True), (DELIMITERS,)),
    "head_norms": (head_norms, (DUPLICATE, INDUCTION)),
    "summed_norms": (summed_norms, (PREVIOUS,)),
    "block_norms": (block_norms, (PREVIOUS,)),
    "gradient_x_attention": (gradient, (PREVIOUS, INDUCTION)),
    "relevance": (relevant, (INDUCTION,)),
    "integrated_attention 0": (
        integrated(0, (0, EARLIER + 1, EARLIER)),
        (PREVIOUS, INDUCTION),
    ),
    "integrated_attention 1": (
        integrated(1, (1, LAST, EARLIER + 1)),
        (PREVIOUS, INDUCTION),
    ),
    "integrated_embeddings": (integrated_tokens, (PREVIOUS, INDUCTION)),
    "ablate_heads": (ablation, (PREVIOUS, INDUCTION)),
    "patch_heads": (patching_heads, (PREVIOUS, INDUCTION)),
    "patch_positions keys": (patching_behind, (PREVIOUS, INDUCTION)),
    "patch_positions values": (patching_value, (INDUCTION,)),
    "rollout, " + CHAIN: (rolled_out, (PREVIOUS, ONLY)),
    "attention_flow, " + CHAIN: (flow, (PREVIOUS, ONLY)),
    "ablate_heads, " + BERT: (bert_ablation, (PREVIOUS,)),
    "patch_heads and patch_positions, " + BERT: (bert_patching, (PREVIOUS,)),
    "gradients, " + BERT: (bert_gradient, (PREVIOUS,)),
    "norms, " + BERT: (bert_norms, (PREVIOUS,)),
}


def planted(name: str) -> Model:
    if name.endswith(BERT):
        return previous_token_bert()
    return planted_chain() if name.endswith(CHAIN) else planted_language_model()


@pytest.mark.parametrize("name", FINDINGS)
def test_what_was_planted_is_found_and_nothing_else(name: str) -> None:
    share, rest = FINDINGS[name][0](planted(name))
    assert share > 0.99
    assert rest < 0.01


UNPLANTED = [(name, place) for name, (_, places) in FINDINGS.items() for place in places]


@pytest.mark.parametrize(("name", "place"), UNPLANTED, ids=[f"{n} {p}" for n, p in UNPLANTED])
def test_without_the_planted_head_it_is_not_found(name: str, place: tuple[int, int]) -> None:
    model = without_head(planted(name), *place)
    try:
        share, rest = FINDINGS[name][0](model)
    except EditError:
        # Both texts give the same: there is nothing to recover.
        return
    assert not (share > 0.99 and rest < 0.01)


@pytest.mark.parametrize("kind", ["Q", "V"])
def test_heads_compose_by_keys_alone(kind: str) -> None:
    assert not analysis.composition_scores(planted_language_model(), kind).values.any()
