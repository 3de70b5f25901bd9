"""The command line: what it prints, how it fails, and what it does not import.

REFUSED is the table of commands that end with an error. docs/command_line.md promises the exit
statuses and the keys of JSON; what a command computes is tested where the library computes it.
"""

import errno
import json
import os
import random
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import planted_kernels as planted
import pytest
import torch
from command_line import process, run
from vocabularies import byte_level

import minibert
from minibert.analysis.patterns import PATTERNS
from minibert.answers.explain import explain
from minibert.checkpoint.headers import embedded_names
from minibert.cli.main import app
from minibert.cli.options import say_json
from minibert.layers.config import Config
from minibert.model import Model, load
from minibert.survey.tables import Survey
from tests.packages import REPOSITORY
from tests.training.small_runs import SMALL, story_files

PAGE = (REPOSITORY / "docs" / "command_line.md").read_text(encoding="utf-8")
COMMANDS = (
    "view live serve watch explain predict generate train survey patterns "
    "collect check bench verify models"
)
EXPLAIN = ("explain", "the horse turned", "--layer", "1", "--head", "2")
TEXTS = ("I went to the store.", "At the store, I bought fresh strawberries.")
PROMPT = "The quick brown fox"
LONG = "the " * 9999
HERE = "--layer 0 --head 0 --query 1"
BENCH = "bench kernel.py:attention"
SHAPE = " ".join(SMALL)
TASK = "--task causal-lm"
# Options of `train`, behind texts and a small shape; exit status, and what standard error says.
UNTRAINED = [
    (f"{TASK} --device cuda", 1, "device='cuda' cannot be used"),
    (f"{TASK} --held-out no.txt", 1, r"no\.txt: cannot be read"),
    (f"{TASK} -o taken", 1, "taken: cannot be written to"),
    ("", 2, "The task is missing: give --task causal-lm, masked-lm or pre-training"),
    (f"{TASK} --set speed=2", 2, "--set speed=2.*: expected one of clip, "),
    (f"{TASK} --set rate", 2, "--set rate: expected a number after"),
    (f"{TASK} --set warm_up=1.5", 2, "warm_up=1.5: expected a whole"),
    (f"{TASK} --family bert", 2, "--family bert does not go with --task c"),
    ("--task masked-lm --family llama", 2, "bert for masked-lm and pre-training"),
    (f"{TASK} --kv-heads 2", 2, "--kv-heads is for llama"),
    ("--task translation", 2, "--task"),
    (f"{TASK} --steps 0", 2, "--steps"),
]
# Command, exit status, and what standard error says; in a folder with the files of `inputs`.
REFUSED = [
    ("", 2, "Usage: "),
    ("nothing", 2, "Usage: "),
    ("explain the --layer 1 --head 2", 2, "Usage: "),
    (f"explain 'the horse' {HERE} --query absent", 1, r'No token is "absent" \(the query\); the t'),
    (f"explain a {HERE} --key '\x1b[2J'", 1, r'No token is "\\x1b\[2J" \(the key\)'),
    (f"explain a {HERE} --model ./absent", 1, "neither a folder nor a Hub id"),
    (f"explain \ud800 {HERE}", 1, r"unpaired surrogate, U\+D800"),
    (f"explain '{LONG}' {HERE}", 1, "or pass --truncate to"),
    (f"explain - {HERE}", 1, "not UTF-8"),
    ("predict", 2, "Usage: "),
    ("'--x\x1b[31m'", 2, "Usage: "),
    ("view a '--x\u202e'", 2, "Usage: "),
    ("'\x1b]0;\x07'", 2, "Usage: "),
    ("predict a --dtype int8", 2, "--dtype"),
    ("predict 'the horse'", 1, r"no \[MASK\]"),
    ("view - -", 2, "only one of the two texts"),
    ("view a -o absent/page.html", 1, "no folder absent"),
    ("view a -o .", 1, "is a folder"),
    (f"generate '{LONG}' -m tiny-gpt2", 1, "the prompt has .* positions"),
    ("generate a --top-k 0", 2, "--top-k"),
    ("check nowhere.py:attention", 2, "There is no file nowhere.py"),
    ("check nowhere.py", 2, '"nowhere.py" names no function; expected FILE.py:function'),
    ("check kernel.py:none", 2, "kernel.py has no function none; it has allowed, right, attention"),
    ("check kernel.py:number", 2, "number in kernel.py is of type int, not a function"),
    ("check kernel.py:few", 2, r"expected few\(query, key, value, lengths, causal\); it is few\("),
    ("check broken.py:f", 2, "broken.py, line 2: "),
    ("check needs.py:f", 2, "needs.py, line 1: ModuleNotFoundError: No module named 'absent_mod"),
    ("check stops.py:f", 2, "stops.py, line 2: SystemExit: 7"),
    ("check kernel.py:attention --device tpu", 2, "--device"),
    ("check kernel.py:attention --device meta", 2, "--device"),
    ("verify absent", 1, "absent is not a folder; expected a checkpoint"),
    ("verify .", 1, "has no config.json"),
    ("verify . -o no/certificate.json", 2, "There is no folder no"),
    ("verify . --longest 0", 2, "--longest"),
    ("bench", 2, "Usage: "),
    (f"{BENCH} --baseline warp", 2, "--baseline warp is not known; known are reference"),
    (f"{BENCH} -o -", 2, "-output -: standard output is used for the table; .*rows.jsonl"),
    (f"{BENCH} --output no/folder/rows.jsonl", 2, "There is no folder no/folder"),
    (f"{BENCH} --output .", 2, "is a folder"),
    ("live --text a --text b --text c -o live.html", 2, "--text"),
    ("live --story --model tiny-gpt2 -o story.html", 2, "no model"),
    ("serve --no-open --host 300.300.300.300", 1, "Cannot listen on 300.300"),
    ("survey broken.jsonl -o out --impl fast", 1, 'impl="fast" is not known'),
    ("survey broken.jsonl -o begun", 1, r"broken\.jsonl, line 2"),
    ("patterns nowhere.txt -m absent", 1, r"nowhere\.txt"),
    ("patterns corpus.txt --unit page -m absent", 1, "page"),
    ("patterns --field text -m absent", 2, "--field says how a corpus is read"),
    ("patterns corpus.latin", 1, "say what it is with --kind"),
    ("patterns corpus.latin --kind text", 1, "not UTF-8; convert"),
    ("train a.txt b.txt --task causal-lm", 2, "Usage: "),
    (f"train a.txt --task pre-training {SHAPE} -o run", 1, "give two or more files"),
    *((f"train a.txt b.txt {SHAPE} -o run {line}", *said) for line, *said in UNTRAINED),
]
# Kernels, shapes and texts that cannot be used.
FILES = {
    "kernel.py": f"{planted.START}{planted.RIGHT}\nnumber = 3\nfew = lambda query: 0\n".encode(),
    "broken.py": b"\ndef f(:\n",
    "needs.py": b"import absent_module\n",
    "stops.py": b"import sys\nsys.exit(7)\n",
    "taken": b"mine",
}


