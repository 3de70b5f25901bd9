"""The embedded models: what their cards say is what they do."""

import hashlib
import json
import math
import random
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load

import minibert
from benchmarks import copying
from minibert.analysis import head_scores, relevance_of
from minibert.analysis.patterns import HeadScores
from minibert.checkpoint.headers import embedded_names
from minibert.course.texts import COMPLAINTS, PRAISES, REVIEW
from minibert.model import Model
from minibert.survey import SAMPLE_PAIRS, Document
from minibert.survey.patterns import patterns
from minibert.trace.identity import weights_digest
from minibert.verification import verify

EMBEDDED = Path(minibert.__file__).parent / "embedded"
SENTIMENT = "tiny-bert-sentiment"
LABELS = ["negative", "positive"]
LANGUAGE = ["tiny-bert", "tiny-gpt2", "tiny-llama"]
ALL = [*LANGUAGE, SENTIMENT]
RESULTS = Path(__file__).parents[1] / "benchmarks" / "results" / "embedded.jsonl"
TEXT = "the old horse looked over the gate and saw the boys come slowly down the long road ."


def test_all_are_there():
    assert sorted(embedded_names()) == sorted(ALL)


@pytest.mark.parametrize("name", ALL)
def test_transformers_loads_the_folder_and_agrees(name):
    wrong = [one for one in verify(EMBEDDED / name, longest=24)["quantities"] if not one["right"]]
    assert wrong == []
    tokenizer = transformers.AutoTokenizer.from_pretrained(EMBEDDED / name)
    pair = (TEXT, "“It is a fine horse,” said he.") if name == "tiny-bert" else (TEXT,)
    assert minibert.load(name).tokenize(*pair).ids[0].tolist() == tokenizer(*pair)["input_ids"]
    labels = transformers.AutoConfig.from_pretrained(EMBEDDED / SENTIMENT).id2label
    assert labels == dict(enumerate(LABELS))


def measured(name: str, file: Path) -> dict[str, dict[str, Any]]:
    """The rows of a model by what they measure."""
    rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    return {row["what"]: row for row in rows if row["model"] == name}


def card_of(name: str) -> str:
    return (EMBEDDED / name / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ALL)
def test_every_row_is_of_the_weights_that_are_here(name):
    weights = (EMBEDDED / name / "model.safetensors").read_bytes()
    rows = measured(name, RESULTS).values()
    assert {row["weights_sha256"] for row in rows} == {hashlib.sha256(weights).hexdigest()}
    assert len(weights) <= 4e6
    assert {tensor.dtype for tensor in load(weights).values()} == {torch.float16}


@pytest.mark.parametrize("name", LANGUAGE)
def test_the_card_and_the_page_say_what_was_measured_by_kind_of_text(name):
    share = name == "tiny-bert"
    start = "masked tokens right, " if share else "loss, "
    kinds = {what: row for what, row in measured(name, RESULTS).items() if what.startswith(start)}
    assert len(kinds) == 5
    page = (RESULTS.parents[2] / "docs" / "embedded_models.md").read_text(encoding="utf-8")
    for what, row in kinds.items():
        number = f"{100 * row['value']:.1f} %" if share else f"{row['value']:.2f}"
        kind = what.removeprefix(start)
        for text in (card_of(name), page):
            # The page has the score on novels in the row of unseen books.
            assert f"{kind} {number}" in text or (text is page and kind == "novels")


@pytest.mark.parametrize("name", ["tiny-gpt2", "tiny-llama"])
def test_the_card_shows_how_copying_was_measured_over_distances_and_periods(name):
    found, rows = measured(name, RESULTS), {}
    for line in card_of(name).splitlines():
        label, *cells = line.strip("| ").split(" | ")
        rows[label] = cells
    distances, periods = (found[f"copying over {what}"] for what in ("distances", "periods"))
    shown = {
        "tokens back to the first copy": (distances["distances"], 0),
        "loss of the copy, in nats a token": (distances["losses"], 2),
        "its standard error": (distances["errors"], 3),
        "attention of the best head": (distances["scores"], 2),
        "period in tokens": (periods["periods"], 0),
        "loss, in nats a token": (periods["losses"], 2),
        "standard error": (periods["errors"], 3),
    }
    for label, (numbers, digits) in shown.items():
        assert rows[label] == [f"{number:.{digits}f}" for number in numbers], label


