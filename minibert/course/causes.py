"""Units 5 to 7: what the choice of a word depends on, real BERT, and why a head looks there."""

from collections.abc import Callable
from functools import cache, partial

import torch
from torch import Tensor

from minibert.analysis import WhyScore, head_norms, why
from minibert.course.answers import A_PART, Choice, Exercise, Heads, Numbers
from minibert.course.lab import (
    bert,
    every_head,
    gpt,
    known_for,
    place,
    said,
    scores,
    token_id,
    traced,
)
from minibert.course.texts import COPIED, FAR, LISTED, PAIRS, REVIEW, SEPARATED, copying_text
from minibert.features import load as load_features
from minibert.model import load
from minibert.trace.edit import EditMapping, hide, zero

# A head above it is called an induction head, as in docs/lessons/induction.md.
INDUCTION = 0.3
_SUBJECT = 2


def _prefers_were(texts: list[str], edit: EditMapping) -> list[bool]:
    """Whether the model puts were before was at the mask of each text."""
    model = bert()
    with torch.no_grad():
        trace = model.trace(texts, edit=edit)
    masks = [strings.index("[MASK]") for strings in trace.tokens.strings]
    logits = trace.logits[range(len(texts)), masks]
    return (logits[:, token_id(model, "were")] > logits[:, token_id(model, "was")]).tolist()


@cache
def _right() -> tuple[str, ...]:
    """The plurals of the pairs of which both forms are right."""
    ones = _prefers_were([one for one, _ in PAIRS], {})
    many = _prefers_were([many for _, many in PAIRS], {})
    return tuple(
        pair[1] for pair, one, other in zip(PAIRS, ones, many, strict=True) if other and not one
    )


@cache
def flipped(point: str, layer: int = 0, head: int = 0) -> int:
    """How many of the right plurals become was without the subject, or without a head."""
    if point == "subject":
        edit = {("scores", n): hide(_SUBJECT) for n in range(bert().config.n_layers)}
        return _prefers_were(list(_right()), edit).count(False)
    return _prefers_were(list(_right()), {("z", layer, head): zero}).count(False)


def _carrier() -> set[str]:
    layer, head = max(every_head(bert()), key=lambda place: flipped("head", *place))
    return {f"{layer}-{head}"}


def _about_flips(head: str) -> str:
    layer, number = (int(part) for part in head.split("-"))
    count = flipped("head", layer, number)
    return (
        f"Without head {head}, {count} of {len(_right())} plurals become was. Without another head "
        "it is more."
    )


@cache
def _far() -> dict[str, float]:
    trace = traced(FAR)
    probs = said(trace, place(trace, "[MASK]"))
    return {word: float(probs[token_id(bert(), word)]) for word in ("was", "were")}


def _about_far(chosen: str) -> str:
    probs = _far()
    told = f"was has {probs['was']:.3f}, were {probs['were']:.3f}."
    if probs["was"] > probs["were"]:
        return f"{told} The model agrees with its neighbour “horse”, not with its subject “men”."
    return f"{told} The model agrees with “men”, its subject."


def _induction() -> set[str]:
    table = scores("tiny-gpt2").induction
    return {
        f"{layer}-{head}" for layer, head in every_head(gpt()) if table[layer, head] > INDUCTION
    }


def _places() -> list[tuple[int, int]]:
    """The induction heads as numbers."""
    named = [head.split("-") for head in sorted(_induction())]
    return [(int(layer), int(head)) for layer, head in named]


@cache
def _copied(*off: tuple[int, int]) -> float:
    """The part of the lists that are continued without these heads."""
    model = gpt()
    texts = [copying_text(words, 3) for words in COPIED]
    with torch.no_grad():
        trace = model.trace(texts, edit={("z", layer, head): zero for layer, head in off})
    right = 0
    for row, words in enumerate(COPIED):
        best = int(trace.logits[row, trace.tokens.lengths[row] - 1].argmax())
        assert model.tokenizer is not None
        right += model.tokenizer.string(best).strip() == words[3]
    return right / len(COPIED)


_A_COUNT = (0.0, 60.0, "There are 60 pairs, and one counts once. Give the count, not a part.")

