"""An explanation has the numbers of the trace, and its text shows them."""

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from small_traces import HEADS, KINDS, LAYERS, small_trace

from minibert import TraceError
from minibert.answers.explain import Explanation, explain, find_token, render, trace_of_head
from minibert.model import load
from minibert.terminal import cell_width
from minibert.text.tokens import Tokens


@pytest.mark.parametrize("kind", KINDS)
def test_every_tensor_is_the_one_of_the_trace_and_leads_to_the_next(kind: str) -> None:
    trace = small_trace(**KINDS[kind])
    for layer in range(LAYERS):
        got, here = explain(trace, layer=layer, head=1, query=5, key=3), trace[layer, 1]
        expected = {
            "query": here.query[0, 5],
            "key": here.key[0, 3],
            "product": here.query[0, 5] * here.key[0, 3],
            "scores": here.scores[0, 5],
            "mask": trace[layer].mask[0, 0, 5],
            "probs": here.probs[0, 5],
            "value": here.value[0],
            "z": here.z[0, 5],
        }
        listed = got.to_dict()
        for name, tensor in expected.items():
            assert torch.equal(getattr(got, name), tensor), name
            assert listed[name] == tensor.tolist(), name
    for query in range(11):
        got = explain(trace, layer=1, head=0, query=query)
        close = {"rtol": 1e-5, "atol": 1e-5}
        torch.testing.assert_close(got.dot * got.scale, got.score, **close)
        torch.testing.assert_close(got.exponentials / got.total, got.probs.double(), **close)
        torch.testing.assert_close(got.contributions.sum(0), got.z.double(), **close)
        assert got.exponentials.max() == 1
        steps = ("dot", "scale", "score", "largest", "total")
        assert [got.to_dict()[name] for name in steps] == [getattr(got, name) for name in steps]


def test_a_rotary_model_with_groups_and_a_soft_cap_shows_them() -> None:
    got = explain(small_trace(**KINDS["gemma2"]), layer=1, head=1, query=7, key=5)
    assert (got.head, got.kv_head, got.n_kv_heads) == (1, 0, 1)
    frequencies = np.array([1.0, 0.01])
    for position, before, after in (
        (7, got.query_unrotated, got.query),
        (5, got.key_unrotated, got.key),
    ):
        cosine, sine = np.cos(position * frequencies), np.sin(position * frequencies)
        x, y, rest = np.split(np.asarray(before), [2, 4])
        turned = np.concatenate([x * cosine - y * sine, y * cosine + x * sine, rest])
        np.testing.assert_allclose(after, turned, atol=1e-5)
    np.testing.assert_allclose(got.capped, 2 * np.tanh(got.scores / 2), atol=1e-6)
    assert got.mask.tolist() == [4 <= key <= 7 for key in range(11)]
    shown, page = got.to_dict(), render(got)
    assert (shown["kv_head"], shown["soft_cap"]) == (0, 2.0)
    assert len(shown["query_unrotated"]) == len(shown["key_unrotated"]) == 7
    assert "key-value head 0 of 1, which 2 heads share" in page
    assert f"2.0000 x tanh({got.score:.4f} / 2.0000)" in page


def test_a_trace_of_one_head_stops_early_and_has_the_numbers_of_a_whole_trace() -> None:
    whole = small_trace()
    for layer in range(LAYERS):
        part = trace_of_head(whole.model, whole.tokens, layer=layer, head=1)
        assert len(part) == min(layer + 2, LAYERS)
        ours, theirs = (explain(t, layer=layer, head=1, query=2) for t in (part, whole))
        assert ours.to_dict() == theirs.to_dict()


def test_places_count_from_both_ends_and_the_most_attended_key_is_taken() -> None:
    trace = small_trace()
    got = explain(trace, layer=-1, head=-1, query=-1, key=-2)
    assert (got.layer, got.head, got.query_position, got.key_position) == (2, 1, 10, 9)
    got = explain(trace, layer=2, head=1, query=4)
    assert got.key_position == trace[2, 1].probs[0, 4].argmax()
    assert not got.chosen
    match = r"There is no (layer|head) -?\d; expected 0 to"
    for layer, head in ((LAYERS, 0), (-LAYERS - 1, 0), (0, HEADS), (0, -HEADS - 1)):
        with pytest.raises(TraceError, match=match):
            explain(trace, layer=layer, head=head, query=0)
        with pytest.raises(TraceError, match=match):
            trace_of_head(trace.model, trace.tokens, layer=layer, head=head)


def tokens(strings: tuple[str, ...], raw: tuple[str, ...] = ()) -> Tokens:
    return replace(Tokens.from_ids([2, 3, 5, 7, 11, 13]), strings=(strings,), raw=(raw or strings,))


STRAW = tokens(
    ("[CLS]", " the", "Straw", "berries", "the", "\u202e"),
    ("[CLS]", "Ġthe", "Straw", "##berries", "the", "\u202e"),
)
FOUND: dict[int | str, int] = {3: 3, "3": 3, "-1": 5, "Straw": 2, "straw": 2}
FOUND |= {"##berries": 3, "Ġthe": 1, "[cls]": 0}
EVERY = r"0 \[CLS\], 1 the.*5 \\u202e"
YEARS = tokens(("[CLS]", "in", "1984", "it", "was", "[SEP]"))


def test_a_token_is_found_by_position_or_string() -> None:
    for wanted, position in FOUND.items():
        assert find_token(STRAW, wanted, what="query") == position


