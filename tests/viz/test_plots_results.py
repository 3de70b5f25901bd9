"""A Result draws itself: the numbers and names in a picture are its own, whatever its axes."""

import sys
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from drawn_results import H, L, results
from figure_texts import cut_off, image, named, tokens

from minibert.errors import MinibertError, TraceError
from minibert.result import Result
from minibert.viz.plots import plain

# A token that no font has is a box, of which matplotlib warns.
pytestmark = pytest.mark.filterwarnings("ignore:Glyph")


def same(picture: Any, tensor: torch.Tensor) -> bool:
    return bool(np.array_equal(np.asarray(picture), tensor.double().numpy()))


def texts(panel: Any) -> list[str]:
    return [text.get_text() for text in panel.texts]


@pytest.mark.parametrize("sentence", [0, 1])
def test_a_matrix_is_drawn_without_padding_queries_down_and_keys_across(sentence):
    result = results()["query x key"]
    N = len(result.tokens[sentence])
    panel = result.plot(sentence=sentence).axes[0]
    assert same(image(panel), result.values[sentence, :N, :N])
    assert (panel.get_ylabel(), panel.get_xlabel()) == ("query", "key")
    assert named(panel, "x") == named(panel, "y") == list(tokens(N))


def test_every_head_is_a_small_map_and_a_chosen_one_is_large():
    result = results()["heads"]
    grid = image(result.plot(sentence=1).axes[0])
    tiles = [grid[6 * n : 6 * n + 5, 6 * h : 6 * h + 5] for n, h in np.ndindex(L, H)]
    wanted = result.values[:, 1, :, :5, :5].flatten(0, 1)
    assert all(same(tile, head) for tile, head in zip(tiles, wanted, strict=True))
    assert grid[5].mask.all()
    one = result.plot(layer=1, head=2).axes[0]
    assert same(image(one), result.values[1, 0, 2])
    assert one.get_title(loc="left") == "Heads, head 1-2"


def test_a_long_head_is_drawn_by_what_is_farthest_from_0_in_each_block():
    values = torch.zeros(1, 1, 131, 131)
    values[0, 0, 130, 0], values[0, 0, 3, 7], values[0, 0, 2, 6] = 1.0, -0.5, 0.25
    result = Result(values, "batch head query key", tokens=(tokens(131),), signed=True)
    drawn = image(result.plot().axes[0])
    assert drawn.shape == (128, 128)
    assert (drawn[127, 0], drawn[2, 6], drawn[3, 7]) == (1, 0.25, -0.5)


@pytest.mark.parametrize("name", ["token", "position"])
def test_a_bar_stands_for_each_token(name):
    result, choices = results()[name], {"layer": 0} if name == "position" else {}
    shown = result.shown().values
    wanted = shown[0, 1] if name == "position" else shown[1]
    panel = result.plot(sentence=1, **choices).axes[0]
    assert [bar.get_height() for bar in panel.patches] == pytest.approx(wanted[:5].tolist())
    assert named(panel, "x") == list(tokens(5))
    black = [bar.get_edgecolor() == (0, 0, 0, 1) for bar in panel.patches]
    outlined = [n for n, each in enumerate(black) if each]
    assert outlined == ([1] if name == "position" else [])


@pytest.mark.parametrize("name", ["layer x head", "sweep", "blocked", "estimates"])
def test_one_sentence_or_the_mean_of_all_is_shown(name):
    result = results()[name].shown()
    for sentence, wanted in ((1, result.values[:, 1]), (None, result.values.double().mean(1))):
        assert same(image(results()[name].plot(sentence=sentence).axes[0]), wanted)
    with pytest.raises(TraceError, match="no mean to draw"):
        results()["token"].plot(sentence=None)


def test_the_lens_writes_the_token_of_a_rank_into_its_cell():
    result = results()["lens"]
    panel = result.plot(sentence=1, rank=1).axes[0]
    written = {text.get_position(): text.get_text() for text in panel.texts}
    assert len(written) == L * 5
    for row in range(L):
        for column in range(5):
            token = result.words[int(result.ids[row, 1, column, 1])]
            assert written[column, row] == plain(token, 9)
    assert same(image(panel), result.probs[:, 1, :5, 1])
    assert named(panel, "x") == list(tokens(5))
    assert not results(200)["lens"].plot().axes[0].texts


LABELS = {
    " the": "the",
    "  ": "␣␣",
    "a\nb\tc": "a\\nb\\tc",
    "\x00": "\\x00",
    "\u202e": "\\u202e",
    "\ud800": "\\ud800",
    "$x$": "$x$",
    "w" * 10_000: "w" * 21 + "…",
}


def test_any_token_is_one_line_that_can_be_drawn():
    assert {token: plain(token) for token in LABELS} == LABELS


@pytest.mark.slow
def test_every_result_has_a_figure_whose_text_is_inside():
    few, many = results(7, True), results(200)
    # Only what has an axis of tokens is another figure of a longer text.
    longer = {n: one for n, one in many.items() if one.values.shape != few[n].values.shape}
    assert len(longer) > 8
    for name, result in (*few.items(), *longer.items()):
        figure = result.plot()
        assert not cut_off(figure), name
        assert (figure.get_size_inches() < (11, 9)).all(), name


def test_a_figure_is_saved_as_each_kind_of_file_and_again_with_the_same_bytes(tmp_path):
    result = results(hostile=True)["lens"]
    for suffix, start in ((".png", b"\x89PNG"), (".pdf", b"%PDF"), (".svg", b"<?xml")):
        result.plot(tmp_path / f"plot{suffix}")
        result.plot(tmp_path / f"again{suffix}")
        written = [(tmp_path / f"{stem}{suffix}").read_bytes() for stem in ("plot", "again")]
        assert written[0].startswith(start)
        assert written[0] == written[1]
    found = "".join(ElementTree.parse(tmp_path / "plot.svg").getroot().itertext())
    assert found.strip(), "text is drawn as outlines"


def test_what_cannot_be_drawn_or_saved_is_refused(tmp_path, monkeypatch):
    name = "lens"
    with pytest.raises(MinibertError, match=r"ending in \.svg, \.pdf or \.png"):
        results()[name].plot(tmp_path / "plot.jpg")
    assert not list(tmp_path.iterdir())
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MinibertError, match=r"pip install 'minibert-attention\[plots\]'"):
        results()[name].plot()


@pytest.mark.parametrize(
    ("name", "choices"),
    [
        ("attribution", {"sentence": 1}),
        ("attribution", {"count": 0}),
        ("decomposition", {"position": 7}),
        ("lens", {"rank": 2}),
        ("heads", {"layer": 3}),
        ("heads", {"layer": 1, "head": 5}),
        ("heads", {"row": 1}),
        *((name, {"sentence": 2}) for name in ("token", "query x key", "lens", "position")),
        ("token", {"sentence": True}),
    ],
)
def test_a_choice_that_is_not_there_is_an_error(name, choices):
    with pytest.raises(TraceError):
        results()[name].plot(**choices)
