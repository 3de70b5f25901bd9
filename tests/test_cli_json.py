"""`--json`: one document on standard output with the keys of docs/command_line.md; exit codes."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import planted_kernels as planted
import pytest
from command_line import process, run
from planted_kernels import written

from minibert.checkpoint.load import embedded_names
from tests.packages import REPOSITORY

PAGE = (REPOSITORY / "docs" / "command_line.md").read_text(encoding="utf-8")
EXPLAIN = ("explain", "the horse turned", "--layer", "1", "--head", "2", "--query", "horse")
QUICK = ("--dtype", "float32", "--tokens", "17", "--quick")
# How keys begin that are there only for a rotary model, a model in the cache, a wrong kernel.
SOMETIMES: dict[str, tuple[str, ...]] = {
    "predict": (),
    "explain": ("query_unrotated", "key_unrotated"),
    "models": ("cached",),
    "check": ("causes", "not_covered"),
}


def documented(command: str) -> set[str]:
    """The keys in the page's table of a command."""
    table = PAGE.split(f"\n`{command}`:\n\n")[1].split("\n\n")[0]
    cells = [line.split("|")[1] for line in table.splitlines()[2:]]
    return {key for cell in cells for key in re.findall(r"`([^`]+)`", cell)}


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


def refused(word: str) -> None:
    raise AssertionError(f"{word} is no JSON")


def document(*arguments: str, status: int = 0) -> dict[str, Any]:
    """What a command writes: one line of JSON, and nothing but it."""
    result = run(*arguments, "--json")
    assert result.exit_code == status, result.output
    assert result.stdout.count("\n") == 1
    found = json.loads(result.stdout, parse_constant=refused)
    assert isinstance(found, dict)
    return found


def check_keys(command: str, found: dict[str, Any]) -> None:
    """Every key is documented, and every documented one is there that always has to be."""
    there, promised = set(keys_of(found)), documented(command)
    assert there <= promised
    assert [key for key in promised - there if not key.startswith(SOMETIMES[command])] == []


def test_predict_has_the_keys_of_its_table_and_the_numbers_of_the_library() -> None:
    import minibert

    found = document("predict", "the horse [MASK] away .", "--top", "3")
    check_keys("predict", found)
    (expected,) = minibert.load().predict("the horse [MASK] away .", top=3)
    (prediction,) = found["predictions"]
    assert prediction["token"] == "[MASK]"
    assert [one["label"] for one in prediction["choices"]] == [c.label for c in expected.choices]
    assert [one["probability"] for one in prediction["choices"]] == [
        choice.probability for choice in expected.choices
    ]


def test_explain_has_the_keys_of_its_table() -> None:
    check_keys("explain", document(*EXPLAIN))
    rotary = document(*EXPLAIN, "--model", "tiny-llama")
    assert set(keys_of(rotary)) == documented("explain")


def test_models_has_the_keys_of_its_table() -> None:
    found = document("models", "--backends", "--fields")
    check_keys("models", found)
    assert {one["name"] for one in found["embedded"]} == set(embedded_names())
    assert set(document("models")) == {"embedded", "cached"}


def test_check_has_the_keys_of_its_table_for_right_and_wrong_kernels(tmp_path: Path) -> None:
    right = document("check", written(tmp_path, planted.RIGHT), *QUICK)
    check_keys("check", right)
    assert right["right"] is True
    assert all(one["error"] <= one["allowed"] for one in right["checks"])
    wrong = document("check", written(tmp_path, planted.TF32), *QUICK, status=1)
    check_keys("check", wrong)
    assert wrong["right"] is False
    assert "tf32" in wrong["causes"][0]


def test_numbers_that_json_has_no_word_for_are_null() -> None:
    from minibert.cli.options import _plain

    assert _plain({"a": [1.0, float("nan")], "b": (float("-inf"), "x")}) == {
        "a": [1.0, None],
        "b": [None, "x"],
    }


@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        (("predict", "the horse [MASK] away ."), 0),
        (("predict", "no mask and no second text"), 1),
        (("explain", "the horse", "--layer", "99", "--head", "0", "--query", "horse"), 1),
        (("predict", "x", "--model", "/no/such/folder"), 1),
        (("predict",), 2),
        (("predict", "x", "--no-such-option"), 2),
        (("predict", "x", "--top", "0"), 2),
        (("no-such-command",), 2),
        (("check", "no_such_file.py:attention"), 2),
        (("check", "file.py:attention", "--compile"), 2),
    ],
    ids=lambda value: " ".join(value)[:40] if isinstance(value, tuple) else str(value),
)
def test_the_exit_status_says_what_happened_and_a_failure_leaves_standard_output_empty(
    arguments: tuple[str, ...], status: int
) -> None:
    json_option = ("--json",) if arguments[0] in SOMETIMES else ()
    result = run(*arguments, *json_option)
    assert result.exit_code == status, result.output
    assert (result.stdout == "") == (status != 0)
    assert (result.stderr != "") == (status != 0)
    assert re.search(rf"^\| {status} \|", PAGE, re.MULTILINE)


def completed(*words: str) -> "subprocess.CompletedProcess[str]":
    """What bash is told when Tab is pressed behind these words."""
    settings = {"COMP_WORDS": " ".join(words), "COMP_CWORD": str(len(words) - 1)}
    code = "from minibert.cli.main import main; main()"
    return subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | settings | {"_MINIBERT_COMPLETE": "complete_bash"},
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_tab_key_completes_commands_and_options() -> None:
    assert completed("minibert", "pre").stdout.split() == ["predict"]
    assert "--json" in completed("minibert", "predict", "x", "--").stdout.split()


def test_the_completion_that_is_shown_names_the_program() -> None:
    shown = process(
        "--show-completion", "bash", env={"_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    )
    assert shown.returncode == 0
    assert "_MINIBERT_COMPLETE=complete_bash" in shown.stdout
