"""The loss and its gradients, beside torch's cross-entropy and transformers' models."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from minibert.loading import from_transformers
from minibert.model import Model
from minibert.training.batches import IGNORED, Batch
from minibert.training.objective import losses, vocabulary_loss
from tests.families import VOCABULARY, hf_model
from tests.training.small_runs import bert, gpt2

MASKED = {
    "bert": "BertForMaskedLM",
    "roberta": "RobertaForMaskedLM",
    "distilbert": "DistilBertForMaskedLM",
    "electra": "ElectraForMaskedLM",
    "albert": "AlbertForMaskedLM",
}


def random_parts(rows: int, bias: bool) -> list[Tensor | None]:
    """Hidden state, weight and bias, with logits that differ by much more than 1."""
    draw = torch.Generator().manual_seed(rows)
    shapes = [(rows, 7), (53, 7), (53,)]
    parts: list[Tensor | None] = [
        (2 * torch.randn(shape, generator=draw, dtype=torch.float64)).requires_grad_()
        for shape in shapes
    ]
    return parts if bias else [*parts[:2], None]


def gradients(loss: Tensor, parts: list[Tensor | None]) -> list[Tensor]:
    # A factor, as when the loss is one term of a sum.
    return list(torch.autograd.grad(3.7 * loss, [part for part in parts if part is not None]))


class TestVocabularyLoss:
    # 512 rows are one block.
    @pytest.mark.parametrize("rows", [1, 5, 511, 512, 513, 1031])
    @pytest.mark.parametrize("bias", [True, False])
    def test_it_and_its_gradients_are_those_of_cross_entropy(self, rows: int, bias: bool) -> None:
        parts = random_parts(rows, bias)
        hidden, weight, offset = parts
        assert hidden is not None
        assert weight is not None
        labels = torch.arange(rows) * 11 % 53
        ours = vocabulary_loss(hidden, weight, offset, labels)
        theirs = F.cross_entropy(F.linear(hidden, weight, offset), labels)
        assert abs(ours - theirs) <= 1e-10
        for got, expected in zip(gradients(ours, parts), gradients(theirs, parts), strict=True):
            assert (got - expected).abs().max() <= 1e-10

    @pytest.mark.parametrize("bias", [True, False])
    def test_without_rows_it_is_0_and_changes_nothing(self, bias: bool) -> None:
        parts = random_parts(0, bias)
        hidden, weight, offset = parts
        assert hidden is not None
        assert weight is not None
        loss = vocabulary_loss(hidden, weight, offset, torch.empty(0, dtype=torch.int64))
        assert loss == 0
        assert not any(bool(gradient.any()) for gradient in gradients(loss, parts))

    def test_huge_logits_do_not_overflow(self) -> None:
        hidden, weight = torch.full((2, 1), 1e4), torch.tensor([[1.0], [-1.0]])
        loss = vocabulary_loss(hidden, weight, None, torch.tensor([0, 1]))
        assert loss == pytest.approx(1e4)

    def test_under_autocast_it_is_close_and_stays_float32(self) -> None:
        parts = [None if part is None else part.detach().float() for part in random_parts(61, True)]
        hidden, weight, bias = parts
        assert hidden is not None
        assert weight is not None
        weight.requires_grad_()
        labels = torch.arange(61) % 53
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = vocabulary_loss(hidden.bfloat16(), weight, bias, labels)
        loss.backward()
        exact = F.cross_entropy(F.linear(hidden, weight, bias), labels)
        assert loss.dtype == weight.grad.dtype == torch.float32  # type: ignore[union-attr]
        # bfloat16 has 8 bits: products of about 10 are off by a few hundredths each.
        assert abs(loss - exact) / exact <= 0.01


def random_batch(*, pairs: bool = False, padded: bool = False) -> Batch:
    draw = torch.Generator().manual_seed(5)
    ids = torch.randint(2, VOCABULARY, (5, 13), generator=draw)
    labels = torch.randint(2, VOCABULARY, (5, 13), generator=draw)
    labels = torch.where(torch.rand(5, 13, generator=draw) < 0.6, IGNORED, labels)
    # transformers takes the label of the next position, and the last one has none.
    labels[:, -1] = IGNORED
    mask = None
    if padded:
        mask = torch.arange(13) < torch.tensor([13, 11, 7, 5, 2])[:, None]
        labels = labels.masked_fill(~mask, IGNORED)
    segments = torch.randint(0, 2, (5, 13), generator=draw) if pairs else None
    unrelated = torch.tensor([0, 1, IGNORED, 1, 0]) if pairs else None
    return Batch(ids, labels, segments, mask, unrelated)


def their_loss(model: Any, batch: Batch, **inputs: Any) -> float:
    mask = None if batch.mask is None else batch.mask.long()
    with torch.no_grad():
        return float(model(input_ids=batch.ids, attention_mask=mask, **inputs).loss)


class TestLosses:
    def test_a_gpt2_has_the_loss_of_transformers(self) -> None:
        theirs = hf_model("gpt2", "GPT2LMHeadModel")
        batch = random_batch()
        shifted = F.pad(batch.labels, (1, 0), value=IGNORED)[:, :-1]
        parts = losses(from_transformers(theirs), batch)
        assert parts.keys() == {"tokens"}
        assert parts["tokens"] == pytest.approx(their_loss(theirs, batch, labels=shifted), abs=1e-5)

    @pytest.mark.parametrize("padded", [False, True])
    @pytest.mark.parametrize(("family", "name"), MASKED.items())
    def test_a_masked_lm_has_the_loss_of_transformers(
        self, family: str, name: str, padded: bool
    ) -> None:
        theirs, batch = hf_model(family, name), random_batch(padded=padded)
        parts = losses(from_transformers(theirs), batch)
        assert parts.keys() == {"tokens"}
        expected = their_loss(theirs, batch, labels=batch.labels)
        assert parts["tokens"] == pytest.approx(expected, abs=1e-5)

    @pytest.mark.parametrize("padded", [False, True])
    def test_pre_training_has_both_losses_of_transformers(self, padded: bool) -> None:
        theirs, batch = (
            hf_model("bert", "BertForPreTraining"),
            random_batch(pairs=True, padded=padded),
        )
        parts = losses(from_transformers(theirs), batch)
        assert parts.keys() == {"tokens", "sentences"}
        both = {"labels": batch.labels, "next_sentence_label": batch.unrelated}
        expected = their_loss(theirs, batch, token_type_ids=batch.segments, **both)
        assert float(sum(parts.values())) == pytest.approx(expected, abs=1e-5)
        assert parts["sentences"] != pytest.approx(math.log(2), abs=1e-3), "a trivial model"

    def test_pairs_without_a_second_text_have_no_sentence_loss(self) -> None:
        model = from_transformers(hf_model("bert", "BertForPreTraining"))
        batch = random_batch(pairs=True)
        assert batch.unrelated is not None
        batch.unrelated.fill_(IGNORED)
        assert losses(model, batch).keys() == {"tokens"}

    @pytest.mark.parametrize(("family", "name"), [*MASKED.items(), ("gpt2", "GPT2LMHeadModel")])
    def test_a_batch_with_nothing_to_predict_has_a_loss_of_0(self, family: str, name: str) -> None:
        model = from_transformers(hf_model(family, name)).requires_grad_()
        batch = random_batch()
        batch.labels.fill_(IGNORED)
        loss = losses(model, batch)["tokens"]
        loss.backward()
        assert loss == 0
        assert not any(bool(p.grad.any()) for p in model.parameters() if p.grad is not None)

    @pytest.mark.parametrize("config", [gpt2(vocab_size=VOCABULARY), bert(vocab_size=VOCABULARY)])
    def test_the_gradient_reaches_every_weight(self, config: Any) -> None:
        model = Model.from_config(config).requires_grad_()
        sum(losses(model, random_batch(pairs=not config.causal)).values()).backward()  # type: ignore[union-attr]
        for name, parameter in model.named_parameters():
            assert parameter.grad is not None, name
            # Softmax does not see what a key's bias adds to all scores of a row.
            if not name.endswith("key.bias"):
                assert parameter.grad.any(), name