_CAUSES: dict[str, Exercise] = {
    "5-right": Numbers(
        f"{len(PAIRS)} pairs such as “The boy [MASK] very tired.” and “The boys [MASK] very "
        "tired.”: in how many does the model prefer was for the one and were for the many?",
        lambda: len(_right()),
        5.0,
        "In these pairs the subject stands right before the mask.",
        "These are easy pairs: the subject is the neighbour of the mask.",
        lambda: {
            "Those are all sentences. A pair counts once, and only if both are right.": 120,
            "That many would be right if the model tossed a coin for each sentence.": 15,
            "That many would be right if the model tossed a coin for each pair.": 30,
            "That is a part. Give the count, of 60 pairs.": len(_right()) / 60,
            "That is per cent. Give the count, of 60 pairs.": len(_right()) / 0.6,
        },
        _A_COUNT,
    ),
    "5-hidden": Numbers(
        "The subject is hidden from all tokens. In how many of the plurals that were right "
        "does was come first now?",
        lambda: flipped("subject"),
        5.0,
        "In these sentences only the subject tells one from many, and without it the model says "
        "was.",
        "What is left in the sentence that could tell one from many?",
        lambda: {
            "Nothing else in these sentences says whether there is one or there are many.": 0,
            "That many if it tossed a coin. But without the subject it always says the same.": 30,
            "That is a part. Give the count, of 60 pairs.": flipped("subject") / 60,
            "That is per cent. Give the count, of 60 pairs.": flipped("subject") / 0.6,
        },
        _A_COUNT,
    ),
    "5-head": Heads(
        "One head is set to zero. Which one makes most of the plurals flip?",
        _carrier,
        _about_flips,
        "No other single head makes even one of them flip, so on these sentences this head brings "
        "the number of the subject.",
    ),
    "5-far": Choice(
        f"“{FAR}”: does the model prefer was or were?",
        ("was", "were"),
        lambda: max(_far(), key=lambda word: _far()[word]),
        _about_far,
    ),
    "5-copies": Numbers(
        "tiny-gpt2 reads seven words in random order, then the first three again. In what share of "
        "100 such texts does it continue with the fourth word?",
        lambda: _copied(),
        0.08,
        "These lists are new to it, but copying was trained: a quarter of what it read were random "
        "tokens that come twice.",
        "No English text continues like this, but a quarter of its training did.",
        lambda: {
            "That is a guess among the twenty words.": 1 / 20,
            "That is a guess among the seven words of the text.": 1 / 7,
        },
        A_PART,
    ),
    "5-induction": Heads(
        f"Which heads of tiny-gpt2 have an induction score above {INDUCTION}?",
        _induction,
        lambda head: known_for(head, "tiny-gpt2"),
        "They look at the token after the earlier copy of the current token.",
    ),
    "5-without": Numbers(
        "These heads are set to zero, all at once. In what share of the 100 texts does the model "
        "still continue the list?",
        lambda: _copied(*_places()),
        0.08,
        "So copying needs these heads, but not only these: the page shows what other heads do.",
        "Which other head could find the word without these three?",
        lambda: {
            "That is the part with all heads.": _copied(),
            "That is without head 1-0 only. Set all of them to zero at once.": _copied((1, 0)),
            "That would be a guess among the seven words. Is a guess what is left?": 1 / 7,
        },
        A_PART,
    ),
}


@cache
def coin_labels() -> tuple[int, ...]:
    """The label that an untrained head gives REVIEW, for ten seeds."""
    pooled = traced(REVIEW).pooled[0]
    found = []
    for seed in range(10):
        # As BERT's authors and transformers start a classifier: normal, 0.02, no bias.
        weight = 0.02 * torch.randn(2, len(pooled), generator=torch.Generator().manual_seed(seed))
        found.append(int((weight @ pooled).argmax()))
    return tuple(found)


def _about_coin(told: str) -> Callable[[], str]:
    def said() -> str:
        ones = sum(coin_labels())
        return (
            f"Of ten seeds {ones} say positive and {10 - ones} negative, about one text and one "
            f"model. {told}"
        )

    return said


def _quiz(asks: str, right: str, **options: tuple[str, str | Callable[[], str]]) -> Choice:
    """A choice of texts by letter, each with the reply to a reader who chooses it."""

    def said(letter: str) -> str:
        told = options[letter][1]
        return told if isinstance(told, str) else told()

    listed = " ".join(f"({letter}) {text}" for letter, (text, _) in options.items())
    return Choice(f"{asks} {listed}", tuple(options), lambda: right, said)


