"""What the embedded models can do, measured on text they never saw.

    python -m benchmarks.embedded --held-out FILE... --text FILE... [--output FILE]
    python -m benchmarks.embedded --kinds FOLDER
    python -m benchmarks.embedded --sentiment FOLDER
    python -m benchmarks.embedded --curves

`--held-out` are texts that were in no training, two or more of them for next-sentence pairs;
`--text` are those the models were trained on, for the n-gram and unigram baselines and for the
words that the generated text should consist of. A row for each score goes to the output; one that
cannot be measured is a row with the reason. The exit status is 0 when all were measured.

`--kinds` measures masked tokens and loss by kind of text instead, from the folder of test data.
`--sentiment` measures tiny-bert-sentiment, from the folder with the sentences that
scripts/train_sentiment.py names. `--curves` measures how the causal models copy random tokens over
distances and periods, and needs no texts. In the output a score takes the place of the same model's
earlier one; the others stay.
"""

import argparse
import copy
import csv
import hashlib
import math
import random
import re
import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import minibert
from benchmarks.ngram import TrigramModel
from benchmarks.session import RESULTS
from minibert.analysis import HeadScores, head_scores, repeated_ids
from minibert.bench.gate import GateError, reason
from minibert.bench.result_rows import Row, facts, read_rows, write_rows
from minibert.course.texts import COPIED, REVIEW, copying_text
from minibert.errors import MinibertError
from minibert.model import Model
from minibert.quantities import Float, Int
from minibert.text.tokenizer import Tokenizer
from minibert.text.tokens import Tokens
from minibert.training.batches import pairs
from minibert.training.texts import Corpus, Document, clean, read_texts, sentence_starts
from scripts.train_sentiment import (
    LABELLED,
    POLARITY,
    START,
    Sentence,
    probabilities,
    read_sentences,
    untrained,
)

# What is measured and how, each on its own: one that fails does not stop the others.
Measurements = dict[str, Callable[[], Row]]


@dataclass(frozen=True)
class Texts:
    """What a model never saw, and what it was trained on."""

    held_out: tuple[Document, ...]
    training: tuple[Document, ...]

    @classmethod
    def read(cls, held_out: Sequence[Path], training: Sequence[Path]) -> "Texts":
        """The texts of these files. Raises MinibertError where one is on both sides."""
        texts = cls(read_texts(held_out), read_texts(training))
        seen = {document.digest: document.name for document in texts.training}
        for document in texts.held_out:
            if document.digest in seen:
                raise MinibertError(
                    f"{document.name} is held out and in training as {seen[document.digest]}; "
                    "expected texts that the models never saw."
                )
        return texts


def known_tokenizer(model: Model) -> Tokenizer:
    """The tokenizer. Raises GateError for a model without one."""
    if model.tokenizer is None:
        raise GateError("the model has no tokenizer")
    return model.tokenizer


def finding(value: float, **details: Any) -> Row:
    """Fields of a row: the value, and details."""
    return {"ok": True, "value": round(value, 4), **details}


def share(right: Tensor) -> dict[str, float]:
    """How many of the answers there are, and half the width of the share's 95 % interval.

    Normal approximation, as if answers were independent: 1.96 · sqrt(p (1 - p) / n).
    """
    p, count = float(right.double().mean()), right.numel()
    return {"count": count, "error_95": round(1.96 * math.sqrt(p * (1 - p) / count), 4)}


def best_head(scores: HeadScores, pattern: str) -> Row:
    """The best score of a pattern, whose it is, and those of all heads by layer."""
    layer, head, score = scores.best(pattern)
    return finding(score, head=f"{layer}-{head}", scores=scores.by_pattern()[pattern])


# Words of content: those that the training texts do not have too often.
FREQUENT = 300
LETTERS = 4
# Characters of a sentence, as people type them.
SHORTEST, LONGEST = 20, 160


@dataclass(frozen=True)
class SharedWord:
    """Two sentences, one after the other, and the one word of content that both have, once each."""

    first: str
    second: str
    word: str


