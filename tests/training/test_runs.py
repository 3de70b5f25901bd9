"""A whole run: what it learns, what it refuses, and the folder that it leaves behind."""

import json
import math
import re
import signal
from collections import Counter
from dataclasses import replace

import pytest
import torch
import transformers
from safetensors.torch import load_file

import minibert
from minibert.errors import TrainingError
from minibert.layers.config import Config
from minibert.model import Model
from minibert.text.tokenizer import Tokenizer
from minibert.training import Document, Recipe, loop
from minibert.training.loop import Run
from minibert.training.snapshot import snapshot_path
from minibert.training.starting import carry_over
from minibert.training.vocabulary import train_tokenizer
from tests.training.small_runs import (
    OBJECTS,
    SUBJECTS,
    TAILS,
    TEXTS,
    UNSEEN,
    VERBS,
    bert,
    gpt2,
    llama,
    masked_lm,
    recipe,
    run,
    same_weights,
)

QUOTED = "“The rabbit’s queen” heard a letter."
KINDS = {
    "gpt2": (gpt2(), "GPT2LMHeadModel"),
    "llama": (llama(), "LlamaForCausalLM"),
    "bert": (bert(), "BertForPreTraining"),
    "roberta": (masked_lm("roberta"), "RobertaForMaskedLM"),
    # As in a config.json that has another padding id than the tokenizer to come.
    "odd roberta": (
        bert("masked-lm", family="roberta", n_segments=1, position_offset=8, pad_id=7),
        "RobertaForMaskedLM",
    ),
    "distilbert": (masked_lm("distilbert"), "DistilBertForMaskedLM"),
    "electra": (masked_lm("electra"), "ElectraForMaskedLM"),
    "albert": (masked_lm("albert"), "AlbertForMaskedLM"),
}


def their_logits(model, tokens):
    inputs = {"input_ids": tokens.ids, "attention_mask": tokens.mask.long()}
    if getattr(model.config, "type_vocab_size", 0) and model.config.model_type != "roberta":
        inputs["token_type_ids"] = tokens.segments
    with torch.no_grad():
        found = model(**inputs)
    return found.prediction_logits if hasattr(found, "prediction_logits") else found.logits


