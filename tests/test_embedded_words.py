"""Whole words, and the same word in two texts: scores that do not depend on how words are split."""

import pytest
import torch
from torch.nn import functional as F

from benchmarks.embedded import (
    SharedWord,
    lists_continued,
    same_word_in_other_text,
    sharing_pairs,
    whole_words_right,
)
from minibert.bench.gate import GateError
from minibert.model import Model
from minibert.text.tokens import Tokens
from minibert.training.texts import Document
from tests.test_embedded_scores import HELD_OUT, bert, gpt2, tokenizer_of


def test_pairs_share_one_rare_word_that_each_sentence_has_once() -> None:
    text = "The lark was above the hill. The lark sang for us. The owl slept. It was an owl owl."
    pages = [Document("a page", text), Document("another", "The owl sat above us all day.")]
    common = [Document("common", "hill above slept sang " * 9)]
    found = list(sharing_pairs(pages, common))
    assert found == [SharedWord("The lark was above the hill.", "The lark sang for us.", "lark")]
    frequent = [Document("common", "the lark " * 9)]
    assert not list(sharing_pairs(pages, frequent))


def test_the_same_word_is_looked_at_in_both_directions() -> None:
    model, pair = bert(), SharedWord("the rabbit hopped", "over the green rabbit", "rabbit")
    row = same_word_in_other_text(model, [pair])
    trace = model.trace(pair.first, pair.second)
    raw = list(trace.tokens.raw[0])
    here = raw.index("rabbit")
    there = raw.index("rabbit", here + 1)
    probs = torch.stack([layer[0] for layer in trace.attentions])
    both = (probs[:, :, here, there] + probs[:, :, there, here]) / 2
    torch.testing.assert_close(torch.tensor(row["scores"]), both, atol=1e-4, rtol=0)
    layer, head = map(int, row["head"].split("-"))
    assert both[layer, head] == both.max() == pytest.approx(row["value"], abs=1e-4)
    assert row["chance"] == pytest.approx(1 / len(raw), abs=1e-4)
    with pytest.raises(GateError, match="one token"):
        same_word_in_other_text(model, [SharedWord("a zebra", "one zebra", "zebra")])


def test_a_hidden_word_is_right_when_all_its_tokens_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, seen = bert(), []

    def always(self: Model, tokens: Tokens) -> torch.Tensor:
        seen.append(tokens)
        best = torch.full_like(tokens.ids, tokenizer_of("bert").encode("rabbit")[0])
        return F.one_hot(best, self.config.vocab_size).float()

    monkeypatch.setattr(Model, "forward", always)
    row = whole_words_right(model, HELD_OUT)
    mask = model.tokenizer.mask_id  # type: ignore[union-attr]
    # Of ten words one is the rabbit; some 15 % of all are hidden, and no sign is.
    assert row["count"] == pytest.approx(0.15 * 7 / 8 * 80 * sum(map(len, seen)), rel=0.2)
    assert 0 < row["value"] < 0.3
    assert sum(int((tokens.ids == mask).sum()) for tokens in seen) >= row["count"]


def test_a_list_is_continued_by_who_says_what_followed_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = gpt2()
    assert lists_continued(model)["value"] < 0.5

    def fourth_word(self: Model, tokens: Tokens) -> torch.Tensor:
        text = self.tokenizer.decode(tokens.ids[0].tolist())  # type: ignore[union-attr]
        best = self.tokenizer.encode(f" {text.split()[3]}")[0]  # type: ignore[union-attr]
        return F.one_hot(torch.full_like(tokens.ids, best), self.config.vocab_size).float()

    monkeypatch.setattr(Model, "forward", fourth_word)
    row = lists_continued(model)
    assert (row["value"], row["count"]) == (1, 100)
