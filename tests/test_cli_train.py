"""`minibert train`: what its options do, and how it fails."""

import json
import re
from pathlib import Path

import pytest
import torch
import transformers
from command_line import fails, run
from safetensors.torch import load_file

import minibert
from minibert.checkpoint.config import config_from_hf
from tests.training.small_runs import SMALL, story_files


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return story_files(tmp_path_factory.mktemp("texts"), 1, 2, 3)


class TestResult:
    def test_options_reach_the_run(self, texts: list[str], tmp_path: Path) -> None:
        held = story_files(tmp_path, 21, 22)
        options = [
            "--seed",
            "7",
            "--set",
            "rate=0.004",
            "--set",
            "warm_up=5",
            "--weights",
            "float16",
        ]
        unseen = ["--held-out", held[0], "--held-out", held[1]]
        folder = tmp_path / "run"
        command = [*texts, "--task", "pre-training", *SMALL, *options, *unseen, "-o", str(folder)]
        result = run("train", *command, "--steps", "2", "--batch", "3", "--float32")
        assert result.exit_code == 0, result.output
        assert result.stdout.startswith(f"{folder}  0.0")
        assert result.stdout.endswith(" million parameters, 2 steps\n")
        about = json.loads((folder / "training.json").read_text())
        wanted = {"seed": 7, "rate": 0.004, "warm_up": 5, "steps": 2, "batch": 3, "threads": 1}
        assert wanted.items() <= about["recipe"].items()
        assert about["recipe"]["bfloat16"] is False
        assert about["held_out"] == ["story-21.txt", "story-22.txt"]
        config = minibert.load(folder).config
        sizes = (config.n_layers, config.n_heads, config.d_model, config.d_mlp, config.n_positions)
        assert sizes == (2, 4, 32, 128, 32)
        assert (config.family, config.task) == ("bert", "pre-training")
        tensors = load_file(folder / "model.safetensors")
        assert {tensor.dtype for tensor in tensors.values()} == {torch.float16}

    def test_without_held_out_files_the_ends_of_the_texts_are(
        self, texts: list[str], tmp_path: Path
    ) -> None:
        command = [*texts, "--task", "masked-lm", *SMALL, "--steps", "1", "-o", str(tmp_path)]
        assert run("train", *command).exit_code == 0
        about = json.loads((tmp_path / "training.json").read_text())
        assert about["held_out"] == [f"the end of story-{n}.txt" for n in (1, 2, 3)]

    def test_a_llama_has_its_own_shape(self, texts: list[str], tmp_path: Path) -> None:
        options = ["--task", "causal-lm", "--family", "llama", "--kv-heads", "2", "--width", "40"]
        command = [*texts, *SMALL, *options, "--steps", "1", "-o", str(tmp_path / "run")]
        result = run("train", *command)
        assert result.exit_code == 0, result.output
        theirs = transformers.LlamaForCausalLM.from_pretrained(tmp_path / "run").config
        # 8/3 of the width is 106.7; multiples of 8 suit processors.
        assert (theirs.hidden_size, theirs.intermediate_size) == (40, 112)
        assert (theirs.num_attention_heads, theirs.num_key_value_heads) == (4, 2)
        assert (theirs.head_dim, theirs.hidden_act) == (10, "silu")

    @pytest.mark.parametrize("name", ["ElectraForMaskedLM", "GPT2LMHeadModel", "LlamaForCausalLM"])
    def test_a_config_json_says_the_shape(
        self, name: str, texts: list[str], tmp_path: Path
    ) -> None:
        sizes = {"hidden_size": 24, "num_hidden_layers": 3, "num_attention_heads": 3}
        if name.startswith("GPT2"):
            config = transformers.GPT2Config(
                n_embd=24, n_layer=3, n_head=3, n_positions=40, vocab_size=331
            )
        elif name.startswith("Llama"):
            config = transformers.LlamaConfig(
                **sizes, max_position_embeddings=40, vocab_size=331, intermediate_size=56
            )
        else:
            config = transformers.ElectraConfig(
                **sizes, max_position_embeddings=40, vocab_size=331, embedding_size=16
            )
        config.architectures = [name]
        config.to_json_file(tmp_path / "shape.json")
        chosen = ["--config", str(tmp_path / "shape.json"), *SMALL, "--steps", "1"]
        result = run("train", *texts, *chosen, "-o", str(tmp_path / "run"))
        assert result.exit_code == 0, result.output
        found = minibert.load(tmp_path / "run").config
        expected = config_from_hf(config.to_dict())
        for field in ("family", "task", "n_layers", "n_heads", "d_model", "d_embed", "n_positions"):
            assert getattr(found, field) == getattr(expected, field)
        assert type(getattr(transformers, name).from_pretrained(tmp_path / "run")).__name__ == name


