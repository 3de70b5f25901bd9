"""tiny-bert-sentiment is what its card says, and its head before the training was a coin."""

import hashlib
import json
import math
from pathlib import Path

import pytest
import torch
import transformers
from command_line import run

import minibert
from minibert.analysis import relevance_of
from minibert.course.texts import COMPLAINTS, PRAISES, REVIEW
from minibert.model import Model

NAME = "tiny-bert-sentiment"
FOLDER = Path(minibert.__file__).parent / "embedded" / NAME
START = FOLDER.parent / "tiny-bert"
RESULTS = Path(__file__).parents[1] / "benchmarks" / "results" / "embedded.jsonl"
LABELS = ["negative", "positive"]
TEXTS = [*COMPLAINTS, *PRAISES]


def untrained(seed: int) -> Model:
    return minibert.load("tiny-bert", task="sequence-classification", labels=LABELS, head_seed=seed)


def share_right(model: Model) -> float:
    """Of sentences written for the course, whose sentiment nobody doubts; half are positive."""
    labels = torch.tensor([0] * len(COMPLAINTS) + [1] * len(PRAISES))
    with torch.no_grad():
        return float((model(TEXTS).argmax(-1) == labels).double().mean())


def wilson(share: float, count: int) -> tuple[float, float]:
    """The 95 % interval of a share (Wilson 1927)."""
    z = 1.96
    centre = share + z * z / (2 * count)
    half = z * math.sqrt(share * (1 - share) / count + z * z / (4 * count * count))
    return (centre - half) / (1 + z * z / count), (centre + half) / (1 + z * z / count)


def test_the_trained_head_is_better_than_a_coin_by_its_error_bar() -> None:
    least, _ = wilson(share_right(minibert.load(NAME)), len(TEXTS))
    assert least > 0.5


def test_heads_without_training_are_a_coin() -> None:
    heads = [untrained(seed) for seed in range(10)]
    mean = sum(share_right(head) for head in heads) / len(heads)
    least, most = wilson(mean, len(TEXTS))
    assert least < 0.5 < most
    with torch.no_grad():
        assert {int(head(REVIEW).argmax()) for head in heads} == {0, 1}


def test_transformers_loads_the_folder_and_agrees() -> None:
    theirs = transformers.AutoModelForSequenceClassification.from_pretrained(
        FOLDER, dtype=torch.float32, attn_implementation="eager"
    )
    tokenizer = transformers.AutoTokenizer.from_pretrained(FOLDER)
    assert isinstance(theirs, transformers.BertForSequenceClassification)
    assert theirs.config.id2label == dict(enumerate(LABELS))
    ours = minibert.load(NAME)
    inputs = tokenizer(TEXTS, padding=True, return_tensors="pt")
    assert ours.tokenize(TEXTS).ids.tolist() == inputs["input_ids"].tolist()
    with torch.no_grad():
        outputs = theirs.eval()(**inputs, output_attentions=True)
        trace = ours.trace(TEXTS)
    assert (trace.logits - outputs.logits).abs().max() <= 1e-5
    rows = inputs["attention_mask"].bool()[:, None, :, None]
    for one, other in zip(trace.attentions, outputs.attentions, strict=True):
        assert ((one - other) * rows).abs().max() <= 1e-5


def test_it_was_trained_from_the_tiny_bert_that_is_here() -> None:
    facts = json.loads((FOLDER / "training.json").read_text(encoding="utf-8"))
    weights = (START / "model.safetensors").read_bytes()
    assert facts["start_sha256"] == hashlib.sha256(weights).hexdigest()
    assert (FOLDER / "tokenizer.json").read_bytes() == (START / "tokenizer.json").read_bytes()


def test_the_card_says_what_was_measured() -> None:
    rows = [json.loads(line) for line in RESULTS.read_text(encoding="utf-8").splitlines()]
    measured = {row["what"]: row for row in rows if row["model"] == NAME}
    weights = hashlib.sha256((FOLDER / "model.safetensors").read_bytes()).hexdigest()
    assert {row["weights_sha256"] for row in measured.values()} == {weights}
    card = (FOLDER / "README.md").read_text(encoding="utf-8")
    page = (RESULTS.parents[2] / "docs" / "embedded_models.md").read_text(encoding="utf-8")
    size = f"{measured.pop('weights in MB')['value']:.2f} MB"
    opinion = measured.pop("a review of two opinions")
    heads = measured.pop("reviews right, 10 untrained heads")
    assert len(measured) == 3
    for row in measured.values():
        value, words = (f"{100 * row[key]:.1f} %" for key in ("value", "by_words"))
        assert f"{value} right, of {row['count']:,}; naive Bayes of counted words" in card
        assert f"same sentences: {words}" in card
        assert f"{value} ({words})" in page
    assert size in card
    for key in ("value", "least", "most", "same"):
        assert f"{100 * heads[key]:.1f} %" in card
    assert f"{100 * heads['value']:.1f} %" in page
    assert opinion["text"] == REVIEW
    ones = sum(opinion["untrained"])
    assert f"{ones} say positive and {10 - ones} negative" in card
    model = minibert.load(NAME)
    with torch.no_grad():
        assert float(model(REVIEW).softmax(-1)[0, 1]) == pytest.approx(opinion["value"], abs=1e-3)


def test_the_command_line_lists_it_and_asks_it() -> None:
    listed = run("models")
    row = next(line for line in listed.stdout.splitlines() if NAME in line)
    assert "sequence-classification" in row
    asked = run("predict", "-m", NAME, PRAISES[1])
    assert asked.exit_code == 0, asked.output
    model = minibert.load(NAME)
    best = model.predict(PRAISES[1])[0].choices[0]
    assert best.label in asked.stdout
    explained = run(
        *("explain", "-m", NAME, PRAISES[1], "--layer", "3", "--head", "0", "--query", "0")
    )
    assert explained.exit_code == 0, explained.output


def test_relevance_names_the_word_that_decides() -> None:
    model = minibert.load(NAME)
    trace = model.trace("the dinner was terrible .", grad=True)
    label = int(trace.logits[0].argmax())
    assert LABELS[label] == "negative"
    trace.backward(trace.logits[0, label] - trace.logits[0, 1 - label])
    relevance = relevance_of(trace, 0).values[0, 0]
    assert trace.tokens.strings[0][1 + int(relevance[1:-1].argmax())] == "terrible"