@pytest.fixture
def inputs(tmp_path, monkeypatch):
    """The folder that commands are run in."""
    (tmp_path / "corpus.txt").write_text("the old house.\nthe horse ran.\nthe wind.\nthe wind.\n")
    (tmp_path / "corpus.latin").write_bytes("the caf\xe9 .\n".encode("latin-1"))
    (tmp_path / "broken.jsonl").write_text('{"text": "The horse ran ."}\nbroken\n')
    for name, content in FILES.items():
        (tmp_path / name).write_bytes(content)
    for name, path in zip(("a.txt", "b.txt"), story_files(tmp_path, 1, 2), strict=True):
        Path(path).rename(tmp_path / name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory):
    """A GPT-2 with random weights."""
    path = byte_level(tmp_path_factory.mktemp("gpt2"), ["<|endoftext|>"])
    tokenizer = minibert.Tokenizer.from_folder(path)
    shape = {"n_positions": 67, "n_layers": 1, "n_heads": 3, "d_model": 33, "d_mlp": 23}
    config = Config("gpt2", "causal-lm", tokenizer.vocab_size, **shape, causal=True)
    return str(Model.from_config(config, tokenizer=tokenizer).save(path))


def said(*arguments: str, **options: Any) -> str:
    """What a command that succeeds writes to standard output."""
    result = run(*arguments, **options)
    assert result.exit_code == 0, result.output
    return result.stdout_bytes.decode()


def contents(folder: Path) -> dict[Path, bytes | None]:
    """What lies in a folder; None for a folder in it."""
    return {path: path.read_bytes() if path.is_file() else None for path in folder.iterdir()}