def sharing_pairs(
    held_out: Sequence[Document], training: Sequence[Document]
) -> Iterator[SharedWord]:
    """The pairs of neighbouring sentences that share one word of content, in their order.

    A word of content has at least four letters and is none of the 300 most frequent words of the
    training texts.
    """
    counts = Counter(word for document in training for word in _words(document.text))
    frequent = {word for word, _ in counts.most_common(FREQUENT)}
    for document in held_out:
        starts = [*sentence_starts(document.text), len(document.text)]
        sentences = [document.text[a:b].strip() for a, b in pairwise(starts)]
        for first, second in pairwise(sentences):
            if not all(SHORTEST <= len(one) <= LONGEST for one in (first, second)):
                continue
            one, other = Counter(_words(first)), Counter(_words(second))
            shared = [word for word in one if word in other and len(word) >= LETTERS]
            shared = [word for word in shared if word not in frequent]
            if len(shared) == 1 and one[shared[0]] == other[shared[0]] == 1:
                yield SharedWord(first, second, shared[0])


def same_word_in_other_text(model: Model, pairs: Sequence[SharedWord]) -> Row:
    """The head that gives the shared word most, a mean over pairs and over both directions.

    Pairs whose word is not one token are left out. `chance` is the share of one token of all, and
    `delimiter` what the same queries of that head give [SEP].
    """
    tokenizer = known_tokenizer(model)
    found: list[Tensor] = []
    rests: list[Tensor] = []
    lengths: list[int] = []
    for pair in pairs:
        ids = tokenizer.encode(pair.word)
        tokens = model.tokenize(pair.first, pair.second)
        if (
            len(ids) != 1
            or ids[0] == tokenizer.unk_id
            or tokens.ids.shape[1] > model.config.n_positions
        ):
            continue
        places = (tokens.ids[0] == ids[0]).nonzero()[:, 0].tolist()
        if len(places) != 2:
            continue
        probs = torch.stack([each[0] for each in model.trace(tokens).attentions])
        here, there = places
        found.append((probs[..., here, there] + probs[..., there, here]) / 2)
        rests.append(probs[..., places, :][..., tokens.ids[0] == tokenizer.sep_id].sum(-1).mean(-1))
        lengths.append(len(tokens.ids[0]))
    if not found:
        raise GateError("no pair of sentences shares a word that is one token")
    shares = torch.stack(found).double()
    means = shares.mean(0)
    layer, head = divmod(int(means.argmax()), model.config.n_heads)
    of_head = shares[:, layer, head]
    error = 1.96 * float(of_head.std(correction=min(1, len(of_head) - 1))) / len(of_head) ** 0.5
    return finding(
        float(of_head.mean()),
        head=f"{layer}-{head}",
        scores=means.round(decimals=4).tolist(),
        delimiter=round(float(torch.stack(rests)[:, layer, head].mean()), 4),
        chance=round(sum(1 / length for length in lengths) / len(lengths), 4),
        error_95=round(error, 4),
        count=len(of_head),
    )


def _words(text: str) -> list[str]:
    return re.findall(r"[a-z]+", text.lower())


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


# Each window is masked so many times, each time elsewhere.
MASKINGS = 4
# At an accuracy of 70 % the 95 % interval is ±0.9 %.
SENTENCE_PAIRS = 10_000


def bert_measurements(model: Model, texts: Texts) -> Measurements:
    """What a masked language model is measured in."""
    tokenizer = known_tokenizer(model)
    corpus = Corpus.of(texts.held_out, tokenizer)
    windows = pair_windows(corpus, tokenizer, model.config.n_positions)
    scores = head_scores(model, windows)
    training = Corpus.of(texts.training, tokenizer).ids
    sharing = list(sharing_pairs(texts.held_out, texts.training))
    return {
        "best next head": lambda: best_head(scores, "next"),
        "best previous head": lambda: best_head(scores, "previous"),
        "best delimiter head": lambda: best_head(scores, "delimiter"),
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
    text and that of the held-out text itself.
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
        is_next=by_kind[0],
        is_other=by_kind[1],
        **share(right),
    )


AGAIN = 3


