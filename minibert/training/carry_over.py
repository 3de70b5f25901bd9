"""Starts a model from the weights of another one that has other tokens or fewer positions."""

import torch
from torch import Tensor

from minibert.errors import TrainingError
from minibert.model import Model
from minibert.text.tokenizer import Tokenizer

__all__ = ["carry_over"]

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
