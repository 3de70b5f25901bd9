"""Scores of patterns against sums written out cell by cell, planted heads and TransformerLens."""

import json
from itertools import combinations
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small_tokenizer import DELIMITER, SPECIAL, VOCABULARY, SmallTokenizer
from torch import Tensor

import minibert
from minibert.analysis import HeadScores, head_scores, patterns, repeated_ids, shared_dimensions
from minibert.analysis.patterns import SCORED, draws_for
from minibert.errors import MinibertError, TraceError
from minibert.layers.config import Config
from minibert.model import Model
from minibert.text.tokens import Tokens
from minibert.trace.edit import replace
from minibert.trace.read import Trace
from tests.small_traces import small_trace

LENGTHS = (7, 2, 11, 5, 3)


@settings(max_examples=25)
@given(
    length=st.integers(2, 13),
    draws=st.integers(1, 5),
    low=st.integers(0, 3),
    first=st.none() | st.just(40),
    last=st.none() | st.just(41),
    seed=st.integers(0, 9),
)
def test_each_row_is_one_sequence_of_different_allowed_ids_twice(
    length: int, draws: int, low: int, first: int | None, last: int | None, seed: int
) -> None:
    options: Any = {"length": length, "draws": draws, "low": low, "seed": seed}
    ids = repeated_ids(43, **options, exclude={5, 7}, first=first, last=last)
    start = int(first is not None)
    assert ids.shape == (draws, start + 2 * length + (last is not None))
    for row in ids.tolist():
        half = row[start : start + length]
        ends = [[] if end is None else [end] for end in (first, last)]
        assert row == ends[0] + half + half + ends[1]
        assert len(set(half)) == length
        assert not set(half) & {5, 7, first, last}
        assert low <= min(half) <= max(half) < 43


def test_a_seed_names_the_sequences_and_every_id_is_as_likely() -> None:
    assert torch.equal(repeated_ids(199, seed=3), repeated_ids(199, seed=3))
    assert not torch.equal(repeated_ids(199, seed=3), repeated_ids(199, seed=4))
    n, draws, length = 11, 4001, 5
    counts = repeated_ids(n, length=length, draws=draws).flatten().bincount(minlength=n) / 2
    # Five standard deviations of a hypergeometric count.
    bound = 5 * (draws * (length / n) * (1 - length / n)) ** 0.5
    assert (counts - draws * length / n).abs().max() < bound


def small_model(**changes: Any) -> Model:
    sizes = {"n_layers": 1, "n_heads": 1, "d_model": 2, "d_mlp": 2, "n_positions": 100}
    named = {"family": "bert", "task": "none", "vocab_size": 97}
    return Model(Config(**(named | sizes | changes)))


def test_a_model_reads_sequences_of_its_own_tokens_between_its_special_ones() -> None:
    bert = minibert.load()
    ids = draws_for(bert)
    assert ids.shape == (100, 102)
    assert set(ids[:, 0].tolist()) == {bert.tokenizer.cls_id}
    assert set(ids[:, -1].tolist()) == {bert.tokenizer.sep_id}
    assert not set(ids[:, 1:-1].flatten().tolist()) & bert.tokenizer.special_ids
    assert not (draws_for(small_model(pad_id=13, vocab_size=51)) == 13).any()
    model = small_model(family="gpt2", causal=True, vocab_size=VOCABULARY + 40)
    model.tokenizer = SmallTokenizer()
    ids = draws_for(model)
    # Rows of the embedding beyond the tokenizer's vocabulary are not tokens.
    assert set(ids.flatten().tolist()) == set(range(VOCABULARY)) - SPECIAL
    assert ids.shape == (100, 100)
    assert draws_for(small_model(n_positions=99), length=49).shape == (100, 98)


def random_model(family: str) -> Model:
    causal = family == "gpt2"
    config = Config(
        family, "none", VOCABULARY, 17, 3, 2, 10, 13, causal=causal, n_segments=0 if causal else 2
    )
    model = Model.from_config(config, seed=5)
    for parameter in model.parameters():
        # Far enough from uniform attention to tell one cell from another.
        parameter.mul_(8)
    return model