def lists_continued(model: Model) -> Row:
    """How often the most probable token is the word, or its beginning, that followed before.

    On the 100 lists of seven common words in no order of the course, the first three said again.
    """
    tokenizer, right = known_tokenizer(model), []
    for words in COPIED:
        best = int(model(model.tokenize(copying_text(words, AGAIN)))[0, -1].argmax())
        right.append(best == tokenizer.encode(f" {words[AGAIN]}")[0])
    answers = torch.tensor(right)
    return finding(float(answers.double().mean()), again=AGAIN, **share(answers))


# From this score on a head is ablated as an induction head.
INDUCTION = 0.3
LENGTH, DRAWS = 50, 200
CONTROLS = 20
PROMPTS, PROMPT_TOKENS, NEW_TOKENS = 100, 12, 60

Head = tuple[int, int]


def causal_measurements(model: Model, texts: Texts) -> Measurements:
    """What a causal language model is measured in."""
    tokenizer = known_tokenizer(model)
    held_out = [torch.tensor(tokenizer.encode(document.text)) for document in texts.held_out]
    length = model.config.n_positions
    windows = [ids[: len(ids) // length * length].view(-1, length) for ids in held_out]
    scores = head_scores(model, torch.cat(windows))
    inductive = [
        (layer, head) for layer, head in (scores.induction >= INDUCTION).nonzero().tolist()
    ]
    training = [tokenizer.encode(document.text) for document in texts.training]
    given = prompts_from(model, held_out, PROMPTS)
    return {
        "best induction head": lambda: best_head(scores, "induction"),
        "best previous head": lambda: best_head(scores, "previous"),
        "loss rise without induction heads": lambda: ablation(model, inductive),
        "lists of seven words continued": lambda: lists_continued(model),
        "held-out loss": lambda: held_out_loss(model, held_out, training),
        "words known, greedy": lambda: generated_words(model, texts, given, temperature=0.0),
        "words known, drawn": lambda: generated_words(model, texts, given, temperature=0.8),
    }


def without_heads(model: Model, heads: Collection[Head]) -> Model:
    """A copy of the model in which these heads add nothing to the stream: their z is zero."""
    other = copy.deepcopy(model)
    for layer, head in heads:
        attention: Any = other.body.layers[layer].attention
        weight = attention.output.weight.clone()
        weight[:, head * attention.d_head : (head + 1) * attention.d_head] = 0
        attention.output.weight = nn.Parameter(weight, requires_grad=False)
    return other


def token_losses(
    model: Model, ids: Int[Tensor, "batch position"]
) -> Float[Tensor, "batch position-1"]:
    """-log P of each token but the first given those before it in its row, in nats."""
    losses = []
    for rows in ids.split(BATCH):
        logits = model(rows)[:, :-1]
        losses.append(F.cross_entropy(logits.transpose(1, 2), rows[:, 1:], reduction="none"))
    return torch.cat(losses)


def ablation(model: Model, heads: Sequence[Head], *, controls: int = CONTROLS) -> Row:
    """By how many nats ablating these heads raises the loss on what was said before.

    On random tokens said twice, other ones than the heads were found on. The loss is that of the
    second half's tokens from its second on, since its first cannot be known. The control ablates
    as many other heads, drawn at random, a few times.
    """
    if not heads:
        raise GateError(f"no head has an induction score of {INDUCTION}")
    tokenizer, config = known_tokenizer(model), model.config
    usable = min(tokenizer.vocab_size, config.vocab_size)
    exclude = tokenizer.special_ids
    ids = repeated_ids(usable, length=LENGTH, draws=DRAWS, seed=1, exclude=exclude)
    before = _repeated_loss(model, ids)
    after = _repeated_loss(without_heads(model, heads), ids)
    every = [(layer, head) for layer in range(config.n_layers) for head in range(config.n_heads)]
    others = [head for head in every if head not in heads]
    shuffler, drawn = random.Random(0), min(len(heads), len(others))
    draws = [shuffler.sample(others, drawn) for _ in range(controls)]
    rises = [_repeated_loss(without_heads(model, draw), ids) - before for draw in draws]
    return finding(
        after - before,
        unit="nats",
        heads=[f"{layer}-{head}" for layer, head in heads],
        loss_before=round(before, 4),
        loss_after=round(after, 4),
        loss_first_half=round(float(token_losses(model, ids)[:, : LENGTH - 1].mean()), 4),
        control_heads=drawn,
        control_rise_mean=round(sum(rises) / len(rises), 4),
        control_rise_median=round(sorted(rises)[len(rises) // 2], 4),
        control_rise_most=round(max(rises), 4),
        count=DRAWS * (LENGTH - 1),
    )


def _repeated_loss(model: Model, ids: Tensor) -> float:
    # Column i is the loss of token i + 1.
    return float(token_losses(model, ids)[:, LENGTH:].double().mean())


DISTANCES = (16, 32, 64, 96, 128, 192, 240)
PERIODS = (4, 8, 16, 32, 64, 96, 127)
PIECE = 16


def copying_measurements(model: Model) -> Measurements:
    """How a causal model copies random tokens."""
    return {
        f"copying over {name}": partial(measure, model)
        for name, measure in (("distances", over_distances), ("periods", over_periods))
    }


def over_distances(model: Model) -> Row:
    """The loss of a piece of 16 random tokens that stood so many tokens before, by distance.

    Between the two copies are other random tokens. The first token of the copy cannot be known and
    is left out. `scores` are the attention of the best head to the token after the earlier copy.
    """
    losses, scores, heads = [], [], []
    for distance in DISTANCES:
        ids = _blocks(model, distance)[:, : distance + PIECE]
        losses.append(float(token_losses(model, ids)[:, distance:].double().mean()))
        # Query i looks at key i - distance + 1; the first such query is before the copy.
        found = torch.stack(
            [
                layer.diagonal(1 - distance, -2, -1)[..., 1:].double().mean((0, 2))
                for layer in model.trace(ids).attentions
            ]
        )
        scores.append(round(float(found.max()), 4))
        heads.append("{}-{}".format(*divmod(int(found.argmax()), found.shape[1])))
    return _curve(losses, distances=DISTANCES, scores=scores, heads=heads)


def over_periods(model: Model) -> Row:
    """The loss of random tokens that repeat to the end of the window, by the period.

    The first period and the first token after it cannot be known and are left out.
    """
    losses = []
    for period in PERIODS:
        block = _blocks(model, period)[:, :period]
        ids = block.repeat(1, -(-model.config.n_positions // period))
        ids = ids[:, : model.config.n_positions]
        losses.append(float(token_losses(model, ids)[:, period:].double().mean()))
    return _curve(losses, periods=PERIODS)


def _blocks(model: Model, length: int) -> Tensor:
    """Fifty blocks of random tokens, each twice."""
    tokenizer = known_tokenizer(model)
    usable = min(tokenizer.vocab_size, model.config.vocab_size)
    return repeated_ids(usable, length=length, draws=BATCH, seed=1, exclude=tokenizer.special_ids)


def _curve(losses: list[float], **details: Any) -> Row:
    """A row whose value is the largest loss."""
    return finding(
        max(losses), unit="nats", losses=[round(one, 4) for one in losses], count=BATCH, **details
    )


def late_losses(model: Model, ids: Int[Tensor, " token"]) -> Float[Tensor, " late"]:
    """-log P of every token of a text with at least half a window before it, in nats."""
    length = model.config.n_positions
    windows = ids.unfold(0, length, length // 2)
    return token_losses(model, windows)[:, length // 2 - 1 :].flatten().double()


def held_out_loss(
    model: Model, documents: Sequence[Tensor], training: Sequence[Sequence[int]]
) -> Row:
    """The loss on held-out tokens, beside a Kneser-Ney trigram model's on the same ones.

    The trigram model counts the same training tokens. Windows overlap by half, and only the
    second half of each counts: every token once, with half a window before it or more.
    """
    length = model.config.n_positions
    half, tokenizer = length // 2, known_tokenizer(model)
    trigrams = TrigramModel(training, vocab_size=model.config.vocab_size)
    mine, theirs = [], []
    for ids in documents:
        if len(ids) < length:
            continue
        mine.append(late_losses(model, ids))
        counted = slice(half, half + len(mine[-1]))
        theirs.append(torch.from_numpy(trigrams.losses(ids.tolist()))[counted])
    if not mine:
        raise GateError(f"no held-out text has {length} tokens")
    ours, trigram = torch.cat(mine), torch.cat(theirs)
    difference = ours - trigram
    # A model with longer tokens has more to say with each.
    characters = sum(len(tokenizer.decode(ids.tolist())) for ids in documents)
    per_character = sum(map(len, documents)) / characters / math.log(2)
    return finding(
        float(ours.mean()),
        unit="nats per token",
        bits_per_character=round(float(ours.mean()) * per_character, 4),
        trigram_loss=round(float(trigram.mean()), 4),
        difference=round(float(difference.mean()), 4),
        difference_error_95=round(1.96 * float(difference.std()) / math.sqrt(len(ours)), 4),
        least_context=half,
        most_context=length - 1,
        training_tokens=sum(map(len, training)),
        count=len(ours),
    )


def prompts_from(model: Model, documents: Sequence[Tensor], count: int) -> list[str]:
    """Pieces of the held-out texts, from places drawn at random."""
    tokenizer, shuffler = known_tokenizer(model), random.Random(0)
    long = [ids for ids in documents if len(ids) >= PROMPT_TOKENS]
    pieces = []
    for _ in range(count):
        ids = shuffler.choice(long)
        first = shuffler.randrange(len(ids) - PROMPT_TOKENS + 1)
        pieces.append(tokenizer.decode(ids[first : first + PROMPT_TOKENS]))
    return pieces


def generated_words(
    model: Model, texts: Texts, prompts: Sequence[str], *, temperature: float
) -> Row:
    """The share of the words written behind these prompts that the training texts have.

    The share of the held-out texts' own words says what to expect of English by people.
    """
    known = {word for document in texts.training for word in words(document.text)}
    own = [word for document in texts.held_out for word in words(document.text)]
    written = model.generate(list(prompts), max_new_tokens=NEW_TOKENS, temperature=temperature)
    # The last word may be cut in two.
    found = [word for one in written for word in words(one.new_text)[:-1]]
    if not found:
        raise GateError("no word was written")
    return finding(
        sum(word in known for word in found) / len(found),
        held_out_share=round(sum(word in known for word in own) / len(own), 4),
        temperature=temperature,
        count=len(found),
        examples=[str(one) for one in written[:3]],
    )


def words(text: str) -> list[str]:
    """The words of a text in lower case."""
    return re.findall(r"[^\W\d_]+(?:'[^\W\d_]+)*", text.lower())


# Of each kind the first characters, so that kinds weigh alike: some 70,000 tokens.
CHARACTERS = 300_000
NOVELS = ("11_alices_adventures_in_wonderland.txt", "271_black_beauty.txt")


def kinds_of_text(data: Path) -> dict[str, tuple[Document, ...]]:
    """The texts of each kind, from the folder that MINIBERT_TEST_DATA names.

    Raises GateError for a file that is not there.
    """
    text = data / "text"
    novels = [text / "litbank" / "original" / name for name in NOVELS]
    files = {
        "Wikipedia (GAP)": (text / "gap" / "gap-development.tsv", _gap),
        "Wikipedia (wikitext-2)": (text / "wikitext-2" / "wiki.test.tokens", _wikitext),
        "web (EWT)": (text / "ud-english-ewt" / "en_ewt-ud-dev.conllu", _ewt),
        "plays (Shakespeare)": (text / "tinyshakespeare" / "input.txt", str),
    }
    for path in (*novels, *(path for path, _ in files.values())):
        if not path.is_file():
            raise GateError(f"{path.name} is not in the folder of test data")
    share = CHARACTERS // len(NOVELS)
    cut = tuple(Document(one.name, one.text[:share]) for one in read_texts(novels))
    return {"novels": cut} | {kind: (_read(*files[kind]),) for kind in files}


def kind_measurements(model: Model, kinds: dict[str, tuple[Document, ...]]) -> Measurements:
    """Masked tokens right, or the loss of a causal model, by kind of text."""
    what, measure = _LOSS if model.config.causal else _MASKED
    return {f"{what}, {kind}": partial(measure, model, kinds[kind]) for kind in kinds}


def _read(path: Path, plain: Callable[[str], str]) -> Document:
    return Document(path.name, clean(plain(path.read_text(encoding="utf-8")))[:CHARACTERS])


def _gap(text: str) -> str:
    """The snippets, one a paragraph."""
    rows = csv.DictReader(text.splitlines(), delimiter="\t", quoting=csv.QUOTE_NONE)
    return "\n\n".join(row["Text"] for row in rows)


def _wikitext(text: str) -> str:
    """The sentences in which no word was replaced, with the usual spaces around punctuation."""
    lines = (line.strip() for line in text.splitlines())
    paragraphs = (line.split(" . ") for line in lines if line and not line.startswith("="))
    whole = (" . ".join(s for s in p if "<unk>" not in s) for p in paragraphs)
    joined = re.sub(r" @(.)@ ", r"\1", "\n\n".join(whole))
    return re.sub(r"([(\[]) ", r"\1", re.sub(r" ([,.;:!?)\]'])", r"\1", joined))


def _ewt(text: str) -> str:
    """The sentences as they were written, a document a paragraph."""

    def parts() -> Iterator[str]:
        for row in text.splitlines():
            if row.startswith("# newdoc"):
                yield "\n\n"
            elif row.startswith("# text = "):
                yield row.removeprefix("# text = ") + " "

    return "".join(parts())


def masked_of_kind(model: Model, documents: tuple[Document, ...]) -> Row:
    """How often the most probable token at a mask is right, as on held-out text."""
    tokenizer = known_tokenizer(model)
    corpus = Corpus.of(documents, tokenizer)
    windows = pair_windows(corpus, tokenizer, model.config.n_positions)
    row = masked_accuracy(model, windows, corpus.ids, MASKINGS)
    kept = ("value", "count", "error_95", "masked_share")
    return {"ok": True} | {name: row[name] for name in kept} | {"always": row["unigram_held_out"]}


def loss_of_kind(model: Model, documents: tuple[Document, ...]) -> Row:
    """The loss of every token with at least half a window before it, in nats a token."""
    losses, tokens, characters = [], 0, 0
    for document in documents:
        ids = torch.tensor(known_tokenizer(model).encode(document.text))
        losses.append(late_losses(model, ids))
        tokens, characters = tokens + len(ids), characters + len(document.text)
    value = torch.cat(losses)
    return finding(
        float(value.mean()),
        unit="nats per token",
        bits_per_character=round(float(value.mean()) / math.log(2) * tokens / characters, 4),
        error_95=round(1.96 * float(value.std()) / math.sqrt(len(value)), 4),
        count=len(value),
    )


_MASKED = ("masked tokens right", masked_of_kind)
_LOSS = ("loss", loss_of_kind)


SEEDS = 10
KINDS = {"reviews": LABELLED, "film snippets": tuple(POLARITY)}
NEGATION = re.compile(r"\b(?:no|not|never|none|nothing|nor|cannot|\w+n[’']t)\b", re.IGNORECASE)


def sentiment_measurements(model: Model, data: Path) -> Measurements:
    """What the sentiment model is measured in, from the folder with its sentences."""
    sentences = read_sentences(data)
    kept = [one for one in sentences if not one.held_out]
    held_out = [one for one in sentences if one.held_out]
    counts = WordCounts(kept)
    reviews = [one for one in held_out if one.source in LABELLED]
    rows: Measurements = {
        f"{kind} right": partial(
            right, model, counts, [one for one in held_out if one.source in sources]
        )
        for kind, sources in KINDS.items()
    }
    negated = [one for one in reviews if NEGATION.search(one.text)]
    return rows | {
        "reviews with a negation right": partial(right, model, counts, negated),
        f"reviews right, {SEEDS} untrained heads": partial(before, reviews),
        "a review of two opinions": partial(opinions, model),
    }


def right(model: Model, counts: "WordCounts", sentences: Sequence[Sentence]) -> Row:
    """The share of the sentences whose label is right, beside that of counted words."""
    labels = torch.tensor([one.label for one in sentences])
    by_words = torch.tensor([counts.label(one.text) for one in sentences])
    found = probabilities(model, sentences).argmax(-1) == labels
    return finding(
        float(found.double().mean()),
        **share(found),
        positive=round(float(labels.double().mean()), 4),
        by_words=round(float((by_words == labels).double().mean()), 4),
    )


def before(sentences: Sequence[Sentence]) -> Row:
    """The mean share of right labels of heads whose weights are random, of so many seeds.

    `sure` is the mean probability of the answer, `same` the mean share of the sentences that get
    the answer that is most frequent with that head.
    """
    labels = torch.tensor([one.label for one in sentences])
    found = [probabilities(untrained(START, seed=seed), sentences) for seed in range(SEEDS)]
    answers = torch.stack([one.argmax(-1) for one in found])
    shares = (answers == labels).double().mean(-1)
    positive = answers.double().mean(-1)
    return finding(
        float(shares.mean()),
        least=round(float(shares.min()), 4),
        most=round(float(shares.max()), 4),
        same=round(float(positive.maximum(1 - positive).mean()), 4),
        sure=round(float(torch.stack(found).amax(-1).mean()), 4),
        count=len(sentences),
    )


def opinions(model: Model) -> Row:
    """What the model, and heads without training, say to the review of a well-known article."""
    one = [Sentence(REVIEW, 1, "")]
    heads = [untrained(START, seed=seed) for seed in range(SEEDS)]
    return finding(
        float(probabilities(model, one)[0, 1]),
        text=REVIEW,
        untrained=[int(probabilities(head, one).argmax()) for head in heads],
    )


class WordCounts:
    """Naive Bayes of single words: what a table of counted words knows of sentiment.

    P(label | words) is in proportion to P(label) times the product of P(word | label), each
    (count of the word among those of the label + 1) / (words of the label + known words). Words
    that the training did not have are left out.
    """

    def __init__(self, sentences: Sequence[Sentence]) -> None:
        self.counts: tuple[Counter[str], Counter[str]] = (Counter(), Counter())
        for sentence in sentences:
            self.counts[sentence.label].update(words(sentence.text))
        self.known = set(self.counts[0]) | set(self.counts[1])
        found = Counter(sentence.label for sentence in sentences)
        self.before = [math.log(found[label] / len(sentences)) for label in (0, 1)]

    def label(self, text: str) -> int:
        """The label that is more probable."""
        return int(self.log_probability(text, 1) > self.log_probability(text, 0))

    def log_probability(self, text: str, label: int) -> float:
        """log of P(label) P(words | label), in nats."""
        counts = self.counts[label]
        every = counts.total() + len(self.known)
        found = [word for word in words(text) if word in self.known]
        return self.before[label] + sum(math.log((counts[word] + 1) / every) for word in found)


MEASUREMENTS: dict[str, Callable[[Model, Texts], Measurements]] = {
    "tiny-bert": bert_measurements,
    "tiny-gpt2": causal_measurements,
    "tiny-llama": causal_measurements,
}
SENTIMENT = "tiny-bert-sentiment"
EVERYTHING = "all scores"


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit status: 0 when every score was measured."""
    chosen = parse(arguments)
    torch.set_num_threads(chosen.threads)
    known = facts(threads=chosen.threads)
    plan: dict[str, Callable[[Model], Measurements]]
    try:
        if chosen.kinds:
            kinds = kinds_of_text(chosen.kinds)
            known |= {"texts": named([one for texts in kinds.values() for one in texts])}
            plan = {name: partial(kind_measurements, kinds=kinds) for name in chosen.models}
        elif chosen.sentiment:
            known |= {"texts": file_sums(chosen.sentiment)}
            plan = {
                SENTIMENT: partial(
                    with_size, partial(sentiment_measurements, data=chosen.sentiment)
                )
            }
        elif chosen.curves:
            causal = [name for name in chosen.models if MEASUREMENTS[name] is causal_measurements]
            plan = dict.fromkeys(causal, copying_measurements)
        else:
            texts = Texts.read(chosen.held_out, chosen.text)
            known |= {"held_out": named(texts.held_out), "training": named(texts.training)}
            plan = {
                name: partial(with_size, partial(MEASUREMENTS[name], texts=texts))
                for name in chosen.models
            }
    except (GateError, MinibertError) as error:
        print(error)
        return 2
    rows = []
    for name, measurements in plan.items():
        place = getattr(chosen, name.replace("-", "_")) or name
        for row in scores(place, measurements):
            rows.append({"model": name, **row, **known})
            show(rows[-1])
    write_rows(beside_others(rows, chosen.output), chosen.output)
    measured = sum(row["ok"] for row in rows)
    print(f"\n{measured} of {len(rows)} scores measured; rows in {chosen.output}")
    return 0 if measured == len(rows) else 1


def beside_others(rows: list[Row], output: Path) -> list[Row]:
    """These rows behind those of the output that are about something else."""
    measured = {(row["model"], row["what"]) for row in rows}
    # The row of a model that could not be loaded stands for all of its scores.
    measured |= {(model, EVERYTHING) for model, _ in measured}
    before = read_rows(output) if output.exists() else []
    return [row for row in before if (row["model"], row["what"]) not in measured] + rows


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Scores of the embedded models on unseen text.")
    parser.add_argument("--held-out", nargs="+", type=Path, metavar="FILE")
    parser.add_argument("--text", nargs="+", type=Path, metavar="FILE")
    parser.add_argument("--kinds", type=Path, metavar="FOLDER", help="the folder of test data")
    parser.add_argument("--sentiment", type=Path, metavar="FOLDER", help="labelled sentences")
    parser.add_argument("--curves", action="store_true", help="copying; needs no texts")
    parser.add_argument("--output", type=Path, default=RESULTS / "embedded.jsonl")
    parser.add_argument("--models", nargs="+", choices=MEASUREMENTS, default=list(MEASUREMENTS))
    for name in (*MEASUREMENTS, SENTIMENT):
        parser.add_argument(f"--{name}", metavar="FOLDER", help="another model in its place")
    parser.add_argument("--threads", type=int, default=2)
    chosen = parser.parse_args(arguments)
    both = bool(chosen.held_out and chosen.text)
    if [bool(chosen.kinds), bool(chosen.sentiment), chosen.curves, both].count(True) != 1:
        parser.error("expected --held-out and --text, or --kinds, --sentiment or --curves alone")
    return chosen


def named(documents: Sequence[Any]) -> dict[str, str]:
    """The names of texts with the start of their SHA-256, as cleaned for training."""
    return {document.name: document.digest[:16] for document in documents}


def scores(place: str, planned: Callable[[Model], Measurements]) -> Iterator[Row]:
    """The rows of a model; what cannot be measured is a row with the reason."""
    try:
        model, weights = minibert.load(place), weights_file(place)
        measurements = planned(model)
    except (GateError, MinibertError) as error:
        yield {"what": EVERYTHING, "ok": False, "reason": reason(error)}
        return
    digest = hashlib.sha256(weights.read_bytes()).hexdigest()
    for what, measure in measurements.items():
        try:
            with torch.no_grad():
                row = measure()
        except (GateError, MinibertError) as error:
            row = {"ok": False, "reason": reason(error)}
        yield {"what": what, **row, "weights_sha256": digest}


def with_size(measurements: Callable[[Model], Measurements], model: Model) -> Measurements:
    """The size of the weights, and what else the model is measured in."""
    size: Measurements = {"weights in MB": partial(weights_size, weights_file(model.name))}
    return size | measurements(model)


def file_sums(folder: Path) -> dict[str, str]:
    """The names of the files with the start of their SHA-256."""
    files = sorted(path for path in folder.iterdir() if path.is_file())
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest()[:16] for path in files}


def weights_size(weights: Path) -> Row:
    return finding(weights.stat().st_size / 1e6)


def weights_file(place: str) -> Path:
    folder = Path(minibert.__file__).parent / "embedded" / place
    return (folder if folder.is_dir() else Path(place)) / "model.safetensors"


def show(row: Row) -> None:
    what = f"{row['model']:<10} {row['what']}" + (f" ({row['head']})" if "head" in row else "")
    print(f"{what:<60}  {row['value'] if row['ok'] else row['reason']}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
