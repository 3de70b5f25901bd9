"""One step of a run: the input, the answers the model should give, and the loss, in nats.

A batch depends only on the corpus, the recipe and the number of its step. So a resumed run reads
the same batches as a run without interruption.

The loss is the cross-entropy of tokens, and losses of single heads: such a loss says which keys a
head should attend to. It is added in the steps for which the recipe gives it a weight.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional as F

from minibert.errors import TrainingError
from minibert.layers.bodies import VocabularyHead
from minibert.layers.config import Config
from minibert.layers.evaluation import Evaluation
from minibert.layers.layer import LayerPass
from minibert.model import Model
from minibert.quantities import Bool, Float, Hidden, Int, TokenIds, TokenMask
from minibert.text.tokenizer import Tokenizer
from minibert.trace.run import run_layers
from minibert.training.recipe import Recipe
from minibert.training.texts import Corpus

IGNORED = -100
"""The label of a position that is not predicted, as in torch.nn.functional.cross_entropy."""

# A text of many positions shows a short period more often, and it is learned sooner.
_LONGEST_PERIOD = 64


@dataclass(frozen=True)
class Batch:
    """Token ids, and at each position the id to be predicted there, or IGNORED."""

    ids: TokenIds
    labels: TokenIds
    segments: TokenIds | None = None
    mask: TokenMask | None = None
    """True at real tokens; None where all are."""
    unrelated: Int[Tensor, " batch"] | None = None
    """0 where the second text follows the first, 1 where it does not, IGNORED without one."""

    def to(self, device: torch.device) -> "Batch":
        """The batch on another device."""
        moved = {name: value.to(device) for name, value in vars(self).items() if value is not None}
        return replace(self, **moved)


def check_corpus(corpus: Corpus, config: Config, *, what: str) -> None:
    """Raise TrainingError where a corpus is too short for the Config, or has too few texts."""
    longest = int(corpus.sizes.max()) if len(corpus) else 0
    wanted = config.n_positions + 1
    if longest < wanted:
        raise TrainingError(
            f"The longest of the {what} has {longest} tokens; expected at least {wanted}, one more "
            "than the model's positions. Give longer texts or fewer positions."
        )
    if config.task == "pre-training" and int((corpus.sizes > 0).sum()) < 2:
        raise TrainingError(
            f"There is only one text for {what}. Next-sentence prediction takes its wrong answers "
            "from another text: give two or more files, or the task masked-lm."
        )


def batch_of(corpus: Corpus, model: Model, recipe: Recipe, step: int) -> Batch:
    """The batch of a step, as the model's task needs it."""
    if model.config.causal:
        return causal_batch(corpus, model.config, recipe, step)
    assert model.tokenizer is not None
    return masked_batch(corpus, model.config, recipe, step, model.tokenizer)


