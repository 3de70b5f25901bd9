"""A whole run: what it learns, what it refuses, how it resumes, and the folder it leaves behind."""

import json
import math
import random
import re
from collections import Counter
from dataclasses import asdict, replace

import pytest
import torch
import transformers
from hypothesis import given
from hypothesis import strategies as st

import minibert
from minibert.errors import TrainingError
from minibert.training import Document, Recipe, loop
from minibert.training.loop import CHECKPOINT, Run, read_checkpoint
from minibert.training.texts import train_tokenizer
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
    "distilbert": (masked_lm("distilbert"), "DistilBertForMaskedLM"),
    "electra": (masked_lm("electra"), "ElectraForMaskedLM"),
    "albert": (masked_lm("albert"), "AlbertForMaskedLM"),
}


def their_logits(model, tokens):
    inputs = {"input_ids": tokens.ids, "attention_mask": tokens.mask.long()}
    if getattr(model.config, "type_vocab_size", 0):
        inputs["token_type_ids"] = tokens.segments
    with torch.no_grad():
        found = model(**inputs)
    return found.prediction_logits if hasattr(found, "prediction_logits") else found.logits


def log_of(folder):
    return [json.loads(line) for line in (folder / "scores.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("kind", KINDS)
def test_transformers_and_minibert_load_it_and_agree(kind, tmp_path):
    config, name = KINDS[kind]
    model = run(tmp_path, config=replace(config, vocab_size=331))
    theirs, about = getattr(transformers, name).from_pretrained(tmp_path, output_loading_info=True)
    assert not any(about[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    reloaded = minibert.load(tmp_path)
    assert (reloaded.config.task, reloaded.config.family) == (config.task, config.family)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert tokenizer.model_max_length == config.n_positions
    assert tokenizer.mask_token_id == reloaded.tokenizer.mask_id == model.tokenizer.mask_id
    for texts in ((QUOTED,), ("The old king saw a dog.", "It ran.")):
        tokens = model.tokenize(*texts)
        assert (model(tokens) - their_logits(theirs, tokens)).abs().max() <= 1e-5
        assert torch.equal(reloaded(tokens), model(tokens))
        given = tokenizer(*texts)
        assert given["input_ids"] == tokens.ids[0].tolist()
        assert given["input_ids"] == reloaded.tokenize(*texts).ids[0].tolist()
        if "token_type_ids" in given:
            assert given["token_type_ids"] == tokens.segments[0].tolist()


def test_the_logged_loss_is_that_of_the_weights_that_were_saved(tmp_path, monkeypatch):
    batches, texts = [], []

    class Kept(loop.Measure):
        def __init__(self, *arguments):
            super().__init__(*arguments)
            batches.extend(self.batches)
            texts.append(self.tokens)

    monkeypatch.setattr(loop, "Measure", Kept)
    # Measured several times, so that weights prepared for the first would show.
    run(tmp_path, config=bert("masked-lm"), recipe=recipe(steps=9, log_every=3, rate=0.02))
    theirs, found = transformers.BertForMaskedLM.from_pretrained(tmp_path), []
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
    theirs.set_attn_implementation("eager")
    ids, mask, segments = (getattr(texts[0], name)[:8] for name in ("ids", "mask", "segments"))
    given = {"attention_mask": mask.long(), "token_type_ids": segments, "output_attentions": True}
    with torch.no_grad():
        probs = torch.stack(theirs(input_ids=ids, **given).attentions)
    means = (torch.special.entr(probs).sum(-1) * mask[:, None]).sum((1, 3)) / mask.sum()
    assert (means - torch.tensor(lines[-1]["entropy"])).abs().max() < 1e-4


def entropy(counts):
    """Nats a token that a model pays which knows how often each token comes, and no more."""
    total = sum(counts.values())
    return -sum(n / total * math.log(n / total) for n in counts.values())


@pytest.mark.parametrize(
    ("config", "share", "bfloat16"), [(llama(), 0.35, True), (bert("masked-lm"), 0.8, False)]
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


def test_the_folder_holds_the_log_and_the_facts(tmp_path):
    noted, folder = [], tmp_path / "my-bert"
    run(folder, config=bert(), recipe=recipe(steps=7, seed=17), note=noted.append)
    assert sorted(path.name for path in folder.iterdir()) == [
        "checkpoint.pt", "config.json", "model.safetensors", "scores.jsonl", "tokenizer.json",
        "tokenizer_config.json", "training.json",
    ]  # fmt: skip
    lines = log_of(folder)
    assert noted == lines
    assert [(line["step"], line["tokens"]) for line in lines] == [(n, n * 128) for n in (3, 6, 7)]
    for line in lines:
        assert {"loss", "held_out_loss", "sentence_loss", "held_out_sentence_loss"} <= set(line)
        assert set(line["heads"]) == {"previous", "next", "duplicate", "induction", "delimiter"}
        for layers in line["heads"].values():
            assert [len(row) for row in layers] == [4, 4]
            assert all(0 <= score <= 1 for row in layers for score in row)
    facts = (folder / "training.json").read_text()
    about = json.loads(facts)
    assert about["last"] == lines[-1]
    assert about["recipe"] == asdict(recipe(steps=7, seed=17))
    assert about["held_out"] == ["story 11", "story 12"]
    assert str(tmp_path) not in facts, "a path of this machine"


def test_the_seed_decides_and_the_process_is_as_before(tmp_path):
    threads, seen = torch.get_num_threads(), []
    torch.set_num_threads(2)
    try:
        one = run(tmp_path / "a", note=lambda entry: seen.append(torch.get_num_threads()))
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(threads)
    assert seen == [1, 1]
    assert not any(parameter.requires_grad for parameter in one.parameters())
    torch.manual_seed(5)
    assert same_weights(one, run(tmp_path / "b"))
    assert not same_weights(one, run(tmp_path / "c", recipe=recipe(seed=1)))


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The folder and the model of a run that was not stopped, of a GPT-2 and of a BERT."""
    found = {}
    for config in (gpt2(), bert()):
        folder = tmp_path_factory.mktemp(config.family)
        chosen = {"config": config, "recipe": recipe(bfloat16=config.causal)}
        found[config.family] = (folder, run(folder, **chosen), chosen)
    return found


@pytest.mark.parametrize(("family", "step"), [("gpt2", 0), ("gpt2", 5), ("bert", 3)])
def test_a_run_that_is_stopped_anywhere_resumes_with_identical_results(
    family, step, whole, tmp_path, monkeypatch
):
    folder, model, chosen = whole[family]
    advance = Run.advance

    def stopped(self):
        if self.step == step:
            raise KeyboardInterrupt
        return advance(self)

    with monkeypatch.context() as patch:
        patch.setattr(Run, "advance", stopped)
        with pytest.raises(KeyboardInterrupt):
            run(tmp_path / "parts", **chosen)
    assert not (tmp_path / "parts" / "model.safetensors").exists()
    done = []
    monkeypatch.setattr(Run, "advance", lambda self: done.append(self.step) or advance(self))
    assert same_weights(run(tmp_path / "parts", **chosen), model)
    # A checkpoint comes after every second step.
    assert done == list(range(step // 2 * 2, 6))
    for name in ("model.safetensors", "tokenizer.json", "config.json", "scores.jsonl"):
        assert (tmp_path / "parts" / name).read_bytes() == (folder / name).read_bytes()
    done.clear()
    run(tmp_path / "parts", **chosen)
    assert done == []


SAME = [Document("book.txt", document.text) for document in TEXTS]
OWN = train_tokenizer([document.text for document in UNSEEN], size=300, byte_level=True)


def test_other_arguments_than_those_of_the_checkpoint_are_named(tmp_path):
    given = {"texts": SAME, "recipe": recipe(steps=1), "tokenizer": OWN}
    run(tmp_path, **given)
    before = (tmp_path / CHECKPOINT).read_bytes()
    for changes in (
        {"recipe": recipe(rate=0.001)},
        {"config": gpt2(n_layers=3)},
        {"texts": [SAME[1], SAME[0], SAME[2]]},
        {"held_out": UNSEEN[:1]},
    ):
        (named,) = changes
        with pytest.raises(TrainingError, match=rf"a run with other {named} \(step 1\)\. Give"):
            run(tmp_path, **given | changes)
        assert (tmp_path / CHECKPOINT).read_bytes() == before


def test_a_damaged_checkpoint_is_never_taken_for_another(tmp_path):
    run(tmp_path, recipe=recipe(steps=1))
    path, draw, refused = tmp_path / CHECKPOINT, random.Random(0), 0
    content, whole = path.read_bytes(), read_checkpoint(path)["model"]
    for kind in range(24):
        changed = bytearray(content)
        at = draw.randrange(len(changed))
        if kind % 2:
            del changed[at:]
        else:
            changed[at : at + 40] = draw.randbytes(len(changed[at : at + 40]))
        path.write_bytes(changed)
        try:
            found = read_checkpoint(path)["model"]
        except TrainingError as error:
            assert f"{path}: " in str(error)  # noqa: PT017
            refused += 1
        else:
            # Some bytes of a zip file, such as dates, mean nothing.
            assert all(torch.equal(found[name], whole[name]) for name in whole)
    assert refused >= 16
    for other in ([1, 2], {"step": 3}, {"step": Run}):
        torch.save(other, path)
        with pytest.raises(TrainingError, match="Delete it, or give restart=True"):
            read_checkpoint(path)


def test_restart_begins_anew_whatever_lies_there(tmp_path):
    run(tmp_path, recipe=recipe(seed=3))
    (tmp_path / CHECKPOINT).write_bytes(b"damaged")
    with pytest.raises(TrainingError, match=r"checkpoint\.pt: damaged"):
        run(tmp_path)
    (tmp_path / CHECKPOINT).unlink()
    weights = (tmp_path / "model.safetensors").read_bytes()
    with pytest.raises(TrainingError, match="already holds a model"):
        run(tmp_path)
    assert (tmp_path / "model.safetensors").read_bytes() == weights
    assert same_weights(run(tmp_path, restart=True), run(tmp_path / "new"))


def test_a_full_disk_is_an_error_that_names_the_file(tmp_path, monkeypatch):
    def full(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("torch.save", full)
    with pytest.raises(TrainingError, match=r"checkpoint\.pt: could not be written \(.*No space"):
        run(tmp_path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"texts": ()}, "The longest of the texts has 0 tokens"),
        ({"held_out": ()}, "The longest of the held-out texts has 0 tokens"),
        ({"held_out": (TEXTS[1], UNSEEN[0])}, "held out, and trained on as story 2"),
        ({"config": gpt2(vocab_size=100)}, "vocabulary of 100 is too small"),
        ({"config": bert(), "texts": TEXTS[:1]}, "one text for texts. Next-sentence"),
        ({"config": bert("none")}, "cannot be trained here"),
        ({"config": bert("masked-lm", family="roberta")}, "A roberta with the task"),
        ({"config": bert(family="electra")}, "'pre-training' cannot be trained here"),
        ({"config": bert("masked-lm", causal=True)}, "expected causal=False"),
        ({"config": bert("causal-lm", causal=False)}, "expected causal=True"),
        ({"config": bert(n_segments=1)}, "two segments; .* n_segments=1"),
        ({"config": bert(pooler=False)}, "needs a pooler .* pooler=False"),
        ({"config": gpt2(n_positions=15)}, "15 positions are too few"),
        ({"config": bert(), "tokenizer": OWN}, "a mask and a padding token"),
        ({"device": "cuda:77"}, "device='cuda:77' cannot be used"),
        ({"device": "meta"}, "device='meta' cannot be trained on; expected cpu or cuda"),
    ],
)
def test_what_cannot_be_trained_is_an_error_and_nothing_is_written(changes, message, tmp_path):
    with pytest.raises(TrainingError, match=message):
        run(tmp_path / "new", **changes)
    assert not (tmp_path / "new").exists()


def test_a_place_that_is_no_folder_is_an_error_before_the_first_step(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(Run, "advance", lambda self: pytest.fail("a step was done"))
    with pytest.raises(TrainingError, match=r"file.*: cannot be written to"):
        run(tmp_path / "file" / "below")


def test_a_loss_that_is_no_number_stops_the_run(tmp_path):
    with pytest.raises(TrainingError, match=r"loss of step 2 is NaN or infinite\. Lower rate"):
        run(tmp_path, recipe=recipe(rate=1e30, warm_up=1, save_every=1))
    assert not (tmp_path / "model.safetensors").exists()


# What no field of a kind may be, and the fields of the kind.
WRONG = [
    ((0, -1), "steps batch threads log_every save_every"),
    ((0.0, -1.0, math.inf, math.nan), "matrix_rate rate clip"),
    ((-0.5, math.inf, math.nan), "waves weight_decay previous induction"),
    ((-0.1, 1.1, math.nan), "masked repeated short cool_down targets_until same_text"),
    ((-1,), "warm_up seed"),
    ((2**32,), "seed"),
    ((513,), "threads"),
    ((0.0,), "masked"),
]


def test_every_number_of_a_recipe_is_checked_and_a_wrong_one_is_named():
    checked = [(name, value) for values, of in WRONG for name in of.split() for value in values]
    for name, value in checked:
        with pytest.raises(TrainingError, match=f"^{name}={value}: "):
            Recipe(**{name: value})
    assert {name for name, _ in checked} == set(asdict(Recipe())) - {"bfloat16"}


@given(st.integers(1, 60), st.integers(0, 80), st.floats(0, 1))
def test_the_pace_goes_up_stays_and_goes_down(steps, warm_up, down):
    pace = [Recipe(steps=steps, warm_up=warm_up, cool_down=down).pace(n) for n in range(steps)]
    for n, found in enumerate(pace):
        up = min(1, (n + 1) / warm_up) if warm_up else 1
        fall = min(1, (steps - n) / steps / down) if down else 1
        assert found == pytest.approx(up * fall)
        assert 0 < found <= 1


def test_each_step_has_the_rates_of_its_pace(tmp_path, monkeypatch):
    advance, found = Run.advance, []

    def noted(self):
        parts = advance(self)
        found.append([group["lr"] for one in self.optimizers for group in one.param_groups])
        return parts

    monkeypatch.setattr(Run, "advance", noted)
    numbers = recipe(warm_up=3, matrix_rate=0.03, rate=0.005)
    run(tmp_path, recipe=numbers)
    pace = [numbers.pace(step) for step in range(6)]
    assert found == [pytest.approx([0.03 * one, 0.005 * one, 0.005 * one]) for one in pace]


def test_what_is_given_to_help_fades_in_a_straight_line():
    numbers = Recipe(steps=100, previous=2.0, targets_until=0.2)
    weights = [numbers.targets_at(n).get("previous", 0) for n in (0, 10, 20, 99)]
    assert weights == pytest.approx([2, 1, 0, 0])
    assert Recipe(induction=0.6, targets_until=0.0).targets_at(0) == {}
