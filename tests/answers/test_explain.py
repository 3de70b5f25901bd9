"""An explanation has the numbers of the trace, and its text shows them."""

import math
import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from data import data_path
from safetensors.numpy import load_file
from small_traces import HEADS, KINDS, LAYERS, small_trace

from minibert import TraceError
from minibert.answers.explain import (
    Explanation,
    explain,
    find_token,
    render,
    token_note,
    trace_of_head,
)
from minibert.loading import load
from minibert.model import Model
from minibert.terminal import Terminal, cell_width
from minibert.text.tokens import Tokens

PAIR = ("I went to the store.", "At the store, I bought fresh strawberries.")


@pytest.fixture(scope="module")
def minilm() -> Model:
    return load(data_path("models", "all-MiniLM-L6-v2"))


@pytest.mark.parametrize("kind", KINDS)
def test_every_tensor_is_the_one_of_the_trace_and_leads_to_the_next(kind: str) -> None:
    trace = small_trace(**KINDS[kind])
    for layer in range(LAYERS):
        got = explain(trace, layer=layer, head=1, query=5, key=3)
        here = trace[layer, 1]
        expected = {
            "query": here.query[0, 5],
            "key": here.key[0, 3],
            "product": here.product(5)[0, 3],
            "scores": here.scores[0, 5],
            "mask": trace[layer].mask[0, 0, 5],
            "probs": here.probs[0, 5],
            "value": here.value[0],
            "z": here.z[0, 5],
        }
        for name, tensor in expected.items():
            assert torch.equal(getattr(got, name), tensor), name
    for query in range(11):
        got = explain(trace, layer=1, head=0, query=query)
        close = {"rtol": 1e-5, "atol": 1e-5}
        torch.testing.assert_close(got.dot * got.scale, got.score, **close)
        torch.testing.assert_close(got.exponentials / got.total, got.probs.double(), **close)
        torch.testing.assert_close(got.contributions.sum(0), got.z.double(), **close)
        assert got.exponentials.max() == 1


def test_a_rotary_model_with_groups_and_a_soft_cap_shows_them() -> None:
    trace = small_trace(**KINDS["gemma2"])
    got = explain(trace, layer=1, head=1, query=7, key=5)
    assert (got.head, got.kv_head, got.n_kv_heads) == (1, 0, 1)
    assert got.query_unrotated is not None
    frequencies = np.array([1.0, 0.01])
    for position, before, after in (
        (7, got.query_unrotated.double().numpy(), got.query),
        (5, got.key_unrotated, got.key),
    ):
        cosine, sine = np.cos(position * frequencies), np.sin(position * frequencies)
        x, y, rest = np.split(np.asarray(before), [2, 4])
        turned = np.concatenate([x * cosine - y * sine, y * cosine + x * sine, rest])
        np.testing.assert_allclose(after, turned, atol=1e-5)
    np.testing.assert_allclose(got.capped, 2 * np.tanh(got.scores / 2), atol=1e-6)
    assert got.mask.tolist() == [4 <= key <= 7 for key in range(11)]
    shown = got.to_dict()
    assert (shown["kv_head"], shown["soft_cap"]) == (0, 2.0)
    assert len(shown["query_unrotated"]) == len(shown["key_unrotated"]) == 7
    page = render(got)
    assert "key-value head 0 of 1, which 2 heads share" in page
    assert "turned by their positions 7 and 5" in page
    assert f"2.0000 x tanh({got.score:.4f} / 2.0000)" in page


def test_the_numbers_are_those_numpy_computes_from_the_file(minilm: Model) -> None:
    stored = load_file(data_path("models", "all-MiniLM-L6-v2", "model.safetensors"))
    weights = {name: tensor.astype(np.float64) for name, tensor in stored.items()}
    tokens = minilm.tokenize(*PAIR)
    ids, segments = tokens.ids[0].numpy(), tokens.segments[0].numpy()
    x = (
        weights["embeddings.word_embeddings.weight"][ids]
        + weights["embeddings.position_embeddings.weight"][: len(ids)]
        + weights["embeddings.token_type_embeddings.weight"][segments]
    )
    x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-12)
    x = x * weights["embeddings.LayerNorm.weight"] + weights["embeddings.LayerNorm.bias"]
    for head in (0, 5, 11):
        rows = slice(32 * head, 32 * head + 32)
        query, key, value = (
            x @ weights[f"encoder.layer.0.attention.self.{name}.weight"][rows].T
            + weights[f"encoder.layer.0.attention.self.{name}.bias"][rows]
            for name in ("query", "key", "value")
        )
        scores = query[15] @ key.T / math.sqrt(32)
        exponentials = np.exp(scores - scores.max())
        probs = exponentials / exponentials.sum()
        trace = trace_of_head(minilm, tokens, layer=0, head=head)
        got = explain(trace, layer=0, head=head, query="straw", key="berries").to_dict()
        expected = {
            "query": query[15],
            "key": key[16],
            "product": query[15] * key[16],
            "dot": query[15] @ key[16],
            "scale": 1 / math.sqrt(32),
            "score": scores[16],
            "scores": scores,
            "largest": scores.max(),
            "exponentials": exponentials,
            "total": exponentials.sum(),
            "probs": probs,
            "value": value,
            "contributions": probs[:, None] * value,
            "z": probs @ value,
        }
        for name, number in expected.items():
            np.testing.assert_allclose(got[name], number, rtol=1e-5, atol=1e-5, err_msg=name)


