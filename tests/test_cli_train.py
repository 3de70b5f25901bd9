"""`minibert train`: what its options do; how it fails is in the table of test_cli.py."""

import json

import pytest
import torch
import transformers
from command_line import run
from safetensors.torch import load_file

import minibert
from tests.training.small_runs import SMALL, story_files


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    return story_files(tmp_path_factory.mktemp("texts"), 1, 2, 3)


class TestResult:
    def test_options_reach_the_run(self, texts, tmp_path):
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

    def test_without_held_out_files_the_ends_of_the_texts_are(self, texts, tmp_path):
        command = [*texts, "--task", "masked-lm", *SMALL, "--steps", "1", "-o", str(tmp_path)]
        assert run("train", *command).exit_code == 0
        about = json.loads((tmp_path / "training.json").read_text())
        assert about["held_out"] == [f"the end of story-{n}.txt" for n in (1, 2, 3)]

    def test_a_llama_has_its_own_shape(self, texts, tmp_path):
        options = ["--task", "causal-lm", "--family", "llama", "--kv-heads", "2", "--width", "40"]
        command = [*texts, *SMALL, *options, "--steps", "1", "-o", str(tmp_path / "run")]
        result = run("train", *command)
        assert result.exit_code == 0, result.output
        theirs = transformers.LlamaForCausalLM.from_pretrained(tmp_path / "run").config
        # 8/3 of the width is 106.7; multiples of 8 suit processors.
        assert (theirs.hidden_size, theirs.intermediate_size) == (40, 112)
        assert (theirs.num_attention_heads, theirs.num_key_value_heads) == (4, 2)
        assert (theirs.head_dim, theirs.hidden_act) == (10, "silu")