def log_of(folder):
    return [json.loads(line) for line in (folder / "scores.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("kind", KINDS)
def test_transformers_and_minibert_load_it_and_agree(kind, tmp_path):
    config, name = KINDS[kind]
    config = Config(**{**vars(config), "vocab_size": 331})
    model = run(tmp_path, config=config)
    theirs, about = getattr(transformers, name).from_pretrained(tmp_path, output_loading_info=True)
    assert not any(about[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    reloaded = minibert.load(tmp_path)
    assert (reloaded.config.task, reloaded.config.family) == (config.task, config.family)
    for tokens in (model.tokenize(QUOTED), model.tokenize("The old king saw a dog.", "It ran.")):
        assert (model(tokens) - their_logits(theirs, tokens)).abs().max() <= 1e-5
        assert torch.equal(reloaded(tokens), model(tokens))
    ids = transformers.AutoTokenizer.from_pretrained(tmp_path)(QUOTED)["input_ids"]
    assert (
        ids == model.tokenize(QUOTED).ids[0].tolist() == reloaded.tokenize(QUOTED).ids[0].tolist()
    )


@pytest.mark.parametrize(
    ("config", "name"), [(gpt2(), "GPT2LMHeadModel"), (bert("masked-lm"), "BertForMaskedLM")]
)
def test_the_logged_loss_is_that_of_the_weights_that_were_saved(
    config, name, tmp_path, monkeypatch
):
    batches = []

    class Kept(loop.Measure):
        def __init__(self, *arguments):
            super().__init__(*arguments)
            batches.extend(self.batches)

    monkeypatch.setattr(loop, "Measure", Kept)
    # Measured several times, so that weights prepared for the first would show.
    run(tmp_path, config=config, recipe=recipe(steps=9, log_every=3, rate=0.02))
    theirs, found = getattr(transformers, name).from_pretrained(tmp_path), []
    for batch in batches:
        mask = None if batch.mask is None else batch.mask.long()
        segments = {} if batch.segments is None else {"token_type_ids": batch.segments}
        with torch.no_grad():
            logits = theirs(input_ids=batch.ids, attention_mask=mask, **segments).logits
        found.append(torch.nn.functional.cross_entropy(logits.mT, batch.labels))
    lines = log_of(tmp_path)
    # The log is rounded to four decimals.
    assert lines[-1]["held_out_loss"] == pytest.approx(float(sum(found)) / 4, abs=6e-5)
    assert lines[0]["held_out_loss"] > lines[-1]["held_out_loss"] + 0.05


def entropy(counts):
    """Nats a token that a model pays which knows how often each token comes, and no more."""
    total = sum(counts.values())
    return -sum(n / total * math.log(n / total) for n in counts.values())


@pytest.mark.parametrize(
    ("config", "share", "bfloat16"),
    [(gpt2(), 0.35, True), (llama(), 0.35, True), (bert("masked-lm"), 0.8, False)],
)
def test_a_few_dozen_steps_teach_more_than_the_frequency_of_words(
    config, share, bfloat16, tmp_path
):
    chosen = {"rate": 0.01, "warm_up": 5, "repeated": 0.0, "bfloat16": bfloat16}
    steps = recipe(steps=80, batch=16, log_every=40, save_every=80, **chosen)
    model = run(tmp_path, config=config, recipe=steps)
    losses = [line["held_out_loss"] for line in log_of(tmp_path)]
    unseen = [token for text in UNSEEN for token in model.tokenizer.encode(text.text)]
    assert losses[1] < losses[0]
    assert losses[1] < share * entropy(Counter(unseen))
    if config.causal:
        # Nobody can know what the stories leave to chance; less would mean that it sees ahead.
        sentences = sum(text.text.count(end) for text in UNSEEN for end in ".!?")
        choices = len(SUBJECTS) * len(VERBS) * len(OBJECTS) * len(TAILS) * 3
        assert losses[1] > 0.95 * sentences * math.log(choices) / len(unseen)
        text = str(model.generate("The rabbit", max_new_tokens=20, temperature=0.0))
        known = {w for part in (SUBJECTS, VERBS, OBJECTS, TAILS) for p in part for w in p.split()}
        assert set(re.findall(r"[a-z]+(?=[ .!?])", text.lower())) <= known


def test_the_folder_holds_the_log_and_a_card_that_says_how_it_was_made(tmp_path):
    said, folder = [], tmp_path / "my-bert"
    model = run(folder, config=bert(), recipe=recipe(steps=7, seed=17), note=said.append)
    assert sorted(path.name for path in folder.iterdir()) == [
        ".training", "README.md", "config.json", "model.safetensors", "scores.jsonl",
        "tokenizer.json", "tokenizer_config.json", "training.json",
    ]  # fmt: skip
    lines = log_of(folder)
    assert [line["step"] for line in lines] == [3, 6, 7]
    assert [line["tokens"] for line in lines] == [n * 4 * 32 for n in (3, 6, 7)]
    assert [line.split()[1] for line in said] == ["3", "6", "7"]
    for line in lines:
        assert {"loss", "held_out_loss", "sentence_loss", "held_out_sentence_loss"} <= set(line)
        assert set(line["heads"]) == {"previous", "next", "duplicate", "induction", "delimiter"}
        for layers in line["heads"].values():
            assert [len(row) for row in layers] == [4, 4]
            assert all(0 <= score <= 1 for row in layers for score in row)
    card, facts = (folder / "README.md").read_text(), (folder / "training.json").read_text()
    about, last = json.loads(facts), lines[-1]
    assert (about["last"], about["recipe"]["seed"]) == (last, 17)
    assert (about["texts"], about["held_out"]) == (
        ["story 1", "story 2", "story 3"], ["story 11", "story 12"],
    )  # fmt: skip
    size = sum(parameter.numel() for parameter in model.parameters())
    scores = last["heads"]["previous"]
    best = max((s, f"{n}-{h}") for n, row in enumerate(scores) for h, s in enumerate(row))
    for part in (
        "---\npipeline_tag: fill-mask\n---\n", "# my-bert", f"{size / 1e6:.2f} million",
        "story 1, story 2", "seed 17", f"{last['held_out_loss']:.3f} nats",
        f"| previous heads | {best[1]} {best[0]:.2f},",
    ):  # fmt: skip
        assert part in card
    assert str(tmp_path) not in card + facts, "a path of this machine"


def test_a_readme_of_ones_own_stays_and_an_old_card_does_not(tmp_path):
    run(tmp_path)
    first = (tmp_path / "README.md").read_text()
    assert first.startswith("---\npipeline_tag: text-generation\n---\n")
    # A score that does not apply is null.
    assert log_of(tmp_path)[0]["heads"]["next"] == [[None] * 4] * 2
    assert "sentence_loss" not in log_of(tmp_path)[0]
    run(tmp_path, recipe=recipe(seed=5), restart=True)
    assert "seed 5" in (tmp_path / "README.md").read_text() != first
    (tmp_path / "README.md").write_text("# Mine\n")
    run(tmp_path, restart=True)
    assert (tmp_path / "README.md").read_text() == "# Mine\n"
    assert json.loads((tmp_path / "training.json").read_text())["recipe"]["seed"] == 0


def test_float16_halves_the_file_and_loads(tmp_path):
    full = run(tmp_path / "full")
    run(tmp_path / "half", dtype=torch.float16)
    sizes = [(tmp_path / n / "model.safetensors").stat().st_size for n in ("full", "half")]
    assert 0.5 <= sizes[1] / sizes[0] <= 0.6
    tensors = load_file(tmp_path / "half" / "model.safetensors")
    assert {tensor.dtype for tensor in tensors.values()} == {torch.float16}
    assert (minibert.load(tmp_path / "half")(QUOTED) - full(QUOTED)).abs().max() <= 0.01
    theirs = transformers.GPT2LMHeadModel.from_pretrained(tmp_path / "half", dtype="auto")
    assert theirs.dtype == torch.float16


def test_the_seed_decides_and_the_process_is_as_before(tmp_path):
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    handlers = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    seen = []
    try:
        one = run(tmp_path / "a", note=lambda line: seen.append(torch.get_num_threads()))
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(threads)
    assert seen == [1, 1]
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == handlers
    assert not any(parameter.requires_grad for parameter in one.parameters())
    torch.manual_seed(5)
    assert same_weights(one, run(tmp_path / "b"))
    assert not same_weights(one, run(tmp_path / "c", recipe=recipe(seed=1)))


def test_a_tokenizer_of_ones_own_is_kept(tmp_path):
    own = train_tokenizer([document.text for document in UNSEEN], family="gpt2", size=300)
    model = run(tmp_path, tokenizer=own)
    assert model.config.vocab_size == own.vocab_size
    assert Tokenizer.from_folder(tmp_path).to_json() == own.to_json()
    assert not (tmp_path / "tokenizer_config.json").exists()


SAME = [Document("book.txt", document.text) for document in TEXTS]


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"recipe": recipe(rate=0.001)}, "recipe"),
        ({"config": gpt2(n_layers=3)}, "config"),
        ({"texts": SAME[::-1]}, "texts"),
        ({"texts": [SAME[0]] * 3}, "texts"),
        ({"texts": SAME[:2], "held_out": UNSEEN[:1]}, "texts, held_out"),
        ({"tokenizer": train_tokenizer(["A b."], family="gpt2", size=300)}, "own_tokenizer"),
        ({"whole": [" apple"]}, "whole"),
    ],
)
def test_other_arguments_than_those_of_the_snapshot_are_named(changes, named, tmp_path):
    given = {"texts": SAME, "recipe": recipe(steps=1)}
    run(tmp_path, **given)
    before = snapshot_path(tmp_path).read_bytes()
    with pytest.raises(TrainingError, match=rf"holds a run with other {named} \(step 1\)\. Give"):
        run(tmp_path, **given | changes)
    assert snapshot_path(tmp_path).read_bytes() == before