def known(family: str) -> Model:
    """The same model with a tokenizer, which says what is special."""
    model = random_model(family)
    model.tokenizer = SmallTokenizer()
    return model


def rows_of_ids() -> list[list[int]]:
    """Sentences with delimiters in the middle, at either end and nowhere."""
    generator = torch.Generator().manual_seed(11)
    rows = [torch.randint(3, VOCABULARY, (n,), generator=generator).tolist() for n in LENGTHS]
    rows[0][0], rows[0][4] = 0, DELIMITER
    rows[2][2] = rows[2][10] = rows[1][1] = rows[4][0] = DELIMITER
    return rows


def padded(rows: list[list[int]]) -> Tokens:
    width = max(map(len, rows)) + 2
    mask = [[True] * len(row) + [False] * (width - len(row)) for row in rows]
    # Padding that would count as a delimiter and as a neighbour if anybody looked at it.
    return Tokens.from_ids([row + [DELIMITER] * (width - len(row)) for row in rows], mask=mask)


def repeats(**options: Any) -> Tensor:
    return repeated_ids(VOCABULARY, length=7, draws=3, low=3, **options)


def measure(model: Model, tokens: Any, **options: Any) -> HeadScores:
    return head_scores(model, tokens, repeated=repeats(), **options)


def cells_by_hand(model: Model, row: list[int]) -> dict[str, list[Any]]:
    """What a sentence's rows that count spend, by the name of the pattern."""
    causal, n = model.config.causal, len(row)
    probs = model.trace(torch.tensor([row])).stack("probs")[:, 0].numpy()
    plain = [i for i in range(n) if row[i] not in SPECIAL]
    marks = [j for j in range(n) if row[j] == DELIMITER]
    return {
        "previous": [probs[:, :, i, i - 1] for i in plain if i > 0],
        "next": [probs[:, :, i, i + 1] for i in plain if i < n - 1 and not causal],
        "delimiter": [
            probs[:, :, i, marks].sum(-1)
            for i in range(n)
            if row[i] != DELIMITER and any(j < i or not causal for j in marks)
        ],
    }


@pytest.mark.parametrize("family", ["bert", "gpt2"])
@pytest.mark.parametrize("first", [None, 0])
def test_scores_are_means_over_sentences_of_what_loops_over_cells_give(
    family: str, first: int | None
) -> None:
    model, rows, drawn = known(family), rows_of_ids(), repeats(first=first)
    scores = head_scores(model, padded(rows), repeated=drawn)
    sentences = [cells_by_hand(model, row) for row in rows]
    for name in ("previous", "next", "delimiter"):
        means = [np.mean(each[name], axis=0) for each in sentences if each[name]]
        wanted = np.mean(means, axis=0) if means else np.full((3, 2), np.nan)
        np.testing.assert_allclose(getattr(scores, name), wanted, atol=1e-5)
    start = int(first is not None)
    for name, step in (("duplicate", 0), ("induction", 1)):
        cells = []
        for row in drawn.tolist():
            probs = model.trace(torch.tensor([row])).stack("probs")[:, 0].numpy()
            second = range(start + 7, start + 14)
            cells += [probs[:, :, i, row.index(row[i]) + step] for i in second]
        np.testing.assert_allclose(getattr(scores, name), np.mean(cells, axis=0), atol=1e-5)


def assert_same(left: HeadScores, right: HeadScores, atol: float = 1e-6) -> None:
    torch.testing.assert_close(left.values, right.values, equal_nan=True, atol=atol, rtol=0)


