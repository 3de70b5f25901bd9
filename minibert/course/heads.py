"""Units 3 and 4: what heads do, where word order and segments are, and whether looking is use."""

import math
from collections.abc import Iterable
from functools import cache

import torch
from torch import Tensor

from minibert.analysis import embedding_parts, shared_dimensions
from minibert.course.answers import A_PART, A_WEIGHT, Choice, Exercise, Heads, Numbers
from minibert.course.lab import (
    bert,
    divergence,
    known_for,
    place,
    resting_layers,
    scores,
    token_id,
    traced,
    without,
)
from minibert.course.texts import BOYS, LEAVES, ORDER
from minibert.survey.sample_texts import SAMPLE_PAIRS
from minibert.trace.edit import zero
from minibert.trace.read import Trace


def previous_head() -> tuple[int, int]:
    """The head that looks at the previous token."""
    return scores().best("previous")[:2]


@cache
def _moved(how: str) -> Trace:
    """The trace of ORDER with all positions equal, or reversed."""
    trace = traced(ORDER)
    n = trace.allowed.position
    positions = [0] * n if how == "equal" else list(range(n))[::-1]
    embed = embedding_parts(bert(), trace.tokens, positions=positions).embed
    return without(trace, {"embed": embed})


def _beside(trace: Trace, step: int) -> float:
    """The mean weight of the previous-token head on the token `step` further on."""
    return float(trace[previous_head()].probs[0].diagonal(step).mean())


def _largest_step() -> str:
    trace = _moved("reversed")
    steps = {"before": -1, "after": 1, "itself": 0}
    return max(steps, key=lambda name: _beside(trace, steps[name]))


def _about_step(chosen: str) -> str:
    trace = _moved("reversed")
    before, after = _beside(trace, -1), _beside(trace, 1)
    return (
        f"Its weight on the token before is {before:.2f}, on the token after {after:.2f}. The head "
        "looks for the position that is one smaller, wherever that now stands."
    )


@cache
def own_text(zero_segments: bool) -> Tensor:
    """(layer, head): the attention of a token on its own text, the mean over the sample pairs."""
    found = []
    for pair in SAMPLE_PAIRS:
        trace = traced(*pair)
        segments = trace.tokens.segments[0]
        if zero_segments:
            parts = embedding_parts(bert(), trace.tokens, segments=torch.zeros_like(segments))
            trace = without(trace, {"embed": parts.embed})
        own = segments[:, None] == segments
        found.append(torch.stack([(layer.probs[0] * own).sum(-1).mean(-1) for layer in trace]))
    return torch.stack(found).mean(0)


def _text_head() -> tuple[int, int]:
    """The head that loses most of its attention on its own text without segments."""
    lost = own_text(False) - own_text(True)
    layer, head = divmod(int(lost.argmax()), lost.shape[1])
    return layer, head


def _segment_change() -> str:
    before, after = (float(own_text(zero)[_text_head()]) for zero in (False, True))
    if abs(after - before) < 0.05:
        return "stays"
    return "falls" if after < before else "rises"


def _about_segments(chosen: str) -> str:
    layer, head = _text_head()
    before, after = (float(own_text(zero)[layer, head]) for zero in (False, True))
    return (
        f"Head {layer}-{head} goes from {before:.2f} to {after:.2f}; two texts of the same length "
        "would get 0.5 each by chance. Without segments it hardly tells them apart."
    )


@cache
def _shared() -> Tensor:
    return shared_dimensions(traced(ORDER)).values


def _about_shared(head: str) -> str:
    layer, number = (int(part) for part in head.split("-"))
    return (
        f"The queries of head {head} share {float(_shared()[layer, number]):.2f}; another head's "
        "share more."
    )


def _second_start() -> int:
    return traced(*LEAVES).tokens.segments[0].tolist().index(1)


def _named(heads: Tensor) -> set[str]:
    layer, head = divmod(int(heads.argmax()), heads.shape[1])
    return {f"{layer}-{head}"}


