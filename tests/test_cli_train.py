"""`minibert train`: what its options do, and how it fails."""

import json
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


class TestErrors:
    @pytest.mark.parametrize(
        ("options", "message"),
        [
            (["--task", "causal-lm", "--set", "rate=-1"], "rate=-1.0: expected a number above 0"),
            (["--task", "causal-lm", "--seed", str(2**60)], "seed=1152921504606846976: expected"),
            (["--task", "causal-lm", "--width", "30"], "4 heads do not divide a width of 30"),
            (
                ["--task", "causal-lm", "--family", "llama", "--kv-heads", "3"],
                "4 heads cannot share 3 key-value heads",
            ),
            (["--task", "causal-lm", "--vocabulary", "50"], "vocabulary of 50 has no room"),
            (["--task", "causal-lm", "--positions", "4096"], "fewer positions"),
            (["--task", "causal-lm", "--device", "meta"], "expected cpu or cuda"),
            (["--task", "causal-lm", "--device", "abacus"], "'abacus' cannot be used"),
            (["--task", "causal-lm", "--held-out", "no.txt"], r"no\.txt: cannot be read"),
            (["--config", "no.json"], r"no\.json: cannot be read"),
        ],
    )
    def test_a_bad_option_is_one_line_and_nothing_is_written(
        self, options: list[str], message: str, texts: list[str], tmp_path: Path
    ) -> None:
        folder = tmp_path / "run"
        fails(run("train", *texts, *SMALL, *options, "-o", str(folder)), message)
        assert not folder.exists()

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ([], "The task is missing: give --task causal-lm, masked-lm or pre-training"),
            (["--task", "causal-lm", "--set", "speed=2"], "--set speed=2: expected one of clip, "),
            (["--task", "causal-lm", "--set", "steps=2"], "--set steps=2: expected one of"),
            (["--task", "causal-lm", "--set", "bfloat16=0"], "--set bfloat16=0: expected one of"),
            (["--task", "causal-lm", "--set", "rate"], "--set rate: expected a number after"),
            (["--task", "causal-lm", "--set", "warm_up=1.5"], "warm_up=1.5: expected a whole"),
            (
                ["--task", "causal-lm", "--family", "bert"],
                "--family bert does not go with --task c",
            ),
            (["--task", "masked-lm", "--family", "llama"], "bert for masked-lm and pre-training"),
            (["--task", "causal-lm", "--kv-heads", "2"], "--kv-heads is for llama"),
            (["--config", "no.json", "--family", "gpt2"], "--config names the family"),
            (["--task", "causal-lm", "--plot", "heads.doc"], r"heads\.doc"),
            (["--task", "causal-lm", "--plot", "none/heads.svg"], "no folder none to write heads"),
        ],
    )
    def test_options_that_do_not_go_together_are_one_line_and_exit_with_2(
        self, options: list[str], message: str, texts: list[str], tmp_path: Path
    ) -> None:
        folder = tmp_path / "run"
        result = run("train", *texts, *SMALL, *options, "-o", str(folder))
        fails(result, message, status=2)
        assert result.stderr.startswith("error: ")
        assert result.stderr.count("\n") == 1
        assert not folder.exists()

    @pytest.mark.parametrize(
        "options",
        [
            ["--task", "translation"],
            ["--task", "causal-lm", "--steps", "0"],
            ["--task", "causal-lm", "--seed", "-1"],
            ["--task", "causal-lm", "--positions", "8"],
            ["--task", "causal-lm", "--weights", "int8"],
            ["--task", "causal-lm", "--speed", "2"],
        ],
    )
    def test_a_bad_usage_exits_with_2(
        self, options: list[str], texts: list[str], tmp_path: Path
    ) -> None:
        result = run("train", *texts, *SMALL, *options, "-o", str(tmp_path / "run"))
        assert result.exit_code == 2
        assert "Usage: " in result.output
        assert not (tmp_path / "run").exists()

    def test_texts_and_an_output_are_needed(self, texts: list[str], tmp_path: Path) -> None:
        assert run("train", "--task", "causal-lm", "-o", str(tmp_path)).exit_code == 2
        assert run("train", *texts, "--task", "causal-lm").exit_code == 2

    @pytest.mark.parametrize(
        ("content", "message"),
        [
            ("{", "cannot be read as JSON"),
            ("[1]", "expected an object"),
            ('{"model_type": "t5"}', "'t5' is not a family"),
            ('{"model_type": "gpt2", "n_embd": 32}', "is missing"),
        ],
    )
    def test_a_bad_config_json_is_one_line(
        self, content: str, message: str, texts: list[str], tmp_path: Path
    ) -> None:
        path = tmp_path / "shape.json"
        path.write_text(content)
        folder = tmp_path / "run"
        fails(run("train", *texts, "--config", str(path), "-o", str(folder)), message)
        assert not folder.exists()

    @pytest.mark.parametrize(
        ("content", "message"),
        [
            (b"\xff\xfe", "byte 0 is not UTF-8"),
            (b" \n", "the file has no text"),
            (None, "No such file"),
        ],
    )
    def test_a_bad_text_is_one_line(
        self, content: bytes | None, message: str, texts: list[str], tmp_path: Path
    ) -> None:
        path = tmp_path / "bad.txt"
        if content is not None:
            path.write_bytes(content)
        command = ["train", *texts, str(path), "--task", "causal-lm", *SMALL]
        fails(run(*command, "-o", str(tmp_path / "run")), rf"bad\.txt: .*{message}")
        assert not (tmp_path / "run").exists()

    def test_one_text_cannot_teach_next_sentences(self, texts: list[str], tmp_path: Path) -> None:
        command = ["train", texts[0], "--task", "pre-training", *SMALL]
        fails(run(*command, "-o", str(tmp_path / "run")), "give two or more files")

    @pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
    def test_a_gpu_that_is_not_there_is_one_line(self, texts: list[str], tmp_path: Path) -> None:
        command = ["train", *texts, "--task", "causal-lm", *SMALL, "--device", "cuda"]
        fails(run(*command, "-o", str(tmp_path / "run")), "The device 'cuda' cannot be used")
        assert not (tmp_path / "run").exists()

    def test_a_folder_that_cannot_be_written_to_is_one_line_before_the_first_step(
        self, texts: list[str], tmp_path: Path
    ) -> None:
        (tmp_path / "file").write_text("mine")
        command = ["train", *texts, "--task", "causal-lm", *SMALL]
        result = run(*command, "-o", str(tmp_path / "file"))
        fails(result, "file: cannot be written to")
        assert "log:" not in result.stderr
        assert (tmp_path / "file").read_text() == "mine"
