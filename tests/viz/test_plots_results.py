"""Every result of minibert.analysis draws itself: its numbers, its labels, files, refusals."""

import dataclasses
import importlib
import pkgutil
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import torch
from drawn_results import results, signed
from figure_texts import misplaced, tokens
from matplotlib import rcParams
from matplotlib.backends import backend_agg
from matplotlib.backends.backend_agg import RendererAgg

import minibert.analysis
from minibert.analysis.norms import SummedNorms
from minibert.analysis.relevance import Relevance
from minibert.analysis.rollout import Rollout
from minibert.analysis.token_circuits import TokenTable
from minibert.errors import EditError, MinibertError, TraceError

# Where a result is no result but what results are made of.
PARTS = {
    "Circuit",
    "Component",
    "EmbeddingParts",
    "FrozenNorm",
    "HeadWeights",
    "OfOnePosition",
    "PatternKind",
}
RESULTS = list(results())


def test_every_result_of_the_package_is_drawn_here() -> None:
    found = set()
    for module in pkgutil.iter_modules(minibert.analysis.__path__):
        loaded = importlib.import_module(f"minibert.analysis.{module.name}")
        found |= {
            name
            for name, item in vars(loaded).items()
            if dataclasses.is_dataclass(item)
            and item.__module__ == loaded.__name__
            and not name.startswith("_")
        }
    assert found - PARTS == set(RESULTS)


@pytest.mark.slow
@pytest.mark.parametrize(("count", "hostile"), [(5, True), (40, True), (200, False)])
def test_no_text_touches_another_or_the_edge_and_nothing_warns(count: int, hostile: bool) -> None:
    for name, result in results(count, hostile).items():
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            figure = result.plot()
            assert not misplaced(figure), name
        assert (figure.get_size_inches() < (11, 9)).all(), name