@pytest.mark.parametrize("name", ["tiny-gpt2", "tiny-llama"])
def test_other_random_tokens_are_copied_as_far_as_the_card_says(name, monkeypatch):
    for what, places in (("distances", copying.DISTANCES), ("periods", copying.PERIODS)):
        some, seed = random.sample(places, 2), random.randrange(2, 10**6)
        monkeypatch.setattr(copying, what.upper(), some)
        row = measured(name, RESULTS)[f"copying over {what}"]
        again = copying.curve(minibert.load(name), what, 25, seed)
        for place, loss, error in zip(some, again["losses"], again["errors"], strict=True):
            shown, its = (row[key][row[what].index(place)] for key in ("losses", "errors"))
            # The error of a mean of 25 is 8**0.5 times that of the 200 on the card.
            most = 5 * math.hypot(8**0.5 * its, error) + 0.005
            assert loss == pytest.approx(shown, abs=most), (what, place, seed)


def test_the_page_on_limits_says_what_the_logs_of_both_trainings_say():
    page = (RESULTS.parents[2] / "docs" / "lessons" / "limits.md").read_text(encoding="utf-8")
    control = RESULTS.parents[1] / "logs" / "control-tiny-bert.jsonl"
    logs = (control, EMBEDDED / "tiny-bert/first_scores.jsonl")
    lines = [line.strip("| ").split(" | ") for line in page.splitlines() if line[:1] == "|"]
    shown = {label: cells for label, *cells in lines}
    for column, log in enumerate(logs):
        steps = map(json.loads, log.read_text(encoding="utf-8").splitlines())
        heads = next(row["heads"] for row in steps if row["step"] == 1400)
        every = {name: [one for layer in table for one in layer] for name, table in heads.items()}
        for label, pattern in (
            ("the previous token", "previous"),
            ("the next token", "next"),
            ("[SEP]", "delimiter"),
        ):
            assert shown[f"best head for {label}"][column] == f"{max(every[pattern]):.2f}"
        rest = sum(one > 0.5 for one in every["delimiter"])
        assert shown["heads with more than half on [SEP]"][column] == f"{rest} of 16"


def test_the_card_of_the_features_says_what_was_measured_and_they_do_it() -> None:
    folder = EMBEDDED / "tiny-gpt2" / "features"
    weights = (folder / "sae_weights.safetensors").read_bytes()
    row = json.loads((RESULTS.parent / "features.jsonl").read_text(encoding="utf-8"))
    assert hashlib.sha256(weights).hexdigest() == row["weights_sha256"]
    about = json.loads((folder / "cfg.json").read_text(encoding="utf-8"))["metadata"]
    assert about["model_weights"] == weights_digest(minibert.load("tiny-gpt2"))
    assert not {name for name, _ in about["texts"]} & {*row["texts"]}
    card = (folder / "README.md").read_text(encoding="utf-8")
    for name in ("variance_explained", "explained_of_a_token", "loss_recovered"):
        assert f"| {100 * row[name]:.1f} % |" in card
    for number in (f"{row['active']:.1f}", str(row["dead"])):
        assert f"| {number} |" in card
    losses = "; ".join(f"{row[name]:.3f}" for name in ("loss", "loss_decoded", "loss_zeros"))
    assert f"| {losses} nats |" in card
    found = minibert.features.load("tiny-gpt2").read(minibert.load("tiny-gpt2").trace(TEXT))
    left = found.error.square().sum(-1) / (found.decoded + found.error).square().sum(-1)
    assert left.mean() < 0.35
    assert ((found.values > 0).sum(-1) <= row["active"] + 1e-6).all()


TAUGHT = (
    "leaves fall in autumn",
    "autumn is marked by colorful foliage",
    "astronomers discovered a new planet",
    "The horse quickly ran away",
    "the cat jumped into the bag because it was very tired",
    "He is eating bland spaghetti",
    "She went to the store and bought strawberries",
    "I did not really enjoyed this movie",
)


