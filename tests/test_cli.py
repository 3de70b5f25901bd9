"""The command line: what it prints, how it fails, and what it does not import."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from command_line import fails, process, run
from data import data_path

import minibert
from minibert.answers.explain import explain
from minibert.checkpoint.save import save
from minibert.layers.config import Config
from minibert.loading import load
from minibert.model import Model

EXPLAIN = ("explain", "the horse turned", "--layer", "1", "--head", "2")
TEXTS = ("I went to the store.", "At the store, I bought fresh strawberries.")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A GPT-2 with random weights and a real tokenizer: one that answers with the next token."""
    sizes = {"vocab_size": 50257, "n_positions": 29, "n_layers": 2, "n_heads": 2}
    config = Config("gpt2", "causal-lm", **sizes, d_model=6, d_mlp=11, causal=True)
    tokenizer = minibert.Tokenizer.from_folder(data_path("models", "gpt2-tokenizer"))
    path = tmp_path_factory.mktemp("gpt2")
    return save(Model.from_config(config, tokenizer=tokenizer), path)


class TestHelp:
    def test_it_lists_the_commands(self) -> None:
        result = run("--help")
        assert result.exit_code == 0
        assert re.findall(r"^  (\w[\w-]*)  ", result.stdout, re.M) == [
            "view",
            "live",
            "serve",
            "explain",
            "predict",
            "generate",
            "train",
            "survey",
            "survey-report",
            "survey-diff",
            "patterns",
            "collect",
            "check",
            "bench",
            "models",
            "probe",
        ]

    @pytest.mark.parametrize("arguments", [["--help"], ["explain", "--help"], ["--version"]])
    def test_it_waits_for_nothing_heavy(self, arguments: list[str]) -> None:
        code = (
            "import sys; sys.argv[1:] = sys.argv[1:]\n"
            "from minibert.cli.main import main\n"
            "try:\n    main()\nexcept SystemExit as stop:\n    assert not stop.code\n"
            "names = {name.split('.')[0] for name in sys.modules}\n"
            "print(sorted(names & {'torch', 'numpy', 'tokenizers', 'huggingface_hub', 'rich'}))"
        )
        command = [sys.executable, "-c", code, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        assert done.stdout.splitlines()[-1] == "[]"

    def test_the_version_is_the_package_version(self) -> None:
        assert run("--version").stdout == f"minibert {minibert.__version__}\n"

    @pytest.mark.parametrize(
        "arguments",
        [
            [],
            ["nothing"],
            ["explain", "the"],
            [*EXPLAIN],
            [*EXPLAIN, "--query", "1", "--top", "0"],
            ["explain", "a", "--layer", "x", "--head", "0", "--query", "1"],
            ["predict", "a", "--dtype", "int8"],
            ["view", "-", "-"],
        ],
    )
    def test_bad_usage_exits_with_2(self, arguments: list[str]) -> None:
        result = run(*arguments)
        assert result.exit_code == 2
        assert "Usage: " in result.output


class TestExplain:
    @pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
    def test_json_has_the_numbers_of_the_trace_unrounded(self, dtype: str) -> None:
        trace = load(dtype=getattr(torch, dtype)).trace("the horse turned")
        explanation = explain(trace, layer=1, head=2, query="horse", key="[SEP]")
        chosen = ["--query", "horse", "--key", "[SEP]", "--dtype", dtype, "--json"]
        result = run(*EXPLAIN, *chosen)
        assert result.exit_code == 0, result.output
        assert json.loads(result.stdout) == explanation.to_dict()

    def test_text_and_json_show_the_same_numbers(self) -> None:
        chosen = [*TEXTS, "-m", str(data_path("models", "all-MiniLM-L6-v2"))]
        chosen += ["--layer", "4", "--head", "7", "--query", "straw"]
        data = json.loads(run("explain", *chosen, "--json").stdout)
        text = run("explain", *chosen).stdout.replace("−", "-")
        assert "query  15 straw" in text
        for name in ("dot", "score", "largest", "total", "scale"):
            assert f"{data[name]:.4f}" in text
        section = next(part for part in text.split("\n\n") if part.startswith("probs"))
        row = r"^ +(\d+)  (\S+) +(-?\d+\.\d{4}) +(\d\.\d{4}) +(\d\.\d{4})"
        rows = re.findall(row, section, re.M)
        assert len(rows) == len(data["tokens"])
        for position, token, score, exponential, prob in rows:
            at = int(position)
            assert token == data["tokens"][at]
            assert (score, exponential, prob) == tuple(
                f"{data[name][at]:.4f}" for name in ("scores", "exponentials", "probs")
            )

    def test_the_shape_of_the_output_is_that_of_the_terminal(self) -> None:
        wide = process(*EXPLAIN, "--query", "1", env={"COLUMNS": "140"}).stdout
        narrow = process(*EXPLAIN, "--query", "1", env={"COLUMNS": "80"}).stdout
        assert max(map(len, narrow.splitlines())) <= 80 < max(map(len, wide.splitlines())) <= 140
        assert "\x1b" not in wide

    def test_a_text_can_come_from_standard_input(self) -> None:
        here = run(*EXPLAIN, "--query", "horse", "--json")
        piped = run(
            "explain", "-", *EXPLAIN[2:], "--query", "horse", "--json", stdin="the horse turned\n"
        )
        assert piped.stdout == here.stdout

    def test_an_output_without_the_signs_gets_plain_ones(self) -> None:
        done = process(*EXPLAIN, "--query", "horse", env={"PYTHONIOENCODING": "ascii"})
        assert done.returncode == 0, done.stderr
        assert "1/sqrt" in done.stdout

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"--layer": "99"}, "There is no layer 99; expected 0 to"),
            ({"--head": "-99"}, "There is no head -99; expected 0 to"),
            ({"--query": "absent"}, r'No token is "absent" \(the query\); the tokens are 0 '),
            ({"--query": "99"}, "There is no query 99; expected 0 to"),
            ({"--key": "\x1b[2J"}, r'No token is "\\x1b\[2J" \(the key\)'),
            ({"--model": "./absent"}, "neither a folder nor a Hub id"),
            ({"--task": "absent"}, "no task head 'absent'"),
        ],
    )
    def test_what_does_not_exist_is_an_error(self, changes: dict[str, str], message: str) -> None:
        chosen = {"--layer": "0", "--head": "0", "--query": "1"} | changes
        options = [word for option in chosen.items() for word in option]
        fails(run("explain", "the horse turned", *options), message)

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("", "the text is empty"),
            ("\ud800", r"unpaired surrogate, U\+D800"),
            ("the " * 9999, "or pass --truncate to"),
        ],
    )
    def test_a_text_that_cannot_be_read_is_an_error(self, text: str, message: str) -> None:
        fails(run("explain", text, *EXPLAIN[2:], "--query", "0"), message)

    def test_standard_input_that_is_no_text_is_an_error(self) -> None:
        fails(run("explain", "-", *EXPLAIN[2:], "--query", "0", stdin=b"\xff"), "not UTF-8")

    def test_a_long_text_can_be_truncated(self) -> None:
        result = run(
            "explain", "the " * 9999, *EXPLAIN[2:], "--query", "-1", "--truncate", "--json"
        )
        assert result.exit_code == 0, result.output
        assert len(json.loads(result.stdout)["tokens"]) == load().config.n_positions

    def test_a_number_that_is_also_a_token_is_noted_beside_the_answer(self) -> None:
        words = load().tokenize("i saw 2").strings[0]
        result = run("explain", "i saw 2", *EXPLAIN[2:], "--query", "2", "--json")
        assert json.loads(result.stdout)["query_position"] == 2
        assert words.index("2") == 3
        assert result.stderr == (
            'note: 2 is taken as a position. The token "2" is at position 3: '
            "to choose it, give 3 as the query.\n"
        )

    def test_a_misspelt_folder_is_said_not_to_be_one(self) -> None:
        env = {"HF_ENDPOINT": "http://127.0.0.1:9", "HF_HUB_OFFLINE": "0"}
        done = process(*EXPLAIN, "--query", "1", "-m", "mymodel", env=env)
        assert done.returncode == 1
        assert "no connection to " in done.stderr
        assert done.stderr.endswith("There is also no folder of that name.\n")


