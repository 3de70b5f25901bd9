"""The text of an explanation: every number right to its digits, every line within the terminal."""

import re
from dataclasses import replace

import pytest
import torch
from small_traces import small_trace

from minibert.answers.explain import Explanation, explain, render
from minibert.terminal import Terminal, cell_width

NUMBER = re.compile(r"-?\d+\.\d{4}\b|-?\d\.\de-\d\d|(?<= )0(?= |$)")


def numbers(text: str) -> list[float]:
    return [float(found) for found in NUMBER.findall(text)]


def section(text: str, name: str) -> list[str]:
    """The lines of one step below its title and header."""
    block = next(part for part in text.split("\n\n") if part.startswith(f"{name} ="))
    return block.splitlines()[1:]


def row_of(lines: list[str], first: str) -> list[float]:
    return numbers(next(line for line in lines if line.split()[0] == first).split(first, 1)[1])


@pytest.fixture
def about() -> Explanation:
    return explain(small_trace(causal=True), layer=1, head=0, query=7, key=3)


def test_the_products_are_the_largest_and_add_up(about: Explanation) -> None:
    lines = section(render(about, top=3), "query·key")[1:]
    order = sorted(range(len(about.product)), key=lambda i: -abs(about.product[i].item()))
    assert [int(line.split()[0]) for line in lines[:3]] == order[:3]
    for i, line in zip(order, lines[:3], strict=False):
        expected = [float(t[i]) for t in (about.query, about.key, about.product)]
        assert numbers(line.split(None, 1)[1]) == pytest.approx(expected, abs=5.1e-5)
    rest = sum(about.product[i].item() for i in order[3:])
    assert numbers(lines[3]) == pytest.approx([rest], abs=5.1e-5)
    assert row_of(lines, "sum") == pytest.approx([about.dot], abs=5.1e-5)


def test_the_score_is_the_product_with_the_scale(about: Explanation) -> None:
    lines = section(render(about), "score")
    expected = [about.dot, about.scale, about.score]
    assert numbers(lines[0]) == pytest.approx(expected, abs=5.1e-5)
    assert lines[1].split(None, 1)[1] == "allows 8 of 11 keys"


def test_the_row_shows_every_allowed_key_and_adds_up_the_masked_ones(about: Explanation) -> None:
    lines = section(render(about), "probs")[1:]
    for position in range(8):
        columns = (about.scores, about.exponentials, about.probs)
        expected = [float(column[position]) for column in columns]
        found = numbers(" ".join(lines[position].split()[2:]))
        assert found == pytest.approx(expected, abs=5.1e-5)
    assert lines[8].split() == ["3", "masked", "keys", "0", "0"]
    assert row_of(lines, "sum") == pytest.approx([about.total, 1.0], abs=5.1e-5)


def test_the_contributions_and_the_others_add_up_to_z(about: Explanation) -> None:
    text = render(about, Terminal(120), top=2)
    lines = section(text, "z")
    dims = [int(i) for i in re.findall(r"z\[(\d+)\]", lines[0])]
    assert row_of(lines, "z")[1:] == pytest.approx([about.z[d].item() for d in dims], abs=5.1e-5)
    columns = [numbers(line)[-len(dims) :] for line in lines[1:4]]
    assert len(columns) == 3
    sums = [sum(column) for column in zip(*columns, strict=True)]
    assert sums == pytest.approx([about.z[d].item() for d in dims], abs=2e-4)


def test_a_masked_key_that_was_asked_for_is_called_masked() -> None:
    about = explain(small_trace(causal=True), layer=1, head=0, query=4, key=9)
    text = render(about)
    assert "this one is masked" in section(text, "score")[1]
    row = next(line for line in section(text, "probs") if line.split()[0] == "9")
    assert row.split()[3:] == ["masked", "0"]
    assert numbers(row.split("masked")[0]) == pytest.approx([about.score], abs=5.1e-5)


def test_a_long_row_shows_the_most_attended_keys_and_the_sum_of_the_others() -> None:
    about = explain(small_trace(n_tokens=47), layer=0, head=1, query=2, key=31)
    lines = section(render(about, top=5), "probs")[1:]
    shown = [int(line.split()[0]) for line in lines if line.split()[0].isdigit()][:-1]
    expected = {31, *about.probs.topk(5).indices.tolist()}
    assert shown == sorted(expected)
    rest = 1 - about.probs[shown].sum().item()
    other = next(line for line in lines if "other keys" in line)
    assert other.split()[0] == str(47 - len(expected))
    assert numbers(other)[-1] == pytest.approx(rest, abs=6e-5)


def test_no_line_is_wider_than_the_terminal() -> None:
    for n_tokens in (1, 11, 47):
        about = explain(small_trace(n_tokens=n_tokens), layer=0, head=1, query=0)
        about = replace(about, tokens=("日本語の長い長い長い長い長い長い言葉",) * n_tokens)
        for width in (80, 97, 120, 200):
            for colour in (False, True):
                lines = render(about, Terminal(width, colour)).splitlines()
                assert max(map(cell_width, lines)) <= width


def test_tokens_cannot_disturb_the_terminal(about: Explanation) -> None:
    hostile = ("\x1b[31m", "\u202etxet", "\n", "\x07", "\u200b", "\ud800", "\x9b2J", "שלום")
    text = render(replace(about, tokens=hostile + ("a",) * 3))
    assert not set(text) & set("\x1b\u202e\x07\u200b\ud800\x9b")
    for written in (
        r"\x1b[31m",
        r"\u202etxet",
        r"\n",
        r"\x07",
        r"\u200b",
        r"\ud800",
        r"\x9b2J",
    ):
        assert written in text


def test_colour_changes_no_character(about: Explanation) -> None:
    coloured = render(about, Terminal(80, colour=True))
    assert "\x1b[" in coloured
    assert re.sub(r"\x1b\[[\d;]*m", "", coloured) == render(about, Terminal(80))


SCALES: list[tuple[dict[str, bool | float], str]] = [
    ({}, "scale = 1/√7 = 0.3780"),
    ({"query_scalar": 1.0}, "scale = 1"),
    ({"scale_by_layer": True}, "scale = 1/(√7·(layer + 1)) = 1/(√7·3) = 0.1260"),
    (
        {"query_scalar": 1.0, "scale_by_layer": True},
        "scale = 1/(layer + 1) = 1/3 = 0.3333",
    ),
]


def test_the_scale_is_said_as_the_model_has_it() -> None:
    for changes, formula in SCALES:
        about = explain(small_trace(causal=True, **changes), layer=2, head=0, query=3)
        assert any(line.endswith(formula) for line in render(about).splitlines())


def test_a_model_in_half_precision_says_that_it_rounds(about: Explanation) -> None:
    model = small_trace().model.to(torch.bfloat16)
    half = explain(model.trace([3, 5, 7]), layer=0, head=0, query=1)
    assert "rounds to bfloat16" in render(half)
    assert "rounds" not in render(about)