_HEADS: dict[str, Exercise] = {
    "3-previous": Heads(
        "Which head of tiny-bert looks at the token before?",
        lambda: {"{}-{}".format(*previous_head())},
        known_for,
        "It spends more of its attention on the token before than any other head.",
    ),
    "3-concat": Numbers(
        "Four heads of 32 numbers each are put side by side. How many numbers does W_O read "
        "for one token?",
        lambda: bert().config.n_heads * bert().config.d_head,
        0.1,
        "So many numbers are in a row of the stream, too.",
        "Put the four rows of 32 numbers one behind the other and count.",
        lambda: {
            "That is the number of heads. Each of them gives 32 numbers.": 4,
            "That is one head. W_O reads all four, side by side.": 32,
            "That adds 4 and 32. Four heads of 32 numbers are 4 times 32.": 36,
            "That is four times too many: 4 heads of 32 numbers each.": 512,
            "That counts query, key and value. W_O reads only z, 32 numbers of each head.": 384,
        },
    ),
    "3-second": Numbers(
        "“leaves fall in autumn”, “autumn is marked by colorful foliage”: at which position, "
        "counted from 0, does the second text begin?",
        _second_start,
        0.1,
        "BertViz calls this number sentence_b_start.",
        "Count what stands before the second text: [CLS], the words of the first one, its [SEP].",
        lambda: {
            "There stands the [SEP] that ends the first text; it has segment 0.": (
                _second_start() - 1
            ),
            "That counts from 1. Positions are counted from 0.": _second_start() + 1,
            "That leaves out [CLS] and [SEP], which have positions, too.": _second_start() - 2,
            "That is the number of all tokens, of both texts.": traced(*LEAVES).allowed.position,
            "That is the segment of the second text. Its first token has a position, too.": 1,
        },
    ),
    "3-equal": Numbers(
        "All tokens get the embedding of position 0. Which weight does the previous-token head "
        "give the token before, on average?",
        lambda: _beside(_moved("equal"), -1),
        0.1,
        "Within one text, word order enters the model by the position embeddings alone.",
        "Query and key are compared. What do they still know of where a token stands?",
        lambda: {
            "That is what it gives with the right positions. Do the words alone tell the order?": (
                _beside(traced(ORDER), -1)
            ),
            "That is with the positions in reversed order.": _beside(_moved("reversed"), 1),
        },
        A_WEIGHT,
    ),
    "3-reversed": Choice(
        "The position embeddings are put in reversed order. Where does the previous-token head "
        "look?",
        ("before", "after", "itself"),
        _largest_step,
        _about_step,
    ),
    "3-segments": Choice(
        "All tokens get segment 0. A head looked mostly at its own text: what becomes of that "
        "share?",
        ("falls", "stays", "rises"),
        _segment_change,
        _about_segments,
    ),
    "3-chance": Numbers(
        "Two queries each choose 4 of 32 dimensions at random. Which part of the 4 do they "
        "share, on average?",
        lambda: shared_dimensions(traced(ORDER)).chance,
        0.01,
        "Only a head that shares much more than this uses the same dimensions for every query.",
        "Each of the 4 has a chance of 4 in 32 to be among the other's 4.",
        lambda: {
            "That is 4 · 4/32: how many they share. As a part of the 4 it is 4/32.": 0.5,
            "That is the chance of one dimension to be the other's first.": 1 / 32,
            "That is the chance that both choose one certain dimension. Of the 4 that are chosen, "
            "each is among the other's with 4/32.": (4 / 32) ** 2,
        },
        A_PART,
    ),
    "3-neurons": Heads(
        "Whose queries share most of their four largest products?",
        lambda: _named(_shared()),
        _about_shared,
        "Its queries have many of their largest products in the same dimensions, as Vig saw it. "
        "That does not mean few dimensions: by the other measure of this page it needs 16 of 32.",
    ),
}


def _late() -> list[int]:
    return list(resting_layers(BOYS))


def _weights() -> Tensor:
    """(layer): the mean weight on [SEP]."""
    return torch.stack([layer.probs[0, :, :, -1].mean() for layer in traced(BOYS)])


def _lengths() -> tuple[float, float]:
    """The mean length of the values at [SEP], and of the others without [CLS], where heads rest."""
    trace = traced(BOYS)
    norms = torch.stack([trace[layer].value[0].norm(dim=-1) for layer in _late()])
    return float(norms[..., -1].mean()), float(norms[..., 1:-1].mean())


def _off(layers: Iterable[int]) -> float:
    """How far the prediction moves without the attention of these layers, in nats."""
    trace = traced(BOYS)
    mask = place(trace, "[MASK]")
    edited = without(trace, {("z", layer): zero for layer in layers})
    return divergence(trace.logits[0, mask], edited.logits[0, mask])


def _early() -> list[int]:
    return [n for n in range(bert().config.n_layers) if n not in _late()]


