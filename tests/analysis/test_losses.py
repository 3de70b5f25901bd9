"""The loss at each token, against torch's cross-entropy and transformers' loss."""

from typing import Any

import pytest
import torch
from torch.nn import functional as F

import minibert
from minibert.analysis import token_losses
from minibert.errors import TokenizationError, TraceError
from minibert.loading import from_transformers
from minibert.text.tokens import Tokens
from tests.families import hf_model

N, VOCABULARY = 7, 41


def batch(vocabulary: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids of two sentences, the second of which is shorter."""
    ids = torch.randint(3, vocabulary, (2, N), generator=torch.Generator().manual_seed(1))
    return ids, torch.arange(N) < torch.tensor([[N], [N - 3]])


@pytest.mark.parametrize(
    ("family", "kind"), [("gpt2", "GPT2LMHeadModel"), ("bert", "BertForMaskedLM")]
)
def test_the_mean_is_the_loss_of_transformers(family: str, kind: str) -> None:
    theirs = hf_model(family, kind)
    model = from_transformers(theirs)
    ids, mask = batch(model.config.vocab_size)
    labels = ids.masked_fill(~mask, -100)
    with torch.no_grad():
        expected = theirs(input_ids=ids, attention_mask=mask.long(), labels=labels).loss
    found = token_losses(model, Tokens.from_ids(ids, mask=mask))
    assert found.mean == pytest.approx(float(expected), rel=1e-5)
    assert found.perplexity == pytest.approx(float(expected.exp()), rel=1e-5)
    assert minibert.axes_of(found) == {"values": ("batch", "position")}
    some = labels.masked_fill(torch.arange(N) % 2 == 0, -100)
    with torch.no_grad():
        expected = theirs(input_ids=ids, attention_mask=mask.long(), labels=some).loss
    found = token_losses(model, Tokens.from_ids(ids, mask=mask), targets=some)
    assert found.mean == pytest.approx(float(expected), rel=1e-5)


@pytest.mark.parametrize("name", ["tiny-gpt2", "tiny-bert"])
def test_each_loss_is_the_cross_entropy_of_its_token(name: str) -> None:
    model = minibert.load(name)
    texts = ["the horse quickly ran away", "a boy"]
    found, tokens, logits = token_losses(model, texts), model.tokenize(texts), model(texts)
    ahead = int(model.config.causal)
    for row, length in enumerate(tokens.lengths):
        ids = tokens.ids[row]
        for position in range(tokens.ids.shape[1]):
            value = found.values[row, position]
            if ahead <= position < length:
                expected = F.cross_entropy(logits[row, position - ahead], ids[position])
                assert float(value) == pytest.approx(float(expected), rel=1e-4, abs=1e-6)
            else:
                assert value.isnan()
        assert float(found.sentences[row]) == pytest.approx(
            float(found.values[row, ahead:length].mean()), rel=1e-5
        )
    assert found.tokens == tokens.strings


@pytest.mark.parametrize(
    "targets", [[3, 4], [[1, 2, 3]], torch.tensor([0.5, 1, 2]), [5, 100_000, 2], [5, -1, 2], "abc"]
)
def test_targets_that_do_not_fit_are_refused(targets: Any) -> None:
    model = minibert.load("tiny-gpt2")
    ids = [5, 6] if targets == [[1, 2, 3]] else [5, 6, 7]
    with pytest.raises(TokenizationError, match="targets"):
        token_losses(model, ids, targets=targets)


def test_a_model_without_logits_of_tokens_is_refused() -> None:
    model = from_transformers(hf_model("bert", "BertModel"))
    with pytest.raises(TraceError, match="no logits of tokens"):
        token_losses(model, [5, 6])
