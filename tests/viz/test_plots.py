"""The figure of a training log: what is drawn, what is named, and what is refused."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from minibert.errors import MinibertError
from minibert.viz.plots import training_scores

LAYERS, HEADS, MOMENTS = 2, 3, 5
TITLES = {
    "previous": "Previous token",
    "next": "Next token",
    "duplicate": "Duplicate token",
    "induction": "Induction",
    "delimiter": "Delimiter",
}
GPT2 = ("previous", "duplicate", "induction")

Rows = list[dict[str, Any]]


def score(pattern: str, moment: int, layer: int, head: int) -> float:
    """Something that grows with training, and most for another head in each pattern."""
    favourite = list(TITLES).index(pattern) % (LAYERS * HEADS)
    speed = 1.0 if layer * HEADS + head == favourite else 0.3
    return round(0.9 * (1 - math.exp(-speed * moment)), 4)


def rows(patterns: tuple[str, ...] = GPT2, first: int = 1, step: int = 1000) -> Rows:
    found: Rows = []
    for moment in range(MOMENTS):
        heads = {
            name: [[score(name, moment, layer, h) for h in range(HEADS)] for layer in range(LAYERS)]
            if name in patterns
            else None
            for name in TITLES
        }
        found.append(
            {
                "step": moment,
                "tokens": first + moment * step,
                "loss": 8.0 - moment,
                "held_out_loss": 8.5 - moment,
                "heads": heads,
            }
        )
    return found


@pytest.fixture
def write(tmp_path: Path) -> Callable[[Rows], Path]:
    def written(log: Rows) -> Path:
        path = tmp_path / "scores.jsonl"
        path.write_text("".join(f"{json.dumps(row)}\n" for row in log), encoding="utf-8")
        return path

    return written


def titles(figure: Any) -> list[str]:
    return [
        panel.get_title(loc="left").partition(":")[0].partition(",")[0] for panel in figure.axes
    ]


@pytest.mark.parametrize("patterns", [GPT2, tuple(TITLES), ("delimiter",), ()])
def test_there_is_a_panel_for_each_pattern_that_was_measured_and_the_loss(
    write: Callable[[Rows], Path], patterns: tuple[str, ...]
) -> None:
    figure = training_scores(write(rows(patterns)))
    assert titles(figure) == [*(TITLES[name] for name in patterns), "Loss"]


def test_a_line_holds_the_scores_of_its_head_over_the_tokens(
    write: Callable[[Rows], Path],
) -> None:
    panel = training_scores(write(rows())).axes[2]
    lines = list(panel.lines)
    found = {tuple(line.get_ydata()): list(line.get_xdata()) for line in lines}
    wanted = {
        tuple(score("induction", m, layer, head) for m in range(MOMENTS))
        for layer in range(LAYERS)
        for head in range(HEADS)
    }
    assert set(found) == wanted
    assert len(lines) == LAYERS * HEADS
    assert all(x == [1 + 1000 * moment for moment in range(MOMENTS)] for x in found.values())


def test_the_best_head_is_named_at_the_end_of_its_line_in_its_layers_colour(
    write: Callable[[Rows], Path],
) -> None:
    for panel, name in zip(training_scores(write(rows(tuple(TITLES)))).axes, TITLES, strict=False):
        layer, head = divmod(list(TITLES).index(name), HEADS)
        (label,) = (text for text in panel.texts if text.get_text() == f"{layer}-{head}")
        *others, line = panel.lines
        assert label.xy == (line.get_xdata()[-1], line.get_ydata()[-1])
        assert label.get_color() == line.get_color()
        assert list(line.get_ydata()) == [score(name, m, layer, head) for m in range(MOMENTS)]
        assert all(other.get_linewidth() < line.get_linewidth() for other in others)


@pytest.mark.parametrize(
    ("first", "step", "scale"), [(0, 1000, "linear"), (10, 1000, "log"), (10**6, 1000, "linear")]
)
def test_tokens_are_logarithmic_where_they_grow_more_than_tenfold(
    write: Callable[[Rows], Path], first: int, step: int, scale: str
) -> None:
    figure = training_scores(write(rows(first=first, step=step)))
    assert {panel.get_xscale() for panel in figure.axes} == {scale}
    assert {panel.get_ylim() for panel in figure.axes[:-1]} == {(0, 1)}


@pytest.mark.parametrize(
    ("suffix", "start"), [(".png", b"\x89PNG"), (".PDF", b"%PDF"), (".svg", b"<?xml")]
)
def test_the_kind_of_file_is_that_of_its_name_and_the_same_log_gives_the_same_bytes(
    write: Callable[[Rows], Path], tmp_path: Path, suffix: str, start: bytes
) -> None:
    log, contents = write(rows()), []
    for name in ("one", "two"):
        training_scores(log, tmp_path / f"{name}{suffix}")
        contents.append((tmp_path / f"{name}{suffix}").read_bytes())
    assert contents[0].startswith(start)
    assert contents[0] == contents[1]


def one_line(**changes: Any) -> str:
    return json.dumps({**rows()[-1], **changes})


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ('{"step": 3, "tok', "no measurement"),
        ("[1, 2]", "no measurement"),
        ('{"loss": 3.0, "heads": {}}', "'tokens'"),
        ('{"tokens": 9000, "loss": 3.0}', "'heads'"),
        (one_line(tokens="many"), "no measurement"),
        (one_line(heads={"previous": [[0.1, 0.2], [0.1]]}), "no measurement"),
        (one_line(heads={"previous": [0.1, 0.2]}), "scores are not"),
        (one_line(heads={"previous": [[0.1, 0.2]]}), "scores of shapes"),
        (one_line(tokens=2001), "2001 tokens, no more"),
        (one_line(tokens=float("nan")), "nan tokens, no more"),
    ],
)
def test_a_line_that_is_no_measurement_is_an_error_with_its_number(
    write: Callable[[Rows], Path], line: str, reason: str
) -> None:
    path = write(rows()[:3])
    with path.open("a", encoding="utf-8") as log:
        # An empty line counts as a line and for nothing else.
        log.write(f"\n{line}\n")
    with pytest.raises(MinibertError, match=rf"scores\.jsonl, line 5: .*{reason}"):
        training_scores(path)


def test_a_log_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(MinibertError, match="cannot be read"):
        training_scores(tmp_path / "nowhere.jsonl")
    (tmp_path / "figure.png").write_bytes(b"\x89PNG\r\n\xff\xfe")
    with pytest.raises(MinibertError, match="no text in UTF-8"):
        training_scores(tmp_path / "figure.png")
