"""Whole words that a masked language model finds: a score that does not depend on its tokens."""

import re
from collections.abc import Sequence

import torch

from benchmarks.evidence import finding, known_tokenizer, share
from minibert.bench.gate import GateError
from minibert.bench.result_rows import Row
from minibert.model import Model
from minibert.text.tokens import Tokens
from minibert.training.texts import Document

__all__ = ["whole_words_right"]

# Words and signs of a window; the first half is A, the second B.
WINDOW = 80
MASKED_SHARE = 0.15
BATCH = 50
SIGNS = re.compile(r"\w+|[^\w\s]")


def whole_words_right(model: Model, documents: Sequence[Document]) -> Row:
    """How often all tokens of a hidden word are the most probable ones.

    The words are the same for every model: 15 % of the words (signs are not words) of windows of
    80 words and signs, [CLS] A [SEP] B [SEP]. All tokens of a chosen word become [MASK].
    """
    tokenizer = known_tokenizer(model)
    if None in (tokenizer.mask_id, tokenizer.cls_id, tokenizer.sep_id):
        raise GateError("the tokenizer has no mask, no start or no separator")
    generator = torch.Generator().manual_seed(0)
    right: list[bool] = []
    rows: list[_Row] = []
    for document in documents:
        words = SIGNS.findall(document.text.lower())
        encoded = {word: tokenizer.encode(word) for word in set(words)}
        for first in range(0, len(words) - WINDOW + 1, WINDOW):
            window = words[first : first + WINDOW]
            drawn = (torch.rand(WINDOW, generator=generator) < MASKED_SHARE).tolist()
            chosen = [hide and word[0].isalnum() for hide, word in zip(drawn, window, strict=True)]
            rows.append(_Row(model, [encoded[word] for word in window], chosen))
    if not rows:
        raise GateError(f"no held-out text has {WINDOW} words")
    for start in range(0, len(rows), BATCH):
        right += _answers(model, rows[start : start + BATCH])
    answers = torch.tensor(right)
    return finding(float(answers.double().mean()), masked_share=MASKED_SHARE, **share(answers))


class _Row:
    """The ids of a window, with and without the chosen words, and where these stand."""

    def __init__(
        self, model: Model, words: Sequence[Sequence[int]], chosen: Sequence[bool]
    ) -> None:
        tokenizer = known_tokenizer(model)
        assert tokenizer.cls_id is not None
        assert tokenizer.sep_id is not None
        assert tokenizer.mask_id is not None
        self.ids, self.places = [tokenizer.cls_id], []
        for at, (ids, hide) in enumerate(zip(words, chosen, strict=True)):
            if at == WINDOW // 2:
                self.ids.append(tokenizer.sep_id)
                self.second = len(self.ids)
            if hide:
                self.places.append((len(self.ids), list(ids)))
            self.ids += [tokenizer.mask_id] * len(ids) if hide else ids
        self.ids.append(tokenizer.sep_id)
        if len(self.ids) > model.config.n_positions:
            raise GateError(f"{WINDOW} words are more tokens than the model has positions")


def _answers(model: Model, rows: Sequence[_Row]) -> list[bool]:
    length = max(len(row.ids) for row in rows)
    ids = torch.zeros(len(rows), length, dtype=torch.int64)
    segments, mask = torch.zeros_like(ids), torch.zeros_like(ids, dtype=torch.bool)
    for at, row in enumerate(rows):
        ids[at, : len(row.ids)] = torch.tensor(row.ids)
        mask[at, : len(row.ids)] = True
        segments[at, row.second : len(row.ids)] = 1
    logits = model(Tokens.from_ids(ids, mask=mask, segments=segments))
    best = logits.argmax(-1).tolist()
    return [
        best[at][start : start + len(word)] == word
        for at, row in enumerate(rows)
        for start, word in row.places
    ]