@pytest.mark.parametrize(("line", "status", "message"), REFUSED, ids=lambda v: str(v)[:60])
def test_what_cannot_be_done_is_said_with_its_status_and_nothing_is_written(
    line, status, message, inputs
):
    if "cuda" in line and torch.cuda.is_available():
        pytest.skip("there is a GPU")
    before = contents(inputs)
    result = run(*shlex.split(line), stdin=b"\xff")
    assert result.exit_code == status, result.output
    lines = [one for one in result.stderr.splitlines() if not one.startswith("note: ")]
    assert re.search(message, "\n".join(lines), re.DOTALL), result.stderr
    # Without arguments the help is the answer.
    assert result.stdout == "" or not line
    usage = status == 2 and "Usage: " in result.stderr
    assert usage or (len(lines) == 1 and lines[0].startswith("error: "))
    # What was typed wrongly is repeated without acting on the terminal.
    assert all(c.isprintable() or c == "\n" for c in result.stderr)
    # A survey that reads on until a broken line keeps what it has measured.
    after = contents(inputs)
    assert after.keys() - before.keys() <= {inputs / "begun"}
    assert before.items() <= after.items()
    assert re.search(rf"^\| {status} \|", PAGE, re.MULTILINE)


class TestProgram:
    def test_help_lists_the_commands(self):
        assert " ".join(re.findall(r"^  (\w[\w-]*)  ", said("--help"), re.M)) == COMMANDS
        assert said("--version") == f"minibert {minibert.__version__}\n"
        for command in ("check", "bench"):
            text = " ".join(said(command, "--help").split())
            assert "FILE.py runs with all your permissions" in text

    @pytest.mark.parametrize(
        ("asked", "heavy"),
        [
            ("--help", {"torch", "numpy", "tokenizers", "huggingface_hub", "rich"}),
            ("models", {"torch", "tokenizers"}),
        ],
    )
    def test_help_and_the_list_of_models_wait_for_nothing_heavy(self, asked, heavy):
        code = (
            "import sys\nfrom minibert.cli.main import main\n"
            "try:\n    main()\nexcept SystemExit as stop:\n    assert not stop.code\n"
            "names = {name.split('.')[0] for name in sys.modules}\n"
            f"print(sorted(names & {heavy}))"
        )
        command = [sys.executable, "-c", code, asked]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        assert done.stdout.splitlines()[-1] == "[]"

    def test_ctrl_c_exits_with_130_and_a_mistake_of_ours_keeps_its_traceback(self, monkeypatch):
        for error in (KeyboardInterrupt(), RuntimeError("ours")):

            def failing(*_: Any, error: BaseException = error, **__: Any) -> None:
                raise error

            monkeypatch.setattr("minibert.model.load", failing)
            result = run("predict", "the [MASK]")
            if isinstance(error, KeyboardInterrupt):
                assert (result.exit_code, result.output) == (130, "")
            else:
                assert result.exception is error

    def test_an_error_of_something_else_is_not_one_of_the_output(self):
        for number in (errno.EPIPE, *random.sample(sorted(errno.errorcode), 7)):
            error = OSError(number, os.strerror(number), *random.choice(((), ("a.bin",))))
            with mock.patch("minibert.model.Model.predict", side_effect=error):
                result = run("predict", "the [MASK]")
            assert (result.exit_code, result.output) == (1, f"error: {error}\n")

    @pytest.mark.parametrize("asked", [("--version",), ("--help",), ("view", "--help")])
    def test_a_closed_pipe_ends_quietly(self, asked):
        read, write = os.pipe()
        os.close(read)
        try:
            done = process(*asked, stdout=write)
        finally:
            os.close(write)
        assert (done.returncode, done.stderr) == (141, "")

    @pytest.mark.skipif(not Path("/dev/full").exists(), reason="the system has no /dev/full")
    def test_a_full_output_is_one_line_of_error(self):
        with open("/dev/full", "w") as full:
            done = process("--version", stdout=full)
        message = "error: standard output cannot be written to (No space left on device).\n"
        assert (done.returncode, done.stderr) == (1, message)


# Keys that are there only for a rotary model, a model in the cache, a wrong kernel.
SOMETIMES: dict[str, tuple[str, ...]] = {
    "predict": (),
    "explain": ("query_unrotated", "key_unrotated", "why"),
    "models": ("cached",),
    "check": ("causes", "not_covered"),
    "verify": (),
}


