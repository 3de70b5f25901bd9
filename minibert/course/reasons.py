"""Unit 7: why a head looks where it looks, from the words to the prediction."""

from functools import cache, partial

import torch
from torch import Tensor

from minibert.analysis import WhyScore, head_norms, why
from minibert.course.answers import A_PART, Choice, Exercise, Heads, Numbers
from minibert.course.lab import bert, gpt, known_for, place, traced
from minibert.course.texts import LISTED, SEPARATED
from minibert.loading import load

# The first head of tiny-bert that hardly looks at anything but [SEP], and one of those above it.
SEP_HEAD, LATER = (1, 3), (2, 3)


@cache
def _copying(name: str, head: tuple[int, int]) -> WhyScore:
    """Why an induction head looks at " horse" from the last word of LISTED."""
    model = gpt() if name == "tiny-gpt2" else load(name)
    return why(model.trace(LISTED), *head, query=-1, key=3, against="row")


def _writer(name: str, head: tuple[int, int], side: str) -> set[str]:
    """The head that wrote the largest part of one side."""
    label, _ = _copying(name, head).side(side).top(1)[0]
    return {label.removeprefix("head ")}


def _about(name: str, head: tuple[int, int], side: str, other: str) -> str:
    """What another head wrote there."""
    layer = int(other.split("-")[0])
    if layer >= head[0]:
        return f"Head {other} comes after what head {head[0]}-{head[1]} reads, or beside it."
    part = _copying(name, head).side(side)[f"head {other}"].item()
    if name == "tiny-gpt2":
        return f"{known_for(other, name)} Here it has a part of {part:+.1f}."
    return f"Head {other} has a part of {part:+.1f}, and another head has more."


def _to_sep() -> WhyScore:
    trace = traced(SEPARATED)
    return why(trace, *SEP_HEAD, place(trace, "horse"), place(trace, "[SEP]"), against="row")


@cache
def _constant() -> float:
    """The share of the score that no word of the query has a part in."""
    side = _to_sep().side("query")
    same = [each for each in side.components if each.endswith("bias") or " bias " in each]
    return sum(side[each].item() for each in (*same, "segment embedding")) / side.total


@cache
def _bias() -> float:
    side = _to_sep().side("query")
    return side["query bias"].item() / side.total


def _without_bias() -> float:
    """The mean weight of [SEP] in the rows of words, with the query's bias taken away."""
    trace = traced(SEPARATED)
    bias = bert().body.layers[SEP_HEAD[0]].attention.b_Q
    assert bias is not None
    edit = {("query", *SEP_HEAD): lambda query: query - bias[SEP_HEAD[1]]}
    with torch.no_grad():
        return _sep_weight(trace.rerun(edit)[SEP_HEAD].probs[0])


def _sep_weight(probs: Tensor) -> float:
    return float(probs[1:-1, place(traced(SEPARATED), "[SEP]")].mean())


def _about_bias(chosen: str) -> str:
    before = _sep_weight(traced(SEPARATED)[SEP_HEAD].probs[0])
    return (
        f"With the bias the words give [SEP] {before:.2f} of their attention, without it "
        f"{_without_bias():.2f}."
    )


@cache
def _length() -> float:
    """How long what [SEP] offers is, as a part of the mean over the words."""
    layer, head = LATER
    vectors = head_norms(traced(SEPARATED), layer).vectors[0, head]
    return float(vectors[place(traced(SEPARATED), "[SEP]")] / vectors[1:-1].mean())


EXERCISES: dict[str, Exercise] = {
    "7-key": Heads(
        "Which head wrote, at “ horse”, what head 1-0 of tiny-gpt2 finds it by?",
        partial(_writer, "tiny-gpt2", (1, 0), "key"),
        partial(_about, "tiny-gpt2", (1, 0), "key"),
        "It looks at the token before, so it wrote “ summer” at “ horse”.",
    ),
    "7-query": Heads(
        "And which head wrote, at the last “ summer”, the largest part of what head 1-0 asks with?",
        partial(_writer, "tiny-gpt2", (1, 0), "query"),
        partial(_about, "tiny-gpt2", (1, 0), "query"),
        "It looks at its own token, and writes there which word it is.",
    ),
    "7-llama": Heads(
        "Head 1-3 of tiny-llama is an induction head too. Which head wrote what it finds “ horse” "
        "by?",
        partial(_writer, "tiny-llama", (1, 3), "key"),
        partial(_about, "tiny-llama", (1, 3), "key"),
        "Another model, trained apart, with rotary positions: the same two steps.",
    ),
    "7-constant": Numbers(
        "Which part of the score comes from the bias of the head's query alone, whatever the word "
        "is?",
        _bias,
        0.05,
        "More than half of what this head asks is asked for every word alike.",
        "Divide the part of the query bias by the whole.",
        lambda: {
            "That is everything that is the same for each word, all biases and the segment "
            "embedding. It is more than the whole: the words speak against it.": _constant()
        },
        A_PART,
    ),
    "7-bias": Choice(
        "The bias of this head's query is taken away. Do the words still give most of their "
        "attention to [SEP]?",
        ("yes", "no"),
        lambda: "yes" if _without_bias() > 0.5 else "no",
        _about_bias,
    ),
    "7-moves": Numbers(
        "How long is the vector that head 2-3 reads at [SEP], as a part of the mean length at "
        "the words?",
        _length,
        0.1,
        "So a head that looks there moves little: it rests.",
        "A head that is to add nothing can look where the vector is short.",
        lambda: {"That would be a vector as long as those of words.": 1.0},
        (0.0, 2.0, "It is a length, divided by another of the same kind."),
    ),
}
"""Of unit 7, by name."""