TASK = "--task causal-lm"
# Options, exit status, and what standard error says; in a folder with the files of `folder`.
REFUSED = [
    (f"{TASK} --set rate=-1", 1, "rate=-1.0: expected a number above 0"),
    (f"{TASK} --seed {2**60}", 1, "seed=1152921504606846976: expected"),
    (f"{TASK} --width 30", 1, "4 heads do not divide a width of 30"),
    (f"{TASK} --family llama --kv-heads 3", 1, "4 heads cannot share 3 key-value heads"),
    (f"{TASK} --vocabulary 50", 1, "vocabulary of 50 has no room"),
    (f"{TASK} --positions 4096", 1, "fewer positions"),
    (f"{TASK} --device meta", 1, "expected cpu or cuda"),
    (f"{TASK} --device abacus", 1, "'abacus' cannot be used"),
    (f"{TASK} --device cuda", 1, "The device 'cuda' cannot be used"),
    (f"{TASK} --held-out no.txt", 1, r"no\.txt: cannot be read"),
    (f"{TASK} absent.txt", 1, r"absent\.txt: .*No such file"),
    (f"{TASK} bytes.txt", 1, r"bytes\.txt: .*byte 0 is not UTF-8"),
    (f"{TASK} blank.txt", 1, r"blank\.txt: .*the file has no text"),
    (f"{TASK} -o taken", 1, "taken: cannot be written to"),
    ("--config no.json", 1, r"no\.json: cannot be read"),
    ("--config cut.json", 1, "cannot be read as JSON"),
    ("--config list.json", 1, "expected an object"),
    ("--config t5.json", 1, "'t5' is not a family"),
    ("--config few.json", 1, "is missing"),
    ("", 2, "The task is missing: give --task causal-lm, masked-lm or pre-training"),
    (f"{TASK} --set speed=2", 2, "--set speed=2: expected one of clip, "),
    (f"{TASK} --set steps=2", 2, "--set steps=2: expected one of"),
    (f"{TASK} --set bfloat16=0", 2, "--set bfloat16=0: expected one of"),
    (f"{TASK} --set rate", 2, "--set rate: expected a number after"),
    (f"{TASK} --set warm_up=1.5", 2, "warm_up=1.5: expected a whole"),
    (f"{TASK} --family bert", 2, "--family bert does not go with --task c"),
    ("--task masked-lm --family llama", 2, "bert for masked-lm and pre-training"),
    (f"{TASK} --kv-heads 2", 2, "--kv-heads is for llama"),
    ("--config no.json --family gpt2", 2, "--config names the family"),
    (f"{TASK} --plot heads.doc", 2, r"heads\.doc"),
    (f"{TASK} --plot none/heads.svg", 2, "no folder none to write heads"),
    ("--task translation", 2, "--task"),
    (f"{TASK} --steps 0", 2, "--steps"),
    (f"{TASK} --seed -1", 2, "--seed"),
    (f"{TASK} --positions 8", 2, "--positions"),
    (f"{TASK} --weights int8", 2, "--weights"),
    (f"{TASK} --speed 2", 2, "--speed"),
]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that commands are run in."""
    contents = {
        "cut.json": b"{",
        "list.json": b"[1]",
        "t5.json": b'{"model_type": "t5"}',
        "few.json": b'{"model_type": "gpt2", "n_embd": 32}',
        "bytes.txt": b"\xff\xfe",
        "blank.txt": b" \n",
        "taken": b"mine",
    }
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(("options", "status", "message"), REFUSED)
def test_what_cannot_be_trained_is_said_and_nothing_is_written(
    options: str, status: int, message: str, texts: list[str], folder: Path
) -> None:
    if "cuda" in options and torch.cuda.is_available():
        pytest.skip("there is a GPU")
    before = {path: path.read_bytes() for path in folder.iterdir()}
    result = run("train", *texts, *SMALL, "-o", "run", *options.split())
    if "Usage: " in result.stderr:
        assert re.search(message, result.stderr)
    else:
        fails(result, message, status)
        assert result.stderr.startswith("error: ")
        assert result.stderr.count("\n") == 1
    assert result.exit_code == status
    assert {path: path.read_bytes() for path in folder.iterdir()} == before


def test_texts_an_output_and_several_texts_for_pairs_are_needed(
    texts: list[str], folder: Path
) -> None:
    assert run("train", "--task", "causal-lm", "-o", "run").exit_code == 2
    assert run("train", *texts, "--task", "causal-lm").exit_code == 2
    command = ["train", texts[0], "--task", "pre-training", *SMALL, "-o", "run"]
    fails(run(*command), "give two or more files")
