"""Causal tracing and knockout: the same numbers as passes that are edited by hand."""

from collections.abc import Callable

import pytest
import torch
from text_pairs import CLEAN, LAYERS, RIGHT, batch, model
from torch import Tensor

from minibert.analysis import answer_probability, attention_knockout, causal_tracing
from minibert.errors import EditError, TraceError
from minibert.trace.edit import hide, noise, zero
from minibert.trace.read import Trace

SUBJECT = [[1, 2], 0, [2, 3, 4]]


def answer(trace: Trace, sentence: int) -> Tensor:
    return trace.logits[0, -1].softmax(-1)[RIGHT[sentence]]


def put_back(value: Tensor, place: int) -> Callable[[Tensor], Tensor]:
    def change(quantity: Tensor) -> Tensor:
        quantity[:, place] = value
        return quantity

    return change


@pytest.mark.parametrize(("name", "window"), [("resid_post", 1), ("mlp_out", 2), ("attn_out", 3)])
def test_a_restored_state_gives_what_a_pass_with_both_edits_gives(name: str, window: int) -> None:
    made = model()
    found = causal_tracing(
        made.trace(batch(CLEAN)),
        SUBJECT,
        answer_probability(RIGHT),
        name=name,
        window=window,
        samples=2,
        std=0.7,
        seed=5,
    )
    # The window of layer 1 in the authors' code, max(0, 1 − w // 2) to 1 + ceil(w / 2).
    around = {1: [1], 2: [0, 1], 3: [0, 1, 2]}[window]
    for n, subject in enumerate([[1, 2], [0], [2, 3, 4]]):
        clean = made.trace(CLEAN[n])
        noisy = [{"embed": noise(seed, std=0.7, positions=subject)} for seed in (5, 6)]
        corrupt = torch.stack([answer(clean.rerun(edit), n) for edit in noisy]).mean()
        assert torch.allclose(found.clean[n], answer(clean, n), atol=1e-12)
        assert torch.allclose(found.corrupt[n], corrupt, atol=1e-12)
        place = subject[-1]
        value = {layer: clean[layer].quantity(name)[:, place] for layer in around}

        put = {(name, at): put_back(each, place) for at, each in value.items()}
        by_hand = torch.stack([answer(clean.rerun(edit | put), n) for edit in noisy]).mean()
        assert torch.allclose(found.values[1, n, place], by_hand, atol=1e-12)
    assert found.values[:, 1, 3:].isnan().all()


def test_the_last_layer_at_the_last_token_brings_everything_back() -> None:
    made = model()
    found = causal_tracing(made.trace(batch(CLEAN)), SUBJECT, answer_probability(RIGHT), samples=2)
    ends = [found.values[-1, n, len(ids) - 1] for n, ids in enumerate(CLEAN)]
    assert torch.allclose(torch.stack(ends), found.clean, atol=1e-12)
    assert torch.allclose(found.values[-1, 0, 0], found.corrupt[0], atol=1e-12)
    assert not torch.allclose(found.clean, found.corrupt, atol=1e-4)


def test_the_noise_is_three_standard_deviations_of_the_subjects_embeddings() -> None:
    made = model()
    found = causal_tracing(made.trace(batch(CLEAN)), SUBJECT, answer_probability(RIGHT), samples=1)
    ids = [17, 5, 11, 2, 40, 1]
    rows = made.body.word.weight[ids]
    assert found.std == pytest.approx(3 * float(rows.std()), rel=1e-9)


def test_the_mean_counts_each_group_of_tokens_where_a_sentence_has_it() -> None:
    made = model()
    found = causal_tracing(made.trace(batch(CLEAN)), SUBJECT, answer_probability(RIGHT), samples=1)
    change = found.change
    # The subjects are at 1 and 2 of 5 tokens, at 0 of 3, and from 2 to 4 of 7.
    expected = [
        (change[:, 0, 1] + change[:, 2, 2]) / 2,
        change[:, 2, 3],
        (change[:, 0, 2] + change[:, 1, 0] + change[:, 2, 4]) / 3,
        (change[:, 0, 3] + change[:, 1, 1] + change[:, 2, 5]) / 3,
        torch.full((LAYERS,), torch.nan).double(),
        (change[:, 0, 4] + change[:, 1, 2] + change[:, 2, 6]) / 3,
    ]
    assert torch.allclose(found.mean, torch.stack(expected, 1), atol=1e-12, equal_nan=True)
    assert len(found.kinds) == 6 == found.by_kind().sizes["kind"]