@cache
def _gradients() -> Tensor:
    """(layer): the mean size of the gradient of the loss of “were” by the weights on [SEP]."""
    model = bert()
    trace = model.trace(BOYS, grad=True)
    mask = place(trace, "[MASK]")
    trace.backward(-trace.logits[0, mask].log_softmax(-1)[token_id(model, "were")])
    return torch.stack([at.probs[0, :, :, -1].abs().mean() for at in trace.grad])


def _gradient_change() -> str:
    sizes = _gradients()
    ratio = float(sizes[_late()].mean() / sizes[_early()].mean())
    return "smaller" if ratio < 0.5 else "larger" if ratio > 2 else "the same"


def _about_gradients(chosen: str) -> str:
    shown = ", ".join(f"{size:.4f}" for size in _gradients().tolist())
    return (
        f"Its mean size by layer is {shown}. Where heads rest on [SEP], a change of these weights "
        "hardly changes the loss. Clark et al. 2019 see in it a sign of their guess that resting "
        "is a no-op."
    )


_USE: dict[str, Exercise] = {
    "4-entropy": Numbers(
        "The weights of a row are 0.5, 0.25 and 0.25. What is its entropy, in nats?",
        lambda: 1.5 * math.log(2),
        0.02,
        "It is a little below ln 3 = 1.099, which three equal weights would have.",
        "Add −α·ln α over the three weights: −0.5·ln 0.5 − 0.25·ln 0.25 − 0.25·ln 0.25.",
        lambda: {
            "That is in bits, with the logarithm to base 2. Nats take ln.": 1.5,
            "That is with the logarithm to base 10. Nats take ln.": 0.4515,
            "That adds the logarithms alone. Multiply each by its weight.": 3.4657,
            "That is exp of the entropy: how many equal weights are as broad.": 2.8284,
            "That is the first weight alone. Add those of the two others.": 0.3466,
            "The sum of α·ln α is negative; the entropy is that without the sign.": -1.0397,
            "That is ln 3, of three equal weights.": 1.0986,
        },
        (0.0, 1.0987, "An entropy of three weights lies between 0 and ln 3 = 1.099 nats."),
    ),
    "4-resting": Numbers(
        f"“{BOYS}”: which part of their weight do the layers that rest give [SEP], on average?",
        lambda: _weights()[_late()].mean(),
        0.08,
        "They look nearly all the time at a token without meaning. One of these heads, 2-3, was "
        "trained to do so.",
        "Only layers that give [SEP] more than half are counted, and the other tokens get a "
        "little, too.",
        lambda: {
            "That is the mean over all layers; not all of them rest.": _weights().mean(),
            "That is the weight on [CLS]. [SEP] is the last token.": torch.stack(
                [traced(BOYS)[n].probs[0, :, :, 0] for n in _late()]
            ).mean(),
        },
        A_WEIGHT,
    ),
    "4-value": Numbers(
        "In the layers that rest, how long is the value vector of [SEP], as a part of the "
        "length of the other tokens' values?",
        lambda: _lengths()[0] / _lengths()[1],
        0.1,
        "The value of [SEP] is short: there is little to take. But a head that gives nearly all "
        "its weight to [SEP] takes little from the other tokens as well.",
        "Divide the mean length at [SEP] by the mean length at the words.",
        lambda: {
            "That is the other way round: the others divided by [SEP].": (
                _lengths()[1] / _lengths()[0]
            ),
            "That is the length itself. Divide it by that of the others.": _lengths()[0],
        },
    ),
    "4-off": Numbers(
        "The attention of the resting layers is set to zero. How far does the prediction at "
        "the mask move, as a Kullback-Leibler divergence in nats?",
        lambda: _off(_late()),
        0.1,
        "Nearly nothing on this text. Layer 1, which does not rest, hardly moves it either: this "
        "test alone does not say that a layer does nothing because it rests.",
        "A large weight is not a proof of use. How long were the values that these heads take?",
        lambda: {"That is what happens without the other layers.": _off(_early())},
        (0.0, 100.0, "A divergence is 0 where nothing moves and never negative."),
    ),
    "4-gradient": Choice(
        "Differentiate the loss with respect to the weights on [SEP]. In the layers that rest, "
        "is the gradient smaller or larger than in the others?",
        ("smaller", "the same", "larger"),
        _gradient_change,
        _about_gradients,
    ),
}

EXERCISES = {**_HEADS, **_USE}
