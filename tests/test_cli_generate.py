"""`minibert generate`: what it prints, when, and how it fails."""

import re
import sys
from pathlib import Path
from typing import Any

import pytest
from command_line import fails, process, run
from vocabularies import byte_level

import minibert
from minibert.checkpoint.save import save
from minibert.layers.config import Config
from minibert.model import Model

PROMPT = "The quick brown fox"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A GPT-2 with random weights."""
    path = byte_level(tmp_path_factory.mktemp("gpt2"), ["<|endoftext|>"])
    tokenizer = minibert.Tokenizer.from_folder(path)
    shape = {"n_positions": 67, "n_layers": 1, "n_heads": 3, "d_model": 33, "d_mlp": 23}
    config = Config("gpt2", "causal-lm", tokenizer.vocab_size, **shape, causal=True)
    return str(save(Model.from_config(config, tokenizer=tokenizer), path))


def test_it_prints_the_text_that_python_gives(folder: str) -> None:
    result = run("generate", PROMPT, "-m", folder)
    assert result.exit_code == 0, result.output
    assert result.stdout_bytes.decode() == f"{minibert.load(folder).generate(PROMPT)}\n"
    assert result.stderr == ""


def test_every_option_reaches_the_model(folder: str) -> None:
    options: dict[str, Any] = {
        "max_new_tokens": 31,
        "temperature": 1.7,
        "top_k": 50,
        "top_p": 0.9,
        "seed": 5,
    }
    model = minibert.load(folder)
    stop = model.generate(PROMPT, **options).new_text[9:11]
    named = [part for name, v in options.items() for part in (f"--{name}".replace("_", "-"), v)]
    result = run("generate", PROMPT, "-m", folder, *map(str, named), "--stop", stop, "--stop", "##")
    assert result.exit_code == 0, result.output
    expected = model.generate(PROMPT, **options, stop=(stop, "##"))
    assert expected.stopped_by == "stop string"
    assert result.stdout_bytes.decode() == f"{expected}\n"


def test_pieces_are_written_as_they_come(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[str] = []

    class Output:
        encoding = "utf-8"

        def write(self, text: str) -> None:
            written.append(text)

        def flush(self) -> None:
            written.append("")

        def isatty(self) -> bool:
            return False

    monkeypatch.setattr(sys, "stdout", Output())
    from minibert.cli.generate import generate

    generate(text=PROMPT, model=folder, max_new_tokens=9)
    pieces: list[str] = []
    minibert.load(folder).generate(PROMPT, max_new_tokens=9, stream=pieces.append)
    assert len(pieces) > 3
    assert written[: 2 * len(pieces)] == [
        part for piece in (PROMPT + pieces[0], *pieces[1:]) for part in (piece, "")
    ]


def test_a_terminal_is_not_steered_by_what_a_model_writes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from minibert.cli.generate import _shown

    text = "a\x1b[2Jb\tc\n\u202ed"
    assert _shown(text) == text
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    assert _shown(text) == "a\\x1b[2Jb\tc\n\\u202ed"


def test_the_text_can_come_from_standard_input(folder: str) -> None:
    piped = run("generate", "-", "-m", folder, stdin=f"{PROMPT}\n")
    assert piped.stdout_bytes == run("generate", PROMPT, "-m", folder).stdout_bytes


def test_a_text_that_ends_with_the_positions_is_noted(folder: str) -> None:
    result = run("generate", PROMPT, "-m", folder, "--max-new-tokens", "300")
    assert result.exit_code == 0, result.output
    assert re.fullmatch(
        r"note: the text ends here, because .* has only 67 positions\.\n", result.stderr
    )


def test_an_output_that_cannot_show_a_character_gets_it_written_out(folder: str) -> None:
    done = process("generate", "naïve", "-m", folder, env={"PYTHONIOENCODING": "ascii"})
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("na\\xefve")


def test_what_cannot_be_continued_is_an_error(folder: str) -> None:
    fails(run("generate", PROMPT * 30, "-m", folder), "the prompt has .* 67 positions")
    fails(run("generate", "", "-m", folder), "empty")
    fails(run("generate", PROMPT, "-m", folder, "--top-p", "0"), "top_p=0")
    fails(run("generate", PROMPT, "-m", "tiny-bert"), "does not write text")


@pytest.mark.parametrize(
    "arguments",
    [["--max-new-tokens", "0"], ["--temperature", "-1"], ["--top-k", "0"], ["--seed", "-1"]],
)
def test_bad_usage_exits_with_2(arguments: list[str]) -> None:
    assert run("generate", PROMPT, *arguments).exit_code == 2


def test_help_loads_nothing_heavy(tmp_path: Path) -> None:
    code = (
        "import sys\nfrom minibert.cli.main import main\n"
        "try:\n    main()\nexcept SystemExit as stop:\n    assert not stop.code\n"
        "names = {name.split('.')[0] for name in sys.modules}\n"
        "print(sorted(names & {'torch', 'numpy', 'tokenizers', 'huggingface_hub', 'rich'}))"
    )
    import subprocess

    command = [sys.executable, "-c", code, "generate", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
