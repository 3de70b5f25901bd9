"""A corpus whose ids count up, so that each says where it comes from, and batches of it."""

from typing import Any

import torch
from tokenizers import Tokenizer as Backend
from tokenizers import models
from torch import Tensor

from minibert.layers.config import Config
from minibert.text.tokenizer import Tokenizer
from minibert.training.batches import Batch
from minibert.training.texts import Corpus
from tests.training.small_runs import bert

PAD, UNKNOWN, BEGIN, END, MASK = SPECIAL = range(5)
SENTENCE = 7
LENGTHS = (211, 149, 97)
WORDS = sum(LENGTHS)


def word_for_each_place() -> Tokenizer:
    """The tokenizer that goes with CORPUS."""
    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{n}" for n in range(WORDS))]
    backend = Backend(models.WordLevel({name: n for n, name in enumerate(names)}, "[UNK]"))
    backend.add_special_tokens(names[:5])
    return Tokenizer(backend, {})


def corpus_of(*lengths: int) -> Corpus:
    """Documents of these lengths with a sentence every 7 tokens; each id is there once."""
    starts, firsts, begin = [], [], 0
    for length in lengths:
        firsts.append(len(starts))
        starts += range(begin, begin + max(1, length), SENTENCE)
        begin += length
    ids = torch.arange(begin) + len(SPECIAL)
    return Corpus(ids, torch.tensor(starts), torch.tensor(firsts))


CORPUS = corpus_of(*LENGTHS)


def place(token: int) -> int:
    return token - len(SPECIAL)


def document_of(token: int, corpus: Corpus = CORPUS) -> int:
    return sum(place(token) >= corpus.start(n) for n in range(len(corpus.sizes))) - 1


def shape(config: Config, **changes: Any) -> Config:
    return Config(**(vars(config) | {"vocab_size": WORDS + len(SPECIAL)} | changes))


BERT = shape(bert(), n_positions=48)
Parts = tuple[list[int], list[int] | None]


def parts(batch: Batch, row: int) -> Parts:
    """A and B of a row, once its special tokens and padding are seen to be right."""
    ids = batch.ids[row].tolist()
    ends = [n for n, token in enumerate(ids) if token == END]
    assert ids[0] == BEGIN
    assert ids[ends[-1] + 1 :] == [PAD] * (len(ids) - ends[-1] - 1)
    if batch.mask is not None:
        assert batch.mask[row].tolist() == [n <= ends[-1] for n in range(len(ids))]
    first, second = ids[1 : ends[0]], None
    if len(ends) > 1:
        second = ids[ends[0] + 1 : ends[1]]
        assert batch.segments is not None
        expected = [int(ends[0] < n <= ends[1]) for n in range(len(ids))]
        assert batch.segments[row].tolist() == expected
    assert len(ends) <= 2
    assert not set(first + (second or [])) & set(SPECIAL)
    return first, second


def equal(one: Batch, other: Batch) -> bool:
    ours, theirs = vars(one), vars(other)
    return all(
        torch.equal(ours[k], theirs[k]) if isinstance(ours[k], Tensor) else theirs[k] is None
        for k in ours
    )
