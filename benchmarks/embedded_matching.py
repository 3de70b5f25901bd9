"""Whether a head looks at the same word in the other text, on neighbouring sentences of books."""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from benchmarks.evidence import finding, known_tokenizer
from minibert.bench.gate import GateError
from minibert.bench.result_rows import Row
from minibert.model import Model
from minibert.training.texts import Document, sentence_starts

__all__ = ["SharedWord", "same_word_in_other_text", "sharing_pairs"]

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
        at_least=0.5,
        head=f"{layer}-{head}",
        scores=means.round(decimals=4).tolist(),
        delimiter=round(float(torch.stack(rests)[:, layer, head].mean()), 4),
        chance=round(sum(1 / length for length in lengths) / len(lengths), 4),
        error_95=round(error, 4),
        count=len(of_head),
    )


def _words(text: str) -> list[str]:
    return re.findall(r"[a-z]+", text.lower())