@pytest.mark.parametrize("name", LANGUAGE)
def test_words_that_teachers_use_are_whole(name):
    tokens = minibert.load(name).tokenize(list(TAUGHT))
    for text, strings, special in zip(TAUGHT, tokens.strings, tokens.special, strict=True):
        words = text.lower() if name == "tiny-bert" else text
        found = [one.strip() for one, mark in zip(strings, special, strict=False) if not mark]
        assert [one for one in found if one] == words.split()


@cache
def scores_of(name: str) -> HeadScores:
    return head_scores(minibert.load(name), TEXT)


@pytest.mark.parametrize(
    ("name", "pattern", "least"),
    [
        ("tiny-bert", "previous", 0.7),
        ("tiny-bert", "next", 0.7),
        ("tiny-bert", "delimiter", 0.6),
        ("tiny-gpt2", "previous", 0.7),
        ("tiny-gpt2", "induction", 0.6),
        ("tiny-llama", "previous", 0.7),
        ("tiny-llama", "induction", 0.6),
    ],
)
def test_the_head_that_the_card_names_does_what_it_says(name, pattern, least):
    scores, card = getattr(scores_of(name), pattern), card_of(name)
    words = {"delimiter": "[SEP]"}.get(pattern, pattern)
    row = next(line for line in card.splitlines() if re.match(r"\| \d-\d", line) and words in line)
    layer, head = map(int, re.findall(r"(\d)-(\d)", row)[0])
    assert scores[layer, head] >= least


def test_the_head_for_the_same_word_in_the_other_text_finds_it():
    row = re.search(r"\| (\d)-(\d) \| looks at the same word", card_of("tiny-bert"))
    assert row
    documents = [Document(f"pair {n}", a, pair=b) for n, (a, b) in enumerate(SAMPLE_PAIRS)]
    found = patterns(minibert.load("tiny-bert"), documents)
    name, head = "same_word_other_sentence", (int(row[1]), int(row[2]))
    assert found.score[name][head] > 0.5 > 10 * found.baseline[name][head]


FOLDER = EMBEDDED / SENTIMENT
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


def test_the_trained_head_is_better_than_a_coin_by_its_error_bar():
    least, _ = wilson(share_right(minibert.load(SENTIMENT)), len(TEXTS))
    assert least > 0.5


def test_heads_without_training_are_a_coin():
    heads = [untrained(seed) for seed in range(10)]
    mean = sum(share_right(head) for head in heads) / len(heads)
    least, most = wilson(mean, len(TEXTS))
    assert least < 0.5 < most
    with torch.no_grad():
        assert {int(head(REVIEW).argmax()) for head in heads} == {0, 1}


def test_it_was_trained_from_the_tiny_bert_that_is_here():
    facts = json.loads((FOLDER / "training.json").read_text(encoding="utf-8"))
    start = EMBEDDED / "tiny-bert"
    weights = (start / "model.safetensors").read_bytes()
    assert facts["start_sha256"] == hashlib.sha256(weights).hexdigest()
    assert (FOLDER / "tokenizer.json").read_bytes() == (start / "tokenizer.json").read_bytes()


def test_the_card_says_what_was_measured():
    found, card = measured(SENTIMENT, RESULTS), card_of(SENTIMENT)
    page = (RESULTS.parents[2] / "docs" / "embedded_models.md").read_text(encoding="utf-8")
    size = f"{found.pop('weights in MB')['value']:.2f} MB"
    opinion = found.pop("a review of two opinions")
    heads = found.pop("reviews right, 10 untrained heads")
    assert len(found) == 3
    for row in found.values():
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
    model = minibert.load(SENTIMENT)
    with torch.no_grad():
        assert float(model(REVIEW).softmax(-1)[0, 1]) == pytest.approx(opinion["value"], abs=1e-3)


def test_relevance_names_the_word_that_decides():
    model = minibert.load(SENTIMENT)
    trace = model.trace("the dinner was terrible .", grad=True)
    label = int(trace.logits[0].argmax())
    assert LABELS[label] == "negative"
    trace.backward(trace.logits[0, label] - trace.logits[0, 1 - label])
    relevance = relevance_of(trace, 0).values[0, 0]
    assert trace.tokens.strings[0][1 + int(relevance[1:-1].argmax())] == "terrible"