def keys_of(value: object, prefix: str = "") -> Iterator[str]:
    """Every key of a document, as the page writes it."""
    if isinstance(value, dict):
        for name, one in value.items():
            yield from keys_of(one, f"{prefix}.{name}" if prefix else name)
    elif isinstance(value, list):
        for one in value:
            yield from keys_of(one, f"{prefix}[]")
    else:
        yield prefix


def document(command: str, *arguments: str, status: int = 0) -> dict[str, Any]:
    """What a command writes with --json: one line, with the keys of its table in the page."""
    result = run(command, *arguments, "--json")
    assert result.exit_code == status, result.output
    assert result.stdout.count("\n") == 1
    found: dict[str, Any] = json.loads(result.stdout, parse_constant=pytest.fail)
    table = PAGE.split(f"\n`{command}`:\n\n")[1].split("\n\n")[0]
    cells = [line.split("|")[1] for line in table.splitlines()[2:]]
    promised = {key for cell in cells for key in re.findall(r"`([^`]+)`", cell)}
    there = set(keys_of(found))
    assert there <= promised
    sometimes = ("why",) if "tiny-llama" in arguments else SOMETIMES[command]
    assert [key for key in promised - there if not key.startswith(sometimes or "?")] == []
    return found


class TestJson:
    def test_predict_has_the_numbers_of_the_library(self):
        found = document("predict", "the horse [MASK] away .", "--top", "3")
        (expected,) = load().predict("the horse [MASK] away .", top=3)
        (prediction,) = found["predictions"]
        assert prediction["token"] == "[MASK]"
        assert [(one["label"], one["probability"]) for one in prediction["choices"]] == [
            (choice.label, choice.probability) for choice in expected.choices
        ]

    def test_explain_has_the_numbers_of_the_trace(self):
        trace = load(dtype=torch.bfloat16).trace("the horse turned")
        expected = explain(trace, layer=1, head=2, query="horse", key="[SEP]").to_dict()
        chosen = ("--query", "horse", "--key", "[SEP]", "--dtype", "bfloat16")
        assert document(*EXPLAIN, *chosen) == expected
        document(*EXPLAIN, "--query", "horse", "--model", "tiny-llama")

    def test_why_adds_the_parts_of_the_score(self):
        given = (*EXPLAIN, "--query", "horse", "--why")
        found = json.loads(run(*given, "--json").stdout)
        assert sum(map(sum, found["why"]["values"])) == pytest.approx(found["score"], rel=1e-4)
        assert "looks at" in said(*given)

    def test_models_lists_what_is_here(self):
        found = document("models")
        assert {one["name"]: one["parameters"] for one in found["embedded"]} == {
            name: sum(one.numel() for one in load(name).parameters()) for name in embedded_names()
        }
        assert found.keys() == {"embedded", "cached", "backends"}
        rules = found["backends"]
        assert rules["dtype_auto"].startswith(("bfloat16 from", "float32"))
        assert all(rule in said("models", "--backends") for rule in rules.values())

    def test_check_says_right_and_wrong(self, tmp_path):
        quick = ("--dtype", "float32", "--tokens", "17", "--quick")
        right = document("check", planted.written(tmp_path, planted.RIGHT), *quick)
        assert right["right"] is True
        assert all(one["error"] <= one["allowed"] for one in right["checks"])
        wrong = document("check", planted.written(tmp_path, planted.TF32), *quick, status=1)
        assert wrong["right"] is False
        assert "tf32" in wrong["causes"][0]

    def test_verify_has_the_numbers_of_its_certificate(self, inputs):
        folder = str(Path(minibert.__file__).parent / "embedded" / "tiny-bert")
        found = document("verify", folder, "--longest", "5", "-o", "certificate.json")
        assert found["right"] is True
        assert found == json.loads((inputs / "certificate.json").read_text())
        assert [one["name"] for one in found["files"]] == ["config.json", "model.safetensors"]

    def test_numbers_that_json_has_no_word_for_are_null(self, capsys):
        say_json({"a": [1.0, float("nan")], "b": (float("-inf"), "x")})
        assert capsys.readouterr().out == '{"a": [1.0, null], "b": [null, "x"]}\n'


