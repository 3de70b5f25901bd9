"""Probes on pairs of words: the paper's formulas in loops, and treebanks with a known answer."""

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import minibert
from minibert.errors import SurveyError
from minibert.model import Model
from minibert.survey.probes.pair_probe import (
    FARTHEST,
    Example,
    PairProbe,
    Projection,
    Training,
    attachment,
    attachment_scores,
    branching,
    examples,
    train_probe,
    with_distances,
)


def toy(n_words: int, heads: list[int], generator: torch.Generator, kinds: list[int]) -> Example:
    """Three heads of attention: 0 attends from head to word, 1 and 2 at random."""
    pairs = torch.rand(3, n_words + 1, n_words + 1, generator=generator)
    pairs[0] *= 0.5
    for word, head in enumerate(heads, start=1):
        pairs[0, head, word] += 0.5
    vectors = torch.zeros(n_words + 1, 4)
    vectors[range(1, n_words + 1), kinds] = 1
    return Example(
        (pairs / 5).half(), vectors, torch.tensor(heads), torch.ones(n_words, dtype=torch.bool)
    )


def treebank(count: int, seed: int, *, by_kind: bool) -> list[Example]:
    """Trees of words that depend on one word, which attention shows or its kind does."""
    generator = torch.Generator().manual_seed(seed)
    found = []
    for _ in range(count):
        n_words = int(torch.randint(3, 6, (), generator=generator))
        root = int(torch.randint(1, n_words + 1, (), generator=generator))
        heads = [0 if word == root else root for word in range(1, n_words + 1)]
        kinds = [3 if word == root and by_kind else 0 for word in range(1, n_words + 1)]
        one = toy(n_words, heads, generator, kinds)
        if by_kind:
            one.pairs[:] = torch.rand(one.pairs.shape, generator=generator).half()
        found.append(one)
    return found


def test_scores_are_the_sums_of_the_paper() -> None:
    torch.manual_seed(3)
    pairs, vectors = torch.rand(2, 3, 5, 5), torch.randn(2, 5, 7)
    sentences = [Example(pairs[0].half(), vectors[0], torch.zeros(4).long(), torch.ones(4).bool())]
    projection = Projection(sentences, 2)
    probe = PairProbe(3, projection)
    with torch.no_grad():
        probe.weight.normal_()
        found = probe(pairs, vectors)
        words = projection(vectors)
    w, u = probe.weight[:2].detach(), probe.weight[2:].detach()
    for batch in range(2):
        for i in range(5):
            for j in range(1, 5):
                if i == j:
                    assert found[batch, i, j - 1] == -math.inf
                    continue
                v = [
                    torch.cat(
                        [torch.tensor([float(p > 0), float(p == 0)]), (p > 0) * words[batch, p]]
                    )
                    for p in (i, j)
                ]
                score = 0.0
                for k in range(4):
                    onward = float(pairs[batch, k, i, j]) if k < 3 else float(i == 0)
                    back = float(pairs[batch, k, j, i]) if k < 3 else 0.0
                    score += onward * float(w[0, k] @ v[0] + w[1, k] @ v[1])
                    score += back * float(u[0, k] @ v[0] + u[1, k] @ v[1])
                assert float(found[batch, i, j - 1]) == pytest.approx(score, abs=1e-4)


def test_a_projection_keeps_the_principal_dimensions_with_variance_one() -> None:
    generator = torch.Generator().manual_seed(0)
    vectors = torch.randn(61, 5, generator=generator) * torch.tensor([9.0, 4.0, 1.0, 0.1, 0.1])
    one = Example(
        torch.zeros(1, 61, 61).half(), vectors, torch.ones(60).long(), torch.ones(60).bool()
    )
    projected = Projection([one], 2)(vectors[1:])
    torch.testing.assert_close(projected.T @ projected / 60, torch.eye(2), atol=1e-4, rtol=0)
    correlation = np.corrcoef(projected[:, 0].numpy(), vectors[1:, 0].numpy())[0, 1]
    assert abs(correlation) > 0.99


def test_a_probe_learns_the_head_that_shows_the_tree_and_no_other() -> None:
    train, test = treebank(40, 1, by_kind=False), treebank(30, 2, by_kind=False)
    probe = train_probe(train, training=Training(learning_rate=0.1))
    right, words = attachment(probe, test)
    assert right > 0.95 * words
    onward = (probe.weight[0, :, 0] + probe.weight[1, :, 0]).detach()
    assert onward[:3].argmax() == 0
    again = train_probe(train, training=Training(learning_rate=0.1))
    assert torch.equal(again.weight, probe.weight)


