"""The tables of docs/kernels.md: implementations, workloads and signatures."""

import re
from pathlib import Path

import pytest
from command_line import run

from minibert.bench.signatures import SIGNATURES
from minibert.kernels.call import OPTIONS, SHAPES
from minibert.kernels.check.workload import WORKLOADS
from minibert.kernels.registry import foldable, implementations

PAGE = Path(__file__).resolve().parents[2] / "docs" / "kernels.md"

COLUMNS = {
    "lengths": ("lengths",),
    "causal": ("causal",),
    "mask": ("mask",),
    "bias": ("bias",),
    "scale": ("scale",),
    "groups": ("groups",),
    "d_v": ("value_size",),
    "window": ("window",),
    "prefix": ("prefix",),
    "cap": ("soft_cap",),
    "alibi": ("alibi_slopes",),
    "sinks": ("sinks",),
    "packed": ("packed", "packed_keys"),
    "pages": ("pages", "lengths"),
    "gradient": (),
}


def rows_of(first: str) -> list[list[str]]:
    """The rows of the table on the page whose header begins so; code marks left out."""
    text = PAGE.read_text(encoding="utf-8").split(first, 1)[1]
    lines = re.match(r"[^\n]*\n\|[-|]+\|\n((?:\|.*\n)+)", text)
    assert lines
    rows = lines[1].replace("`", "").splitlines()
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]


def test_the_page_shows_what_every_implementation_takes() -> None:
    shown = rows_of("| | lengths |")
    assert {name for names in COLUMNS.values() for name in names} == {*OPTIONS, *SHAPES} - {"want"}
    for (name, *cells), one in zip(shown, implementations().values(), strict=True):
        taken, folds = one.options, one.options | foldable(one.options, frozenset())
        expected = [
            "yes" if {*names} <= taken else "folded" if {*names} <= folds else "-"
            for names in COLUMNS.values()
        ]
        assert (name, cells[:-1]) == (one.name, expected[:-1])
        assert cells[-1] == ("yes" if "z" in one.differentiable else "-")
    header = next(line for line in PAGE.read_text().splitlines() if line.startswith("| | lengths"))
    assert [one.strip() for one in header.strip("| ").split("|")] == list(COLUMNS)


def test_the_page_shows_every_workload_and_every_signature() -> None:
    shown = rows_of("| `--workload` |")
    for (name, size, asks), one in zip(shown, WORKLOADS.values(), strict=True):
        sizes = f"{one.batch} x {one.heads} heads x {one.tokens}, d_head {one.d_head}"
        assert (name, size) == (one.name, sizes)
        order, lengths = ["causal"] * one.causal, ["varied lengths"] * (one.lengths == "varied")
        assert asks == ", ".join([*order, *lengths, *filter(None, [one.about()])])
    assert [row[0] for row in rows_of("| `--signature` |")] == list(SIGNATURES)
    for name, _, known_by in rows_of("| `--signature` |"):
        if SIGNATURES[name].known_by:
            assert set(known_by.split(", ")) == SIGNATURES[name].known_by


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("--workload", "bert"),
            "no workload bert (did you mean 'bert-base-512'?); known are bert-base-512, gpt2-1024",
        ),
        (("--signature", "cuda"), "--signature cuda is not known; known are minibert, plain"),
    ],
)
def test_an_unknown_name_is_bad_usage_in_one_line(arguments, message) -> None:
    result = run("check", "docs/kernels/newcomer.py:attention", *arguments)
    assert result.exit_code == 2
    assert message in result.stderr
    assert result.stderr.count("\n") == 1
