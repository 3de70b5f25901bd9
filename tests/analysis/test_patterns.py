"""Head scores of whole models, against loops over cells; padding and batches never matter."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from small_tokenizer import DELIMITER, SPECIAL, VOCABULARY, SmallTokenizer

from minibert.analysis import PATTERNS, HeadScores, head_scores, patterns, repeated_ids
from minibert.errors import TokenizationError
from minibert.layers.config import Config
from minibert.loading import load
from minibert.model import Model
from minibert.text.tokens import Tokens
from minibert.trace.read import Trace

LENGTHS = (7, 2, 11, 5, 3)


def random_model(family: str, **changes: Any) -> Model:
    config = Config(
        family=family,
        task="none",
        vocab_size=VOCABULARY,
        n_positions=17,
        n_layers=3,
        n_heads=2,
        d_model=10,
        d_mlp=13,
        causal=family == "gpt2",
        n_segments=0 if family == "gpt2" else 2,
        **changes,
    )
    model = Model.from_config(config, seed=5)
    for parameter in model.parameters():
        # Far enough from uniform attention to tell one cell from another.
        parameter.mul_(8)
    return model


def rows_of_ids() -> list[list[int]]:
    """Sentences with delimiters in the middle, at either end and nowhere."""
    generator = torch.Generator().manual_seed(11)
    rows = [torch.randint(3, VOCABULARY, (n,), generator=generator).tolist() for n in LENGTHS]
    rows[0][0], rows[0][4] = 0, DELIMITER
    rows[1][1] = DELIMITER
    rows[2][2] = rows[2][10] = DELIMITER
    rows[4][0] = DELIMITER
    return rows


def padded_tokens(rows: list[list[int]], **options: Any) -> Tokens:
    width = max(map(len, rows)) + 2
    mask = [[True] * len(row) + [False] * (width - len(row)) for row in rows]
    # Padding that would count as a delimiter and as a neighbour if anybody looked at it.
    ids = [row + [DELIMITER] * (width - len(row)) for row in rows]
    return Tokens.from_ids(ids, mask=mask, **options)


def scores_by_hand(model: Model, rows: list[list[int]]) -> dict[str, np.ndarray[Any, Any]]:
    """The scores on text, sentence by sentence and cell by cell."""
    causal = model.config.causal
    sentences: dict[str, list[np.ndarray[Any, Any]]] = {"previous": [], "next": [], "delimiter": []}
    for row in rows:
        probs = model.trace(torch.tensor([row])).stack("probs")[:, 0].numpy()
        n = len(row)
        plain = [i for i in range(n) if row[i] not in SPECIAL]
        marks = [j for j in range(n) if row[j] == DELIMITER]
        previous = [probs[:, :, i, i - 1] for i in plain if i > 0]
        following = [probs[:, :, i, i + 1] for i in plain if i < n - 1]
        delimiter = [
            sum(probs[:, :, i, j] for j in marks)
            for i in range(n)
            if row[i] != DELIMITER and any(j < i or not causal for j in marks)
        ]
        for name, cells in (
            ("previous", previous),
            ("next", [] if causal else following),
            ("delimiter", delimiter),
        ):
            if cells:
                sentences[name].append(np.mean(cells, axis=0))
    nothing = np.full((model.config.n_layers, model.config.n_heads), np.nan)
    return {n: np.mean(each, axis=0) if each else nothing for n, each in sentences.items()}


def repeats(**options: Any) -> torch.Tensor:
    return repeated_ids(VOCABULARY, length=7, draws=3, low=3, **options)


@pytest.mark.parametrize("family", ["bert", "gpt2"])
@pytest.mark.parametrize("first", [None, 0])
def test_scores_are_means_over_sentences_of_what_loops_over_cells_give(
    family: str, first: int | None
) -> None:
    model = random_model(family)
    model.tokenizer = SmallTokenizer()  # type: ignore[assignment]
    rows, drawn = rows_of_ids(), repeats(first=first)
    scores = head_scores(model, padded_tokens(rows), repeated=drawn)
    for name, wanted in scores_by_hand(model, rows).items():
        np.testing.assert_allclose(getattr(scores, name).numpy(), wanted, atol=1e-5)
    start = int(first is not None)
    for name, step in (("duplicate", 0), ("induction", 1)):
        cells = []
        for row in drawn.tolist():
            probs = model.trace(torch.tensor([row])).stack("probs")[:, 0].numpy()
            cells += [
                probs[:, :, i, row.index(row[i]) + step] for i in range(start + 7, start + 14)
            ]
        np.testing.assert_allclose(getattr(scores, name), np.mean(cells, axis=0), atol=1e-5)


def assert_same(left: HeadScores, right: HeadScores) -> None:
    for name in PATTERNS:
        torch.testing.assert_close(
            getattr(left, name), getattr(right, name), equal_nan=True, atol=1e-6, rtol=0
        )


@pytest.mark.parametrize("family", ["bert", "gpt2"])
def test_padding_and_the_cut_into_batches_never_change_a_score(
    family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = random_model(family)
    rows = rows_of_ids()

    def measure(tokens: Any) -> HeadScores:
        return head_scores(model, tokens, repeated=repeats(), delimiters=[DELIMITER])

    together = measure(padded_tokens(rows))
    assert_same(together, measure([Tokens.from_ids(row) for row in rows]))
    assert_same(together, measure([padded_tokens(rows[:2]), padded_tokens(rows[2:])]))
    monkeypatch.setattr(patterns, "_NUMBERS", 1)
    assert_same(together, measure(padded_tokens(rows)))


def test_no_forward_pass_is_larger_than_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    model = random_model("bert")
    sizes = []
    trace = model.trace

    def watched(tokens: Tokens, **options: Any) -> Any:
        sizes.append(tuple(tokens.ids.shape))
        return trace(tokens, **options)

    monkeypatch.setattr(model, "trace", watched)
    a_sentence = 3 * 14 * 8 * 10
    monkeypatch.setattr(patterns, "_NUMBERS", 2 * a_sentence)
    head_scores(model, repeats(), repeated=repeats())
    assert sizes == [(2, 14), (1, 14)] * 2


@pytest.mark.parametrize("family", ["bert", "gpt2"])
def test_scores_are_read_without_making_a_matrix(
    family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = Trace.read

    def watched(trace: Trace, name: str, *where: Any) -> Any:
        assert name in ("query", "key")
        return read(trace, name, *where)

    monkeypatch.setattr(Trace, "read", watched)
    head_scores(random_model(family), rows_of_ids()[:1], repeated=repeats(), delimiters=[DELIMITER])


def test_a_sentence_in_which_no_row_counts_is_left_out() -> None:
    model = random_model("bert")
    model.tokenizer = SmallTokenizer()  # type: ignore[assignment]
    alone = head_scores(model, [[3, 4, 5]], repeated=repeats())
    both = head_scores(model, [[0, 0, 5], [3, 4, 5]], repeated=repeats())
    torch.testing.assert_close(both.next, alone.next)
    both = head_scores(model, [[5, 0, 0], [3, 4, 5]], repeated=repeats())
    torch.testing.assert_close(both.previous, alone.previous)


def test_special_tokens_are_known_from_the_tokenizer_the_tokens_or_the_delimiters() -> None:
    ids = [[3, DELIMITER, 4, 5, DELIMITER, 6]]
    model = random_model("bert")
    bare = head_scores(model, ids, repeated=repeats())
    named = head_scores(model, ids, repeated=repeats(), delimiters=[DELIMITER])
    tokens = Tokens.from_ids(ids, tokenizer=SmallTokenizer())
    carried = head_scores(model, tokens, repeated=repeats())
    model.tokenizer = SmallTokenizer()  # type: ignore[assignment]
    known = head_scores(model, ids, repeated=repeats())
    assert_same(known, named)
    for name in ("previous", "next"):
        torch.testing.assert_close(getattr(carried, name), getattr(known, name))
        assert not torch.allclose(getattr(bare, name), getattr(known, name), atol=1e-3)


def test_the_end_of_text_delimits_only_where_there_is_no_separator() -> None:
    ids = [[3, DELIMITER, 4, 5, 6, 7]]
    model = random_model("bert")
    tokenizer = SmallTokenizer()
    model.tokenizer = tokenizer  # type: ignore[assignment]
    wanted = head_scores(model, ids, repeated=repeats())
    tokenizer.eos_id = 7
    assert_same(head_scores(model, ids, repeated=repeats()), wanted)
    tokenizer.sep_id, tokenizer.eos_id = None, DELIMITER
    assert_same(head_scores(model, ids, repeated=repeats()), wanted)


def test_segments_reach_the_model() -> None:
    model = random_model("bert")
    rows = [row for row in rows_of_ids() if len(row) == 11]
    first, second = ([kind] * 11 for kind in (0, 1))
    scores = [
        head_scores(model, Tokens.from_ids(rows, segments=[kinds]), repeated=repeats())
        for kinds in (first, second)
    ]
    assert not torch.allclose(scores[0].previous, scores[1].previous, atol=1e-3)


def test_a_model_in_training_is_measured_without_leaving_a_graph() -> None:
    model = random_model("gpt2")
    tokens = padded_tokens(rows_of_ids())
    frozen = head_scores(model, tokens, repeated=repeats(), delimiters=[DELIMITER])
    model.requires_grad_().train()
    scores = head_scores(model, tokens, repeated=repeats(), delimiters=[DELIMITER])
    assert_same(scores, frozen)
    assert not any(getattr(scores, name).requires_grad for name in PATTERNS)
    assert all(parameter.grad is None for parameter in model.parameters())
    assert model.training
    assert torch.is_grad_enabled()


def test_scores_follow_the_weights_as_training_changes_them() -> None:
    model = random_model("bert").requires_grad_()
    before = head_scores(model, repeats(), repeated=repeats())
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(0.5)
    after = head_scores(model, repeats(), repeated=repeats())
    assert not torch.allclose(before.previous, after.previous, atol=1e-3)


def test_without_a_delimiter_there_is_no_delimiter_score() -> None:
    model = random_model("bert")
    plain = repeats()
    for delimiters in (None, [], [DELIMITER]):
        scores = head_scores(model, plain, repeated=plain, delimiters=delimiters)
        assert scores.delimiter.isnan().all()
        assert not scores.previous.isnan().any()


def test_broken_weights_show_as_nan_and_not_as_a_score() -> None:
    model = random_model("bert")
    model.body.word.weight[:] = torch.nan
    scores = head_scores(model, repeats(), repeated=repeats())
    assert scores.induction.isnan().all()
    assert scores.previous.isnan().all()


def test_text_is_read_by_the_models_own_tokenizer() -> None:
    model = load()
    texts = ["The rabbit hopped over the hill.", "Leaves fall."]
    drawn = repeated_ids(4096, length=5, draws=2, low=5)
    scores = head_scores(model, texts, repeated=drawn)
    assert_same(scores, head_scores(model, model.tokenize(texts), repeated=drawn))
    # Tokens know their special tokens, and so does the tokenizer where Tokens were made of ids.
    tokens = model.tokenize(texts)
    bare = Tokens.from_ids(tokens.ids, mask=tokens.mask)
    assert_same(scores, head_scores(model, bare, repeated=drawn))
    assert all(0 <= score <= 1 for score in scores.delimiter.flatten().tolist())


def test_half_precision_on_the_way_leaves_single_precision_scores() -> None:
    model = random_model("bert")
    wanted = head_scores(model, repeats(), repeated=repeats())
    with torch.autocast("cpu", torch.bfloat16):
        scores = head_scores(model, repeats(), repeated=repeats())
    assert scores.induction.dtype == torch.float32
    torch.testing.assert_close(scores.induction, wanted.induction, atol=0.05, rtol=0)


def test_input_that_cannot_be_scored_is_refused_before_the_model_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = random_model("bert")
    monkeypatch.setattr(model, "trace", lambda *_, **__: pytest.fail("the model ran"))
    drawn = repeats()
    text = torch.tensor([[3, 4, 5]])
    wrong: list[tuple[Any, dict[str, Any], str]] = [
        (text, {}, "17 positions, fewer than the repeated sequences"),
        (text, {"repeated": text}, "no sequence followed by itself"),
        (text, {"repeated": drawn + VOCABULARY}, "outside the vocabulary"),
        (text, {"repeated": drawn, "delimiters": [VOCABULARY]}, "delimiters of .*id=53: expected"),
        (text + VOCABULARY, {"repeated": drawn}, "outside the vocabulary"),
        (text.new_zeros(1, 18), {"repeated": drawn}, "more than the 17 positions"),
        ([], {"repeated": drawn}, "empty"),
        ([Tokens.from_ids([3]), "text"], {"repeated": drawn}, "holds Tokens only"),
        ("some text", {"repeated": drawn}, "has no tokenizer"),
    ]
    for tokens, options, message in wrong:
        with pytest.raises(TokenizationError, match=message):
            head_scores(model, tokens, **options)


def test_a_sentence_of_one_token_scores_nothing() -> None:
    scores = head_scores(random_model("bert"), [[5]], repeated=repeats(), delimiters=[DELIMITER])
    assert all(math.isnan(getattr(scores, name)[0, 0]) for name in ("previous", "next"))
