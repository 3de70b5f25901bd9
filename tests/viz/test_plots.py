"""The figure of a training log: what is drawn, what is named, and what is refused."""

import json
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib import rcParams
from matplotlib.colors import to_hex

from minibert.errors import MinibertError
from minibert.viz import plots
from minibert.viz.plots import training_scores
from minibert.viz.plots.scores_log import read_scores

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
    return [panel.get_title(loc="left") for panel in figure.axes]


def texts(panel: Any) -> list[str]:
    return [text.get_text() for text in panel.texts]


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
    lines = {line.get_gid(): line for line in panel.lines}
    assert len(lines) == LAYERS * HEADS
    for layer in range(LAYERS):
        for head in range(HEADS):
            x, y = lines[f"induction {layer}-{head}"].get_data()
            assert list(x) == [1 + 1000 * moment for moment in range(MOMENTS)]
            assert list(y) == [score("induction", m, layer, head) for m in range(MOMENTS)]


def test_the_best_head_is_named_at_the_end_of_its_line_in_its_layers_colour(
    write: Callable[[Rows], Path],
) -> None:
    for panel, name in zip(training_scores(write(rows(tuple(TITLES)))).axes, TITLES, strict=False):
        layer, head = divmod(list(TITLES).index(name), HEADS)
        label = next(text for text in panel.texts if text.get_text() == f"{layer}-{head}")
        (line,) = (line for line in panel.lines if line.get_gid() == f"{name} {layer}-{head}")
        assert label.xy == (line.get_xdata()[-1], line.get_ydata()[-1])
        assert label.get_color() == line.get_color()
        others = [other for other in panel.lines if other is not line]
        assert all(other.get_linewidth() < line.get_linewidth() for other in others)
        assert all(other.get_zorder() < line.get_zorder() for other in others)


def test_heads_of_a_layer_share_a_colour_and_the_legend_tells_it(
    write: Callable[[Rows], Path],
) -> None:
    figure = training_scores(write(rows()))
    (legend,) = figure.legends
    named = {
        text.get_text(): to_hex(line.get_color())
        for text, line in zip(legend.get_texts(), legend.get_lines(), strict=True)
    }
    drawn = {
        f"layer {line.get_gid().split()[1][0]}": to_hex(line.get_color())
        for line in figure.axes[0].lines
    }
    assert named == drawn
    assert len(set(named.values())) == LAYERS


def test_many_layers_have_shades_of_their_own(write: Callable[[Rows], Path]) -> None:
    log = rows(("previous",))
    for row in log:
        row["heads"]["previous"] = np.full((12, 2), 0.5).tolist()
    figure = training_scores(write(log))
    assert len({to_hex(line.get_color()) for line in figure.axes[0].lines}) == 12
    assert [text.get_text() for text in figure.legends[0].get_texts()][::5] == [
        "layer 0",
        "layer 11",
    ]


def test_the_loss_panel_has_both_losses_where_both_were_measured(
    write: Callable[[Rows], Path],
) -> None:
    log = rows()
    for row in log[::2]:
        del row["held_out_loss"]
    lines = {line.get_label(): line for line in training_scores(write(log)).axes[-1].lines}
    assert list(lines["training"].get_ydata()) == [8, 7, 6, 5, 4]
    assert list(lines["held-out text"].get_xdata()) == [1001, 3001]
    for row in log:
        row.pop("held_out_loss", None)
    lines = {line.get_label(): line for line in training_scores(write(log)).axes[-1].lines}
    assert set(lines) == {"training"}


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
    ("first", "step", "wanted"),
    [
        (10**5, 10**6, {"100k", "300k", "1M", "3M"}),
        (10**4, 10**9, {"10k", "1M", "100M"}),
        (0, 10**6, {"0", "2M", "4M"}),
    ],
)
def test_counts_of_tokens_are_short(
    write: Callable[[Rows], Path], first: int, step: int, wanted: set[str]
) -> None:
    figure = training_scores(write(rows(first=first, step=step)))
    for panel in figure.axes:
        assert wanted <= {label.get_text() for label in panel.get_xticklabels()}