def causal_batch(corpus: Corpus, config: Config, recipe: Recipe, step: int) -> Batch:
    """Pieces of text, and random tokens repeated with a random period.

    Of the repeated tokens all but the first period are predicted: the first cannot be known.
    """
    generator = _generator(recipe, step)
    length, count = config.n_positions, recipe.batch
    n_repeated = round(count * recipe.repeated)
    # One token more than positions, because each position predicts the next token.
    starts = torch.randint(len(corpus) - length, (count - n_repeated,), generator=generator)
    text = corpus.ids[starts[:, None] + torch.arange(length + 1)]
    labels = text[:, 1:]
    if n_repeated:
        longest = min(length // 2, _LONGEST_PERIOD)
        periods = torch.randint(8, longest + 1, (n_repeated,), generator=generator)
        source = torch.randint(config.vocab_size, (n_repeated, longest), generator=generator)
        place = torch.arange(length + 1) % periods[:, None]
        repeated = source.gather(1, place)
        known = torch.arange(1, length + 1) >= periods[:, None]
        text = torch.cat([text, repeated])
        labels = torch.cat([labels, repeated[:, 1:].masked_fill(~known, IGNORED)])
    return Batch(text[:, :-1], labels)


def masked_batch(
    corpus: Corpus, config: Config, recipe: Recipe, step: int, tokenizer: Tokenizer
) -> Batch:
    """Sentence pairs and single texts with masked tokens (Devlin et al. 2019, section 3.1)."""
    generator = _generator(recipe, step)
    dice = float(torch.rand((), generator=generator))
    short = dice < recipe.short
    # Sentence pairs as people type them have some 30 tokens.
    part = (8 if dice < recipe.short / 2 else 4) if short else 1
    length = max(min(16, config.n_positions), config.n_positions // part)
    count = recipe.batch * config.n_positions // length
    # A model without two segments reads single texts only.
    alone = 0.5 * short if config.n_segments > 1 else 1.0
    shares = {"alone": alone, "same_text": recipe.same_text}
    batch = pairs(corpus, config, tokenizer, count, length, generator, **shares)
    return corrupt(batch, config, recipe.masked, generator, tokenizer)


def pairs(
    corpus: Corpus,
    config: Config,
    tokenizer: Tokenizer,
    count: int,
    length: int,
    generator: torch.Generator,
    *,
    alone: float = 0.0,
    same_text: float = 0.0,
) -> Batch:
    """Rows of [CLS] A [SEP] B [SEP]: in half of them B follows A, in the others it does not.

    A is made of whole sentences where there is room. `alone` is the share of all rows that have no
    second text, `same_text` that of the unrelated second texts that come from A's document.
    """
    pad = tokenizer.pad_id if config.pad_id is None else config.pad_id
    batch = Batch(
        ids=torch.full((count, length), pad or 0),
        labels=torch.full((count, length), IGNORED),
        segments=torch.zeros(count, length, dtype=torch.int64),
        mask=torch.zeros(count, length, dtype=torch.bool),
        unrelated=torch.full((count,), IGNORED),
    )
    pairing = config.task == "pre-training"
    chosen = torch.multinomial(corpus.sizes.double(), count, replacement=True, generator=generator)
    for row, document in enumerate(chosen.tolist()):
        draw = _Draw(corpus, document, length - 3, generator)
        first, second, unrelated = draw.pair(alone, same_text, pairing=pairing)
        _fill(batch, row, tokenizer, first, second)
        if pairing and second is not None:
            batch.unrelated[row] = int(unrelated)  # type: ignore[index]
    return batch if not bool(batch.mask.all()) else replace(batch, mask=None)  # type: ignore[union-attr]


def corrupt(
    batch: Batch, config: Config, share: float, generator: torch.Generator, tokenizer: Tokenizer
) -> Batch:
    """The batch with a share of its tokens chosen for prediction.

    Of these tokens 80 % become the mask token, 10 % a random one and 10 % stay (Devlin et al. 2019,
    section 3.1).
    """
    assert tokenizer.mask_id is not None
    special = torch.tensor(sorted(tokenizer.special_ids))
    chosen = torch.rand(batch.ids.shape, generator=generator) < share
    chosen &= ~torch.isin(batch.ids, special)
    dice = torch.rand(batch.ids.shape, generator=generator)
    noise = torch.randint(config.vocab_size, batch.ids.shape, generator=generator)
    ids = torch.where(chosen & (dice < 0.8), tokenizer.mask_id, batch.ids)
    ids = torch.where(chosen & (dice >= 0.9), noise, ids)
    return replace(batch, ids=ids, labels=batch.ids.masked_fill(~chosen, IGNORED))


def _generator(recipe: Recipe, step: int) -> torch.Generator:
    return torch.Generator().manual_seed(recipe.seed * 1_000_003 + step)


@dataclass(frozen=True)
class _Draw:
    """Draws two pieces of text that fit `room` together, the first one from this document."""

    corpus: Corpus
    document: int
    room: int
    generator: torch.Generator

    def pair(
        self, alone: float, same_text: float, *, pairing: bool
    ) -> tuple[Tensor, Tensor | None, bool]:
        """The ids of A, the ids of B or None, and True where B does not follow A."""
        if self._happens(alone):
            start, cut = self._stretch(self.room, self.room)
            return self.corpus.ids[start:cut], None, False
        quarter = self.room // 4
        wanted = self._between(quarter, 3 * quarter)
        start, cut = self._stretch(wanted, wanted + quarter)
        first = self.corpus.ids[start:cut]
        unrelated = pairing and self._happens(0.5)
        begin, document = cut, self.document
        if unrelated:
            begin, document = self._elsewhere(start, cut, same_text)
        end = min(begin + self.room - len(first), self.corpus.end(document))
        second = self.corpus.ids[begin:end]
        # At the end of a document no text is left for B.
        return first, second if len(second) else None, unrelated

    def _stretch(self, wanted: int, needed: int) -> tuple[int, int]:
        """The start and end of whole sentences of at most `wanted` tokens; a longer one is cut."""
        start = self._sentence(self.document, needed)
        limit = min(start + wanted, self.corpus.end(self.document))
        starts = self.corpus.sentence_starts
        end = int(starts[int(torch.searchsorted(starts, limit, right=True)) - 1])
        return start, end if end > start else limit

    def _elsewhere(self, start: int, cut: int, same_text: float) -> tuple[int, int]:
        """A position that does not follow A, and its document."""
        if self._happens(same_text):
            begin = self._sentence(self.document, self.room // 4)
            # In a short document the drawn position may be too close to A.
            if not start - self.room <= begin <= cut + self.room:
                return begin, self.document
        others = self.corpus.sizes.double()
        others[self.document] = 0
        document = int(torch.multinomial(others, 1, generator=self.generator))
        return self._sentence(document, self.room // 4), document

    def _sentence(self, document: int, needed: int) -> int:
        """The start of a sentence with `needed` tokens of its document left, if there is one."""
        corpus = self.corpus
        first = int(corpus.first_sentences[document])
        limit = max(corpus.start(document) + 1, corpus.end(document) - needed)
        after = int(torch.searchsorted(corpus.sentence_starts, limit))
        return int(corpus.sentence_starts[self._between(first, after)])

    def _happens(self, share: float) -> bool:
        return bool(torch.rand((), generator=self.generator) < share)

    def _between(self, low: int, high: int) -> int:
        return int(torch.randint(low, max(low + 1, high), (), generator=self.generator))


def _fill(
    batch: Batch, row: int, tokenizer: Tokenizer, first: Tensor, second: Tensor | None
) -> None:
    begin = tokenizer.cls_id if tokenizer.cls_id is not None else tokenizer.bos_id
    end = tokenizer.sep_id if tokenizer.sep_id is not None else tokenizer.eos_id
    parts = [torch.tensor([begin]), first, torch.tensor([end])]
    split = len(first) + 2
    if second is not None:
        parts += [second, torch.tensor([end])]
    ids = torch.cat(parts)
    batch.ids[row, : len(ids)] = ids
    batch.mask[row, : len(ids)] = True  # type: ignore[index]
    batch.segments[row, split : len(ids)] = 1  # type: ignore[index]


# Smaller shares of attention count as this much, so that the logarithm stays finite.
_SMALLEST = 1e-6


def target_layers(config: Config, names: Collection[str]) -> dict[str, int]:
    """For each target, the layer whose last head it applies to."""
    layers = {"previous": 0, "induction": min(1, config.n_layers - 1)}
    return {name: layers[name] for name in names}


def target_loss(
    name: str, probs: Float[Tensor, "batch head query key"], batch: Batch
) -> Float[Tensor, ""]:
    """−log of the last head's attention to its target: the mean over the tokens that have one."""
    wanted = TARGETS[name](batch).expand(probs[:, -1].shape)
    mass = (probs[:, -1].float() * wanted).sum(-1)
    rows = wanted.any(-1) if batch.mask is None else wanted.any(-1) & batch.mask
    return -mass[rows].clamp_min(_SMALLEST).log().mean()


def _previous(batch: Batch) -> Bool[Tensor, "#batch query key"]:
    """The token before; the first token has none."""
    position = torch.arange(batch.ids.shape[1], device=batch.ids.device)
    return (position[:, None] - 1 == position)[None]


def _induction(batch: Batch) -> Bool[Tensor, "batch query key"]:
    """The tokens after earlier occurrences of the same token."""
    earlier = (batch.ids[:, :, None] == batch.ids[:, None, :]).tril(-1)
    return F.pad(earlier[:, :, :-1], (1, 0))


TARGETS: dict[str, Callable[[Batch], Tensor]] = {"previous": _previous, "induction": _induction}


def losses(model: Model, batch: Batch, *, targets: Collection[str] = ()) -> dict[str, Tensor]:
    """The parts of the loss by name, each a mean over its own predictions, in nats.

    The parts are "tokens"; "sentences" where the batch has labels for them; and each of `targets`,
    losses of single heads by their names in `TARGETS`. Call it under autocast for bfloat16.
    """
    layers = target_layers(model.config, targets)
    hidden, probs = _run(model, batch, watched=layers.values())
    predicted = batch.labels != IGNORED
    parts = {"tokens": _token_loss(model, hidden[predicted], batch.labels[predicted])}
    unrelated = batch.unrelated
    paired = unrelated is not None and bool((unrelated != IGNORED).any())
    if unrelated is not None and paired and model.config.task == "pre-training":
        head, pooled = model.head, model.pool(hidden)
        # `check_task` made sure of both.
        assert isinstance(head, VocabularyHead)
        assert head.next_sentence is not None
        assert pooled is not None
        logits = head.next_sentence(pooled)
        parts["sentences"] = F.cross_entropy(logits.float(), unrelated, ignore_index=IGNORED)
    for name, layer in layers.items():
        parts[name] = target_loss(name, probs[layer], batch)
    return parts


def _run(
    model: Model, batch: Batch, *, watched: Collection[int] = ()
) -> tuple[Hidden, dict[int, Tensor]]:
    """The last hidden state, and the probs of the watched layers."""
    probs = {}

    def visit(at: LayerPass) -> None:
        if at.index in watched:
            probs[at.index] = at.probs

    hidden = run_layers(
        model.body,
        model.body.embed(batch.ids, batch.segments),
        # At these lengths the backward of explicit attention is faster than that of a fused kernel.
        Evaluation(model.allowed(batch.ids, batch.mask), "eager"),
        keep=lambda layer: frozenset({"probs"} if layer in watched else ()),
        visit=visit,
    )
    return model.body.final(hidden), probs


def _token_loss(model: Model, hidden: Tensor, labels: Tensor) -> Tensor:
    head = model.head
    assert isinstance(head, VocabularyHead)
    if not len(labels):
        return hidden.sum().float() * 0.0
    logits = head(hidden[None], None, labels[None], None)[0]
    return F.cross_entropy(logits.float(), labels)
