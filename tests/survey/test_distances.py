"""Jensen-Shannon divergences between heads, against the published formula written out."""

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
from tests.survey.oracle import published

TEXTS = ["the horse turned and ran home.", "he saw the old house", "a cold wind, and rain"]


@pytest.mark.parametrize("name", ["bert-base-uncased__store", "bert-base-uncased__rabbit"])
def test_real_heads_have_the_published_divergence(name: str) -> None:
    attention = np.load(data_path("refs", f"{name}.npz"))["attn"]
    heads = attention.reshape(144, *attention.shape[2:])
    found = jensen_shannon_sums(torch.from_numpy(heads).double())
    np.testing.assert_allclose(found, published(heads), rtol=0, atol=1e-9)
    np.testing.assert_array_equal(found, found.T)
    assert not np.diagonal(found).any()
    single = jensen_shannon_sums(torch.from_numpy(heads))
    np.testing.assert_allclose(single, published(heads), rtol=0, atol=1e-5)


def test_the_distances_of_a_corpus_are_those_of_every_row_of_its_attention() -> None:
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


def test_drawn_rows_belong_to_the_document_and_not_to_its_place() -> None:
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


def test_one_document_says_nothing_about_others() -> None:
    sums = JensenShannonSums(1, 2)
    with pytest.raises(AttentionError, match="No row was added"):
        sums.distances()
    sums.add(np.array([[0.0, 0.4], [0.4, 0.0]]), 2)
    found: HeadDistances = sums.distances()
    assert found.mean[0, 1] == 0.2
    assert np.isnan(found.standard_error).all()


def test_what_cannot_be_measured_is_refused() -> None:
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