def test_words_tell_what_attention_does_not() -> None:
    train, test = treebank(40, 1, by_kind=True), treebank(30, 2, by_kind=True)
    [alone, with_words] = (
        train_probe(train, n_dimensions=n, training=Training(learning_rate=0.1)) for n in (0, 1)
    )
    right, words = attachment(alone, test)
    assert right < 0.7 * words
    right, words = attachment(with_words, test)
    assert right > 0.95 * words


def test_what_does_not_count_is_neither_learned_nor_measured() -> None:
    right = treebank(20, 1, by_kind=False)
    for one in right:
        one.counted[-1] = False
    wrong = [replace(one, heads=one.heads.clone()) for one in right]
    for one in wrong:
        one.heads[-1] = (one.heads[-1] + 1) % len(one.heads)
    short = Training(epochs=2)
    probe, other = (train_probe(part, training=short) for part in (right, wrong))
    assert torch.equal(probe.weight, other.weight)
    assert probe.weight.any()
    assert attachment(probe, wrong) == attachment(probe, right)
    assert attachment(probe, wrong)[1] == sum(len(one.heads) - 1 for one in wrong)


def test_too_few_sentences_are_refused() -> None:
    with pytest.raises(SurveyError, match="5 sentences are too few"):
        train_probe(treebank(5, 1, by_kind=False))


def tree(words: str, heads: list[int], relations: str) -> Any:
    return SimpleNamespace(
        id="a", words=tuple(words.split()), heads=tuple(heads), relations=tuple(relations.split())
    )


HORSE = tree("the horse ran away .", [1, 2, -1, 2, 2], "det nsubj root advmod punct")


def test_an_example_has_the_attention_of_every_head_and_the_words_embeddings() -> None:
    model = minibert.load()
    [one] = examples(model, [HORSE])
    trace = model.trace("the horse ran away .")
    whole = torch.cat([layer.probs[0] for layer in trace])[:, :-1, :-1]
    torch.testing.assert_close(one.pairs.float(), whole, atol=1e-3, rtol=0)
    embeddings = model.body.word.weight[trace.tokens.ids[0, 1:-1]]
    torch.testing.assert_close(one.vectors[1:], embeddings)
    assert not one.vectors[0].any()
    assert one.heads.tolist() == [2, 3, 0, 3, 3]
    assert one.counted.tolist() == [True, True, True, True, False]


def test_distances_have_one_channel_each() -> None:
    [one] = examples(minibert.load(), [tree("a " * 13, [1] + [-1] * 12, "det " + "root " * 12)])
    [far] = with_distances([one])
    assert far.pairs.shape == (2 * FARTHEST, 14, 14)
    assert far.pairs[:, 1:, 1:].sum(0).tolist() == (1 - torch.eye(13)).tolist()
    assert far.pairs[FARTHEST - 1, 5, 4] == far.pairs[FARTHEST, 4, 5] == 1
    assert far.pairs[2 * FARTHEST - 1, 1, 12] == far.pairs[2 * FARTHEST - 1, 1, 13] == 1
    assert not far.pairs[:, 0].any()
    assert far.vectors is one.vectors


def test_branching_takes_a_neighbour_and_a_word_without_one_as_root() -> None:
    sentences = examples(minibert.load(), [HORSE])
    assert branching(sentences, 1) == (2, 4)
    assert branching(sentences, -1) == (1, 4)


def test_every_way_is_scored_and_the_untrained_model_gets_the_same_words() -> None:
    model = minibert.load()
    untrained = Model.from_config(model.config, tokenizer=model.tokenizer)
    short = Training(epochs=1)
    scores = attachment_scores(
        model, [HORSE] * 10, [HORSE], random_model=untrained, n_dimensions=2, training=short
    )
    assert [one.name for one in scores] == [
        "next word (right-branching)",
        "previous word (left-branching)",
        "distances",
        "distances and words",
        "attention of random weights",
        "attention of random weights and words",
        "attention",
        "attention and words",
    ]
    assert {one.words for one in scores} == {4}
    assert scores[0].score == 0.5
