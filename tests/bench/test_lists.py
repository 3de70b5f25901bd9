"""What `minibert bench --list` prints, and the same tables in docs/kernels.md."""

import re
from pathlib import Path

import pytest
from command_line import run

from minibert.bench.signatures import SIGNATURES
from minibert.bench.tables import COLUMNS, implementation_rows, workload_rows
from minibert.kernels.check.workload import WORKLOADS

PAGE = Path(__file__).resolve().parents[2] / "docs" / "kernels.md"


def rows_of(first: str) -> list[list[str]]:
    """The rows of the table on the page whose header begins so; code marks left out."""
    text = PAGE.read_text(encoding="utf-8").split(first, 1)[1]
    lines = re.match(r"[^\n]*\n\|[-|]+\|\n((?:\|.*\n)+)", text)
    assert lines
    rows = lines[1].replace("`", "").splitlines()
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]


def test_the_page_shows_what_every_implementation_takes() -> None:
    shown = rows_of("| | lengths |")
    # Where it runs is of this machine.
    assert shown == [list(row[:-1]) for row in implementation_rows()]
    header = next(line for line in PAGE.read_text().splitlines() if line.startswith("| | lengths"))
    assert [one.strip() for one in header.strip("| ").split("|")] == list(COLUMNS)


def test_the_page_shows_every_workload_and_every_signature() -> None:
    assert rows_of("| `--workload` |") == [list(row[:3]) for row in workload_rows()]
    assert [row[0] for row in rows_of("| `--signature` |")] == list(SIGNATURES)
    for name, _, known_by in rows_of("| `--signature` |"):
        if SIGNATURES[name].known_by:
            assert set(known_by.split(", ")) == SIGNATURES[name].known_by


def test_the_list_names_all_of_them() -> None:
    result = run("bench", "--list")
    assert result.exit_code == 0, result.output
    for name in (*WORKLOADS, *SIGNATURES, *(row[0] for row in implementation_rows())):
        assert re.search(rf"^  {name} ", result.stdout, re.M), name


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--workload", "bert"), "no workload bert; known are bert-base-512, gpt2-1024"),
        (("--signature", "cuda"), "--signature cuda is not known; known are minibert, plain"),
    ],
)
def test_an_unknown_name_is_bad_usage_in_one_line(arguments, message) -> None:
    result = run("check", "docs/kernels/newcomer.py:attention", *arguments)
    assert result.exit_code == 2
    assert message in result.stderr
    assert result.stderr.count("\n") == 1
