"""The numbers and names in a picture are those of the result, one kind of picture at a time."""

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from drawn_results import BATCH, H, L, numbers, results, signed
from figure_texts import image, named, tokens

from minibert.errors import TraceError
from minibert.viz.plots.heat import Heat, by_head, heat_map
from minibert.viz.plots.labels import plain, step_for


def texts(panel: Any) -> list[str]:
    return [text.get_text() for text in panel.texts]


def same(picture: Any, tensor: torch.Tensor) -> bool:
    return bool(np.array_equal(np.asarray(picture), tensor.double().numpy()))


@pytest.mark.parametrize("sentence", [0, 1])
@pytest.mark.parametrize("name", ["Rollout", "Relevance", "SummedNorms", "BlockNorms"])
def test_a_matrix_is_drawn_without_padding_queries_down_and_keys_across(
    name: str, sentence: int
) -> None:
    result = results()[name]
    values = getattr(result, "norms", None) if "Norms" in name else result.values
    N = len(result.labels[sentence])
    panel = result.plot(sentence=sentence).axes[0]
    assert same(image(panel), values[sentence, :N, :N])
    assert (panel.get_ylabel(), panel.get_xlabel()) == ("query", "key")
    assert named(panel, "x") == named(panel, "y") == list(tokens(N))


def test_relevance_to_itself_lies_beyond_the_colours() -> None:
    result = results()["Relevance"]
    picture = result.plot().axes[0].images[0]
    others = result.values[0] - result.values[0].diagonal().diag()
    assert picture.get_clim() == (0, pytest.approx(others.max().item()))


def test_every_head_is_a_tile_and_a_chosen_one_is_large() -> None:
    result = results()["AttentionRelevance"]
    grid = result.plot(sentence=1).axes[0]
    tiles = result.values[:, 1, :, :5, :5].flatten(0, 1)
    assert len(grid.images) == L * H
    assert all(same(image(grid, n), tile) for n, tile in enumerate(tiles))
    assert len({picture.get_clim() for picture in grid.images}) == 1
    layer = result.plot(layer=-1).axes[0]
    assert [same(image(layer, n), result.values[2, 0, n]) for n in range(H)] == [True] * H
    assert [text for text in texts(layer) if text] == [f"head {n}" for n in range(H)]


def test_a_long_head_is_drawn_by_what_is_farthest_from_0_in_each_block() -> None:
    values = torch.zeros(1, 1, 131, 131)
    values[0, 0, 130, 0], values[0, 0, 3, 7], values[0, 0, 2, 6] = 1.0, -0.5, 0.25
    result = dataclasses.replace(
        results()["IntegratedAttention"], values=values, labels=(tokens(131),)
    )
    drawn = image(result.plot().axes[0])
    assert drawn.shape == (66, 66)
    assert (drawn[65, 0], drawn[1, 3], np.count_nonzero(drawn)) == (1, -0.5, 2)


@pytest.mark.parametrize("name", ["Flow", "IntegratedEmbeddings", "PositionRelevance"])
def test_a_bar_stands_for_each_token(name: str) -> None:
    result = results()[name]
    values = {"Flow": "values", "IntegratedEmbeddings": "tokens", "PositionRelevance": "values"}
    wanted = getattr(result, values[name])
    wanted = wanted[0, 1] if name == "PositionRelevance" else wanted[1]
    panel = result.plot(sentence=1).axes[0]
    heights = [bar.get_height() for bar in panel.patches]
    assert heights == pytest.approx(wanted[:5].tolist())
    assert named(panel, "x") == list(tokens(5))


def test_all_layers_of_a_position_are_a_map() -> None:
    result = results()["PositionRollout"]
    panel = result.plot(layer=None, sentence=1).axes[0]
    assert same(image(panel), result.values[:, 1, :5])
    assert named(panel, "y") == ["0", "1", "2"]


def test_terms_are_sorted_by_size_and_the_rest_is_their_sum() -> None:
    result = results()["LogitAttribution"]
    bars, heads = result.plot(count=4).axes[:2]
    lengths = [bar.get_width() for bar in bars.patches]
    assert lengths[:4] == pytest.approx([value for _, value in result.top(4)])
    assert sum(lengths) == pytest.approx(result.total.item())
    assert named(bars, "y") == [*(name for name, _ in result.top(4)), "12 others"]
    assert same(image(heads), result.by_head())


def test_shares_of_a_decomposition_are_those_along_the_stream_and_sum_to_1() -> None:
    result = results()["Decomposition"]
    bars = result.plot(position=2, sentence=1, count=16).axes[0]
    stream = result.parts[:, 1, 2].sum(0)
    wanted = result.parts[:, 1, 2] @ stream / (stream @ stream)
    lengths = [bar.get_width() for bar in bars.patches]
    assert sorted(lengths) == pytest.approx(sorted(wanted.tolist()), abs=1e-5)
    assert sum(lengths) == pytest.approx(1, abs=1e-5)


