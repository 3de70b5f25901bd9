"""What a run begins with: its tokenizer, its config, its texts as ids, its device, its weights."""

import math
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from minibert.errors import TrainingError
from minibert.layers.config import Config
from minibert.model import Model
from minibert.text.tokenizer import Tokenizer
from minibert.training.recipe import Recipe
from minibert.training.snapshot import Snapshot
from minibert.training.texts import Corpus, Document
from minibert.training.vocabulary import END_OF_TEXT, train_tokenizer

_CONTINUES = "##"


@torch.no_grad()
def carry_over(old: Model, new: Model) -> None:
    """Write the weights of `old` into `new`, in place.

    A token that both know keeps its row of every table over tokens; any other token starts at the
    mean of the rows of the old tokens that spell it (Gee et al. 2022, "Fast vocabulary transfer for
    language model compression", section 3.2). Positions that `old` lacks start as its own again, so
    that neighbours are known there from the first step, plus a vector that tells the copies apart.

    Raises TrainingError where the two differ in anything else.
    """
    assert old.tokenizer is not None
    assert new.tokenizer is not None
    vocabularies = (old.config.vocab_size, new.config.vocab_size)
    spelled = _spelled(old.tokenizer, new.tokenizer)
    weights = dict(old.named_parameters())
    parameters = dict(new.named_parameters())
    _check_names(set(weights), set(parameters))
    for name, parameter in parameters.items():
        weight = weights[name]
        if (len(weight), len(parameter)) == vocabularies:
            parameter.copy_(torch.stack([weight[ids].mean(0) for ids in spelled]))
        elif name == "body.position.weight" and len(weight) <= len(parameter):
            parameter.copy_(_repeated(weight, len(parameter)))
        elif weight.shape == parameter.shape:
            parameter.copy_(weight)
        else:
            raise TrainingError(
                f"{name} is {list(weight.shape)} in {old.name} and {list(parameter.shape)} in the "
                "model to be trained; expected the same Config but for tokens and positions."
            )


def _repeated(table: Tensor, count: int) -> Tensor:
    """The rows again and again, each copy shifted by one more step of half a row's length.

    Equal copies stay equal for long: no weight tells them apart, so none learns to.
    """
    place = torch.arange(count)
    step = torch.randn(table.shape[1], generator=torch.Generator().manual_seed(0))
    step *= table.norm(dim=1).mean() / (2 * step.norm())
    return table[place % len(table)] + place[:, None] // len(table) * step.to(table)


def _check_names(old: set[str], new: set[str]) -> None:
    if different := sorted(old ^ new):
        raise TrainingError(
            f"The model to start from has other weights than the model to be trained: "
            f"{', '.join(different[:4])}. Expected the same family, layers and task."
        )


def _spelled(old: Tokenizer, new: Tokenizer) -> list[Tensor]:
    """For each token of `new`, the ids of the tokens of `old` that spell it."""
    known = {old.raw(index): index for index in range(old.vocab_size)}
    return [torch.tensor(_ids(known, old, new, index)) for index in range(new.vocab_size)]


def _ids(known: dict[str, int], old: Tokenizer, new: Tokenizer, index: int) -> list[int]:
    token = new.raw(index)
    if token in known:
        return [known[token]]
    if not token.startswith(_CONTINUES):
        return old.encode(new.string(index))
    first, *rest = old.encode(token.removeprefix(_CONTINUES))
    return [known.get(_CONTINUES + old.raw(first), first), *rest]


def tokenizer_of(
    texts: Sequence[Document], config: Config, whole: Sequence[str], snapshot: Snapshot | None
) -> Tokenizer:
    """The tokenizer of the snapshot, or a new one trained on the texts."""
    if snapshot is not None:
        return Tokenizer.from_json(snapshot.tokenizer)
    given = (document.text for document in texts)
    return train_tokenizer(given, family=config.family, size=config.vocab_size, whole=whole)


def with_tokenizer(config: Config, tokenizer: Tokenizer) -> Config:
    """The config with what the tokenizer decides: ids, and where positions begin."""
    if not config.causal and None in (tokenizer.mask_id, tokenizer.pad_id):
        raise TrainingError("A masked LM needs a tokenizer with a mask and a padding token.")
    pad_id = config.pad_id if tokenizer.pad_id is None else tokenizer.pad_id
    offset = config.position_offset
    if config.family == "roberta" and pad_id is not None:
        # RoBERTa counts positions from pad_id + 1, whatever the given config says.
        offset = pad_id + 1
    return replace(config, vocab_size=tokenizer.vocab_size, pad_id=pad_id, position_offset=offset)


def corpus_of(documents: Sequence[Document], tokenizer: Tokenizer) -> Corpus:
    """The documents as ids, one behind the other."""
    ids = tokenizer.encode(END_OF_TEXT)
    # Where the tokenizer has an end-of-text token, it ends each text; elsewhere nothing does.
    between = ids if len(ids) == 1 and ids[0] in tokenizer.special_ids else []
    return Corpus.of(documents, tokenizer, between=between)


def device_of(name: str) -> torch.device:
    """The device. Raises TrainingError where it cannot be trained on."""
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        # After the first line, CUDA's messages are advice for its own developers.
        reason = str(error).partition("\n")[0]
        raise TrainingError(f"The device {name!r} cannot be used: {reason}") from error
    if device.type not in ("cpu", "cuda"):
        raise TrainingError(f"The device {name!r} cannot be trained on; expected cpu or cuda.")
    return device


_AMPLITUDE = 0.05


def starting_model(
    config: Config, recipe: Recipe, tokenizer: Tokenizer, *, name: str, start: Model | None = None
) -> Model:
    """A model with the weights of `start`, or with random ones and sinusoids as its positions.

    With random positions a model of this size needs most of the run to learn which tokens are
    neighbours. Where norms stand before the blocks, the matrices that write into the stream start
    smaller by 1/sqrt(2·layers) (Radford et al. 2019, section 2.3).
    """
    model = Model.from_config(config, seed=recipe.seed, tokenizer=tokenizer, name=name)
    if start is not None:
        carry_over(start, model)
        return model
    with torch.no_grad():
        if recipe.waves and model.body.position is not None:
            table = model.body.position.weight
            table[config.position_offset :] = waves(
                len(table) - config.position_offset, table.shape[1], longest=recipe.waves
            )
        if config.pre_norm:
            for place, parameter in model.named_parameters():
                if place.endswith(("attention.output.weight", "mlp.down.weight")):
                    parameter.mul_((2 * config.n_layers) ** -0.5)
    return model


def waves(positions: int, width: int, *, longest: float) -> torch.Tensor:
    """Sines and cosines of the position (Vaswani et al. 2017, section 3.5), of amplitude 0.05.

    `longest` is the longest wavelength over 2π. The paper has 10,000. For 128 positions 100 is
    better: neighbours differ more, so heads can tell them apart with smaller scores.
    """
    position = torch.arange(positions)[:, None]
    frequency = torch.exp(torch.arange(0, width, 2) * (-math.log(longest) / width))
    table = torch.empty(positions, width)
    table[:, 0::2] = torch.sin(position * frequency)
    table[:, 1::2] = torch.cos(position * frequency)[:, : width // 2]
    return _AMPLITUDE * table
