"""What is said of whole texts: embeddings, losses; and the axes of results."""

from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

import minibert
from minibert.analysis import embedding_parts, token_losses
from minibert.errors import TokenizationError, TraceError
from minibert.model import from_transformers
from minibert.text.tokens import Tokens
from tests.families import hf_model

N = 7
IDS = torch.randint(5, 37, (2, N), generator=torch.Generator().manual_seed(3))
MASK = torch.arange(N) < torch.tensor([[N], [N - 3]])
TOKENS = Tokens.from_ids(IDS, mask=MASK)


def same(found: Any, expected: Any, atol: float = 1e-12) -> None:
    np.testing.assert_allclose(found, expected, atol=atol)


@pytest.mark.parametrize("family", ["bert", "gpt2", "roberta"])
def test_other_positions_and_segments_give_what_transformers_gives(family: str) -> None:
    names = {"bert": "BertModel", "gpt2": "GPT2Model", "roberta": "RobertaModel"}
    theirs = hf_model(family, names[family])
    model = from_transformers(theirs, task="none")
    given: dict[str, Any] = {"positions": torch.arange(N).flip(0).repeat(2, 1)}
    theirs_given = {"position_ids": given["positions"] + model.config.position_offset}
    if family == "bert":
        given["segments"] = torch.tensor([[0, 1, 0, 1, 1, 0, 1], [1, 1, 0, 0, 0, 1, 0]])
        theirs_given["token_type_ids"] = given["segments"]
    parts = embedding_parts(model, IDS, **given)
    trace = model.trace(IDS, edit={"embed": parts.embed})
    with torch.no_grad():
        same(trace.hidden, theirs(input_ids=IDS, **theirs_given).last_hidden_state, 1e-5)
    plain = embedding_parts(model, IDS)
    assert torch.equal(plain.embed, model.trace(IDS).embed)
    assert not torch.equal(plain.embed, parts.embed)
    # Padding keeps its own row, which of RoBERTa is another.
    ids = IDS.masked_fill(~MASK, 1)
    tokens, own = Tokens.from_ids(ids, mask=MASK), torch.arange(N).repeat(2, 1)
    if family == "roberta":
        kept = embedding_parts(model, tokens, positions=own).embed
        assert torch.equal(kept, embedding_parts(model, tokens).embed)


def test_the_parts_add_up_and_the_norm_of_the_sum_enters() -> None:
    model = minibert.load("tiny-bert")
    parts = embedding_parts(model, "the horse ran")
    summed = parts.word + parts.position + parts.segment
    assert torch.equal(model.body.embed_norm(summed), parts.embed)


@pytest.mark.parametrize(
    "wrong", [[0] * (N - 1), [0.0] * N, [True] * N, [-1] * N, [9999] * N, "first", [[0], [1, 2]]]
)
@pytest.mark.parametrize("name", ["positions", "segments"])
def test_numbers_that_are_none_of_its_rows_are_refused_by_name(name: str, wrong: Any) -> None:
    model = from_transformers(hf_model("bert", "BertModel"), task="none")
    with pytest.raises(TokenizationError, match=name):
        embedding_parts(model, IDS[:1], **{name: wrong})
    llama = minibert.load("tiny-llama")
    reason = {"positions": "has no table of positions", "segments": "does not tell"}[name]
    with pytest.raises(TraceError, match=f"{name}: tiny-llama {reason}"):
        embedding_parts(llama, "the horse", **{name: [0, 0]})
    parts = embedding_parts(llama, "the horse")
    assert (parts.position, parts.segment) == (None, None)


@pytest.mark.parametrize(
    ("family", "kind"), [("gpt2", "GPT2LMHeadModel"), ("bert", "BertForMaskedLM")]
)
def test_the_mean_is_the_loss_of_transformers(family: str, kind: str) -> None:
    theirs = hf_model(family, kind)
    model, labels = from_transformers(theirs), IDS.masked_fill(~MASK, -100)
    for targets in (None, labels.masked_fill(torch.arange(N) % 2 == 0, -100)):
        wanted = labels if targets is None else targets
        with torch.no_grad():
            expected = theirs(input_ids=IDS, attention_mask=MASK.long(), labels=wanted).loss
        found = token_losses(model, TOKENS, targets=targets)
        assert found.mean == pytest.approx(float(expected), rel=1e-5)
        assert found.perplexity == pytest.approx(float(expected.exp()), rel=1e-5)


@pytest.mark.parametrize("name", ["tiny-gpt2", "tiny-bert"])
def test_each_loss_is_the_cross_entropy_of_its_token(name: str) -> None:
    model, texts = minibert.load(name), ["the horse quickly ran away", "a boy"]
    found, tokens, logits = token_losses(model, texts), model.tokenize(texts), model(texts)
    ahead = int(model.config.causal)
    expected = torch.full(tokens.ids.shape, torch.nan)
    for row, length in enumerate(tokens.lengths):
        wanted = logits[row, : length - ahead], tokens.ids[row, ahead:length]
        expected[row, ahead:length] = F.cross_entropy(*wanted, reduction="none")
    torch.testing.assert_close(found.values, expected, rtol=1e-4, atol=1e-6, equal_nan=True)
    torch.testing.assert_close(found.sentences, expected.nanmean(1))
    assert found.tokens == tokens.strings


@pytest.mark.parametrize(
    "targets", [[3, 4], [[1, 2, 3]], torch.tensor([0.5, 1, 2]), [5, 100_000, 2], [5, -1, 2], "abc"]
)
def test_targets_that_do_not_fit_are_refused(targets: Any) -> None:
    ids = [5, 6] if targets == [[1, 2, 3]] else [5, 6, 7]
    with pytest.raises(TokenizationError, match="targets"):
        token_losses(minibert.load("tiny-gpt2"), ids, targets=targets)
    with pytest.raises(TraceError, match="no logits of tokens"):
        token_losses(from_transformers(hf_model("bert", "BertModel")), [5, 6])