_REAL_MODELS: dict[str, Exercise] = {
    "6-count": Numbers(
        "BERT-large has 24 layers of 16 heads. How many heads is that?",
        lambda: 24 * 16,
        0.1,
        "bert-base has 12 layers of 12 heads, 144 in all, and tiny-bert 4 of 4.",
        "Multiply the two numbers.",
        lambda: {
            "That adds them. Each of the 24 layers has 16 heads of its own.": 40,
            "That is bert-base: 12 layers of 12 heads.": 144,
            "That is one layer. Each of the 24 layers has 16 heads of its own.": 16,
        },
    ),
    "6-coin": _quiz(
        f"“{REVIEW}”: a classifier with fresh weights on a trained BERT says positive. What "
        "does that say about the text?",
        "c",
        a=("It is positive.", _about_coin("A reader's opinion would not depend on the seed.")),
        b=(
            "A little, since the body is trained.",
            _about_coin("The body is trained, but the classifier after it is not."),
        ),
        c=(
            "Nothing.",
            _about_coin("The weights of the classifier are random numbers: nobody trained them."),
        ),
    ),
    "6-weight": _quiz(
        "A head gives [SEP] 0.95 of its weight. What follows?",
        "a",
        a=(
            "The head adds little if the value of [SEP] is short.",
            "What a head adds is weight times value.",
        ),
        b=(
            "[SEP] matters most for the prediction.",
            "A weight is multiplied by a value. Unit 4 found both: a large weight on a short "
            "value.",
        ),
        c=(
            "The model is broken.",
            "Clark et al. 2019 found this in bert-base, which works well. Their guess is that a "
            "head does nothing in this way.",
        ),
    ),
    "6-ablate": _quiz(
        "A head is set to zero and the prediction stays. What follows?",
        "b",
        a=(
            "The head computes nothing.",
            "Its output was not zero before. Another head may do the same work, as in unit 5.",
        ),
        b=(
            "Nothing on this text depended on it alone.",
            "Another head may replace it, and other texts may need it.",
        ),
        c=("The head is not needed on any text.", "One text says nothing about the others."),
    ),
    "6-probe": _quiz(
        "A classifier that reads attention finds 77 % of the dependencies. What should that be "
        "compared with?",
        "c",
        a=(
            "Nothing: 77 % is high.",
            "A rule that always takes the next word finds many dependencies as well.",
        ),
        b=(
            "A larger classifier.",
            "A larger classifier may learn more by itself, and says less about the attention.",
        ),
        c=(
            "The same classifier on a model with random weights.",
            "What it finds with random weights does not come from what the model learned.",
        ),
    ),
    "6-direct": _quiz(
        "By direct attribution a head adds nothing to the logit, but without it the answer "
        "changes. How can that be?",
        "a",
        a=(
            "It writes into the stream what later parts read.",
            "The previous-token head of unit 5 does this: the induction heads read what it wrote.",
        ),
        b=("One of the two numbers is wrong.", "Both are right. They answer different questions."),
        c=("The head writes into the logits twice.", "A head adds to the stream once."),
    ),
}


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


@cache
def _without_feature(positions: int | None = 3) -> float:
    """The weight of " horse" in head 1-0 when feature 128 is 0 there, or everywhere."""
    features = load_features("tiny-gpt2")
    edit = features.edit({128: 0.0}, positions=positions)
    return float(gpt().trace(LISTED).rerun(edit)[1, 0].probs[0, -1, 3])


_REASONS: dict[str, Exercise] = {
    "7-key": Heads(
        "Head 1-0 of tiny-gpt2 finds “ horse” by something that another head wrote there. Which "
        "head?",
        partial(_writer, "tiny-gpt2", (1, 0), "key"),
        partial(_about, "tiny-gpt2", (1, 0), "key"),
        "It looks at the token before, so it wrote “ summer” at “ horse”.",
    ),
    "7-query": Heads(
        "Which head wrote, at the last “ summer”, the largest part of the query of head 1-0?",
        partial(_writer, "tiny-gpt2", (1, 0), "query"),
        partial(_about, "tiny-gpt2", (1, 0), "query"),
        "It looks at its own token, and writes there which word it is.",
    ),
    "7-llama": Heads(
        "Head 1-3 of tiny-llama is an induction head too. It finds “ horse” by something that "
        "another head wrote there. Which head?",
        partial(_writer, "tiny-llama", (1, 3), "key"),
        partial(_about, "tiny-llama", (1, 3), "key"),
        "Another model, trained separately, with rotary positions, uses the same two steps.",
    ),
    "7-feature": Numbers(
        "Feature 128 is set to 0 at “ horse”. What weight does head 1-0 then give “ horse” at the "
        "last “ summer”?",
        _without_feature,
        0.03,
        "One of 1,024 directions carries a large part of it; the other features carry the rest.",
        "features.edit({128: 0.0}, positions=3) is an edit for trace.rerun.",
        lambda: {
            "That is the weight before the edit.": _copying("tiny-gpt2", (1, 0)).weight,
            "That is with the feature at 0 everywhere, at the query too.": _without_feature(None),
        },
        A_PART,
    ),
    "7-constant": Numbers(
        "What share of the score comes only from the bias of the head's query, whatever the word "
        "is?",
        _bias,
        0.05,
        "More than half of the query of this head is the same for every word.",
        "Divide the part of the query bias by the whole score.",
        lambda: {
            "That is everything that is the same for each word, all biases and the segment "
            "embedding. It is more than the whole: the words speak against it.": _constant()
        },
        A_PART,
    ),
    "7-bias": Choice(
        "The bias of this head's query is removed. Do the words still give most of their "
        "attention to [SEP]?",
        ("yes", "no"),
        lambda: "yes" if _without_bias() > 0.5 else "no",
        _about_bias,
    ),
    "7-moves": Numbers(
        "How long is the vector that head 2-3 reads at [SEP], divided by the mean length at "
        "the words?",
        _length,
        0.1,
        "So a head that looks there moves little: it rests.",
        "A head that should add nothing can look where the vector is short.",
        lambda: {"That would be a vector as long as those of words.": 1.0},
        (0.0, 2.0, "It is a length, divided by another of the same kind."),
    ),
}

EXERCISES = {**_CAUSES, **_REAL_MODELS, **_REASONS}
