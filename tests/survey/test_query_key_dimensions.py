"""How many dimensions carry query·key, against variances and dimensions that are known."""

from pathlib import Path

import numpy as np
import pytest
import torch
from data import data_path
from small_traces import KINDS, small_trace

import minibert
from minibert.errors import AttentionError
from minibert.survey import query_key_dimensions as module
from minibert.survey.patterns import HeadPatterns, patterns_of_attention
from minibert.survey.query_key_dimensions import (
    QueryKeySums,
    contributions,
    dimensions_by_pattern,
    query_key_dimensions,
)
from tests.survey.live_models import bart, gemma3, tokenizer_of

H, N, D = 2, 13, 7
TEXTS = ["the horse turned and ran home.", "he saw the old house", "so. " * 90]


@pytest.mark.parametrize(
    ("causal", "window"), [(False, None), (True, None), (True, (4, 0)), (False, (2, 2))]
)
def test_contributions_are_covariances_that_sum_to_the_variance_of_the_scores(
    causal: bool, window: tuple[int, int] | None
) -> None:
    query, key = torch.randn(2, H, N, D, dtype=torch.float64).unbind()
    first = 0 if causal or window else None
    found = contributions(query, key, scale=0.3, first=first, window=window)
    before, after = window or (N, 0 if causal else N)
    for head in range(H):
        for row in range(N):
            keys = key[head, max(0, row - before) : row + after + 1].numpy()
            products = 0.3 * query[head, row].numpy() * keys
            scores = products.sum(1)
            centred = products - products.mean(0)
            expected = (centred * (scores - scores.mean())[:, None]).mean(0)
            np.testing.assert_allclose(found[head, row], expected, atol=1e-13)
            assert found[head, row].sum() == pytest.approx(scores.var(), abs=1e-13)


def test_dimensions_that_were_planted_are_counted() -> None:
    # Keys are all corners of a cube, so that no two dimensions go together.
    corners = torch.tensor([[(j >> d) % 2 * 2 - 1 for d in range(D)] for j in range(2**D)])
    key = corners.double()[None]
    query = torch.zeros(1, 3, D, dtype=torch.float64)
    sums = QueryKeySums(1, 3, D)
    # Three heads: one dimension in every row; five alike in every row; a different one each row.
    query[0, :, 4] = torch.tensor([1.0, -2.0, 0.5])
    one = contributions(query, key, scale=1.0)
    query = torch.zeros_like(query)
    query[0, :, :5] = 1.0
    five = contributions(query, key, scale=1.0)
    moving = contributions(torch.eye(D, dtype=torch.float64)[None, :3], key, scale=1.0)
    sums.add(0, torch.cat([one, five, moving]))
    sums.documents += 1
    found = sums.result()
    np.testing.assert_allclose(found.participation, [[1, 5, 3]])
    np.testing.assert_allclose(found.participation_of_rows, [[1, 5, 1]])
    assert found.count.tolist() == [[1, 5, 3]]
    np.testing.assert_allclose(found.shares[0, 2], [1 / 3] * 3 + [0] * 4)


def test_a_head_whose_scores_are_flat_has_no_dimensions() -> None:
    sums = QueryKeySums(1, H, D)
    with pytest.raises(AttentionError, match="No document was added"):
        sums.result()
    sums.add(0, contributions(torch.zeros(H, N, D), torch.randn(H, N, D), scale=1.0))
    sums.documents += 1
    found = sums.result()
    assert np.isnan(found.participation).all()
    assert found.count.tolist() == [[0, 0]]
    assert not found.rows.any()
    assert found.to_dict()["heads"][0]["participation"] is None


