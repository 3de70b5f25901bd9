"""A probe that finds the head of each word in a table of pairs of words, and how often it is right.

Clark et al. 2019, section 5. The probability that word i is the head of word j is a softmax over i,
proportional to

    attention only       exp Σ_k (w_k · a_k[i, j] + u_k · a_k[j, i])
    attention and words  exp Σ_k (W_k · (v_i, v_j) a_k[i, j] + U_k · (v_i, v_j) a_k[j, i])

a_k is the attention of head k, v a word's vector. Beyond the paper, ROOT is a candidate with
weights of its own, and a channel of its own that is 1 for it alone: a text has no word ROOT.
Tables of one sentence have the axes (channel, word, word) with ROOT in front, which attention sees
as the text's first token ([CLS]). Punctuation counts nowhere, as is usual for English; ROOT counts.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, pad
from tqdm import tqdm

from minibert.errors import SurveyError
from minibert.model import Model
from minibert.quantities import Bool, Float, Int
from minibert.survey.intervals import share, wilson
from minibert.survey.probes.dependency import Tree, check_tree, is_punctuation
from minibert.survey.probes.word_attention import WordTrace, word_traces

#: Farther words share a channel with those at this distance.
FARTHEST = 10


@dataclass(frozen=True, eq=False)
class Example:
    """One sentence as a probe sees it: `pairs` and `vectors` to find `heads` with.

    pairs    of words, ROOT in front
    vectors  of words, ROOT in front, whose vector is 0
    heads    the place of each word's head; 0 is ROOT, 1 the first word
    counted  whether the word counts: punctuation does not
    """

    pairs: Float[Tensor, "channel place place"]
    vectors: Float[Tensor, "place dimension"]
    heads: Int[Tensor, " word"]
    counted: Bool[Tensor, " word"]


@dataclass(frozen=True)
class _Numbered:
    """A tree's words and its place among the trees."""

    id: str
    words: tuple[str, ...]
    place: int


def examples(model: Model, trees: Iterable[Tree]) -> list[Example]:
    """Of each tree the attention of every head of a model, layer by layer, and the words' vectors.

    A word's vector is the model's own input embedding, the mean over its pieces. Attention is kept
    as float16, which takes 2 bytes x heads x the square of a sentence's words.

    Raises SurveyError for a tree that cannot be read; see `count_dependencies`.
    """
    trees = [check_tree(tree) for tree in trees]
    texts = [_Numbered(tree.id, tuple(tree.words), n) for n, tree in enumerate(trees)]
    found: dict[int, Example] = {}
    for text, words in word_traces(model, texts):
        tree = trees[text.place]
        attention = [words.attention(layer, root=True) for layer in range(model.config.n_layers)]
        found[text.place] = Example(
            pairs=torch.cat(attention).half().cpu(),
            vectors=_vectors(model, words),
            heads=torch.tensor([head + 1 for head in tree.heads]),
            counted=torch.tensor([not is_punctuation(relation) for relation in tree.relations]),
        )
    return [found[place] for place in range(len(trees))]


def with_distances(sentences: Sequence[Example]) -> list[Example]:
    """The same with the distance of two words in place of attention, one channel for each.

    The channel of distance d is 1 where the second word comes d places behind the first, -10 to 10;
    farther ones are counted as 10. ROOT has no distance.
    """
    return [replace(one, pairs=_distances(len(one.heads))) for one in sentences]


def _distances(n_words: int) -> Float[Tensor, "channel place place"]:
    places = torch.arange(n_words)
    distance = (places - places[:, None]).clamp(-FARTHEST, FARTHEST)
    channels = torch.cat([torch.arange(-FARTHEST, 0), torch.arange(1, FARTHEST + 1)])
    table = torch.zeros(len(channels), 1 + n_words, 1 + n_words, dtype=torch.float16)
    table[:, 1:, 1:] = (distance == channels[:, None, None]).half()
    return table


def _vectors(model: Model, words: WordTrace) -> Float[Tensor, "place dimension"]:
    """The mean of the input embeddings of each word's pieces; 0 for ROOT."""
    embeddings = model.body.word.weight
    [ids] = words.trace.inputs.ids
    numbers = torch.tensor([0 if word is None else word + 1 for word in words.words])
    pieces = (numbers == torch.arange(int(numbers.max()) + 1)[:, None]).to(embeddings)
    pieces[0] = 0
    vectors = pieces @ embeddings[ids] / pieces.sum(1, keepdim=True).clamp(min=1)
    return vectors.detach().float().cpu()


# Numbers of one batch of pairs: 8 MiB in float32.
_NUMBERS = 2**21


@dataclass(frozen=True)
class Training:
    """How a probe is trained: Adam until the loss on held-out sentences stops falling.

    learning_rate  of Adam
    decay          of the weights, in each step
    patience       epochs without a lower loss on the held-out sentences, after which it ends
    epochs         at most
    held_out       every such sentence is left out of training to see where to stop
    """

    learning_rate: float = 0.03
    decay: float = 0.0
    patience: int = 4
    epochs: int = 60
    held_out: int = 10
    seed: int = 0


