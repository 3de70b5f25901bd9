"""Divergences between heads, against the published formula; points and nearness made of them."""

import itertools

import numpy as np
import pytest
import torch
from data import data_path

import minibert
from minibert.errors import AttentionError, TokenizationError
from minibert.survey.distances import (
    HeadDistances,
    JensenShannonSums,
    head_distances,
    jensen_shannon_sums,
)
from minibert.survey.documents import Document
from minibert.survey.head_map import classical_scaling, layer_closeness, metric_scaling
from tests.survey.oracle import published

TEXTS = ["the horse turned and ran home.", "he saw the old house", "a cold wind, and rain"]


@pytest.mark.parametrize("name", ["bert-base-uncased__store", "bert-base-uncased__rabbit"])
def test_real_heads_have_the_published_divergence(name):
    attention = np.load(data_path("refs", f"{name}.npz"))["attn"]
    heads = attention.reshape(144, *attention.shape[2:])
    found = jensen_shannon_sums(torch.from_numpy(heads).double())
    np.testing.assert_allclose(found, published(heads), rtol=0, atol=1e-9)
    np.testing.assert_array_equal(found, found.T)
    assert not np.diagonal(found).any()
    single = jensen_shannon_sums(torch.from_numpy(heads))
    np.testing.assert_allclose(single, published(heads), rtol=0, atol=1e-5)


