"""What a probe is told of each pair of words: attention in every head, or the distance.

The tables of one sentence have the axes (channel, word, word) with one more word in front: place 0
is ROOT, which attention sees as the text's first token ([CLS]).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from minibert.quantities import Bool, Float, Int
from minibert.survey.probes.dependency import Tree, check_tree, is_punctuation
from minibert.survey.probes.word_attention import WordTrace, word_traces

if TYPE_CHECKING:
    from minibert.model import Model

__all__ = ["FARTHEST", "Example", "examples", "with_distances"]

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


def examples(model: "Model", trees: Iterable[Tree]) -> list[Example]:
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


def _vectors(model: "Model", words: WordTrace) -> Float[Tensor, "place dimension"]:
    """The mean of the input embeddings of each word's pieces; 0 for ROOT."""
    embeddings = model.body.word.weight
    [ids] = words.trace.inputs.ids
    numbers = torch.tensor([0 if word is None else word + 1 for word in words.words])
    pieces = (numbers == torch.arange(int(numbers.max()) + 1)[:, None]).to(embeddings)
    pieces[0] = 0
    vectors = pieces @ embeddings[ids] / pieces.sum(1, keepdim=True).clamp(min=1)
    return vectors.detach().float().cpu()