# Commands that answer, and what stands in their answer.
ANSWERS = [
    (f"explain 'the horse turned' {HERE} --query horse", r"query  2 horse\n.*\n\nquery·key = .*"),
    ("predict 'the [MASK] hopped' --top 1", r"masked token at position 2, \[MASK\]\n +prob\n.*█\n"),
    ("predict 'a fox' -m tiny-gpt2 --top 1", r"next token after position \d, .*"),
    ("view 'a b' --view neuron", r"attention.html  \d+ kB\n"),
    ("view 'a b' 'c d' -o other.html", r"other.html  \d+ kB\n"),
    ("live -o live.html", r"live.html  \d\.\d MB\n"),
    ("live --story -o story.html", r"story.html  8\.\d MB\n"),
    ("generate 'Once upon' --seed 3 --max-new-tokens 2", r"Once upon .+\n"),
    ("models", r"embedded\n +name .*tiny-bert +bert +pre-training +4 x 4 .*"),
]


@pytest.mark.parametrize(("line", "answer"), ANSWERS, ids=lambda v: v[:40])
def test_a_command_answers_and_opens_no_browser(line, answer, inputs, monkeypatch):
    monkeypatch.setattr("webbrowser.open", pytest.fail)
    shown = said(*shlex.split(line))
    assert re.fullmatch(rf".*?{answer}", shown, re.DOTALL), shown
    assert all(c.isprintable() or c == "\n" for c in shown)


class TestTexts:
    def test_a_text_can_come_from_standard_input_and_be_cut(self):
        rest = (*EXPLAIN[2:], "--query", "horse", "--json")
        piped = said("explain", "-", *rest, stdin="the horse turned\n")
        assert piped == said("explain", "the horse turned", *rest)
        limit = load().config.n_positions
        long = run("explain", LONG, *EXPLAIN[2:], "--query", "-1", "--truncate", "--json")
        assert len(json.loads(long.stdout)["tokens"]) == limit
        assert long.stderr == f"note: the text is cut after {limit} tokens.\n"

    def test_a_page_is_the_one_of_python_and_opened_where_asked(self, inputs, monkeypatch):
        opened: list[str] = []
        monkeypatch.setattr("webbrowser.open", opened.append)
        path = inputs / "page.html"
        said("view", *TEXTS, "-o", str(path), "--open", "--why", "1-2", "--why", "3-0")
        assert path.read_text() == load().trace(*TEXTS).view(why=[(1, 2), (3, 0)]).html
        assert opened == [path.as_uri()]


class TestGenerate:
    def test_it_prints_the_text_that_python_gives_with_every_option(self, gpt2):
        model = load(gpt2)
        shown = run("generate", "-", "-m", gpt2, stdin=f"{PROMPT}\n")
        assert shown.stdout_bytes.decode() == f"{model.generate(PROMPT)}\n"
        assert shown.stderr == ""
        numbers = {"max_new_tokens": 31, "temperature": 1.7, "top_k": 50, "top_p": 0.9, "seed": 5}
        options: dict[str, Any] = dict(numbers)
        named = [part for name, v in numbers.items() for part in (f"--{name.replace('_', '-')}", v)]
        expected = model.generate(PROMPT, **options)
        assert said("generate", PROMPT, "-m", gpt2, *map(str, named)) == f"{expected}\n"

    @pytest.mark.parametrize("terminal", [True, False])
    def test_pieces_are_written_as_they_come_and_steer_no_terminal(
        self, terminal, gpt2, monkeypatch
    ):
        written: list[str] = []

        class Output:
            encoding = "utf-8"

            def write(self, text: str) -> None:
                written.append(text)

            def flush(self) -> None:
                written.append("")

            def isatty(self) -> bool:
                return terminal

        prompt = "\x1b[2J" + PROMPT
        pieces: list[str] = []
        load(gpt2).generate(prompt, max_new_tokens=9, stream=pieces.append)
        from minibert.cli.answers import generate

        monkeypatch.setattr(sys, "stdout", Output())
        generate(text=prompt, model=gpt2, max_new_tokens=9)
        assert len(pieces) > 3
        assert written[1 : 2 * len(pieces) : 2] == [""] * len(pieces)
        shown = "".join(written)
        assert ("\\x1b[2J" in shown, "\x1b" in shown) == (terminal, not terminal)
        if not terminal:
            assert written[: 2 * len(pieces) : 2] == [prompt + pieces[0], *pieces[1:]]

    def test_the_end_of_the_positions_is_noted_and_characters_are_written_out(self, gpt2):
        result = run("generate", PROMPT, "-m", gpt2, "--max-new-tokens", "300")
        message = r"note: the text ends here, because .* has only 67 positions\.\n"
        assert re.fullmatch(message, result.stderr)
        shown = run("generate", "naïve", "-m", gpt2, charset="ascii").stdout_bytes
        assert shown.startswith(b"na\\xefve")


