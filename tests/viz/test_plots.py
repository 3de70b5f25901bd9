"""The figure of a training log: what is drawn, what is named, and what is refused."""

import json
import math
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


def score(pattern: str, moment: int, layer: int, head: int) -> float:
    """Something that grows with training, and most for another head in each pattern."""
    favourite = list(TITLES).index(pattern) % (LAYERS * HEADS)
    speed = 1.0 if layer * HEADS + head == favourite else 0.3
    return round(0.9 * (1 - math.exp(-speed * moment)), 4)


def row(moment: int, patterns: tuple[str, ...] = GPT2, **changes: Any) -> str:
    heads = {
        name: [[score(name, moment, layer, h) for h in range(HEADS)] for layer in range(LAYERS)]
        if name in patterns
        else None
        for name in TITLES
    }
    own = {"tokens": 1 + moment * 1000, "loss": 8.0 - moment, "held_out_loss": 8.5 - moment}
    return json.dumps({"step": moment, **own, "heads": heads, **changes})


def log(folder: Path, patterns: tuple[str, ...] = GPT2, *more: str) -> Path:
    path = folder / "scores.jsonl"
    lines = (*(row(moment, patterns) for moment in range(MOMENTS)), *more)
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


@pytest.mark.parametrize("patterns", [GPT2, tuple(TITLES), ("delimiter",), ()])
def test_there_is_a_panel_for_each_pattern_that_was_measured_and_the_loss(
    tmp_path: Path, patterns: tuple[str, ...]
) -> None:
    titles = [
        panel.get_title(loc="left").partition(":")[0].partition(",")[0]
        for panel in training_scores(log(tmp_path, patterns)).axes
    ]
    assert titles == [*(TITLES[name] for name in patterns), "Loss"]


def test_a_line_holds_the_scores_of_its_head_and_the_best_is_named_in_its_layers_colour(
    tmp_path: Path,
) -> None:
    places = [(layer, head) for layer in range(LAYERS) for head in range(HEADS)]
    panels = training_scores(log(tmp_path, tuple(TITLES))).axes
    for panel, name in zip(panels, TITLES, strict=False):
        found = sorted(tuple(line.get_ydata()) for line in panel.lines)
        assert found == sorted(tuple(score(name, m, *at) for m in range(MOMENTS)) for at in places)
        layer, head = divmod(list(TITLES).index(name), HEADS)
        (label,) = (text for text in panel.texts if text.get_text() == f"{layer}-{head}")
        *others, line = panel.lines
        assert list(line.get_xdata()) == [1 + 1000 * moment for moment in range(MOMENTS)]
        assert label.xy == (line.get_xdata()[-1], line.get_ydata()[-1])
        assert label.get_color() == line.get_color()
        assert all(other.get_linewidth() < line.get_linewidth() for other in others)


def test_a_line_that_is_no_measurement_is_an_error_with_its_number(tmp_path: Path) -> None:
    for line, reason in (
        ('{"step": 3, "tok', "no measurement"),
        ("[1, 2]", "no measurement"),
        ('{"loss": 3.0, "heads": {}}', "'tokens'"),
        ('{"tokens": 9000, "loss": 3.0}', "'heads'"),
        (row(9, tokens="many"), "no measurement"),
        (row(9, heads={"previous": [[0.1, 0.2], [0.1]]}), "no measurement"),
        (row(9, heads={"previous": [[0.1, 0.2]]}), "scores are not"),
    ):
        with pytest.raises(MinibertError, match=rf"scores\.jsonl, line 6: .*{reason}"):
            training_scores(log(tmp_path, GPT2, line))