class PairProbe(nn.Module):
    """The weights of a probe: four for each channel and dimension of a vector.

    They multiply the vectors of the candidate and of the word, once for attention from the
    candidate to the word and once for attention back.
    """

    def __init__(self, n_channels: int, words: "Projection | None" = None) -> None:
        super().__init__()
        self.words = words
        n_dimensions = 2 + (0 if words is None else words.basis.shape[1])
        self.weight = nn.Parameter(torch.zeros(4, n_channels + 1, n_dimensions))

    def forward(
        self,
        pairs: Float[Tensor, "batch channel place place"],
        vectors: Float[Tensor, "batch place dimension"],
    ) -> Float[Tensor, "batch place word"]:
        """The score of each place as the head of each word, before the softmax over places."""
        # (kind, batch, channel, place): the candidate stands in the rows of attention from it to
        # the word, and in the columns of attention back.
        weights = torch.einsum("kcd,bpd->kbcp", self.weight, self._described(vectors))
        attending, attended = weights[[0, 3], :, :-1], weights[[1, 2], :, :-1]
        pairs = pairs.float()
        onward, back = torch.einsum("bcij,kbci->kbij", pairs, attending) + torch.einsum(
            "bcij,kbcj->kbij", pairs, attended
        )
        root = weights[0, :, -1, :1] + weights[1, :, -1]
        scores = onward + back.mT + pad(root[:, None], (0, 0, 0, pairs.shape[-1] - 1))
        itself = torch.eye(scores.shape[-1], dtype=torch.bool)
        return scores.masked_fill(itself, -math.inf)[:, :, 1:]

    def _described(self, vectors: Tensor) -> Float[Tensor, "batch place dimension"]:
        """Whether a place is a word, whether it is ROOT, and what its word is."""
        is_word = vectors.new_ones(*vectors.shape[:2], 2)
        is_word[:, 0, 0] = 0
        is_word[:, 1:, 1] = 0
        if self.words is None:
            return is_word
        return torch.cat([is_word, self.words(vectors) * is_word[..., :1]], dim=-1)


class Projection(nn.Module):
    """Word vectors in few dimensions: the principal ones of some words, scaled to variance 1."""

    mean: Tensor
    basis: Tensor

    def __init__(self, sentences: Sequence[Example], n_dimensions: int) -> None:
        super().__init__()
        vectors = torch.cat([one.vectors[1:] for one in sentences]).double()
        mean = vectors.mean(0)
        sizes, directions = torch.linalg.eigh((vectors - mean).T @ (vectors - mean) / len(vectors))
        variances, basis = sizes.flip(0)[:n_dimensions], directions.flip(1)[:, :n_dimensions]
        # Of a dimension in which the words do not differ only rounding would be left.
        scales = torch.where(variances > 1e-9 * variances[0], variances.rsqrt(), 0)
        self.register_buffer("mean", mean.float())
        self.register_buffer("basis", (basis * scales).float())

    def forward(self, vectors: Tensor) -> Tensor:
        """The vectors, centred and turned into the principal dimensions."""
        return (vectors - self.mean) @ self.basis


def check_enough(n_sentences: int, training: Training) -> None:
    """Raise SurveyError where so many sentences leave none to hold out."""
    if n_sentences < training.held_out:
        raise SurveyError(
            f"{n_sentences} sentences are too few to train on: every {training.held_out}th is held "
            "out to see where to stop. Give more sentences."
        )


@torch.enable_grad()
def train_probe(
    sentences: Sequence[Example], *, n_dimensions: int = 0, training: Training | None = None
) -> PairProbe:
    """A probe that was trained on these sentences; `n_dimensions` of word vectors, 0 for none.

    The weights are those of the epoch with the lowest loss on the sentences held out. The same
    sentences and settings give the same weights. Raises SurveyError for too few sentences.
    """
    how = training or Training()
    check_enough(len(sentences), how)
    kept = [one for n, one in enumerate(sentences) if n % how.held_out != how.held_out - 1]
    held_out = sentences[how.held_out - 1 :: how.held_out]
    words = Projection(sentences, n_dimensions) if n_dimensions else None
    probe = PairProbe(len(sentences[0].pairs), words)
    optimizer = torch.optim.Adam(probe.parameters(), how.learning_rate)
    generator = torch.Generator().manual_seed(how.seed)
    batches = list(_batches(kept))
    best, weights, waited = math.inf, probe.weight.detach().clone(), 0
    for _ in range(how.epochs):
        for place in torch.randperm(len(batches), generator=generator).tolist():
            optimizer.zero_grad()
            loss, n_words, _ = _result(probe, batches[place])
            penalty = how.decay * probe.weight.square().sum()
            (loss / max(n_words, 1) + penalty).backward()
            optimizer.step()
        with torch.no_grad():
            losses = [_result(probe, batch) for batch in _batches(held_out)]
        found = sum(float(loss) for loss, _, _ in losses) / sum(n for _, n, _ in losses)
        waited = 0 if found < best else waited + 1
        if found < best:
            best, weights = found, probe.weight.detach().clone()
        if waited == how.patience:
            break
    with torch.no_grad():
        probe.weight.copy_(weights)
    return probe