def test_texts_are_measured_without_a_canvas_as_large_as_the_sheet(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[float] = []

    class Counted(RendererAgg):
        def __init__(self, width: float, height: float, dpi: float) -> None:
            made.append(width * height)
            super().__init__(width, height, dpi)

    monkeypatch.setattr(backend_agg, "RendererAgg", Counted)
    for result in results(15).values():
        result.plot()
    assert sum(made) < 100


@pytest.mark.parametrize("count", [1, 2, 3])
def test_the_colour_bar_of_a_short_text_can_be_read(count: int) -> None:
    labels = (tokens(count),)
    values = torch.ones(1, count, count).tril()
    shares = values / values.sum(-1, keepdim=True)
    drawings = [
        Rollout(shares, labels),
        Relevance(4 * shares, labels),
        SummedNorms(0, 6.5 * shares, labels),
        TokenTable(9 * signed(1, count), ("a",), labels[0]),
    ]
    for drawing in drawings:
        figure = drawing.plot()
        assert not misplaced(figure), drawing
        bar = figure.axes[-1]
        low, high = bar.get_ylim()
        assert 2 <= sum(low <= tick <= 1.001 * high for tick in bar.get_yticks()) <= 7


# One of each kind of picture.
PICTURES = ("HeadNorms", "LogitAttribution", "LogitLens", "PositionRollout", "QKCircuit", "Sweep")


@pytest.mark.parametrize("name", PICTURES)
def test_a_figure_is_saved_as_each_kind_of_file_and_again_with_the_same_bytes(
    name: str, tmp_path: Path
) -> None:
    result = results(hostile=True)[name]
    for suffix, start in ((".png", b"\x89PNG"), (".pdf", b"%PDF"), (".svg", b"<?xml")):
        figure = result.plot(tmp_path / f"plot{suffix}")
        figure.savefig(tmp_path / f"again{suffix}")
        written = [(tmp_path / f"{stem}{suffix}").read_bytes() for stem in ("plot", "again")]
        assert written[0].startswith(start)
        assert written[0] == written[1]
    texts = "".join(ElementTree.parse(tmp_path / "plot.svg").getroot().itertext())
    assert texts.strip(), "text is drawn as outlines"


def test_a_token_stands_in_the_svg_as_text(tmp_path: Path) -> None:
    results(15, hostile=True)["Rollout"].plot(tmp_path / "plot.svg")
    texts = "".join(ElementTree.parse(tmp_path / "plot.svg").getroot().itertext())
    for token in ("$x^2$", "</script>", "_{", "\\frac", "a\\nb", "\\x00\\x1b", "\\u4e2d"):
        assert token in texts


@pytest.mark.parametrize("name", RESULTS)
def test_without_matplotlib_the_error_says_what_to_install(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MinibertError, match=r"pip install 'minibert-attention\[plots\]'"):
        results()[name].plot()


@pytest.mark.parametrize("name", RESULTS)
def test_another_kind_of_file_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(MinibertError, match=r"ending in \.svg, \.pdf or \.png"):
        results()[name].plot(tmp_path / "plot.jpg")
    assert not list(tmp_path.iterdir())


CHOICES: dict[str, list[dict[str, Any]]] = {
    "LogitAttribution": [{"sentence": 1}, {"count": 0}],
    "Decomposition": [{"sentence": 2}, {"position": 7}, {"count": -1}],
    "IntegratedAttention": [{"head": 5}, {"sentence": 2}],
    "HeadNorms": [{"head": -6}, {"sentence": -3}],
    "LogitLens": [{"sentence": 2}, {"rank": 2}],
    "AttentionRelevance": [{"layer": 3}, {"layer": 1, "head": 5}, {"head": 1}, {"sentence": 2}],
    "PositionRelevance": [{"layer": 3}, {"sentence": 2}],
    "PositionRollout": [{"layer": 3}, {"layer": None, "sentence": 2}],
    "CopyingScores": [{"layer": 1}, {"head": 1}, {"layer": 3, "head": 0}],
} | {
    name: [{"sentence": 2}, {"sentence": True}]
    for name in (
        "Flow",
        "IntegratedEmbeddings",
        "SummedNorms",
        "BlockNorms",
        "Relevance",
        "Rollout",
    )
}


@pytest.mark.parametrize(
    ("name", "options"), [(name, options) for name, all_ in CHOICES.items() for options in all_]
)
def test_a_choice_that_is_not_there_is_an_error(name: str, options: dict[str, Any]) -> None:
    with pytest.raises(TraceError):
        results()[name].plot(**options)


def test_a_sweep_without_a_second_pass_has_nothing_recovered() -> None:
    sweep = dataclasses.replace(results()["Sweep"], patched=None)
    with pytest.raises(EditError, match="no way to recover"):
        sweep.plot(show="recovered")
    with pytest.raises(EditError, match="'change', 'recovered', 'values'"):
        sweep.plot(show="logits")


def test_a_layer_is_named_by_its_own_number_where_a_result_has_some_of_them() -> None:
    whole = results()["AttentionRelevance"]
    some = dataclasses.replace(whole, layers=(4, 7), values=whole.values[:2])
    panel = some.plot(layer=7, head=1).axes[0]
    assert torch.equal(torch.tensor(panel.images[0].get_array()), whole.values[1, 0, 1].double())
    with pytest.raises(TraceError, match="Layer 1 is not in this result; it has 4, 7"):
        some.plot(layer=1)


def test_the_users_settings_neither_matter_nor_change(tmp_path: Path) -> None:
    result = results()["Rollout"]
    result.plot(tmp_path / "plain.svg")
    before = rcParams.copy()
    try:
        chosen = {"font.size": 31.0, "svg.fonttype": "path", "axes.grid": True}
        rcParams.update(chosen)
        result.plot(tmp_path / "other.svg").savefig(tmp_path / "again.svg")
        assert {name: rcParams[name] for name in chosen} == chosen
    finally:
        rcParams.update(before)
    files = {path.read_bytes() for path in tmp_path.iterdir()}
    assert len(files) == 1


def test_pyplot_is_never_imported_and_a_notebook_shows_the_figure() -> None:
    figure = results()["HeadScores"].plot()
    content, shown = figure._repr_png_()
    assert content.startswith(b"\x89PNG")
    assert shown["width"] > shown["height"] > 100
    code = (
        "import sys, torch\n"
        "from minibert.analysis.scores import PATTERNS, HeadScores\n"
        "HeadScores(**{name: torch.rand(2, 3) for name in PATTERNS}).plot()\n"
        "assert 'matplotlib.pyplot' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