def test_a_single_measurement_is_drawn_as_points(write: Callable[[Rows], Path]) -> None:
    figure = training_scores(write(rows()[2:3]))
    assert {line.get_marker() for panel in figure.axes for line in panel.lines} == {"o"}
    assert "0-0" in texts(figure.axes[0])


def test_the_best_head_is_that_of_the_last_measurement_there_is(
    write: Callable[[Rows], Path],
) -> None:
    log = rows()
    log[-1]["heads"] = {"previous": None, "duplicate": log[-1]["heads"]["duplicate"]}
    log[-2]["heads"]["previous"] = [[None, 0.2, 0.1], [0.3, 0.4, None]]
    panel = training_scores(write(log)).axes[0]
    label = next(text for text in panel.texts if text.get_text() == "1-1")
    assert label.xy == (3001, 0.4)


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


def test_nothing_is_left_beside_the_file_and_the_users_style_stays(
    write: Callable[[Rows], Path], tmp_path: Path
) -> None:
    before = rcParams.copy()
    rcParams["font.size"] = 31.0
    try:
        figure = training_scores(write(rows()), tmp_path / "figure.svg")
        assert rcParams["font.size"] == 31.0
        assert {label.get_size() for label in figure.axes[0].get_xticklabels()} == {8.0}
    finally:
        rcParams.update(before)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["figure.svg", "scores.jsonl"]


def test_a_file_that_cannot_be_written_leaves_the_old_one(
    write: Callable[[Rows], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = tmp_path / "figure.svg"
    output.write_text("the old one", encoding="utf-8")

    def full(self: Path, target: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(MinibertError, match="No space left"):
        training_scores(write(rows()), output)
    assert output.read_text(encoding="utf-8") == "the old one"
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize("name", ["figure.jpg", "figure", "figure.svg.gz"])
def test_another_kind_of_file_is_refused_before_the_log_is_read(tmp_path: Path, name: str) -> None:
    with pytest.raises(MinibertError, match=r"ending in \.svg, \.pdf or \.png"):
        training_scores(tmp_path / "no log", tmp_path / name)


def test_without_matplotlib_the_error_says_what_to_install(
    write: Callable[[Rows], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MinibertError, match=r"pip install 'minibert-attention\[plots\]'"):
        plots.training_scores(write(rows()))


def one_line(**changes: Any) -> str:
    return json.dumps({**rows()[-1], **changes})


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ('{"step": 3, "tok', "no measurement"),
        ("[1, 2]", "no measurement"),
        ('{"loss": 3.0, "heads": {}}', "no 'tokens' in it"),
        ('{"tokens": 9000, "loss": 3.0}', "no 'heads' in it"),
        (one_line(tokens="many"), "no measurement"),
        (one_line(heads={"previous": [[0.1, 0.2], [0.1]]}), "no measurement"),
        (one_line(heads={"previous": [0.1, 0.2]}), r"scores of shape \(2,\)"),
        (one_line(heads={"previous": [[0.1, 0.2]]}), "1 x 2 layers x heads after scores of 2 x 3"),
        (one_line(tokens=2001), "2001 tokens after 2001"),
        (one_line(tokens=float("nan")), "nan tokens after 2001"),
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


@pytest.mark.parametrize("content", ["", "\n\n"])
def test_a_log_without_a_line_is_an_error(tmp_path: Path, content: str) -> None:
    path = tmp_path / "scores.jsonl"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(MinibertError, match="there is no line in it"):
        read_scores(path)


def test_a_log_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(MinibertError, match="cannot be read"):
        training_scores(tmp_path / "nowhere.jsonl")
    (tmp_path / "figure.png").write_bytes(b"\x89PNG\r\n\xff\xfe")
    with pytest.raises(MinibertError, match="no text in UTF-8"):
        training_scores(tmp_path / "figure.png")
