"""A fresh head, training with torch's optimiser, and a folder that transformers loads."""

from pathlib import Path

import pytest
import torch
import transformers
from torch import Tensor
from torch.nn.functional import cross_entropy

import minibert
from minibert.analysis import relevance_of
from minibert.errors import CheckpointError, TokenizationError
from minibert.layers.config import Config
from minibert.model import Model, from_transformers
from tests.families import batch, difference, hf_model

TASK = "sequence-classification"
LABELS = ["no", "maybe", "yes"]
IDS = torch.tensor([[3, 5, 7, 11], [13, 8, 2, 12], [20, 17, 9, 15]])
TARGETS = torch.tensor([0, 1, 2])
CLASSES = {
    "bert": "BertForSequenceClassification",
    "roberta": "RobertaForSequenceClassification",
    "distilbert": "DistilBertForSequenceClassification",
    "gpt2": "GPT2ForSequenceClassification",
}


def body(family: str, folder: Path) -> Path:
    """A checkpoint without any head, and BERT's without a pooler."""
    config = Config(
        family=family,
        task="none",
        vocab_size=23,
        n_positions=9,
        n_layers=2,
        n_heads=2,
        d_model=12,
        d_mlp=14,
        n_segments={"bert": 2, "roberta": 1}.get(family, 0),
        position_offset=2 if family == "roberta" else 0,
        pad_id=1 if family == "roberta" else 0,
        causal=family == "gpt2",
    )
    return Model.from_config(config, seed=4).save(folder)


def fresh(folder: Path, seed: int = 0, **options: object) -> Model:
    return minibert.load(folder, task=TASK, labels=LABELS, head_seed=seed, **options)


def trained(model: Model, steps: int = 150) -> tuple[float, float]:
    """The loss before and after."""
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)
    losses = []
    for _ in range(steps):
        loss = cross_entropy(model(IDS), TARGETS)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses[0], losses[-1]


@pytest.mark.parametrize("family", CLASSES)
def test_a_body_gets_a_fresh_head_trains_and_is_read_by_transformers(family, tmp_path):
    path = body(family, tmp_path / "body")
    model = fresh(path)
    assert model.config.labels == tuple(LABELS)
    parts = {name.split(".")[0] + "." + name.split(".")[1] for name in model.fresh}
    assert parts == {"bert": {"head.classifier", "body.pooler"}, "gpt2": {"head.classifier"}}.get(
        family, {"head.transform", "head.classifier"}
    )
    untouched = minibert.load(path, task="none")
    assert torch.equal(model.body.word.weight, untouched.body.word.weight)
    torch.manual_seed(0)
    before, after = trained(model.train())
    assert before == pytest.approx(torch.tensor(3.0).log().item(), abs=0.3)
    assert after < before
    # Without dropout, that is: right, and sure of it.
    assert float(cross_entropy(model.eval()(IDS), TARGETS).detach()) < 0.3
    assert not torch.equal(model.body.word.weight, untouched.body.word.weight)
    folder = model.eval().save(tmp_path / "tuned")
    other = getattr(transformers, CLASSES[family]).from_pretrained(folder).eval()
    with torch.no_grad():
        assert torch.allclose(other(IDS).logits, model(IDS), atol=1e-5)
    assert other.config.id2label == dict(enumerate(LABELS))
    assert torch.equal(minibert.load(folder)(IDS), model(IDS).detach())
    trace = model.trace(IDS, grad=True)
    trace.backward(trace.logits[0, 0])
    assert relevance_of(trace, 0).values.shape == (2, 3, 4)


def test_the_seed_decides_the_head_and_nothing_else(tmp_path):
    path = body("bert", tmp_path)
    first, again, other = (dict(fresh(path, seed).named_parameters()) for seed in (3, 3, 4))
    for name, value in first.items():
        assert torch.equal(value, again[name])
        random = name in fresh(path).fresh and not name.endswith("bias")
        assert torch.equal(value, other[name]) is not random
    assert float(first["body.pooler.weight"].std()) == pytest.approx(0.02, rel=0.2)
    assert minibert.load(path, task="none").fresh == ()


def test_a_head_that_is_there_is_kept_unless_a_fresh_one_is_asked_for(tmp_path):
    tuned = fresh(body("bert", tmp_path / "body")).save(tmp_path / "tuned")
    kept = minibert.load(tuned, labels=["a", "b", "c"])
    assert (kept.config.labels, kept.fresh) == (("a", "b", "c"), ())
    assert torch.equal(kept.head.classifier.weight, minibert.load(tuned).head.classifier.weight)
    two = minibert.load(tuned, task=TASK, labels=["a", "b"], head_seed=1)
    assert two(IDS).shape == (3, 2)
    # The pooler is in the file, so it is not fresh.
    assert set(two.fresh) == {"head.classifier.weight", "head.classifier.bias"}
    with pytest.raises(CheckpointError, match="mis-shaped"):
        minibert.load(tuned, labels=["a", "b"])


def test_without_a_seed_a_missing_head_is_an_error_that_names_the_way(tmp_path):
    path = body("bert", tmp_path)
    with pytest.raises(CheckpointError, match="head_seed=0"):
        minibert.load(path, task=TASK, labels=LABELS)
    for options, message in (
        ({"task": TASK, "labels": []}, "different names"),
        ({"task": TASK, "labels": ["a", "a"]}, "different names"),
        ({"task": TASK, "labels": "ab"}, "different names"),
        ({"task": "none", "labels": LABELS}, "different names"),
        ({"task": TASK, "head_seed": -1}, "whole number"),
        ({"task": TASK, "head_seed": True}, "whole number"),
        ({"task": "masked-lm", "head_seed": 0}, "made fresh"),
    ):
        with pytest.raises(CheckpointError, match=message):
            minibert.load(path, **options)


def test_training_gives_gradients_to_all_weights_or_to_those_that_were_chosen(tmp_path):
    path = body("bert", tmp_path)
    model = fresh(path)
    assert not any(p.requires_grad for p in model.parameters())
    assert model.train() is model
    assert all(p.requires_grad for p in model.parameters())
    head = fresh(path)
    head.head.requires_grad_()
    word: Tensor = head.body.word.weight.clone()
    trained(head.train(), steps=2)
    assert {n for n, p in head.named_parameters() if p.requires_grad} == {
        "head.classifier.weight",
        "head.classifier.bias",
    }
    assert torch.equal(head.body.word.weight, word)
    head.eval()
    assert not head.training
    assert head.head.classifier.weight.requires_grad


def test_weights_need_no_gradient_until_asked_and_then_have_one():
    model = from_transformers(hf_model("gpt2", "GPT2LMHeadModel", dtype=torch.float64))
    ids = batch("gpt2")["input_ids"]
    assert not model(ids).requires_grad
    model.requires_grad_()
    model(ids).square().sum().backward()
    expected = hf_model("gpt2", "GPT2LMHeadModel", dtype=torch.float64)
    expected(ids).logits.square().sum().backward()
    ours = model.body.layers[0].mlp.up.weight.grad
    theirs = expected.transformer.h[0].mlp.c_fc.weight.grad
    assert difference(ours, theirs.t()) <= 1e-9 * theirs.abs().max().item()


def test_a_model_without_a_tokenizer_reads_no_text():
    with pytest.raises(TokenizationError, match="no tokenizer"):
        from_transformers(hf_model("bert", "BertModel"))("hello")
