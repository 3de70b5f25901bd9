"""The loss beside transformers, and the targets of single heads."""

import math

import pytest
import torch
from torch.nn import functional as F

from minibert.layers.config import Config
from minibert.loading import from_transformers
from minibert.model import Model
from minibert.training.batches import IGNORED, Batch
from minibert.training.objective import losses, target_layers, target_loss
from minibert.training.vocabulary import train_tokenizer
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


WORDS = "the cat saw a dog and the dog saw the cat in the garden of the house " * 20
TOKENIZERS = {
    family: train_tokenizer([WORDS], size=size, byte_level=family == "llama")
    for family, size in (("bert", 120), ("llama", 300))
}
MISS = -math.log(1e-6)
# 0 [CLS]  1 the  2 cat  3 [SEP]  4 the  5 dog  6 [MASK]  7 [SEP]  8 padding
PAIR = ("the cat", "the dog [MASK]")
MATCHES = [{3}, {4}, {7}, {0}, {1}, {3, 7}, {3}, {0}, {0}]
# 0 [CLS]  1 2 3 the  4 dog  5 [SEP]  6 the  7 dog  8 [SEP]
FREQUENT = ("the the the dog", "the dog")
OFTEN = [{5}, {6}, {6}, {6}, {7}, {0}, {1, 2, 3}, {4}, {0}]
BEFORE = [{max(0, query - 1)} for query in range(5)]
# The target, the text, where the last head looks for each query, and the loss.
TARGETS = [
    ("delimiter", PAIR, [{3, 7}] * 9, 0),
    ("delimiter", PAIR, [{3, 0}] * 9, math.log(2)),
    ("matching", PAIR, MATCHES, 0),
    # "the" has a match in both texts, and one of its two misses; delimiters and padding do not
    # count. That is half of the loss; the other half are [CLS] cat dog [MASK], which rest.
    ("matching", PAIR, [{3}, {3}, *MATCHES[2:]], MISS / 2 / 2),
    ("matching", PAIR, [*MATCHES[:2], {0}, *MATCHES[3:]], MISS / 4 / 2),
    ("matching", FREQUENT, OFTEN, 0),
    # Both dogs miss: the whole of one kind of two, and matches are half of the loss.
    ("matching", FREQUENT, [*OFTEN[:4], {6}, *OFTEN[5:7], {3}, {0}], MISS / 2 / 2),
    ("previous", "abaca", BEFORE, 0),
    # The first token has none before it.
    ("previous", "abaca", [{0}, {0, 1}, *BEFORE[2:]], math.log(2) / 4),
    # b and c have no earlier one of their kind; behind the last a come two.
    ("induction", "abaca", [{0}, {0}, {1}, {0}, {1, 3}], 0),
    ("induction", "abaca", [{0}, {0}, {1, 0}, {0}, {3}], math.log(2) / 2),
]


@pytest.mark.parametrize(("name", "text", "places", "expected"), TARGETS)
def test_a_target_is_how_much_the_last_head_gives_to_its_keys(name, text, places, expected):
    tokenizer = TOKENIZERS["llama" if isinstance(text, str) else "bert"]
    if isinstance(text, str):
        ids = torch.tensor([[tokenizer.encode(letter)[0] for letter in text]])
        batch = Batch(ids, torch.full_like(ids, IGNORED))
    else:
        tokens, padding = tokenizer(*text), len(places)
        ids, segments, mask = (
            F.pad(part, (0, padding - part.shape[1]))
            for part in (tokens.ids, tokens.segments, tokens.mask)
        )
        batch = Batch(ids, torch.full_like(ids, IGNORED), segments, mask)
    # The first of two heads looks everywhere alike.
    probs = torch.full((1, 2, len(places), len(places)), 1 / len(places))
    for query, keys in enumerate(places):
        probs[0, 1, query] = 0
        probs[0, 1, query, list(keys)] = 1 / len(keys)
    found = target_loss(name, probs, batch, tokenizer)
    assert found.item() == pytest.approx(expected, abs=1e-6)


def test_each_target_has_its_layer_however_few_there_are():
    sizes = {"vocab_size": 9, "n_positions": 16, "n_heads": 1, "d_model": 2, "d_mlp": 2}
    for layers, expected in ((1, (0, 0)), (2, (1, 1)), (4, (2, 1))):
        config = Config(family="bert", task="masked-lm", n_layers=layers, **sizes)
        found = target_layers(config, ["delimiter", "matching", "previous", "induction"])
        assert tuple(found.values()) == (*expected, 0, expected[1])
