"""A probe that finds the head of each word in a table of pairs of words.

Clark et al. 2019, section 5. The probability that word i is the head of word j is a softmax over i,
proportional to

    attention only       exp Σ_k (w_k · a_k[i, j] + u_k · a_k[j, i])
    attention and words  exp Σ_k (W_k · (v_i, v_j) a_k[i, j] + U_k · (v_i, v_j) a_k[j, i])

a_k is the attention of head k, v a word's vector. Beyond the paper, ROOT is a candidate with
weights of its own, and a channel of its own that is 1 for it alone: a text has no word ROOT.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, pad

from minibert.errors import SurveyError
from minibert.quantities import Float
from minibert.survey.probes.pair_features import Example

__all__ = ["PairProbe", "Training", "attachment", "check_enough", "train_probe"]

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