def test_the_distances_of_a_corpus_are_those_of_every_row_of_its_attention():
    model = minibert.load()
    texts = [
        *TEXTS,
        ("who was it?", "it was the horse."),
        "so. " * (7 * model.config.n_positions // 10),
    ]
    found = head_distances(model, texts, rows_per_document=None)
    documents = []
    for text in texts[:4]:
        trace = model.trace(*text) if isinstance(text, tuple) else model.trace(text)
        probs = trace.stack("probs").detach().numpy()[:, 0]
        documents.append((published(probs.reshape(-1, *probs.shape[2:])), probs.shape[-1]))
    # The long text is two parts of the same length, each with [CLS] and [SEP].
    whole = model.tokenizer(texts[4])
    inside = np.array_split(np.arange(1, whole.lengths[0] - 1), 2)
    total, length = np.zeros_like(documents[0][0]), 0
    for part in inside:
        ids = whole.ids[:, [0, *part.tolist(), whole.lengths[0] - 1]]
        probs = model.trace(ids).stack("probs").detach().numpy()[:, 0]
        total += published(probs.reshape(-1, *probs.shape[2:]))
        length += probs.shape[-1]
    assert length == whole.lengths[0] + 2 > model.config.n_positions + 2
    documents.append((total, length))

    sums, rows = (np.array(each) for each in zip(*documents, strict=True))
    mean = sums.sum(0) / rows.sum()
    np.testing.assert_allclose(found.mean, mean, rtol=0, atol=2e-6)
    residual = sums - mean * rows[:, None, None]
    error = np.sqrt((residual**2).sum(0) * 5 / 4) / rows.sum()
    np.testing.assert_allclose(found.standard_error, error, rtol=0, atol=1e-6)
    assert (found.rows, found.documents) == (rows.sum(), 5)


def test_drawn_rows_belong_to_the_document_and_not_to_its_place():
    model = minibert.load()
    first = head_distances(model, TEXTS[:1], rows_per_document=3)
    documents = [Document("0", TEXTS[0]), Document("7", TEXTS[1])]
    again = head_distances(model, documents[::-1], rows_per_document=3)
    other = head_distances(model, documents[1:], rows_per_document=3)
    assert (first.rows, again.rows) == (3, 6)
    np.testing.assert_allclose(6 * again.mean - 3 * other.mean, 3 * first.mean, atol=1e-5)
    reseeded = head_distances(model, TEXTS[:1], rows_per_document=3, seed=1)
    assert np.abs(reseeded.mean - first.mean).max() > 1e-3
    everything = head_distances(model, TEXTS[:1], rows_per_document=99)
    assert everything.rows == model.tokenize(TEXTS[0]).lengths[0]


def test_one_document_says_nothing_about_others():
    sums = JensenShannonSums(1, 2)
    with pytest.raises(AttentionError, match="No row was added"):
        sums.distances()
    sums.add(np.array([[0.0, 0.4], [0.4, 0.0]]), 2)
    found = sums.distances()
    assert found.mean[0, 1] == 0.2
    assert np.isnan(found.standard_error).all()


def test_what_cannot_be_measured_is_refused():
    with pytest.raises(AttentionError, match=r"shape \(2, 0, 3\)"):
        jensen_shannon_sums(torch.ones(2, 0, 3))
    with pytest.raises(AttentionError, match=r"shape \(1, 1\); expected \(6, 6\)"):
        JensenShannonSums(2, 3).add(np.zeros((1, 1)), 1)
    with pytest.raises(AttentionError, match="rows_per_document=0"):
        head_distances(minibert.load(), TEXTS, rows_per_document=0)
    with pytest.raises(TokenizationError, match="texts is one str"):
        head_distances(minibert.load(), TEXTS[0])
    with pytest.raises(TokenizationError, match=r"Document 1 is a pair of .* tokens, more than"):
        head_distances(minibert.load(), [TEXTS[0], ("so. " * 100, "no. " * 100)])
    with pytest.raises(TokenizationError, match="Document 0 is a batch of 2 sentences"):
        head_distances(minibert.load(), [["one", "two"]])


def distances_of(points):
    return np.linalg.norm(points[:, None] - points, axis=-1)


def drawn(n, dimensions, seed=0):
    return np.random.default_rng(seed).normal(size=(n, dimensions))


def test_points_of_a_plane_are_recovered_up_to_rotation():
    given = distances_of(drawn(17, 2))
    for points in (classical_scaling(given), metric_scaling(given).points):
        np.testing.assert_allclose(distances_of(points), given, atol=1e-9)
    assert metric_scaling(given).stress < 1e-9


def test_the_stress_of_an_equilateral_tetrahedron_in_the_plane_is_the_known_one():
    # The best four points are a square of side a and diagonal √2·a, with Σ d·δ = Σ d²:
    # a = (2 + √2)/4, and the stress is √(Σ(d - 1)²/Σ d²).
    found = metric_scaling(1.0 - np.eye(4))
    side = (2 + np.sqrt(2)) / 4
    distances = np.array([side] * 4 + [side * np.sqrt(2)] * 2)
    expected = np.sqrt(((distances - 1) ** 2).sum() / (distances**2).sum())
    assert found.stress == pytest.approx(expected, abs=1e-6)


def test_no_step_of_smacof_makes_the_stress_larger_and_the_end_is_a_minimum():
    given = distances_of(drawn(13, 5))

    def raw(points):
        return float(((distances_of(points) - given) ** 2).sum())

    course = [raw(metric_scaling(given, most_steps=n).points) for n in range(30)]
    assert all(after <= before for before, after in itertools.pairwise(course))
    end = metric_scaling(given).points
    for step in drawn(40, 26, seed=1).reshape(40, 13, 2):
        assert raw(end + 1e-3 * step) > raw(end)


def test_heads_of_one_layer_that_lie_together_are_seen():
    points = np.array([[0.0], [1.0], [7.0], [9.0]])
    mean = distances_of(points)
    found = layer_closeness(HeadDistances((2, 2), mean, mean, 5, 3))
    assert found == (1.5, (7 + 9 + 6 + 8) / 4, 1.0, 1 / 3)
    apart = layer_closeness(HeadDistances((2, 2), mean[[0, 2, 1, 3]][:, [0, 2, 1, 3]], mean, 5, 3))
    assert apart.nearest == 0.0


@pytest.mark.parametrize(
    "distances",
    [np.ones((2, 3)), np.ones((2, 2)), np.array([[0, np.nan], [np.nan, 0]]), -1 + np.eye(2)],
    ids=["not square", "not 0 to itself", "nan", "negative"],
)
def test_what_is_no_matrix_of_distances_is_refused(distances):
    for function in (metric_scaling, classical_scaling):
        with pytest.raises(AttentionError, match="distances"):
            function(distances)