@pytest.mark.parametrize("family", ["bert", "gpt2"])
def test_padding_batches_training_and_the_way_of_giving_them_never_change_a_score(
    family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, rows, marks = random_model(family), rows_of_ids(), {"delimiters": [DELIMITER]}
    together = measure(model, padded(rows), **marks)
    assert_same(together, measure(model, [Tokens.from_ids(row) for row in rows], **marks))
    sizes, trace = [], model.trace
    monkeypatch.setattr(
        model, "trace", lambda t, **o: sizes.append(tuple(t.ids.shape)) or trace(t, **o)
    )
    a_sentence = 3 * 14 * 8 * 10
    monkeypatch.setattr(patterns, "_KEPT", 2 * a_sentence)
    # Blocks of three queries of the longest sentence.
    monkeypatch.setattr(patterns, "NUMBERS", 3 * 2 * 13)
    assert_same(together, measure(model, [padded(rows[:2]), padded(rows[2:])], **marks))
    sizes.clear()
    measure(model, repeats(), **marks)
    assert sizes == [(2, 14), (1, 14)] * 2
    model.requires_grad_().train()
    trained = measure(model, padded(rows), **marks)
    assert_same(together, trained)
    assert not trained.values.requires_grad
    assert model.training
    assert torch.is_grad_enabled()
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        rough = measure(model, padded(rows), **marks)
    assert rough.values.dtype == torch.float32
    assert_same(together, rough, 0.05)
    with torch.no_grad():
        model.body.word.weight.mul_(0.5)
    assert not torch.allclose(measure(model, repeats()).previous, together.previous, atol=1e-3)


def test_what_is_special_or_a_delimiter_is_known_from_the_caller_or_a_tokenizer() -> None:
    ids = [[3, DELIMITER, 4, 5, DELIMITER, 6]]
    model = known("bert")
    wanted = measure(model, ids)
    tokenizer = model.tokenizer
    # The end of a text delimits only where there is no separator.
    tokenizer.eos_id = 6
    assert_same(measure(model, ids), wanted)
    tokenizer.sep_id, tokenizer.eos_id = None, DELIMITER
    assert_same(measure(model, ids), wanted)
    model.tokenizer = None
    assert_same(measure(model, ids, delimiters=[DELIMITER]), wanted)
    bare, carried = measure(model, ids), measure(model, Tokens.from_ids(ids, tokenizer=tokenizer))
    torch.testing.assert_close(carried.previous, wanted.previous)
    assert not torch.allclose(bare.previous, wanted.previous, atol=1e-3)
    for delimiters in (None, [], [DELIMITER]):
        nothing = measure(model, repeats(), delimiters=delimiters)
        assert nothing.delimiter.isnan().all()
        assert not nothing.previous.isnan().any()


def test_segments_reach_the_model_and_broken_weights_are_said() -> None:
    model, rows = random_model("bert"), [row for row in rows_of_ids() if len(row) == 11]
    scores = [
        measure(model, Tokens.from_ids(rows, segments=[[kind] * 11])).previous for kind in (0, 1)
    ]
    assert not torch.allclose(*scores, atol=1e-3)
    model.body.word.weight[:] = torch.nan
    with pytest.raises(minibert.MinibertError, match="NaN"):
        measure(model, repeats())


def test_text_is_read_by_the_models_own_tokenizer() -> None:
    model, texts = minibert.load(), ["The rabbit hopped over the hill.", "Leaves fall."]
    drawn = repeated_ids(4096, length=5, draws=2, low=5)
    scores, tokens = head_scores(model, texts, repeated=drawn), model.tokenize(texts)
    assert_same(scores, head_scores(model, tokens, repeated=drawn))
    bare = Tokens.from_ids(tokens.ids, mask=tokens.mask)
    assert_same(scores, head_scores(model, bare, repeated=drawn))


def test_the_table_of_scores_names_the_best_heads_and_is_plain_json() -> None:
    table = torch.arange(6).view(2, 3) / 10
    unmeasured = torch.full((2, 3), torch.nan)
    induction = torch.tensor([[0.1, torch.nan, 0.25], [0.75, 0.2, 0.0]])
    given = dict.fromkeys(SCORED, table) | {"next": unmeasured, "induction": induction}
    scores = HeadScores.of(given)
    assert scores.best("induction") == (1, 0, 0.75)
    assert scores.best("previous") == (1, 2, pytest.approx(0.5))
    plain = scores.by_pattern()
    assert json.loads(json.dumps(plain, allow_nan=False)) == plain
    assert plain["previous"] == [[0.0, 0.1, 0.2], [0.3, 0.4, 0.5]]
    assert plain["next"] == [[None] * 3] * 2
    lines = str(scores).splitlines()
    assert [line.split()[0] for line in lines] == ["pattern", *SCORED]
    assert lines[1].split()[1:] == ["1-2", "0.50", "1-1", "0.40", "1-0", "0.30"]
    assert lines[2].split()[1:] == ["-", "not", "measured"]
    for name, message in (
        ("next", "No head has a score for 'next'"),
        ("attention", r"'attention' is not a pattern.*previous, next, duplicate"),
    ):
        with pytest.raises(TraceError, match=message):
            scores.best(name)


def shared_by_hand(trace: Trace, layer: int, head: int, top: int) -> float:
    at, largest = trace[layer, head], []
    for position, row in enumerate(at.probs[0].tolist()):
        product = (at.query[0, position] * at.key[0, row.index(max(row))]).tolist()
        largest.append(set(sorted(range(len(product)), key=lambda d: -product[d])[:top]))
    pairs = list(combinations(largest, 2))
    return sum(len(one & other) / top for one, other in pairs) / len(pairs)


@pytest.mark.parametrize("causal", [False, True])
def test_shared_dimensions_are_what_the_pairs_say_one_by_one(causal: bool) -> None:
    trace = small_trace(7, causal=causal)
    found = shared_dimensions(trace, top=3)
    for layer, head in np.ndindex(trace.config.n_layers, trace.config.n_heads):
        expected = shared_by_hand(trace, layer, head, 3)
        assert float(found.values[layer, head]) == pytest.approx(expected, abs=1e-6)
    assert found.chance == 3 / trace.config.d_head


def test_opposite_queries_share_nothing_and_sentences_of_a_batch_count_alike() -> None:
    trace = small_trace(5)
    width = trace.config.d_head
    key, query = torch.ones(1, 2, 5, width), torch.arange(width).float().expand(1, 2, 5, width)
    query = torch.where(torch.arange(5)[:, None] % 2 > 0, query, -query)
    edited = trace.rerun({("query", 0): replace(query), ("key", 0): replace(key)})
    # Of five queries 2 and 3 are alike: 1 + 3 pairs of 10 share all, the others nothing.
    assert float(shared_dimensions(edited, top=2).values[0, 1]) == pytest.approx(0.4)
    model = minibert.load("tiny-bert")
    texts = ["the horse ran away", "the boys were very tired and the girls were not"]
    each = [shared_dimensions(model.trace(text)).values for text in texts]
    both = shared_dimensions(model.trace(texts)).values
    assert torch.allclose(both, (each[0] + each[1]) / 2, atol=1e-3)


def scored(tokens: Any, **options: Any) -> Any:
    return lambda: head_scores(random_model("bert"), tokens, **options)


TEXT, DRAWN = torch.tensor([[3, 4, 5]]), {"repeated": repeats()}
REFUSED: dict[str, Any] = {
    "17 positions, fewer than the repeated": scored(TEXT),
    "outside the vocabulary": scored(TEXT, repeated=repeats() + VOCABULARY),
    "delimiters of .*id=53: expected": scored(TEXT, **DRAWN, delimiters=[VOCABULARY]),
    "more than the 17 positions": scored(TEXT.new_zeros(1, 18), **DRAWN),
    "empty": scored([], **DRAWN),
    "Expected only Tokens": scored([Tokens.from_ids([3]), "text"], **DRAWN),
    "has no tokenizer": scored("some text", **DRAWN),
    r"99 positions.*draws_for\(model, length=49\)": lambda: draws_for(small_model(n_positions=99)),
    "length=50 needs as many different ids, and 41": lambda: draws_for(small_model(vocab_size=41)),
    "length=5 needs as many.* 4 can": lambda: repeated_ids(
        7, length=5, low=1, first=3, exclude=[5]
    ),
    "length=1: expected a whole number": lambda: repeated_ids(97, length=1),
    "draws=0: expected a whole number": lambda: repeated_ids(97, draws=0),
    "top=0": lambda: shared_dimensions(small_trace(4), top=0),
    "top=1.5": lambda: shared_dimensions(small_trace(4), top=1.5),
    "two tokens": lambda: shared_dimensions(small_trace(1)),
    "trace is a str": lambda: shared_dimensions("no trace"),
}


@pytest.mark.parametrize("words", REFUSED)
def test_what_cannot_be_scored_is_refused(words: str) -> None:
    with pytest.raises(MinibertError, match=words):
        REFUSED[words]()