@pytest.mark.parametrize(
    ("where", "wanted", "message"),
    [
        (STRAW, "the", r'query "the" is the token at positions 1, 4'),
        *((STRAW, wanted, EVERY) for wanted in ("absent", "", 6, "-7", "99999999999999999999")),
        (YEARS, "1984", "no query 1984; expected 0 to 5: .* 2 1984"),
    ],
)
def test_a_token_that_is_not_there_once_is_an_error(
    where: Tokens, wanted: int | str, message: str
) -> None:
    with pytest.raises(TraceError, match=message):
        find_token(where, wanted, what="query")


def test_a_word_of_several_tokens_is_an_error_with_its_pieces() -> None:
    split = load().tokenize("the rabbit quickly hopped")
    word = split.words[0][-2]
    pieces = [p for p, number in enumerate(split.words[0]) if number == word]
    assert len(pieces) > 1
    listed = ", ".join(f"{p} {split.strings[0][p]}" for p in pieces)
    with pytest.raises(TraceError, match=f'"Hopped" is not one token: .* {listed}\\.'):
        find_token(split, "Hopped", what="query")


NUMBER = re.compile(r"-?\d+\.\d{4}\b|-?\d\.\de-\d\d|(?<= )0(?= |$)")


def numbers(text: str) -> list[float]:
    return [float(found) for found in NUMBER.findall(text)]


def near(*expected: Any) -> Any:
    """The numbers, rounded to the four decimals that are shown."""
    return pytest.approx([float(one) for one in expected], abs=5.1e-5)


def section(text: str, name: str) -> list[str]:
    """The lines of one step below its title."""
    block = next(part for part in text.split("\n\n") if part.startswith(f"{name} ="))
    return block.splitlines()[1:]


def row_of(lines: list[str], first: str) -> list[float]:
    return numbers(next(line for line in lines if line.split()[0] == first).split(first, 1)[1])


@pytest.fixture
def about() -> Explanation:
    return explain(small_trace(causal=True), layer=1, head=0, query=7, key=3)


def test_what_is_shown_and_the_others_add_up_to_the_score_the_row_and_z(about: Explanation) -> None:
    text = render(about, top=3)
    lines = section(text, "query·key")[1:]
    order = sorted(range(len(about.product)), key=lambda i: -abs(about.product[i].item()))
    for i, line in zip(order, lines[:3], strict=False):
        assert int(line.split()[0]) == i
        found = numbers(line.split(None, 1)[1])
        assert found == near(about.query[i], about.key[i], about.product[i])
    assert lines[3].split()[:2] == [str(len(order) - 3), "others"]
    assert numbers(lines[3]) == near(sum(about.product[i] for i in order[3:]))
    assert row_of(lines, "sum") == near(about.dot)
    score, mask = section(text, "score")
    assert numbers(score) == near(about.dot, about.scale, about.score)
    assert mask.split(None, 1)[1] == "allows 8 of 11 keys"
    lines = section(text, "probs")[1:]
    for position in range(8):
        columns = (about.scores, about.exponentials, about.probs)
        found = numbers(" ".join(lines[position].split()[2:]))
        assert found == near(*(column[position] for column in columns))
    assert lines[8].split() == ["3", "masked", "keys", "0", "0"]
    assert row_of(lines, "sum") == near(about.total, 1.0)
    lines = section(text, "z")
    z = [about.z[int(i)].item() for i in re.findall(r"z\[(\d+)\]", lines[0])]
    assert row_of(lines, "z")[1:] == near(*z)
    columns = [numbers(line)[-len(z) :] for line in lines[1:5]]
    assert lines[4].split()[:2] == [str(8 - 3), "others"]
    assert [sum(column) for column in zip(*columns, strict=True)] == pytest.approx(z, abs=2e-4)


def test_a_masked_key_is_called_so_and_a_long_row_has_the_most_attended_and_the_others() -> None:
    about = explain(small_trace(causal=True), layer=1, head=0, query=4, key=9)
    text = render(about)
    assert "this one is masked" in section(text, "score")[1]
    row = next(line for line in section(text, "probs") if line.split()[0] == "9")
    assert row.split()[3:] == ["masked", "0"]
    assert numbers(row.split("masked")[0]) == near(about.score)
    about = explain(small_trace(n_tokens=47), layer=0, head=1, query=2, key=31)
    lines = section(render(about, top=5), "probs")[1:]
    shown = [int(line.split()[0]) for line in lines if line.split()[0].isdigit()][:-1]
    expected = {31, *about.probs.topk(5).indices.tolist()}
    assert shown == sorted(expected)
    other = next(line for line in lines if "other keys" in line)
    assert other.split()[0] == str(47 - len(expected))
    assert numbers(other)[-1] == pytest.approx(1 - about.probs[shown].sum().item(), abs=6e-5)


HOSTILE = {
    "\x1b[31m": r"\x1b[31m", "\u202etxet": r"\u202etxet", "\n": r"\n", "\x07": r"\x07",
    "\u200b": r"\u200b", "\ud800": r"\ud800", "\x9b2J": r"\x9b2J", "שלום": "שלום",
}  # fmt: skip


def test_a_page_fits_the_terminal_and_its_tokens_cannot_disturb_it(about: Explanation) -> None:
    for n_tokens in (1, 11, 47):
        wide = explain(small_trace(n_tokens=n_tokens), layer=0, head=1, query=0)
        wide = replace(wide, tokens=("日本語の長い長い長い長い長い長い言葉",) * n_tokens)
        assert max(map(cell_width, render(wide).splitlines())) <= 80
    text = render(replace(about, tokens=(*HOSTILE, *"aaa")))
    assert not set(text) & set("\x1b\u202e\x07\u200b\ud800\x9b")
    assert all(written in text for written in HOSTILE.values())
