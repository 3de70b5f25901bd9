"""The loss beside transformers, and the targets of single heads."""

import math

import pytest
import torch
from torch.nn import functional as F

from minibert.layers.config import Config
from minibert.model import Model, from_transformers
from minibert.training.batches import IGNORED, Batch, losses, target_layers, target_loss
from tests.families import VOCABULARY, hf_model
from tests.training.small_runs import bert, gpt2

MODELS = {
    "bert": "BertForMaskedLM",
    "distilbert": "DistilBertForMaskedLM",
    "electra": "ElectraForMaskedLM",
    "albert": "AlbertForMaskedLM",
    "gpt2": "GPT2LMHeadModel",
}


def random_batch(*, pairs=False, padded=False):
    draw = torch.Generator().manual_seed(5)
    ids, labels = torch.randint(2, VOCABULARY, (2, 5, 13), generator=draw)
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


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize(("family", "name"), [*MODELS.items(), ("bert", "BertForPreTraining")])
def test_the_loss_is_that_of_transformers(family, name, padded):
    pairs = name == "BertForPreTraining"
    theirs, batch = hf_model(family, name), random_batch(pairs=pairs, padded=padded)
    labels = {"labels": batch.labels}
    if family == "gpt2":
        labels = {"labels": F.pad(batch.labels, (1, 0), value=IGNORED)[:, :-1]}
    if pairs:
        labels |= {"next_sentence_label": batch.unrelated, "token_type_ids": batch.segments}
    mask = None if batch.mask is None else batch.mask.long()
    with torch.no_grad():
        expected = theirs(input_ids=batch.ids, attention_mask=mask, **labels).loss
    model = from_transformers(theirs)
    found = losses(model, batch)
    assert list(found) == ["tokens", "sentences"][: 1 + pairs]
    assert float(sum(found.values())) == pytest.approx(float(expected), abs=1e-5)
    if pairs:
        assert found["sentences"] != pytest.approx(math.log(2), abs=1e-3), "a trivial model"
        batch.unrelated.fill_(IGNORED)
        assert losses(model, batch).keys() == {"tokens"}
    batch.labels.fill_(IGNORED)
    assert losses(model, batch)["tokens"] == 0


@pytest.mark.parametrize("config", [gpt2(vocab_size=VOCABULARY), bert(vocab_size=VOCABULARY)])
def test_the_gradient_reaches_every_weight(config):
    model = Model.from_config(config).requires_grad_()
    sum(losses(model, random_batch(pairs=not config.causal)).values()).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        # Softmax does not see what a key's bias adds to all scores of a row.
        if not name.endswith("key.bias"):
            assert parameter.grad.any(), name


BEFORE = [{max(0, query - 1)} for query in range(5)]
# The target, the text, where the last head looks for each query, and the loss.
TARGETS = [
    ("previous", "abaca", BEFORE, 0),
    # The first token has none before it.
    ("previous", "abaca", [{0}, {0, 1}, *BEFORE[2:]], math.log(2) / 4),
    # b and c have no earlier one of their kind; behind the last a come two.
    ("induction", "abaca", [{0}, {0}, {1}, {0}, {1, 3}], 0),
    ("induction", "abaca", [{0}, {0}, {1, 0}, {0}, {3}], math.log(2) / 2),
]


@pytest.mark.parametrize(("name", "text", "places", "expected"), TARGETS)
def test_a_target_is_how_much_the_last_head_gives_to_its_keys(name, text, places, expected):
    ids = torch.tensor([[ord(letter) for letter in text]])
    batch = Batch(ids, torch.full_like(ids, IGNORED))
    # The first of two heads looks everywhere alike.
    probs = torch.full((1, 2, len(places), len(places)), 1 / len(places))
    for query, keys in enumerate(places):
        probs[0, 1, query] = 0
        probs[0, 1, query, list(keys)] = 1 / len(keys)
    found = target_loss(name, probs, batch)
    assert found.item() == pytest.approx(expected, abs=1e-6)


def test_each_target_has_its_layer_however_few_there_are():
    sizes = {"vocab_size": 9, "n_positions": 16, "n_heads": 1, "d_model": 2, "d_mlp": 2}
    for layers, expected in ((1, 0), (2, 1), (4, 1)):
        config = Config(family="bert", task="masked-lm", n_layers=layers, **sizes)
        found = target_layers(config, ["previous", "induction"])
        assert tuple(found.values()) == (0, expected)