def test_a_trace_of_one_head_stops_early_and_has_the_numbers_of_a_whole_trace() -> None:
    whole = small_trace()
    for layer in range(LAYERS):
        part = trace_of_head(whole.model, whole.tokens, layer=layer, head=1)
        assert len(part) == min(layer + 2, LAYERS)
        ours, theirs = (explain(t, layer=layer, head=1, query=2) for t in (part, whole))
        assert ours.to_dict() == theirs.to_dict()


def test_without_a_key_the_most_attended_one_is_taken() -> None:
    trace = small_trace()
    got = explain(trace, layer=2, head=1, query=4)
    assert got.key_position == trace[2, 1].probs[0, 4].argmax()
    assert not got.chosen


def test_a_layer_or_head_that_does_not_exist_is_an_error() -> None:
    trace, match = small_trace(), r"There is no (layer|head) -?\d; expected 0 to"
    for layer, head in ((LAYERS, 0), (-LAYERS - 1, 0), (0, HEADS), (0, -HEADS - 1)):
        with pytest.raises(TraceError, match=match):
            explain(trace, layer=layer, head=head, query=0)
        with pytest.raises(TraceError, match=match):
            trace_of_head(trace.model, trace.tokens, layer=layer, head=head)


def test_negative_places_count_from_the_end() -> None:
    trace = small_trace()
    got = explain(trace, layer=-1, head=-1, query=-1, key=-2)
    assert (got.layer, got.head, got.query_position, got.key_position) == (2, 1, 10, 9)


class TestFindToken:
    @pytest.fixture
    def tokens(self) -> Tokens:
        tokens = Tokens.from_ids([2, 3, 5, 7, 11, 13])
        return replace(
            tokens,
            strings=(("[CLS]", " the", "Straw", "berries", "the", "\u202e"),),
            raw=(("[CLS]", "Ġthe", "Straw", "##berries", "the", "\u202e"),),
        )

    def test_a_token_is_found_by_position_or_string(self, tokens: Tokens) -> None:
        found: dict[int | str, int] = {3: 3, "3": 3, "-1": 5, "Straw": 2, "straw": 2}
        found |= {"##berries": 3, "Ġthe": 1, "[cls]": 0}
        for wanted, position in found.items():
            assert find_token(tokens, wanted, what="query") == position

    def test_a_token_that_occurs_twice_is_an_error_with_its_positions(self, tokens: Tokens) -> None:
        with pytest.raises(TraceError, match=r'key "the" is the token at positions 1, 4'):
            find_token(tokens, "the", what="key")

    def test_a_token_that_is_not_there_is_an_error_that_lists_all(self, tokens: Tokens) -> None:
        for wanted in ("absent", "", 6, "-7", "99999999999999999999"):
            with pytest.raises(TraceError, match=r"0 \[CLS\], 1 the.*5 \\u202e"):
                find_token(tokens, wanted, what="query")

    def test_a_word_of_several_tokens_is_an_error_with_its_pieces(self) -> None:
        tokens = load().tokenize("the rabbit quickly hopped")
        word = tokens.words[0][-2]
        pieces = [p for p, number in enumerate(tokens.words[0]) if number == word]
        assert len(pieces) > 1
        listed = ", ".join(f"{p} {tokens.strings[0][p]}" for p in pieces)
        with pytest.raises(TraceError, match=f'"Hopped" is not one token: .* {listed}\\.'):
            find_token(tokens, "Hopped", what="query")

    @pytest.mark.parametrize(
        ("wanted", "note"),
        [
            ("2", 'The token "2" is at position 3: to choose it, give 3 as the query.'),
            ("5", 'The token "5" is at positions 2, 4: to choose it, give 2 or 4 as the query.'),
            ("1", ""),
            ("4", ""),
            ("saw", ""),
            (2, ""),
        ],
    )
    def test_a_number_that_is_also_a_token_elsewhere_is_noted(
        self, tokens: Tokens, wanted: int | str, note: str
    ) -> None:
        row = ("[CLS]", "1", "5", "2", "5", "[SEP]")
        got = token_note(replace(tokens, strings=(row,), raw=(row,)), wanted, what="query")
        assert got.partition("is taken as a position. ")[2] == note
        assert bool(got) == bool(note)

    def test_a_number_past_the_end_that_is_a_token_is_an_error_that_says_where(
        self, tokens: Tokens
    ) -> None:
        row = ("[CLS]", "in", "1984", "it", "was", "[SEP]")
        with pytest.raises(TraceError, match=r'no query 1984.* "1984" is at position 2'):
            find_token(replace(tokens, strings=(row,), raw=(row,)), "1984", what="query")


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