def test_a_batch_is_traced_as_its_sentences_alone() -> None:
    made = model()
    both = causal_tracing(
        made.trace(batch(CLEAN)), SUBJECT, answer_probability(RIGHT), std=0.5, samples=2
    )
    alone = causal_tracing(
        made.trace(CLEAN[2]), [[2, 3, 4]], answer_probability(RIGHT[2]), std=0.5, samples=2
    )
    assert torch.allclose(both.values[:, 2], alone.values[:, 0], atol=1e-12)


def test_knocked_out_attention_gives_what_a_pass_with_hidden_keys_gives() -> None:
    made = model()
    blocked = {"subject": (-1, SUBJECT), "both": [(-1, SUBJECT), (-2, 0)]}
    found = attention_knockout(
        made.trace(batch(CLEAN)), blocked, answer_probability(RIGHT), window=2
    )
    assert found.values.shape == (LAYERS, 3, 2)
    for n, subject in enumerate([[1, 2], [0], [2, 3, 4]]):
        clean = made.trace(CLEAN[n])
        assert torch.allclose(found.clean[n], answer(clean, n), atol=1e-12)

        def out(scores: Tensor, subject=subject) -> Tensor:
            scores[:, :, -1, subject] = -torch.inf
            return scores

        def two(scores: Tensor, out=out) -> Tensor:
            out(scores)[:, :, -2, 0] = -torch.inf
            return scores

        for row, change in enumerate((out, two)):
            by_hand = clean.rerun({("scores", at): change for at in (1, 0)})
            assert torch.allclose(found.values[1, n, row], answer(by_hand, n), atol=1e-12)
    assert torch.allclose(found.change, found.values - found.clean[:, None])
    assert torch.equal(found["subject"], found.values[..., 0])
    assert torch.allclose(found.relative, found.change / found.clean[:, None])


def test_several_edits_of_one_place_are_made_in_their_order() -> None:
    trace = model().trace([[3, 4, 5], [6, 7, 8]])
    several = [hide(0, positions=-1).at(sentences=0), hide(1, positions=-1).at(sentences=1)]
    probs = trace.rerun({("scores", 1): several})[1].probs
    for sentence, hidden in ((0, 0), (1, 1)):
        assert bool((probs[sentence, :, -1, hidden] == 0).all())
        assert bool((probs[sentence, :, -1, 1 - hidden] > 0).all())
    ordered = trace.rerun({("z", 1): [zero, lambda z: z + 1]})
    assert bool((ordered[1].z == 1).all())
    with pytest.raises(EditError, match="at least one edit"):
        trace.rerun({("z", 1): []})
    with pytest.raises(EditError, match="no key left"):
        trace.rerun({("scores", 1): [hide(0, positions=1), hide(1, positions=1)]})


def test_what_cannot_be_traced_or_blocked_is_an_error() -> None:
    made, metric = model(), answer_probability(3)
    trace = made.trace(batch(CLEAN))
    for options in (
        {"name": "z"},
        {"window": 0},
        {"samples": 0},
        {"std": -1.0},
        {"seed": True},
        {"subject": [0]},
        {"subject": 6},
    ):
        with pytest.raises((EditError, TraceError)):
            causal_tracing(trace, **({"subject": 0, "metric": metric} | options))
    for blocked in ({}, {"a": 3}, {"a": []}, {"a": (0, 0)}, {"a": (-1, 9)}, [(0, 1)]):
        with pytest.raises(EditError):
            attention_knockout(trace, blocked, metric)
    edited = trace.rerun({("z", 0): zero})
    with pytest.raises(TraceError, match="made with edits"):
        causal_tracing(edited, 0, metric)
    with pytest.raises(TraceError, match="made with edits"):
        attention_knockout(edited, {"a": (-1, 0)}, metric)


def test_a_flat_list_beside_several_sentences_is_refused() -> None:
    trace = model().trace(batch(CLEAN))
    with pytest.raises(EditError, match=r"\[\[0\], \[1\], \[2\]\] for one of each"):
        attention_knockout(trace, {"a": (-1, [0, 1, 2])}, answer_probability(RIGHT))
