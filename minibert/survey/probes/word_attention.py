"""Attention between words: what tokens spend, added up for the words they belong to.

Clark et al. 2019, section 4.1: attention to a word is the sum over its pieces, attention from a
word the mean over its pieces. So a row still sums to one, as far as it goes to words.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from operator import length_hint
from typing import Protocol, TypeVar, runtime_checkable

import torch
from torch import Tensor
from tqdm import tqdm

from minibert.analysis.arguments import check_model
from minibert.errors import SurveyError
from minibert.model import Model
from minibert.quantities import Float
from minibert.text.tokens import Tokens
from minibert.text.words import Words
from minibert.trace.read import Trace

# Texts that are sorted by their length, and words of one pass, padding included: some ten MB for
# each layer of a model of 384 dimensions.
_TEXTS_AT_ONCE, _WORDS_AT_ONCE = 512, 1024


@runtime_checkable
class TextOfWords(Protocol):
    """A text that is given as words: a sentence of a treebank, a passage of a book."""

    @property
    def id(self) -> str:
        """What messages call it."""

    @property
    def words(self) -> Sequence[str]:
        """The words in reading order."""


Text = TypeVar("Text", bound=TextOfWords)


def word_attention(
    probs: Float[Tensor, "*head token token"], words: Sequence[int | None], *, root: bool = False
) -> Float[Tensor, "*head word word"]:
    """Attention between words: the sum over pieces attended to, the mean over those attending.

    `words` has the number of each token's word, None for [CLS] and other tokens of no word. With
    `root=True` the words are counted from 1 on and 0 is the text's first token where that belongs
    to no word ([CLS]); in a text without such a token, row and column 0 are 0.

    Raises SurveyError where a number between 0 and the largest has no token.
    """
    numbers = torch.tensor([-1 if word is None else word + root for word in words])
    if root and words and words[0] is None:
        numbers[0] = 0
    n_words = max(int(numbers.max()) + 1, int(root)) if len(words) else 0
    pieces = (numbers == torch.arange(n_words)[:, None]).to(probs)
    counts = pieces.sum(1, keepdim=True)
    empty = (counts[int(root) :, 0] == 0).nonzero()
    if len(empty):
        raise SurveyError(f"Word {int(empty[0])} has no token; expected at least one a word.")
    return (pieces / counts.clamp(min=1)) @ probs @ pieces.mT


@dataclass(frozen=True)
class WordTrace:
    """The trace of one text, read word by word and one layer at a time."""

    trace: Trace
    words: tuple[int | None, ...]

    def attention(self, layer: int, *, root: bool = False) -> Float[Tensor, "head word word"]:
        """The attention between words in every head of a layer; see `word_attention`."""
        return word_attention(self.trace[layer].probs[0], self.words, root=root)


def word_traces(model: Model, texts: Iterable[Text]) -> Iterator[tuple[Text, WordTrace]]:
    """Each text and its trace. Texts are read as needed; those of similar length come together.

    Raises TokenizationError for a text that is no list of words, and SurveyError for one that is
    longer than the model's positions or has a word the tokenizer makes no token of.
    """
    n_texts = length_hint(texts) or None
    with tqdm(total=n_texts, disable=None, unit="text", leave=False) as progress:
        for batch in _batches(texts):
            tokens = _tokens(model, batch, limited=True)
            with torch.no_grad():
                # The last layer's attention is all that is wanted of it: no MLP, no logits.
                trace = model.trace(tokens, until=model.config.n_layers - 1)
                for place, (text, numbers) in enumerate(zip(batch, tokens.words, strict=True)):
                    yield text, WordTrace(trace.text(place), numbers)
            progress.update(len(batch))


def check_readable(model: Model, texts: Iterable[TextOfWords]) -> None:
    """Raise an error for the first text that `word_traces` could not read."""
    for batch in _batches(texts):
        _tokens(model, batch, limited=True)


def tokens_of_words(model: Model, text: TextOfWords) -> list[int]:
    """How many tokens each word of a text has, whatever the text's length.

    Raises errors as `word_traces` does.
    """
    [numbers] = _tokens(model, [text], limited=False).words
    sizes = [0] * len(text.words)
    for word in numbers:
        if word is not None:
            sizes[word] += 1
    return sizes


def _batches(texts: Iterable[Text]) -> Iterator[list[Text]]:
    """The texts in batches that one pass has memory for, with little padding."""
    waiting = iter(texts)
    while near := list(islice(waiting, _TEXTS_AT_ONCE)):
        near.sort(key=lambda text: len(text.words))
        batch: list[Text] = []
        for text in near:
            if batch and (len(batch) + 1) * len(text.words) > _WORDS_AT_ONCE:
                yield batch
                batch = []
            batch.append(text)
        yield batch


def _tokens(model: Model, texts: Sequence[TextOfWords], *, limited: bool) -> Tokens:
    """The tokens of some texts, each word by itself; `limited`: as many as the model sees."""
    check_model(model)
    if model.tokenizer is None:
        raise SurveyError(f"{model.name} has no tokenizer, and words cannot be read without one.")
    tokens = model.tokenizer([Words(text.words) for text in texts])
    for text, length, numbers in zip(texts, tokens.lengths, tokens.words, strict=True):
        if limited and length > model.config.n_positions:
            raise SurveyError(
                f"Text {text.id} has {length} tokens, more than the {model.config.n_positions} "
                "positions of "
                f"{model.name}; leave it out or cut it."
            )
        if missing := set(range(len(text.words))) - set(numbers):
            word = text.words[min(missing)]
            raise SurveyError(
                f"Text {text.id}: word {min(missing)}, {word!r:.80}, becomes no token; leave the "
                "text out or replace the word."
            )
    return tokens