def test_restart_begins_anew_whatever_lies_there(tmp_path):
    run(tmp_path, recipe=recipe(seed=3))
    snapshot_path(tmp_path).write_bytes(b"damaged")
    with pytest.raises(TrainingError, match=r"snapshot\.pt: the snapshot cannot be read"):
        run(tmp_path)
    snapshot_path(tmp_path).unlink()
    weights = (tmp_path / "model.safetensors").read_bytes()
    with pytest.raises(TrainingError, match="already holds a model"):
        run(tmp_path)
    assert (tmp_path / "model.safetensors").read_bytes() == weights
    assert same_weights(run(tmp_path, restart=True), run(tmp_path / "new"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"texts": ()}, "The longest of the texts has 0 tokens"),
        ({"held_out": ()}, "The longest of the held-out texts has 0 tokens"),
        ({"held_out": (TEXTS[1], UNSEEN[0])}, "held out, and trained on as story 2"),
        ({"config": gpt2(vocab_size=100)}, "vocabulary of 100 has no room"),
        ({"config": bert(), "texts": TEXTS[:1]}, "one text for texts. Next-sentence"),
        ({"config": bert("none")}, "cannot be trained here"),
        (
            {"config": bert(), "tokenizer": train_tokenizer(["A."], family="gpt2", size=300)},
            "a mask and a padding token",
        ),
        ({"recipe": recipe(delimiter=0.1)}, "delimiter=0.1, matching=0.0: these targets"),
        ({"device": "cuda:77"}, "The device 'cuda:77' cannot be used"),
        ({"device": "meta"}, "The device 'meta' cannot be trained on; expected cpu or cuda"),
        ({"device": "abacus"}, "The device 'abacus' cannot be used"),
    ],
)
def test_what_cannot_be_trained_is_an_error_and_nothing_is_written(changes, message, tmp_path):
    with pytest.raises(TrainingError, match=message):
        run(tmp_path / "new", **changes)
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("place", ["file", "file/below"])
def test_a_place_that_is_no_folder_is_an_error_before_the_first_step(place, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(Run, "advance", lambda self: pytest.fail("a step was done"))
    with pytest.raises(TrainingError, match=r"file.*: cannot be written to"):
        run(tmp_path / place)


def test_a_loss_that_is_no_number_stops_the_run(tmp_path):
    with pytest.raises(TrainingError, match=r"loss of step 2 is NaN or infinite\. Lower rate"):
        run(tmp_path, recipe=recipe(rate=1e30, warm_up=1, save_every=1))
    assert not (tmp_path / "model.safetensors").exists()


BERT, GPT2 = bert(vocab_size=127, n_positions=31), gpt2(vocab_size=307, n_positions=31)


def model_of(config, *, seed, whole=()):
    texts = [document.text for document in TEXTS]
    tokenizer = train_tokenizer(texts, family=config.family, size=config.vocab_size, whole=whole)
    config = replace(config, vocab_size=tokenizer.vocab_size)
    return Model.from_config(config, seed=seed, tokenizer=tokenizer)


@pytest.mark.parametrize(
    ("config", "word", "table"),
    [(BERT, "goldnight", "head.decoder.bias"), (GPT2, " goldnight", "body.word.weight")],
)
def test_tokens_start_at_the_mean_of_the_tokens_that_spell_them(config, word, table):
    old = model_of(config, seed=1)
    larger = replace(config, vocab_size=config.vocab_size + 40, n_positions=67)
    new = model_of(larger, seed=2, whole=(word,))
    carry_over(old, new)
    rows = [dict(of.named_parameters())[table] for of in (old, new)]
    spelled = old.tokenizer.encode(word)
    (whole,) = new.tokenizer.encode(word)
    assert len(spelled) > 1
    torch.testing.assert_close(rows[1][whole], rows[0][spelled].mean(0))
    (a,), (b,) = (of.tokenizer.encode("a") for of in (old, new))
    assert torch.equal(rows[1][b], rows[0][a])
    first, second = (of.body.position.weight for of in (old, new))
    assert torch.equal(second[:31], first)
    shifts = [second[start : start + 5] - first[:5] for start in (31, 62)]
    torch.testing.assert_close(2 * shifts[0], shifts[1])
    torch.testing.assert_close(shifts[0], shifts[0][:1].expand(5, -1))
    torch.testing.assert_close(shifts[0][0].norm(), first.norm(dim=1).mean() / 2)
    for name, weight in old.named_parameters():
        if "groups" in name:
            assert torch.equal(dict(new.named_parameters())[name], weight), name


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"d_mlp": 96}, r"mlp\.up\.weight is \[64, 32\] in .* and \[96, 32\]"),
        (
            {"n_layers": 3, "n_layer_groups": 3},
            "has other weights than the model to be trained: body.groups.2",
        ),
        ({"n_positions": 29}, r"body\.position\.weight is \[31, 32\]"),
    ],
)
def test_a_start_of_another_shape_is_refused(change, expected):
    with pytest.raises(TrainingError, match=expected):
        carry_over(model_of(GPT2, seed=1), model_of(replace(GPT2, **change), seed=2))


def test_a_run_starts_from_the_weights_and_resumes_only_with_them(tmp_path):
    start = model_of(GPT2, seed=1)
    # A rate so small that float32 does not change.
    still = Recipe(steps=1, batch=2, rate=1e-30, matrix_rate=1e-30, bfloat16=False)
    arguments = {"config": GPT2, "recipe": still, "tokenizer": start.tokenizer}
    found = dict(run(tmp_path, **arguments, start=start).named_parameters())
    for name, weight in start.named_parameters():
        torch.testing.assert_close(found[name], weight, rtol=0, atol=1e-9)
    with pytest.raises(TrainingError, match="start"):
        run(tmp_path, **arguments, start=model_of(GPT2, seed=2))
