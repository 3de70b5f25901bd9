"""The folder a run leaves behind: transformers and minibert load it and agree."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file

import minibert
from minibert.layers.config import Config
from minibert.model import Model
from minibert.text.tokens import Tokens
from minibert.training import train
from tests.training.small_runs import TEXTS, UNSEEN, bert, gpt2, llama, masked_lm, recipe

QUOTED = "“The rabbit’s queen” heard a letter."
KINDS: dict[str, tuple[Config, str]] = {
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


def trained(folder: Path, config: Config, **options: Any) -> Model:
    chosen = {"recipe": recipe(), "note": lambda line: None, **options}
    return train(TEXTS, UNSEEN, folder, config=config, **chosen)


def their_logits(model: Any, tokens: Tokens) -> torch.Tensor:
    inputs = {"input_ids": tokens.ids, "attention_mask": tokens.mask.long()}
    if getattr(model.config, "type_vocab_size", 0) and model.config.model_type != "roberta":
        inputs["token_type_ids"] = tokens.segments
    with torch.no_grad():
        found = model(**inputs)
    return found.prediction_logits if hasattr(found, "prediction_logits") else found.logits


@pytest.mark.parametrize("kind", KINDS)
def test_transformers_and_minibert_load_it_and_agree(kind: str, tmp_path: Path) -> None:
    config, name = KINDS[kind]
    config = Config(**{**vars(config), "vocab_size": 331})
    model = trained(tmp_path, config)
    theirs, about = getattr(transformers, name).from_pretrained(tmp_path, output_loading_info=True)
    assert not any(about[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    reloaded = minibert.load(tmp_path)
    assert (reloaded.config.task, reloaded.config.family) == (config.task, config.family)
    one, two = QUOTED, ("The old king saw a dog.", "It ran.")
    for tokens in (model.tokenize(one), model.tokenize(*two)):
        expected = their_logits(theirs, tokens)
        assert (model(tokens) - expected).abs().max() <= 1e-5
        assert torch.equal(reloaded(tokens), model(tokens))
    ids = transformers.AutoTokenizer.from_pretrained(tmp_path)(one)["input_ids"]
    assert ids == model.tokenize(one).ids[0].tolist() == reloaded.tokenize(one).ids[0].tolist()


@pytest.mark.parametrize(
    ("config", "name"), [(gpt2(), "GPT2LMHeadModel"), (bert("masked-lm"), "BertForMaskedLM")]
)
def test_the_logged_loss_is_that_of_the_weights_that_were_saved(
    config: Config, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from minibert.training import loop

    batches = []

    class Kept(loop.Measure):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            batches.extend(self.batches)

    monkeypatch.setattr(loop, "Measure", Kept)
    # Measured several times, so that weights prepared for the first would show.
    trained(tmp_path, config, recipe=recipe(steps=9, log_every=3, rate=0.02))
    lines = [json.loads(line) for line in (tmp_path / "scores.jsonl").read_text().splitlines()]
    theirs = getattr(transformers, name).from_pretrained(tmp_path)
    found = []
    for batch in batches:
        mask = None if batch.mask is None else batch.mask.long()
        segments = {} if batch.segments is None else {"token_type_ids": batch.segments}
        with torch.no_grad():
            logits = theirs(input_ids=batch.ids, attention_mask=mask, **segments).logits
        found.append(
            torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch.labels.flatten())
        )
    # The log is rounded to four decimals.
    assert lines[-1]["held_out_loss"] == pytest.approx(float(sum(found)) / 4, abs=6e-5)
    assert lines[0]["held_out_loss"] > lines[-1]["held_out_loss"] + 0.05


def test_float16_halves_the_file_and_loads(tmp_path: Path) -> None:
    full = trained(tmp_path / "full", gpt2())
    trained(tmp_path / "half", gpt2(), dtype=torch.float16)
    sizes = [(tmp_path / n / "model.safetensors").stat().st_size for n in ("full", "half")]
    assert 0.5 <= sizes[1] / sizes[0] <= 0.6
    tensors = load_file(tmp_path / "half" / "model.safetensors")
    assert {tensor.dtype for tensor in tensors.values()} == {torch.float16}
    assert (minibert.load(tmp_path / "half")(QUOTED) - full(QUOTED)).abs().max() <= 0.01
    theirs = transformers.GPT2LMHeadModel.from_pretrained(tmp_path / "half", dtype="auto")
    assert theirs.dtype == torch.float16


def test_the_folder_holds_what_is_needed_and_nothing_else(tmp_path: Path) -> None:
    trained(tmp_path, bert())
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        ".training",
        "README.md",
        "config.json",
        "model.safetensors",
        "scores.jsonl",
        "tokenizer.json",
        "tokenizer_config.json",
        "training.json",
    ]


class TestCard:
    def test_it_says_what_was_trained_on_what_and_how_well(self, tmp_path: Path) -> None:
        folder = tmp_path / "my-bert"
        model = trained(folder, bert(), recipe=recipe(seed=17))
        card, facts = (folder / "README.md").read_text(), (folder / "training.json").read_text()
        about = json.loads(facts)
        last = json.loads((folder / "scores.jsonl").read_text().splitlines()[-1])
        assert about["last"] == last
        assert about["recipe"]["seed"] == 17
        assert about["texts"] == ["story 1", "story 2", "story 3"]
        assert about["held_out"] == ["story 11", "story 12"]
        size = sum(parameter.numel() for parameter in model.parameters())
        for part in ("# my-bert", f"{size / 1e6:.2f} million", "story 1, story 2", "seed 17"):
            assert part in card
        assert f"{last['held_out_loss']:.3f} nats" in card
        assert str(tmp_path) not in card + facts, "a path of this machine"
        best = max(score for row in last["heads"]["previous"] for score in row)
        assert f"| previous heads | {best_head(last['heads']['previous'])} {best:.2f}," in card

    def test_its_first_lines_are_what_the_hub_reads(self, tmp_path: Path) -> None:
        for config, pipeline in ((gpt2(), "text-generation"), (bert(), "fill-mask")):
            trained(tmp_path / pipeline, config)
            lines = (tmp_path / pipeline / "README.md").read_text().splitlines()
            assert lines[:3] == ["---", f"pipeline_tag: {pipeline}", "---"]

    def test_a_readme_of_ones_own_stays_and_an_old_card_does_not(self, tmp_path: Path) -> None:
        trained(tmp_path, gpt2())
        first = (tmp_path / "README.md").read_text()
        trained(tmp_path, gpt2(), recipe=recipe(seed=5), restart=True)
        assert "seed 5" in (tmp_path / "README.md").read_text() != first
        (tmp_path / "README.md").write_text("# Mine\n")
        trained(tmp_path, gpt2(), restart=True)
        assert (tmp_path / "README.md").read_text() == "# Mine\n"
        assert json.loads((tmp_path / "training.json").read_text())["recipe"]["seed"] == 0


def best_head(layers: list[list[float]]) -> str:
    scores = {f"{n}-{h}": score for n, row in enumerate(layers) for h, score in enumerate(row)}
    return max(scores, key=lambda name: (scores[name], name))
