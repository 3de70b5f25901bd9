"""Windows over a long text: nothing is left out, each has its marks, each token its best place."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from vocabularies import byte_level, word_piece

import minibert
from minibert.layers.config import Config
from minibert.model import Model
from minibert.text.windows import Windows, equal_parts, windows

POSITIONS = 17
WORDS = ["the", "quick", "fox", "over", "lazy", "dogs", "strawberries", "fresh", "café", "naïve"]
texts = st.lists(st.sampled_from(WORDS), min_size=1, max_size=23).map(" ".join)


@pytest.fixture(scope="module", params=["bert", "gpt2"])
def model(request: Any, tmp_path_factory: Any) -> Model:
    folder = tmp_path_factory.mktemp(request.param)
    bert = request.param == "bert"
    tokenizer = minibert.Tokenizer.from_folder(
        word_piece(folder) if bert else byte_level(folder, ["<|endoftext|>"])
    )
    config = Config(
        family=request.param,
        task="none",
        vocab_size=tokenizer.vocab_size,
        n_positions=POSITIONS,
        n_layers=2,
        n_heads=3,
        d_model=15,
        d_mlp=23,
        causal=not bert,
        n_segments=2 if bert else 0,
    )
    return Model.from_config(config, tokenizer=tokenizer)


def draw(model: Model, data: Any) -> Windows:
    size = data.draw(st.integers(5, POSITIONS), label="size")
    marks = 0 if model.config.causal else 2
    stride = data.draw(st.integers(1, size - marks), label="stride")
    cut = model.windows(data.draw(texts, label="text"), stride=stride, size=size)
    gaps = [after - before for before, after in zip(cut.starts, cut.starts[1:], strict=False)]
    assert all(gap == stride for gap in gaps[:-1])
    assert all(1 <= gap <= stride for gap in gaps[-1:])
    return cut


def text_tokens(tokens: minibert.Tokens, window: int) -> list[tuple[Any, ...]]:
    """Id, span and word of the tokens of one window that are of the text."""
    rows = (tokens.ids[window].tolist(), tokens.spans[window], tokens.words[window])
    return [entry for entry in zip(*rows, strict=True) if entry[1] is not None]


@given(st.data())
def test_each_window_is_the_run_of_the_text_that_it_says(model: Model, data: Any) -> None:
    cut = draw(model, data)
    whole = text_tokens(cut.whole, 0)
    assert [token[0] for token in whole] == model.tokenizer.encode(cut.text)
    assert len(cut) == len(cut.starts) == len(cut.tokens)
    covered = set()
    for window, start in enumerate(cut.starts):
        inside = text_tokens(cut.tokens, window)
        assert inside == whole[start : start + len(inside)]
        covered |= set(range(start, start + len(inside)))
        special = cut.tokens.special[window]
        if model.config.causal:
            assert not any(special)
        else:
            assert (cut.tokens.raw[window][0], cut.tokens.raw[window][-1]) == ("[CLS]", "[SEP]")
            assert special == (True, *(False,) * (len(special) - 2), True)
    assert cut.tokens.texts == ((cut.text,),) * len(cut)
    assert covered == set(range(len(whole)))
    assert list(cut.starts) == sorted(set(cut.starts))
    assert len(set(cut.tokens.lengths)) == 1
    assert cut.tokens.mask.all()


@given(st.data())
def test_a_token_is_taken_from_the_window_with_the_most_context(model: Model, data: Any) -> None:
    cut = draw(model, data)
    room = len(text_tokens(cut.tokens, 0))
    lead = 0 if model.config.causal else 1

    def context(token: int, window: int) -> int:
        before = token - cut.starts[window]
        after = room - 1 - before
        if min(before, after) < 0:
            return -1
        return before if model.config.causal else min(before, after)

    for token, (window, position) in enumerate(cut.sources.tolist()):
        every = [context(token, other) for other in range(len(cut))]
        assert every[window] == max(every) >= 0
        assert position == token - cut.starts[window] + lead
        assert cut.tokens.ids[window, position] == cut.whole.ids[0, token]


@given(st.data())
def test_merged_values_are_one_for_each_token_of_the_text(model: Model, data: Any) -> None:
    cut = draw(model, data)
    assert torch.equal(cut.merge(cut.tokens.ids), cut.whole.ids[0])
    hidden = model(cut.tokens)
    merged = cut.merge(hidden)
    assert merged.shape == (cut.whole.lengths[0], 15)
    alone = model(cut.tokens[len(cut) - 1])
    window, position = cut.sources[-1].tolist()
    assert window <= len(cut) - 1
    if window == len(cut) - 1:
        assert torch.allclose(merged[-1], alone[0, position], atol=1e-5)


def test_a_text_that_fits_is_one_window_as_the_tokenizer_makes_it(model: Model) -> None:
    cut = model.windows("the quick fox", stride=1)
    tokens = model.tokenize("the quick fox")
    assert len(cut) == 1
    for name in ("raw", "strings", "spans", "words", "special", "texts"):
        assert getattr(cut.tokens, name) == getattr(tokens, name)
    assert torch.equal(cut.tokens.ids, tokens.ids)
    assert torch.equal(cut.tokens.segments, tokens.segments)
    assert torch.allclose(model(cut.tokens), model("the quick fox"), atol=1e-6)


@given(st.data())
def test_equal_parts_hold_each_token_once_between_the_marks(model: Model, data: Any) -> None:
    assert model.tokenizer is not None
    tokens = model.tokenizer(data.draw(texts, label="text"))
    longest = data.draw(st.integers(3, POSITIONS), label="longest")
    marks = 0 if model.config.causal else 2
    parts = [part.tolist() for part in equal_parts(tokens, longest)]
    n_text = tokens.lengths[0] - marks
    assert len(parts) == -(-n_text // (longest - marks))
    begin, end = [[0], [tokens.lengths[0] - 1]] if marks else [[], []]
    inside = [part[len(begin) : len(part) - len(end)] for part in parts]
    assert parts == [[*begin, *part, *end] for part in inside]
    assert [place for part in inside for place in part] == list(
        range(len(begin), len(begin) + n_text)
    )
    lengths = [len(part) for part in parts]
    assert max(lengths) <= min(longest, min(lengths) + 1)


def test_equal_parts_need_room_beside_the_marks() -> None:
    tokenizer = minibert.load().tokenizer
    assert tokenizer is not None
    with pytest.raises(minibert.MinibertError, match=r"4 tokens .* parts of 2: 2 of each are spec"):
        equal_parts(tokenizer("the horse"), 2)


def test_batches_are_the_windows_in_order(model: Model) -> None:
    cut = model.windows(" ".join(WORDS * 3), stride=5, size=11)
    batches = list(cut.batches(3))
    assert [len(batch) for batch in batches[:-1]] == [3] * (len(batches) - 1)
    assert torch.equal(torch.cat([batch.ids for batch in batches]), cut.tokens.ids)
    assert sum((batch.spans for batch in batches), ()) == cut.tokens.spans


def test_a_tokenizer_makes_windows_of_a_size(model: Model) -> None:
    text = " ".join(WORDS * 3)
    cut = windows(model.tokenizer, text, stride=4, size=9, causal=model.config.causal)
    same = model.windows(text, stride=4, size=9)
    assert torch.equal(cut.tokens.ids, same.tokens.ids)
    assert torch.equal(cut.sources, same.sources)


LONG = " ".join(WORDS * 5)
WRONG: dict[str, tuple[Callable[[Model], object], str]] = {
    "empty text": (lambda m: m.windows("", stride=3), "is empty"),
    "no stride": (lambda m: m.windows(LONG, stride=0), r"stride=0.*from 1 to 1[57]"),
    "backwards": (lambda m: m.windows(LONG, stride=-2), "stride=-2"),
    "too far": (lambda m: m.windows(LONG, stride=18), r"stride=18.*a window holds 1[57]"),
    "half": (lambda m: m.windows(LONG, stride=2.5), "stride=2.5"),
    "a yes": (lambda m: m.windows(LONG, stride=True), "stride=True"),
    "too large": (lambda m: m.windows(LONG, stride=3, size=18), r"size=18.*from [13] to 17"),
    "too small": (lambda m: m.windows(LONG, stride=1, size=0), "size=0"),
    "several texts": (lambda m: m.windows([LONG], stride=3), "one by one"),
    "no limit": (lambda m: windows(m.tokenizer, LONG, stride=3), "give size="),
    "no model": (lambda m: windows(LONG, LONG, stride=3), "expected a model or a Tokenizer"),
    "no windows": (lambda m: list(m.windows(LONG, stride=3).batches(0)), "size=0"),
    "marks alone": (
        lambda m: m.windows(LONG, stride=1, size=0 if m.config.causal else 2),
        "[02] of a window are special",
    ),
    "no tokenizer": (
        lambda m: Model.from_config(m.config).windows(LONG, stride=3),
        "no tokenizer",
    ),
    "other values": (
        lambda m: m.windows(LONG, stride=3).merge(torch.ones(2, 3)),
        r"merge.*\(2, 3\)",
    ),
    "no values": (
        lambda m: m.windows(LONG, stride=3).merge([1]),
        "merge.*are a list; expected a tensor",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_makes_no_windows_is_an_error_that_says_why(model: Model, case: str) -> None:
    make, said = WRONG[case]
    with pytest.raises(minibert.TokenizationError, match=said):
        make(model)