def test_what_is_no_number_is_called_so_in_our_words():
    numbers = r"^  (?:-\w, )?(--[\w-]+) (N|X|NUMBER|SECONDS)\b"
    found = 0
    for command in app.registered_commands:
        name = command.callback.__name__
        for option, _ in re.findall(numbers, run(name, "--help").output, re.MULTILINE):
            done = run(name, option, "zero", "text", "text")
            assert re.search("'zero': expected a (whole )?number", done.output), (name, option)
            found += 1
    assert found > 20


class TestModels:
    @pytest.fixture
    def cache(self, tmp_path):
        """A Hugging Face cache with two bert models, one of them broken, and a stranger."""
        commit = "0123456789abcdef0123456789abcdef01234567"
        for name in ("whole", "broken", "stranger"):
            folder = tmp_path / f"models--owner--{name}"
            snapshot = folder / "snapshots" / commit
            for made in (snapshot, folder / "refs"):
                made.mkdir(parents=True)
            (folder / "refs" / "main").write_text(commit)
            source = Path(minibert.__file__).parent / "embedded" / "tiny-bert"
            config = (source / "config.json").read_text()
            other = '{"model_type": "t5"}'
            (snapshot / "config.json").write_text(other if name == "stranger" else config)
            if name == "whole":
                shutil.copy(source / "model.safetensors", snapshot)
        return tmp_path

    def test_embedded_and_cached_models_are_listed(self, cache, monkeypatch):
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(cache))
        embedded, cached = said("models").split("\n\n")
        model = load()
        count = sum(parameter.numel() for parameter in model.parameters())
        row = next(line for line in embedded.splitlines() if "tiny-bert" in line)
        expected = ["bert", "pre-training", f"{model.config.n_layers} x", f"{count / 1e6:.1f} M"]
        assert all(cell in row for cell in expected), row
        assert "owner/whole" in cached
        assert "owner/broken cannot be loaded: " in cached
        assert "stranger" not in cached


class TestCorpus:
    def test_survey_writes_tables_and_says_which_heads_are_the_most_of_a_kind(self, inputs):
        pytest.importorskip("pyarrow")
        corpus = inputs / "two.txt"
        corpus.write_text("The horse ran away .\n\nThe boat turned slowly .\n", encoding="utf-8")
        command = ("survey", str(corpus), "-o", "tables")
        shown = said(*command, "--offset", "2", "--token", "horse")
        assert shown.startswith("2 documents, 14 tokens: ")
        found = Survey.read(inputs / "tables")
        layer, head = divmod(int(found.table("to_previous").argmax()), found.n_heads)
        assert re.search(rf"to_previous +most in layer {layer} head {head}: ", shown)
        assert {"to_offset_2", "to_token:horse_by_norm"} <= set(found.names)
        again = run(*command)
        assert again.exit_code == 1
        assert re.search("a run with other options.* or .*--restart", again.stderr)
        assert said(*command, "--restart", "--limit", "1").startswith("1 documents, 7 tokens: ")
        skipping = run("survey", "broken.jsonl", "-o", "others", "--on-error", "skip")
        assert skipping.exit_code == 0, skipping.output
        assert "1 documents were left out; manifest.json says which and why" in skipping.stderr

    def test_patterns_reads_built_in_pairs_where_no_corpus_is_named(self):
        result = run("patterns")
        assert result.exit_code == 0
        assert "no corpus is named" in result.stderr
        for pattern in PATTERNS.values():
            assert f"\n{pattern.name}: {pattern.words}\n" in result.stdout
        assert "  2-3*  1.00" in result.stdout

    def test_patterns_reads_a_corpus_as_asked(self, inputs):
        lines = ({"a": "the old house", "b": f"a house of wood, number {n}"} for n in range(5))
        (inputs / "pairs.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
        reading = ("--field", "a", "--pair-field", "b", "--limit", "3")
        found = json.loads(said("patterns", "pairs.jsonl", *reading, "--json"))
        documents = {name: table["documents"] for name, table in found.items()}
        assert documents["next"] == documents["same_word_other_sentence"] == 3
        assert documents["induction"] == 100
        [example, *_] = found["same_word_other_sentence"]["heads"][0]["examples"]
        assert example["document"] == "pairs.jsonl:1"