class TestView:
    def test_it_writes_a_page_and_says_where(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        opened = []
        monkeypatch.setattr("webbrowser.open", opened.append)
        path = tmp_path / "page.html"
        result = run("view", *TEXTS, "-o", str(path))
        assert result.exit_code == 0, result.output
        assert result.stdout == f"{path}  {path.stat().st_size / 1000:.0f} kB\n"
        assert path.read_text() == load().trace(*TEXTS).view().html
        assert opened == []
        run("view", *TEXTS, "-o", str(path), "--open")
        assert opened == [path.as_uri()]

    def test_it_writes_to_this_folder_when_no_file_is_named(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        assert run("view", "a b").exit_code == 0
        assert [path.name for path in tmp_path.iterdir()] == ["attention.html"]

    @pytest.mark.parametrize("name", ["-", "/dev/stdout"])
    def test_the_page_alone_can_go_to_standard_output(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
    ) -> None:
        monkeypatch.chdir(tmp_path)
        result = run("view", "a b", "-o", name)
        assert result.exit_code == 0, result.output
        assert result.stdout_bytes.decode() == load().trace("a b").view().html
        assert list(tmp_path.iterdir()) == []
        assert run("view", "a b", "-o", name, "--open").exit_code == 2

    def test_a_text_that_is_cut_is_said_to_be(self, tmp_path: Path) -> None:
        options = ["-o", str(tmp_path / "page.html"), "--layer", "0", "--truncate"]
        result = run("view", "the horse " * 600, *options)
        assert result.exit_code == 0, result.output
        limit = load().config.n_positions
        assert result.stderr == f"note: the text is cut after {limit} tokens.\n"
        assert run("view", "the horse ", *options).stderr == ""

    def test_layers_and_heads_can_be_chosen(self, tmp_path: Path) -> None:
        path = tmp_path / "page.html"
        run("view", "a b", "-o", str(path), "--layer", "1", "--layer", "2", "--head", "0")
        assert path.read_text() == load().trace("a b").view(layers=[1, 2], heads=[0]).html

    def test_the_view_and_what_the_file_holds_can_be_chosen(self, tmp_path: Path) -> None:
        path = tmp_path / "page.html"
        run("view", "a b", "-o", str(path), "--view", "neuron")
        assert path.read_text() == load().trace("a b").view(view="neuron").html
        run("view", "a b", "-o", str(path), "--no-vectors")
        assert path.read_text() == load().trace("a b").view(vectors=False).html
        fails(run("view", "a b", "-o", str(path), "--view", "heads"), "there are head, model")

    def test_a_place_that_cannot_be_written_is_an_error(self, tmp_path: Path) -> None:
        fails(run("view", "a", "-o", str(tmp_path / "absent" / "page.html")), "no folder .*absent")
        fails(run("view", "a", "-o", str(tmp_path)), "is a folder")
        fails(run("view", "a", "-o", str(tmp_path / "page.html"), "--layer", "99"), "99")
        assert list(tmp_path.iterdir()) == []


class TestPredict:
    def test_the_masked_token_is_answered_as_in_python(self) -> None:
        result = run("predict", "the [MASK] hopped", "--top", "3")
        (prediction,) = load().predict("the [MASK] hopped", top=3)
        title, header, *rows = result.stdout.splitlines()
        assert title == "masked token at position 2, [MASK]"
        assert header.split() == ["prob"]
        assert [row.split()[:2] for row in rows] == [
            [choice.label, f"{choice.probability:.4f}"] for choice in prediction.choices
        ]

    def test_the_next_token_is_answered(self, folder: Path) -> None:
        result = run("predict", "a brown fox", "-m", str(folder), "--top", "7")
        assert result.exit_code == 0, result.output
        lines = result.stdout.splitlines()
        assert lines[0] == "next token after position 2, ␣fox"
        assert len(lines) == 9

    def test_a_text_without_a_mask_is_an_error(self) -> None:
        fails(run("predict", "the horse"), r"no \[MASK\]")

    def test_a_model_without_a_task_head_is_an_error(self) -> None:
        fails(run("predict", "the horse", "--task", "none"), "no task head")


class TestInterruption:
    def test_ctrl_c_exits_with_130_and_says_nothing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def interrupted(*_: Any, **__: Any) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr("minibert.loading.load", interrupted)
        result = run("predict", "the [MASK]")
        assert (result.exit_code, result.output) == (130, "")

    def test_a_closed_pipe_ends_quietly(self) -> None:
        read, write = os.pipe()
        os.close(read)
        try:
            done = process(*EXPLAIN, "--query", "horse", stdout=write)
        finally:
            os.close(write)
        assert (done.returncode, done.stderr) == (141, "")

    def test_a_mistake_of_ours_keeps_its_traceback(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def mistaken(*_: Any, **__: Any) -> None:
            raise RuntimeError("ours")

        monkeypatch.setattr("minibert.loading.load", mistaken)
        result = run("predict", "the [MASK]")
        assert isinstance(result.exception, RuntimeError)
