"""Unit 4: attention is not use. What a head looks at, and whether it takes anything from there."""

from collections.abc import Iterable
from functools import cache

import torch
from torch import Tensor

from minibert.course.answers import Choice, Exercise, Mistake, Numbers
from minibert.course.lab import bert, divergence, place, resting_layers, token_id, traced, without
from minibert.course.texts import BOYS
from minibert.trace.edit import zero


def _weights() -> Tensor:
    """(layer): the mean weight on [SEP]."""
    return torch.stack([layer.probs[0, :, :, -1].mean() for layer in traced(BOYS)])


def _resting() -> float:
    return float(_weights()[list(resting_layers(BOYS))].mean())


def _value_ratio() -> float:
    """The mean length of the values at [SEP] over that of the others, [CLS] left out."""
    trace = traced(BOYS)
    norms = torch.stack([trace[layer].value[0].norm(dim=-1) for layer in resting_layers(BOYS)])
    return float(norms[..., -1].mean() / norms[..., 1:-1].mean())


def _off(layers: Iterable[int]) -> float:
    """How far the prediction moves without the attention of these layers, in nats."""
    trace = traced(BOYS)
    mask = place(trace, "[MASK]")
    edited = without(trace, {("z", layer): zero for layer in layers})
    return divergence(trace.logits[0, mask], edited.logits[0, mask])


def _early() -> list[int]:
    return [n for n in range(bert().config.n_layers) if n not in resting_layers(BOYS)]


@cache
def _gradients() -> Tensor:
    """(layer): the mean size of the gradient of the loss of “were” by the weights on [SEP]."""
    model = bert()
    trace = model.trace(BOYS, grad=True)
    mask = place(trace, "[MASK]")
    trace.backward(-trace.logits[0, mask].log_softmax(-1)[token_id(model, "were")])
    return torch.stack([at.probs[0, :, :, -1].abs().mean() for at in trace.grad])


def _gradient_change() -> str:
    sizes, late = _gradients(), list(resting_layers(BOYS))
    ratio = float(sizes[late].mean() / sizes[_early()].mean())
    return "smaller" if ratio < 0.5 else "larger" if ratio > 2 else "the same"


def _about_gradients(chosen: str) -> str:
    shown = ", ".join(f"{size:.4f}" for size in _gradients().tolist())
    return (
        f"Its mean size by layer is {shown}. Where heads rest on [SEP], a change of these weights "
        "hardly changes the loss: Clark et al. 2019 call it a no-op."
    )


EXERCISES: dict[str, Exercise] = {
    "4-entropy": Numbers(
        "The weights of a row are 0.5, 0.25 and 0.25. What is its entropy, in nats?",
        lambda: float(
            -(torch.tensor([0.5, 0.25, 0.25]).log() * torch.tensor([0.5, 0.25, 0.25])).sum()
        ),
        0.02,
        "It is a little below ln 3 = 1.099, which three equal weights would have.",
        (
            Mistake(lambda: 1.5, "That is in bits, with the logarithm to base 2. Nats take ln."),
            Mistake(
                lambda: -1.0397,
                "The sum of α·ln α is negative; the entropy is that without the sign.",
            ),
            Mistake(lambda: 1.0986, "That is ln 3, of three equal weights."),
        ),
        (0.0, 1.0987, "An entropy of three weights lies between 0 and ln 3 = 1.099 nats."),
    ),
    "4-resting": Numbers(
        f"“{BOYS}”: which part of their weight do the layers that rest give [SEP], on average?",
        _resting,
        0.08,
        "They look nearly all the time at a token without meaning.",
        (
            Mistake(
                lambda: float(_weights().mean()),
                "That is the mean over all layers; not all of them rest.",
            ),
        ),
        (0.0, 1.0, "A weight lies between 0 and 1."),
    ),
    "4-value": Numbers(
        "In the layers that rest, how long is the value vector of [SEP], as a part of the "
        "length of the "
        "other tokens' values?",
        _value_ratio,
        0.1,
        "A head that looks at [SEP] adds little, because there is little to take.",
        (
            Mistake(
                lambda: 1 / _value_ratio(),
                "That is the other way round: the others divided by [SEP].",
            ),
        ),
    ),
    "4-off": Numbers(
        "The attention of the resting layers is set to zero. How far does the prediction at "
        "the mask "
        "move, as a Kullback-Leibler divergence in nats?",
        lambda: _off(resting_layers(BOYS)),
        0.1,
        "Nearly nothing: these heads looked at [SEP] in order to do nothing here.",
        (Mistake(lambda: _off(_early()), "That is what happens without the other layers."),),
        (0.0, 100.0, "A divergence is 0 where nothing moves and never negative."),
    ),
    "4-gradient": Choice(
        "Differentiate the loss with respect to the weights on [SEP]. In the layers that rest, "
        "is the "
        "gradient smaller or larger than in the others?",
        {"smaller": "", "the same": "", "larger": ""},
        _gradient_change,
        _about_gradients,
    ),
}
