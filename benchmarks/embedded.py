"""What the embedded models can do, measured on text they never saw.

    python -m benchmarks.embedded --held-out FILE... [--output FILE]
    python -m benchmarks.embedded --sentiment FOLDER [--output FILE]

`--held-out` are texts that were in no training, two or more of them for next-sentence pairs.
`--sentiment` measures tiny-bert-sentiment, from the folder with the sentences that
scripts/train_sentiment.py names. A row for each score is printed, and goes to the output; one that
cannot be measured is a row with the reason. The exit status is 0 when all were measured.
"""

import argparse
import hashlib
import math
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

import minibert
from minibert.analysis import HeadScores, head_scores, repeated_ids
from minibert.bench.result_rows import GateError, Row, facts, reason, write_rows
from minibert.errors import MinibertError
from minibert.model import Model
from minibert.quantities import Float, Int
from minibert.text.tokenizer import Tokenizer
from minibert.text.tokens import Tokens
from minibert.trace.edit import zero
from minibert.training.batches import pairs
from minibert.training.texts import Corpus, Document, read_texts
from scripts.train_sentiment import LABELLED, POLARITY, Sentence, probabilities, read_sentences

# What is measured and how, each on its own: one that fails does not stop the others.
Measurements = dict[str, Callable[[], Row]]
Head = tuple[int, int]

MASKED_SHARE = 0.15
BATCH = 50
# Each window is masked so many times, each time elsewhere.
MASKINGS = 4
# At an accuracy of 70 % the 95 % interval is ±0.9 %.
SENTENCE_PAIRS = 10_000
# From this score on a head is ablated as an induction head.
INDUCTION = 0.3
LENGTH, DRAWS, CONTROLS = 50, 200, 20
MODELS = ("tiny-bert", "tiny-gpt2", "tiny-llama")
SENTIMENT = "tiny-bert-sentiment"


def known_tokenizer(model: Model) -> Tokenizer:
    """The tokenizer. Raises GateError for a model without one."""
    if model.tokenizer is None:
        raise GateError("the model has no tokenizer")
    return model.tokenizer


def finding(value: float, **details: object) -> Row:
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


