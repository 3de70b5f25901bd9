"""Scores of a masked language model on text it never saw: heads, masked tokens, next sentences."""

import torch
from torch import Tensor

from benchmarks.embedded_matching import same_word_in_other_text, sharing_pairs
from benchmarks.embedded_words import whole_words_right
from benchmarks.evidence import (
    Measurements,
    Texts,
    best_head,
    finding,
    known_tokenizer,
    share,
)
from minibert.analysis import head_scores
from minibert.bench.gate import GateError
from minibert.bench.result_rows import Row
from minibert.model import Model
from minibert.text.tokenizer import Tokenizer
from minibert.text.tokens import Tokens
from minibert.training.batches import pairs
from minibert.training.texts import Corpus

__all__ = ["bert_measurements", "pair_windows"]

MASKED_SHARE = 0.15
# Each window is masked so many times, each time elsewhere.
MASKINGS = 4
# At an accuracy of 70 % the 95 % interval is ±0.9 %.
SENTENCE_PAIRS = 10_000
BATCH = 50


def bert_measurements(model: Model, texts: Texts) -> Measurements:
    """What a masked language model is measured in."""
    tokenizer = known_tokenizer(model)
    corpus = Corpus.of(texts.held_out, tokenizer)
    windows = pair_windows(corpus, tokenizer, model.config.n_positions)
    scores = head_scores(model, windows)
    training = Corpus.of(texts.training, tokenizer).ids
    sharing = list(sharing_pairs(texts.held_out, texts.training))
    return {
        "best next head": lambda: best_head(scores, "next", at_least=0.7),
        "best previous head": lambda: best_head(scores, "previous", at_least=0.7),
        "best delimiter head": lambda: best_head(scores, "delimiter", at_least=0.6),
        "best head for the same word in the other text": lambda: same_word_in_other_text(
            model, sharing
        ),
        "masked-token accuracy": lambda: masked_accuracy(model, windows, training, MASKINGS),
        "whole words right": lambda: whole_words_right(model, texts.held_out),
        "next-sentence accuracy": lambda: next_sentence_accuracy(model, corpus, SENTENCE_PAIRS),
    }


def pair_windows(corpus: Corpus, tokenizer: Tokenizer, length: int) -> Tokens:
    """[CLS] A [SEP] B [SEP] over the whole corpus, each token in one window, A before B.

    A ends with a sentence where one ends in the middle half of the window, and else anywhere in
    it. What is left at the end of a document is left out.
    """
    generator = torch.Generator().manual_seed(0)
    room, ends = length - 3, torch.tensor([tokenizer.cls_id, tokenizer.sep_id])
    rows, segments = [], []
    for document in range(len(corpus.first_sentences)):
        start, end = corpus.start(document), corpus.end(document)
        for first in range(start, end - room + 1, room):
            cut = _cut(corpus, first + room // 4, first + 3 * room // 4, generator)
            a, b = corpus.ids[first:cut], corpus.ids[cut : first + room]
            rows.append(torch.cat([ends[:1], a, ends[1:], b, ends[1:]]))
            segments.append((torch.arange(length) >= len(a) + 2).long())
    if not rows:
        raise GateError(f"no held-out text has {room} tokens")
    return Tokens.from_ids(torch.stack(rows), segments=torch.stack(segments), tokenizer=tokenizer)


def _cut(corpus: Corpus, low: int, high: int, generator: torch.Generator) -> int:
    anywhere = int(torch.randint(low, high, (), generator=generator))
    starts = corpus.sentence_starts
    inside = starts[(starts >= low) & (starts < high)]
    return int(inside[(inside - anywhere).abs().argmin()]) if len(inside) else anywhere


def masked_accuracy(model: Model, windows: Tokens, training_ids: Tensor, maskings: int) -> Row:
    """How often the most probable token at a mask is right, beside two constant answers.

    Every chosen token becomes [MASK]. The constants are the most frequent token of the training
    text and that of the held-out text itself; the target is three times the better of them.
    """
    tokenizer = known_tokenizer(model)
    if tokenizer.mask_id is None:
        raise GateError("the tokenizer has no mask")
    structural = torch.tensor(sorted(tokenizer.structural_ids))
    generator = torch.Generator().manual_seed(0)
    right, wanted = [], []
    for rows in torch.arange(len(windows)).repeat(maskings).split(BATCH):
        ids = windows.ids[rows]
        chosen = torch.rand(ids.shape, generator=generator) < MASKED_SHARE
        chosen &= ~torch.isin(ids, structural)
        corrupted = torch.where(chosen, tokenizer.mask_id, ids)
        logits = model(Tokens.from_ids(corrupted, segments=windows.segments[rows]))
        labels = ids[chosen]
        right.append(logits[chosen].argmax(-1) == labels)
        wanted.append(labels)
    answers, labels = torch.cat(right), torch.cat(wanted)
    constants = [int(training_ids.bincount().argmax()), int(labels.bincount().argmax())]
    baselines = [float((labels == constant).double().mean()) for constant in constants]
    return finding(
        float(answers.double().mean()),
        at_least=3 * max(baselines),
        unigram_training=round(baselines[0], 4),
        unigram_held_out=round(baselines[1], 4),
        unigram_tokens=[tokenizer.raw(constant) for constant in constants],
        masked_share=MASKED_SHARE,
        **share(answers),
    )


def next_sentence_accuracy(model: Model, corpus: Corpus, count: int) -> Row:
    """How often the next-sentence head tells the text after A from a part of another text.

    Half of the pairs are of each kind. Label 1 says that B is from another text, 0 that it is
    next (Devlin et al. 2019, section 3.1, and its code).
    """
    if model.config.task != "pre-training":
        raise GateError(f"no next-sentence head: the task is {model.config.task}")
    if len(corpus.first_sentences) < 2:
        raise GateError("next sentence needs two held-out texts, one for the wrong answers")
    generator = torch.Generator().manual_seed(0)
    tokenizer, config = known_tokenizer(model), model.config
    found, wanted = [], []
    for _ in range(-(-count // BATCH)):
        batch = pairs(corpus, config, tokenizer, BATCH, config.n_positions, generator)
        assert batch.unrelated is not None
        tokens = Tokens.from_ids(batch.ids, mask=batch.mask, segments=batch.segments)
        found.append(model.trace(tokens).next_sentence_logits.argmax(-1))
        wanted.append(batch.unrelated)
    answers, labels = torch.cat(found), torch.cat(wanted)
    right = answers == labels
    by_kind = [round(float(right[labels == kind].double().mean()), 4) for kind in (0, 1)]
    # Of the two kinds alike, so that answering one of them always gives a half.
    return finding(
        sum(by_kind) / 2,
        at_least=0.7,
        is_next=by_kind[0],
        is_other=by_kind[1],
        **share(right),
    )
