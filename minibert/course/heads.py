"""Unit 3: what heads do, and where the order of words and the two texts are in a model."""

from functools import cache

import torch
from torch import Tensor

from minibert.analysis import embedding_parts, shared_dimensions
from minibert.course.answers import Choice, Exercise, Heads, Mistake, Numbers
from minibert.course.lab import bert, known_for, scores, traced, without
from minibert.course.texts import LEAVES, ORDER
from minibert.survey.sample_texts import SAMPLE_PAIRS
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
        "would get 0.5 each by chance. Segment embeddings are how it tells them apart."
    )


@cache
def _shared() -> Tensor:
    return shared_dimensions(traced(ORDER)).shared


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


EXERCISES: dict[str, Exercise] = {
    "3-previous": Heads(
        "Which head of tiny-bert looks at the token before?",
        lambda: {"{}-{}".format(*previous_head())},
        known_for,
        "It spends more of its attention on the token before than any other head.",
    ),
    "3-concat": Numbers(
        "Four heads of 32 numbers each are put side by side. How many numbers does W_O read "
        "for one "
        "token?",
        lambda: float(bert().config.n_heads * bert().config.d_head),
        0.1,
        "So many numbers are in a row of the stream, too.",
        (
            Mistake(lambda: 32.0, "That is one head. W_O reads all four, side by side."),
            Mistake(lambda: 36.0, "That adds 4 and 32. Four heads of 32 numbers are 4 times 32."),
            Mistake(lambda: 512.0, "That is four times too many: 4 heads of 32 numbers each."),
        ),
    ),
    "3-second": Numbers(
        "“leaves fall in autumn”, “autumn is marked by colorful foliage”: at which position, "
        "counted "
        "from 0, does the second text begin?",
        lambda: float(_second_start()),
        0.1,
        "BertViz calls this number sentence_b_start.",
        (
            Mistake(
                lambda: float(_second_start() - 1),
                "There stands the [SEP] that ends the first text; it has segment 0.",
            ),
            Mistake(
                lambda: float(_second_start() + 1),
                "That counts from 1. Positions are counted from 0.",
            ),
            Mistake(
                lambda: float(_second_start() - 2),
                "That leaves out [CLS] and [SEP], which have positions, too.",
            ),
        ),
    ),
    "3-equal": Numbers(
        "All tokens get the embedding of position 0. Which weight does the previous-token head "
        "give "
        "the token before, on average?",
        lambda: _beside(_moved("equal"), -1),
        0.1,
        "Word order is in the position embeddings and nowhere else.",
        (
            Mistake(
                lambda: _beside(traced(ORDER), -1),
                "That is what it gives with the right positions. Do the words alone tell the "
                "order?",
            ),
        ),
        (0.0, 1.0, "A weight lies between 0 and 1."),
    ),
    "3-reversed": Choice(
        "The position embeddings are put in reversed order. Where does the previous-token head "
        "look?",
        {"before": "", "after": "", "itself": ""},
        _largest_step,
        _about_step,
    ),
    "3-segments": Choice(
        "All tokens get segment 0. A head looked mostly at its own text: what becomes of that "
        "share?",
        {"falls": "", "stays": "", "rises": ""},
        _segment_change,
        _about_segments,
    ),
    "3-chance": Numbers(
        "Two queries each choose 4 of 32 dimensions at random. Which part of the 4 do they "
        "share, on "
        "average?",
        lambda: shared_dimensions(traced(ORDER)).chance,
        0.01,
        "Only a head that shares much more than this uses the same few neurons for every query.",
        (
            Mistake(
                lambda: 0.5, "That is 4 · 4/32: how many they share. As a part of the 4 it is 4/32."
            ),
            Mistake(lambda: 1 / 32, "That is the chance of one dimension to be the other's first."),
            Mistake(
                lambda: (4 / 32) ** 2,
                "That is the chance that both choose one certain dimension. Of the 4 that are "
                "chosen, each is among the other's with 4/32.",
            ),
        ),
        (0.0, 1.0, "A part lies between 0 and 1."),
    ),
    "3-neurons": Heads(
        "Whose queries share most of their four largest products?",
        lambda: _named(_shared()),
        _about_shared,
        "The same few neurons decide for every query of this head, as Vig saw it.",
    ),
}