def bert_measurements(model: Model, held_out: Sequence[Document]) -> Measurements:
    """What a masked language model is measured in."""
    tokenizer = known_tokenizer(model)
    corpus = Corpus.of(held_out, tokenizer)
    windows = pair_windows(corpus, tokenizer, model.config.n_positions)
    scores = head_scores(model, windows)
    patterns = ("next", "previous", "delimiter")
    return {f"best {name} head": partial(best_head, scores, name) for name in patterns} | {
        "masked-token accuracy": lambda: masked_accuracy(model, windows, MASKINGS),
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


def masked_accuracy(model: Model, windows: Tokens, maskings: int) -> Row:
    """How often the most probable token at a mask is right; `always`: one constant answer.

    Every chosen token becomes [MASK]. The constant is the most frequent of the chosen tokens.
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
        right.append(logits[chosen].argmax(-1) == ids[chosen])
        wanted.append(ids[chosen])
    answers, labels = torch.cat(right), torch.cat(wanted)
    always = float(labels.bincount().max()) / len(labels)
    return finding(float(answers.double().mean()), always=round(always, 4), **share(answers))


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
    return finding(sum(by_kind) / 2, is_next=by_kind[0], is_other=by_kind[1], **share(right))


def causal_measurements(model: Model, held_out: Sequence[Document]) -> Measurements:
    """What a causal language model is measured in."""
    tokenizer = known_tokenizer(model)
    texts = [torch.tensor(tokenizer.encode(document.text)) for document in held_out]
    length = model.config.n_positions
    windows = [ids[: len(ids) // length * length].view(-1, length) for ids in texts]
    scores = head_scores(model, torch.cat(windows))
    inductive = [
        (layer, head) for layer, head in (scores.induction >= INDUCTION).nonzero().tolist()
    ]
    return {
        "best induction head": lambda: best_head(scores, "induction"),
        "best previous head": lambda: best_head(scores, "previous"),
        "loss rise without induction heads": lambda: ablation(model, inductive),
        "held-out loss": lambda: held_out_loss(model, held_out),
    }


def token_losses(
    model: Model, ids: Int[Tensor, "batch position"], heads: Sequence[Head] = ()
) -> Float[Tensor, "batch position-1"]:
    """-log P of each token but the first given those before it in its row, in nats.

    z of the `heads` is zero.
    """
    losses = []
    for rows in ids.split(BATCH):
        logits = model.trace(rows, edit={("z", *head): zero for head in heads}).logits[:, :-1]
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
    usable, exclude = min(tokenizer.vocab_size, config.vocab_size), tokenizer.special_ids
    ids = repeated_ids(usable, length=LENGTH, draws=DRAWS, seed=1, exclude=exclude)

    def loss(without: Sequence[Head]) -> float:
        # Column i is the loss of token i + 1.
        return float(token_losses(model, ids, without)[:, LENGTH:].double().mean())

    before, after = loss(()), loss(heads)
    every = [(layer, head) for layer in range(config.n_layers) for head in range(config.n_heads)]
    others = [head for head in every if head not in heads]
    shuffler, drawn = random.Random(0), min(len(heads), len(others))
    rises = [loss(shuffler.sample(others, drawn)) - before for _ in range(controls)]
    return finding(
        after - before,
        unit="nats",
        heads=[f"{layer}-{head}" for layer, head in heads],
        loss_before=round(before, 4),
        loss_after=round(after, 4),
        control_rise_mean=round(sum(rises) / len(rises), 4),
        control_rise_most=round(max(rises), 4),
        count=DRAWS * (LENGTH - 1),
    )


def held_out_loss(model: Model, documents: Sequence[Document]) -> Row:
    """The loss of every held-out token once, with half a window before it or more.

    Windows overlap by half, and only the second half of each counts.
    """
    length, tokenizer = model.config.n_positions, known_tokenizer(model)
    losses, tokens, characters = [], 0, 0
    for document in documents:
        ids = torch.tensor(tokenizer.encode(document.text))
        if len(ids) >= length:
            windows = ids.unfold(0, length, length // 2)
            late = token_losses(model, windows)[:, length // 2 - 1 :]
            losses.append(late.flatten().double())
            tokens, characters = tokens + len(ids), characters + len(document.text)
    if not losses:
        raise GateError(f"no held-out text has {length} tokens")
    found = torch.cat(losses)
    # A model with longer tokens has more to say with each.
    bits = float(found.mean()) / math.log(2) * tokens / characters
    return finding(
        float(found.mean()),
        unit="nats per token",
        bits_per_character=round(bits, 4),
        count=len(found),
    )


def sentiment_measurements(model: Model, data: Path) -> Measurements:
    """What the sentiment model is measured in, from the folder with its sentences."""
    held_out = [one for one in read_sentences(data) if one.held_out]
    kinds: dict[str, Sequence[str]] = {"reviews": LABELLED, "film snippets": list(POLARITY)}
    return {
        f"{kind} right": partial(right, model, [one for one in held_out if one.source in sources])
        for kind, sources in kinds.items()
    }


def right(model: Model, sentences: Sequence[Sentence]) -> Row:
    """The share of the sentences whose label is right; `positive`: whose label is positive."""
    labels = torch.tensor([one.label for one in sentences])
    found = probabilities(model, sentences).argmax(-1) == labels
    positive = round(float(labels.double().mean()), 4)
    return finding(float(found.double().mean()), **share(found), positive=positive)


def scores(place: str, planned: Callable[[Model], Measurements]) -> Iterator[Row]:
    """The rows of a model; what cannot be measured is a row with the reason."""
    try:
        model, weights = minibert.load(place), weights_file(place)
        measurements = planned(model)
    except (GateError, MinibertError) as error:
        yield {"what": "all scores", "ok": False, "reason": reason(error)}
        return
    digest = hashlib.sha256(weights.read_bytes()).hexdigest()
    for what, measure in measurements.items():
        try:
            with torch.no_grad():
                row = measure()
        except (GateError, MinibertError) as error:
            row = {"ok": False, "reason": reason(error)}
        yield {"what": what, **row, "weights_sha256": digest}


def weights_file(place: str) -> Path:
    folder = Path(minibert.__file__).parent / "embedded" / place
    return (folder if folder.is_dir() else Path(place)) / "model.safetensors"


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit status: 0 when every score was measured."""
    parser = argparse.ArgumentParser(description="Scores of the embedded models on unseen text.")
    kind = parser.add_mutually_exclusive_group(required=True)
    kind.add_argument("--held-out", nargs="+", type=Path, metavar="FILE")
    kind.add_argument("--sentiment", type=Path, metavar="FOLDER", help="labelled sentences")
    parser.add_argument("--models", nargs="+", help="embedded names or folders; default: all")
    parser.add_argument("--output", type=Path)
    parser.add_argument("--threads", type=int, default=2)
    chosen = parser.parse_args(arguments)
    torch.set_num_threads(chosen.threads)
    known = facts(threads=chosen.threads)
    try:
        plan = planned(chosen, known)
    except MinibertError as error:
        print(error)
        return 2
    rows = []
    for name in chosen.models or ((SENTIMENT,) if chosen.sentiment else MODELS):
        for row in scores(name, plan):
            rows.append({"model": Path(name).name, **row, **known})
            told = row["value"] if row["ok"] else row["reason"]
            print(f"{rows[-1]['model']:<12} {row['what']:<40} {told}", flush=True)
    if chosen.output:
        write_rows(rows, chosen.output)
    return 0 if all(row["ok"] for row in rows) else 1


def planned(chosen: argparse.Namespace, known: Row) -> Callable[[Model], Measurements]:
    """What a model is measured in; its texts go to the facts of the rows."""
    if chosen.sentiment:
        return partial(sentiment_measurements, data=chosen.sentiment)
    held_out = read_texts(chosen.held_out)
    known["held_out"] = {document.name: document.digest[:16] for document in held_out}

    def measurements(model: Model) -> Measurements:
        return (causal_measurements if model.config.causal else bert_measurements)(model, held_out)

    return measurements


if __name__ == "__main__":
    sys.exit(main())
