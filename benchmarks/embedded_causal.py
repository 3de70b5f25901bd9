"""Scores of a causal language model: its heads, what they are for, and text it never saw."""

import copy
import math
import random
import re
from collections.abc import Collection, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.embedded_lists import lists_continued
from benchmarks.evidence import Measurements, Texts, best_head, finding, known_tokenizer
from benchmarks.ngram import TrigramModel
from minibert.analysis import head_scores, repeated_ids
from minibert.bench.gate import GateError
from minibert.bench.result_rows import Row
from minibert.model import Model
from minibert.quantities import Float, Int

__all__ = ["causal_measurements", "token_losses", "without_heads"]

# From this score on a head is ablated as an induction head.
INDUCTION = 0.3
LENGTH, DRAWS = 50, 200
CONTROLS = 20
BATCH = 50
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
        "best induction head": lambda: best_head(scores, "induction", at_least=0.6),
        "best previous head": lambda: best_head(scores, "previous", at_least=0.7),
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
        at_least=1.0,
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


def held_out_loss(
    model: Model, documents: Sequence[Tensor], training: Sequence[Sequence[int]]
) -> Row:
    """The loss on held-out tokens, beside a Kneser-Ney trigram model's on the same ones.

    The trigram model counts the same training tokens. Windows overlap by half, and only the
    second half of each counts: every token once, with half a window before it or more.
    """
    length = model.config.n_positions
    half, tokenizer = length // 2, known_tokenizer(model)
    trigrams = TrigramModel.train(training, vocab_size=model.config.vocab_size)
    mine, theirs = [], []
    for ids in documents:
        if len(ids) < length:
            continue
        windows = ids.unfold(0, length, half)
        mine.append(token_losses(model, windows)[:, half - 1 :].flatten().double())
        counted = slice(half, half + len(mine[-1]))
        theirs.append(torch.from_numpy(trigrams.losses(ids.numpy()))[counted])
    if not mine:
        raise GateError(f"no held-out text has {length} tokens")
    ours, trigram = torch.cat(mine), torch.cat(theirs)
    difference = ours - trigram
    # A model with longer tokens has more to say with each.
    characters = sum(len(tokenizer.decode(ids.tolist())) for ids in documents)
    per_character = sum(map(len, documents)) / characters / math.log(2)
    return finding(
        float(ours.mean()),
        below=float(trigram.mean()),
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

    The share of the held-out texts' own words says what to expect of English by people. The
    target, 90 %, is ours.
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
        at_least=0.9,
        held_out_share=round(sum(word in known for word in own) / len(own), 4),
        temperature=temperature,
        count=len(found),
        examples=[str(one) for one in written[:3]],
    )


def words(text: str) -> list[str]:
    """The words of a text in lower case."""
    return re.findall(r"[^\W\d_]+(?:'[^\W\d_]+)*", text.lower())