def attachment(probe: PairProbe, sentences: Sequence[Example]) -> tuple[int, int]:
    """How many words the probe gives their right head, and how many count."""
    with torch.no_grad():
        results = [_result(probe, batch) for batch in _batches(sentences)]
    return sum(right for _, _, right in results), sum(n for _, n, _ in results)


def _result(probe: PairProbe, batch: Sequence[Example]) -> tuple[Tensor, int, int]:
    """The sum of the losses of a batch, the number of words that count, and how many are right."""
    pairs = torch.stack([one.pairs for one in batch])
    scores = probe(pairs, torch.stack([one.vectors for one in batch])).mT
    heads = torch.stack([one.heads for one in batch])
    counted = torch.stack([one.counted for one in batch])
    losses = cross_entropy(scores[counted], heads[counted], reduction="sum")
    right = int((scores.argmax(-1) == heads)[counted].sum())
    return losses, int(counted.sum()), right


def _batches(sentences: Sequence[Example]) -> Iterator[list[Example]]:
    """Sentences of the same length, as many as memory is meant for."""
    by_length = sorted(sentences, key=lambda one: len(one.heads))
    for _, group in groupby(by_length, key=lambda one: len(one.heads)):
        same = list(group)
        size = max(1, _NUMBERS // same[0].pairs.numel())
        yield from (same[first : first + size] for first in range(0, len(same), size))


#: Dimensions of word vectors that a probe sees: a treebank of 25,000 words cannot fit many more.
WORD_DIMENSIONS = 32
#: With and without words: with them there are many more weights, which have to stay small.
_ALONE, _WITH_WORDS = Training(), Training(learning_rate=0.01, decay=1e-4)


@dataclass(frozen=True)
class AttachmentScore:
    """The unlabelled attachment score of one way to find heads.

    score  the share of words that got their right head, 0 to 1; `low` and `high` are its 95 %
           interval
    """

    name: str
    correct: int
    words: int
    score: float
    low: float
    high: float

    @classmethod
    def of(cls, name: str, correct: int, words: int) -> "AttachmentScore":
        """The score of this many right words of all."""
        return cls(name, correct, words, share(correct, words), *wilson(correct, words))


def branching(sentences: Sequence[Example], offset: int) -> tuple[int, int]:
    """How many words have their neighbour as head, and how many count.

    `offset` is 1 for the next word and -1 for the previous one; a word without one is a root.
    """
    correct = words = 0
    for one in sentences:
        n_words = len(one.heads)
        for place, (head, counts) in enumerate(zip(one.heads, one.counted, strict=True), start=1):
            answer = place + offset if 1 <= place + offset <= n_words else 0
            correct += int(counts and head == answer)
            words += int(counts)
    return correct, words


def attachment_scores(
    model: Model,
    trained_on: Sequence[Tree],
    measured_on: Sequence[Tree],
    *,
    random_model: Model | None = None,
    n_dimensions: int = WORD_DIMENSIONS,
    training: Training | None = None,
) -> list[AttachmentScore]:
    """The attachment scores of every way, rules first.

    `random_model` is the same model with weights that nobody trained; its probes get the words of
    `model`, as in the paper. Word vectors are the model's input embeddings in `n_dimensions`
    principal dimensions: like the paper's GloVe they say which word it is and nothing of its
    sentence, and every model has them.

    Attention is collected once for each model and held in memory (see `examples`). The same input
    gives the same scores. Raises SurveyError for trees that cannot be read or trained on.
    """
    check_enough(len(trained_on), training or _ALONE)
    if not measured_on:
        raise SurveyError("There are no sentences to measure on; give some.")
    width = model.body.word.weight.shape[1]
    if not 1 <= n_dimensions <= width:
        raise SurveyError(
            f"{n_dimensions} dimensions of word vectors: expected 1 to {width}, as many as "
            f"{model.name}'s input embeddings have."
        )
    parts = [examples(model, trees) for trees in (trained_on, measured_on)]
    ways = {"distances": list(map(with_distances, parts))}
    if random_model is not None:
        untrained = [examples(random_model, trees) for trees in (trained_on, measured_on)]
        ways["attention of random weights"] = [
            [replace(one, vectors=other.vectors) for one, other in zip(*pair, strict=True)]
            for pair in zip(untrained, parts, strict=True)
        ]
    ways["attention"] = parts
    scores = [
        AttachmentScore.of("next word (right-branching)", *branching(parts[1], 1)),
        AttachmentScore.of("previous word (left-branching)", *branching(parts[1], -1)),
    ]
    with tqdm(total=2 * len(ways), disable=None, unit="probe", leave=False) as progress:
        for name, (train, measure) in ways.items():
            for dimensions in (0, n_dimensions):
                how = training or (_WITH_WORDS if dimensions else _ALONE)
                probe = train_probe(train, n_dimensions=dimensions, training=how)
                whole = f"{name} and words" if dimensions else name
                scores.append(AttachmentScore.of(whole, *attachment(probe, measure)))
                progress.update()
    return scores