@pytest.mark.parametrize("name", ["tiny-bert", "tiny-gpt2"])
def test_a_corpus_is_the_sum_of_its_documents(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = minibert.load(name)
    causal, scale = model.config.causal, model.config.attention_scale(0)
    total, ratios = 0.0, []
    for text in TEXTS[:2]:
        layer = model.trace(text)[0]
        for query, key in zip(layer.query[0].double(), layer.key[0].double(), strict=True):
            products = scale * query[:, None] * key
            scores = products.sum(-1)
            shares = np.zeros((len(query), query.shape[-1]))
            for row in range(len(query)):
                seen = slice(0, row + 1) if causal else slice(None)
                block = torch.cat([products[row, seen], scores[row, seen, None]], 1).numpy().T
                shares[row] = np.cov(block, bias=True)[-1, :-1]
            size = np.abs(shares)
            kept = size.sum(1) > 0
            ratios.append(((size.sum(1) ** 2)[kept] / (size**2).sum(1)[kept]).tolist())
            total += float(shares.sum())
    whole = query_key_dimensions(model, TEXTS[:2])
    n_heads = model.config.n_heads
    for head in range(n_heads):
        mine = [ratio for document in ratios[head::n_heads] for ratio in document]
        assert whole.participation_of_rows[0, head] == pytest.approx(np.mean(mine), rel=1e-5)
        assert whole.rows[0, head] == len(mine)
    np.testing.assert_allclose(whole.shares.sum(-1), 1)
    everything = query_key_dimensions(model, TEXTS)
    monkeypatch.setattr(module, "_NUMBERS", 4 * n_heads * 20)
    pieces = query_key_dimensions(model, TEXTS)
    assert pieces.documents == 3
    np.testing.assert_allclose(pieces.shares, everything.shares, atol=1e-9)
    np.testing.assert_array_equal(pieces.count, everything.count)


def test_patterns_have_the_dimensions_of_the_heads_that_they_name() -> None:
    file = np.load(data_path("refs", "gpt2__apples_qk.npz"), allow_pickle=False)
    sums = QueryKeySums(12, 12, 64)
    for layer in range(12):
        query, key = (torch.from_numpy(file[name][layer]) for name in ("queries", "keys"))
        sums.add(layer, contributions(query, key, scale=1 / 8, first=0))
    sums.documents += 1
    found: HeadPatterns = patterns_of_attention(
        [torch.from_numpy(file["attn"])], [list(file["tokens"])], causal=True
    )
    dimensions = sums.result()
    table = dimensions_by_pattern(dimensions, found)
    named = [place for place, names in found.named().items() if "previous" in names]
    expected = [dimensions.participation[place] for place in named]
    assert table["previous"][:2] == (len(named), pytest.approx(np.mean(expected)))
    assert "next" not in table
    assert 1 <= dimensions.participation.min() <= dimensions.participation.max() <= 64


def test_a_grouped_rotary_model_with_windows_is_measured_on_what_its_queries_see() -> None:
    trace = small_trace(**KINDS["gemma2"])
    found = query_key_dimensions(trace.model, [trace.tokens])
    sums = QueryKeySums(3, 2, 7)
    for layer, at in enumerate(trace):
        query, key = at.query[0].double().numpy(), at.key[0, 0].double().numpy()
        for head, row in np.ndindex(2, 11):
            seen = key[at.mask[0, 0, row].numpy()]
            products = trace.config.attention_scale(layer) * query[head, row] * seen
            scores = products.sum(1)
            part = ((products - products.mean(0)) * (scores - scores.mean())[:, None]).mean(0)
            sums.total[layer, head] += part
    expected = sums.total / sums.total.sum(-1, keepdims=True)
    np.testing.assert_allclose(found.shares, expected, atol=1e-6)


@pytest.mark.parametrize("stack", ["encoder", "decoder.self"])
def test_a_live_model_is_measured_on_what_its_own_projections_give(stack: str) -> None:
    live, words = bart(), tokenizer_of("tiny-bert")
    found = query_key_dimensions(
        minibert.attach(live, tokenizer=words), TEXTS[:2], stack=stack, longest=48
    )
    layers = getattr(live, stack.removesuffix(".self")).layers
    kept: dict[str, torch.Tensor] = {}
    for number, layer in enumerate(layers):
        for name in ("q_proj", "k_proj"):
            getattr(layer.self_attn, name).register_forward_hook(
                lambda *given, key=f"{name} {number}": kept.update({key: given[-1]})
            )
    total = np.zeros((len(layers), 3, 11))
    for text in TEXTS[:2]:
        ids = words(text, return_tensors="pt").input_ids
        with torch.no_grad():
            live(ids, decoder_input_ids=ids)
        n = ids.shape[1]
        for number, head, row in np.ndindex(len(layers), 3, n):
            query, key = (
                kept[f"{name} {number}"].reshape(n, 3, 11)[:, head].double().numpy()
                for name in ("q_proj", "k_proj")
            )
            products = query[row] * key[: row + 1 if stack == "decoder.self" else n] / 11**0.5
            scores = products.sum(1)
            part = (products - products.mean(0)) * (scores - scores.mean())[:, None]
            total[number, head] += part.mean(0)
    np.testing.assert_allclose(found.shares, total / total.sum(-1, keepdims=True), atol=1e-5)


def test_windows_of_a_live_model_are_those_of_the_loaded_one(tmp_path: Path) -> None:
    torch.manual_seed(0)
    live, words = gemma3().double().eval(), tokenizer_of("tiny-gpt2")
    for one in (live, words):
        one.save_pretrained(tmp_path)
    theirs = query_key_dimensions(minibert.attach(live, tokenizer=words), TEXTS[:2])
    ours = query_key_dimensions(minibert.load(tmp_path, dtype=torch.float64), TEXTS[:2])
    # Gemma's norms are computed in float32, whatever the model's dtype.
    np.testing.assert_allclose(theirs.shares, ours.shares, atol=1e-6)
    np.testing.assert_array_equal(theirs.rows, ours.rows)