def test_the_lens_writes_the_token_of_a_rank_into_its_cell() -> None:
    result = results()["LogitLens"]
    panel = result.plot(sentence=1, rank=1).axes[0]
    written = {text.get_position(): text.get_text() for text in panel.texts}
    assert len(written) == L * 5
    for row in range(L):
        for column in range(5):
            token = result.strings[row][1][column][1]
            assert written[column, row] in (token, token[: len(written[column, row]) - 1] + "…")
    assert same(image(panel), result.probs[:, 1, :5, 1])
    assert named(panel, "x") == list(tokens(5))
    assert not results(200)["LogitLens"].plot().axes[0].texts


def test_every_pattern_that_was_measured_has_a_map_on_one_scale() -> None:
    result = dataclasses.replace(results()["HeadScores"], next=torch.full((L, H), torch.nan))
    panels = [panel for panel in result.plot().axes if panel.images]
    titles = [panel.get_title(loc="left") for panel in panels]
    assert titles == ["previous", "duplicate", "induction", "delimiter"]
    assert all(
        same(image(panel), getattr(result, name))
        for panel, name in zip(panels, titles, strict=True)
    )
    nothing = dataclasses.replace(result, **dict.fromkeys(titles, result.next))
    with pytest.raises(TraceError, match="No pattern was measured"):
        nothing.plot()


def test_composition_leaves_out_heads_that_no_other_head_reads() -> None:
    result = results()["CompositionScores"]
    panel = result.plot().axes[0]
    assert named(panel, "y")[-1] == f"{L - 2}-{H - 1}"
    assert named(panel, "x")[0] == "1-0"
    drawn = image(panel)
    for layer, head, later, second in np.ndindex(L - 1, H, L - 1, H):
        cell = drawn[layer * H + head, later * H + second]
        if later + 1 > layer:
            assert cell == result.scores[layer, head, later + 1, second].item()
        else:
            assert cell is np.ma.masked


@pytest.mark.parametrize("show", ["change", "recovered", "values"])
def test_a_sweep_shows_what_is_asked_for(show: str) -> None:
    result = results()["Sweep"]
    panel = result.plot(show=show).axes[0]
    assert same(image(panel), getattr(result, show))
    assert named(panel, "x") == list(result.columns)
    assert panel.images[0].get_clim()[0] == -panel.images[0].get_clim()[1]


def test_eigenvalues_stand_in_the_complex_plane_and_singular_values_on_a_line() -> None:
    circuit = results()["QKCircuit"]
    line, plane = circuit.plot().axes
    assert line.lines[0].get_ydata() == pytest.approx(circuit.singular_vectors().values.numpy())
    points = plane.collections[0].get_offsets()
    found = circuit.eigenvalues()
    assert np.allclose(np.ma.getdata(points), np.stack([found.real, found.imag], 1))
    head = results()["CopyingScores"]
    points = head.plot(layer=2, head=-1).axes[0].collections[0].get_offsets()
    assert np.allclose(np.ma.getdata(points)[:, 0], head.eigenvalues[2, 4].real)


def test_digits_stand_in_few_cells_and_nan_has_none() -> None:
    values = torch.tensor([[0.126, -0.001], [torch.nan, 1.0]])
    panel = heat_map(by_head(values, signed=True)).axes[0]
    assert texts(panel) == ["0.13", "0.00", "1.00"]
    assert image(panel).mask.tolist() == [[False, False], [True, False]]
    assert not heat_map(by_head(numbers(24, 16))).axes[0].texts
    assert texts(heat_map(by_head(900 * signed(2, 2))).axes[0])[0] == "−450"


def test_a_table_of_nothing_but_nan_is_drawn() -> None:
    figure = heat_map(Heat(torch.full((2, 3), torch.nan), ["a", "b"], ["c", "d", "e"]))
    assert image(figure.axes[0]).mask.all()


def test_labels_of_a_long_text_are_thinned_out_and_numbered() -> None:
    N = 200
    values = numbers(BATCH, N, N)
    result = dataclasses.replace(results()["Rollout"], values=values, labels=(tokens(N),) * 2)
    panel = result.plot().axes[0]
    assert named(panel, "x")[:3] == ["0 [CLS]", "5 jumps", "10 fox"]
    assert list(panel.get_xticks()) == list(range(0, N, 5))


@pytest.mark.parametrize(("count", "inches", "step"), [(10, 2, 1), (40, 2, 5), (200, 6.6, 5)])
def test_labels_stand_at_round_numbers(count: int, inches: float, step: int) -> None:
    assert step_for(count, float(inches)) == step


@pytest.mark.parametrize(
    ("token", "label"),
    [
        (" the", "the"),
        ("  ", "␣␣"),
        ("", ""),
        ("a\nb\tc", "a\\nb\\tc"),
        ("\x00", "\\x00"),
        ("‮", "\\u202e"),
        ("\ud800", "\\ud800"),
        ("$x$", "$x$"),
        ("w" * 10_000, "w" * 21 + "…"),
    ],
)
def test_any_token_is_one_line_that_can_be_drawn(token: str, label: str) -> None:
    assert plain(token) == label
    assert plain(" the", spaces=True) == "␣the"
