"""The script that makes tiny-bert-sentiment."""

import json
from pathlib import Path

import pytest
import torch
import transformers

import minibert
from scripts import train_sentiment
from scripts.train_sentiment import Sentence, probabilities, read_sentences, untrained

THINGS = [
    "film", "book", "play", "song", "house", "dinner", "garden", "story", "horse", "room", "city",
    "king",
]  # fmt: skip
GOOD = [f"the {thing} was good ." for thing in THINGS]
BAD = [f"the {thing} was bad ." for thing in THINGS]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A folder with the five files, of made-up sentences."""
    folder = tmp_path / "data"
    folder.mkdir()
    for number, name in enumerate(train_sentiment.LABELLED):
        lines = [f"{text}  \t{label}" for label, part in enumerate((BAD, GOOD)) for text in part]
        (folder / name).write_text("\n".join(lines[number::3]) + "\n", encoding="utf-8")
    for name, part in (("rt-polarity.neg", BAD), ("rt-polarity.pos", GOOD)):
        texts = "\n".join(f"a {text[4:]}" for text in part) + "\n\ncaf\x85e \xe9 " + name + "\n"
        (folder / name).write_text(texts, encoding="latin-1")
    return folder


def test_sentences_are_read_with_their_labels_and_each_once(data: Path) -> None:
    found = {sentence.text: sentence for sentence in read_sentences(data)}
    assert len(found) == len(read_sentences(data)) == 4 * len(THINGS) + 2
    assert [found[text].label for text in (GOOD[0], BAD[0])] == [1, 0]
    assert found["a film was good ."].source == "rt-polarity.pos"
    # NEL is a space and no end of a line; é is one byte there.
    assert found["caf e é rt-polarity.neg"].label == 0


def test_the_same_words_are_on_one_side_and_about_a_fifth_is_held_out() -> None:
    sides = [Sentence(text, 0, "").held_out for text in ("Not good!", "not  GOOD", "(not good).")]
    assert len(set(sides)) == 1
    share = sum(Sentence(f"sentence {n}", 0, "").held_out for n in range(2000)) / 2000
    # Four standard deviations of a share of 0.2 of 2000 are 0.036; 52 of 256 bytes are held out.
    assert share == pytest.approx(52 / 256, abs=0.036)


def test_fine_tuning_learns_from_a_random_head_and_leaves_a_quiet_model() -> None:
    model = untrained("tiny-bert", seed=0)
    assert model.fresh == ("head.classifier.weight", "head.classifier.bias")
    start = {name: values.clone() for name, values in model.named_parameters()}
    train = [Sentence(text, label, "") for label, part in enumerate((BAD, GOOD)) for text in part]
    recipe = train_sentiment.Recipe(epochs=8, batch=8, rate=2e-3, masked=0.0)
    train_sentiment.fine_tune(model, train, recipe)
    unseen = [Sentence(f"the {thing} was {word} .", label, "")
              for thing in ("door", "ship", "morning")
              for label, word in enumerate(("bad", "good"))]  # fmt: skip
    labels = probabilities(model, unseen).argmax(-1).tolist()
    assert labels == [one.label for one in unseen]
    assert not model.training
    assert not any(values.requires_grad for values in model.parameters())
    moved = {name for name, values in model.named_parameters() if not values.equal(start[name])}
    assert moved == set(start)


def test_hidden_words_are_those_of_the_text_alone() -> None:
    model = untrained("tiny-bert", seed=0)
    sentences = [Sentence("the horse ran away .", 0, ""), Sentence("good .", 1, "")]
    generator = torch.Generator().manual_seed(0)
    tokens = train_sentiment.masked(model, sentences, 1.0, generator)
    assert tokens.ids[0].tolist()[1:-1] == [model.tokenizer.mask_id] * 5
    assert tokens.ids[1].tolist()[1:3] == [model.tokenizer.mask_id] * 2
    plain = model.tokenize([one.text for one in sentences])
    assert tokens.ids[:, 0].equal(plain.ids[:, 0])
    assert tokens.ids[1, 3:].equal(plain.ids[1, 3:])


def test_the_script_writes_a_folder_that_both_libraries_load(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    arguments = ["train_sentiment", str(data), "--output", str(out), "--epochs", "1"]
    monkeypatch.setattr("sys.argv", arguments)
    assert train_sentiment.main() == 0
    ours = minibert.load(out)
    assert ours.config.labels == ("negative", "positive")
    theirs = transformers.AutoModelForSequenceClassification.from_pretrained(
        out, dtype=torch.float32
    )
    tokenizer = transformers.AutoTokenizer.from_pretrained(out)
    assert theirs.config.id2label == {0: "negative", 1: "positive"}
    with torch.no_grad():
        logits = theirs.eval()(**tokenizer(GOOD[0], return_tensors="pt")).logits
    assert (ours(GOOD[0]) - logits).abs().max() <= 1e-5
    facts = json.loads((out / "training.json").read_text())
    total = sum(facts["sentences"].values()) + sum(facts["held_out"].values())
    assert total == 4 * len(THINGS) + 2
    assert facts["recipe"]["epochs"] == 1


def test_a_file_that_is_missing_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["train_sentiment", str(tmp_path)])
    assert train_sentiment.main() == 1
    assert "imdb_labelled.txt" in capsys.readouterr().err
