"""Units 0 to 4: one word, averages, one weight, what heads do, and whether looking is use."""

import math
from collections.abc import Iterable
from functools import cache, partial

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
    said,
    scores,
    token_id,
    traced,
    without,
)
from minibert.course.texts import BOYS, HORSE, LEAVES, ORDER, TIRED
from minibert.survey.sample_texts import SAMPLE_PAIRS
from minibert.trace.edit import EditMapping, zero
from minibert.trace.read import Trace

VECTORS = torch.tensor([[1.0, 0.0, 2.0, 1.0], [0.0, 2.0, 0.0, 1.0], [4.0, 1.0, 1.0, 0.0]])
WEIGHTS = torch.tensor([0.4, 0.3, 0.3])
SCORES = torch.tensor([2.0, 1.0, 0.0])
KEYS = torch.tensor([[1.0, 0.0, 1.0, 0.0], [0.0, 1.0, 0.0, 1.0], [1.0, 1.0, 0.0, 0.0]])
QUERY = torch.tensor([1.0, 0.0, 1.0, 0.0])
DOTS = KEYS @ QUERY
_N_WORDS = len(HORSE.split())

_AVERAGES: dict[str, Exercise] = {
    "1-average": Numbers(
        "a = [1, 0, 2, 1], b = [0, 2, 0, 1], c = [4, 1, 1, 0]. What is 0.4·a + 0.3·b + 0.3·c? Give "
        "four numbers.",
        lambda: WEIGHTS @ VECTORS,
        0.02,
        "Each number of the result lies between the smallest and the largest in its column.",
        "Take this number of a, of b and of c, each times its weight, and add the three.",
        lambda: {
            "That is the plain average: all weights equal.": VECTORS.mean(0),
            "That is the sum of the vectors: multiply each by its weight first.": VECTORS.sum(0),
            "That is one number for each vector: the average along the wrong axis. Average the "
            "first numbers of a, b and c, then the second ones, and so on.": VECTORS.mean(1),
            "That gives b the weight of a: 0.4 belongs to a.": WEIGHTS[[1, 0, 2]] @ VECTORS,
            "That gives c the weight of a: 0.4 belongs to a.": WEIGHTS[[2, 1, 0]] @ VECTORS,
            "That leaves out a.": WEIGHTS[1:] @ VECTORS[1:],
            "That leaves out c.": WEIGHTS[:2] @ VECTORS[:2],
        },
    ),
    "1-softmax": Numbers(
        "The scores are 2, 1 and 0. Which weights does the softmax make of them? Give three "
        "numbers.",
        lambda: SCORES.softmax(-1),
        0.01,
        "Weights are positive and their sum is 1. One more in a score means e = 2.718 times "
        "the weight.",
        "It is exp of its score, divided by the sum of all three exponentials.",
        lambda: {
            "That divides the scores by their sum. Take exp of each score first.": SCORES / 3,
            "Those are the exponentials. Divide each by their sum.": SCORES.exp(),
            "Those are divided by the largest exponential. Divide by the sum of all three.": (
                SCORES - 2
            ).exp(),
            "That is only the maximum. The softmax gives the others some weight, too.": [1, 0, 0],
            "That is 2 to the power of each score. Use e = 2.718 instead of 2.": 2**SCORES / 7,
            "Those are the logarithms of the weights. Take exp of them.": SCORES.log_softmax(-1),
            "That uses each score by itself. The weights of a softmax sum to 1.": (
                SCORES.sigmoid()
            ),
            "Those are equal weights, as if all scores were equal.": [1 / 3] * 3,
        },
    ),
    "1-attend": Numbers(
        "The query is [1, 0, 1, 0]; the keys are [1, 0, 1, 0], [0, 1, 0, 1] and [1, 1, 0, 0]; the "
        "values are a, b and c of exercise 1-average. Scores are dot products, weights their "
        "softmax. What is the average of the values? Give four numbers.",
        lambda: DOTS.softmax(-1) @ VECTORS,
        0.02,
        "That is attention: dot products, softmax, weighted average.",
        "The scores are 2, 0 and 1. Which weights do they give, and which average?",
        lambda: {
            "That averages the keys. Keys decide the weights; the values are averaged.": (
                DOTS.softmax(-1) @ KEYS
            ),
            "That uses the dot products as weights. Apply the softmax to them first.": DOTS
            @ VECTORS,
            "That uses the exponentials as weights. Divide each by their sum first.": (
                DOTS.exp() @ VECTORS
            ),
            "That is the plain average: the query did not matter.": VECTORS.mean(0),
            "That is only the value of the best key. The others have weight, too.": VECTORS[0],
            "That divides the scores by √4. This exercise has no such scale; unit 2 has it.": (
                (DOTS / 2).softmax(-1) @ VECTORS
            ),
            "That compares the query with the values. Compare it with the keys.": (
                (VECTORS @ QUERY).softmax(-1) @ VECTORS
            ),
            "Those are the scores. Turn them into weights, then average the values.": DOTS,
            "Those are the weights. Average the values with them.": DOTS.softmax(-1),
        },
    ),
    "1-tokens": Numbers(
        f"How many tokens does tiny-bert read for “{HORSE}”?",
        lambda: len(traced(HORSE).tokens.strings[0]),
        0.1,
        "[CLS] comes first and [SEP] last; each word here is one token.",
        "Count each word, and the tokens that BERT adds before and after the text.",
        lambda: {
            "Those are the words. The model also reads [CLS] and [SEP].": _N_WORDS,
            "Two tokens are added, not one: [CLS] before and [SEP] after the text.": _N_WORDS + 1,
            "Those are the characters. A token here is a word.": len(HORSE),
        },
    ),
}


def _misread(
    trace: Trace, name: str, head: tuple[int, int], query: int, key: int
) -> dict[str, object]:
    """What stands beside the weight or score of a query and a key, by what leads there."""
    table = getattr(trace[head], name)[0]
    other = getattr(trace[head[::-1]], name)[0]
    return {
        "Row and column are swapped: a row is the token that looks, a column what it looks at.": (
            table[key, query]
        ),
        f"That is head {head[1]}-{head[0]}. The layer comes first, then the head.": (
            other[query, key]
        ),
        "That is the column of the next token. Positions are counted from 0.": (
            table[query, key + 1]
        ),
        "That is the row of the token before. Positions are counted from 0.": (
            table[query - 1, key]
        ),
    }


VERBS = ("are", "were", "was", "is")


def next_head() -> tuple[int, int]:
    """The head that looks at the next token."""
    return scores().best("next")[:2]


@cache
def _table() -> tuple[Tensor, int, int]:
    """(query, key): the scores of that head, and the places of horse and quickly."""
    trace = traced(HORSE)
    table = trace[next_head()].scores[0].double()
    return table, place(trace, "horse"), place(trace, "quickly")


def _score() -> float:
    table, query, key = _table()
    return float(table[query, key])


def _weight(scale: float = 1.0) -> float:
    """The weight of quickly where the scores are multiplied by the scale."""
    table, query, key = _table()
    return float((table[query] * scale).softmax(-1)[key])


def _column() -> float:
    """The weight along the wrong axis."""
    table, query, key = _table()
    return float(table.softmax(0)[query, key])


def _scale() -> float:
    return bert().config.d_head ** 0.5


@cache
def _verbs(text: str, off: str = "") -> dict[str, float]:
    """The probabilities of the four verbs: all scores being 0 ("scores"), or without a head."""
    trace = traced(text)
    edit: EditMapping = {}
    if off == "scores":
        edit = {("scores", layer): zero for layer in range(bert().config.n_layers)}
    elif off:
        layer, head = map(int, off.split("-"))
        edit = {("z", layer, head): zero}
    probs = said(without(trace, edit) if edit else trace, place(trace, "[MASK]"))
    return {verb: float(probs[token_id(bert(), verb)]) for verb in VERBS}


def _top(text: str, off: str = "") -> str:
    return max(VERBS, key=lambda verb: _verbs(text, off)[verb])


def _about_verb(text: str, off: str, why_first: str, why_before: str, verb: str) -> str:
    """How a verb's probability moves, and why where it is the first after or before."""
    told = f"“{verb}” goes from {_verbs(text)[verb]:.3f} to {_verbs(text, off)[verb]:.3f}."
    if verb == _top(text, off):
        return f"{told} {why_first}"
    return f"{told} {why_before}" if verb == _top(text) else told


def previous_head() -> tuple[int, int]:
    """The head that looks at the previous token."""
    return scores().best("previous")[:2]


_PREVIOUS = "0-1"

_ONE_WORD: dict[str, Exercise] = {
    "0-word": Choice(
        f"“{BOYS}”: which word does the model put first?",
        VERBS,
        lambda: _top(BOYS),
        lambda verb: f"“{verb}” gets {_verbs(BOYS)[verb]:.2f}.",
    ),
    "0-weight": Numbers(
        f"At the mask, what share of its attention does head {_PREVIOUS} give “boys”, the word "
        "before it?",
        lambda: traced(BOYS)[0, 1].probs[0, 3, 2],
        0.05,
        "Nearly all: of eight tokens the head looks at one.",
        "This head has one thing to do.",
        lambda: {
            "That would be the same for each of the eight tokens.": 1 / 8,
            "That is the mean over the four heads of layer 0.": traced(BOYS)[0].probs[
                0, :, 3, 2
            ].mean(),
            **_misread(traced(BOYS), "probs", (0, 1), 3, 2),
        },
        A_WEIGHT,
    ),
    "0-without": Choice(
        f"Head {_PREVIOUS}, one of sixteen, is set to zero. Which word comes first now?",
        VERBS,
        lambda: _top(BOYS, _PREVIOUS),
        partial(
            _about_verb, BOYS, _PREVIOUS,
            "Something in the output of this head was needed for “were”.",
            "It came first only while this head told the mask which word stands before it.",
        ),
    ),
}  # fmt: skip

_ONE_WEIGHT: dict[str, Exercise] = {
    "2-score": Numbers(
        "Divide the dot product by √d. What is the score?",
        _score,
        0.05,
        "The score is a dot product on a scale that does not depend on the number of dimensions.",
        "The dot product is on the page; √32 is 5.657.",
        lambda: {
            "That is the dot product itself. Divide it by √32 = 5.657.": _score() * _scale(),
            "That divides by d = 32. Divide by its square root, 5.657.": _score() / _scale(),
            "That multiplies by √32. Divide.": _score() * 32,
            **_misread(traced(HORSE), "scores", next_head(), *_table()[1:]),
        },
    ),
    "2-weight": Numbers(
        "Which weight does “horse” give “quickly”?",
        _weight,
        0.005,
        "A score a few units above the others takes nearly all of the weight.",
        "exp makes small differences large: a score larger by 1 gives 2.718 times the weight.",
        lambda: {
            "That divides the score by the sum of the scores. Take exp of every score first.": (
                _score() / float(_table()[0][_table()[1]].sum())
            ),
            **_misread(traced(HORSE), "probs", next_head(), *_table()[1:]),
            "That divides by the sum of the others. The sum must include exp of this score.": (
                _weight() / (1 - _weight())
            ),
            "That goes along the wrong axis. One row belongs to one query: take all keys of "
            "“horse”.": _column(),
        },
        (
            0.0,
            1.0,
            "A weight lies between 0 and 1: divide exp(score) by the sum of all exp(score).",
        ),
    ),
    "2-unscaled": Numbers(
        "The scores are not divided by √32. Which weight does “quickly” get?",
        lambda: _weight(_scale()),
        0.005,
        "Without the scale the softmax picks one token and nearly forgets the rest.",
        "Each score is 5.657 times as large now, and so is each difference of two scores.",
        lambda: {
            "That is the weight with the scale.": _weight(),
            "That divides twice. Leave the division out: the scores become 5.657 times as large.": (
                _weight(1 / _scale())
            ),
        },
        A_WEIGHT,
    ),
    "2-equal": Numbers(
        "All scores of “horse” are 0. Which weight does “quickly” get?",
        lambda: 1 / len(traced(HORSE).tokens.strings[0]),
        0.005,
        "Equal scores make attention a plain average over all tokens.",
        "Equal scores give equal weights, and the weights sum to 1.",
        lambda: {
            "A score of 0 is not a weight of 0: exp(0) = 1.": 0.0,
            "exp(0) = 1, and it is still divided by the sum of all of them.": 1.0,
            "That counts the words. [CLS] and [SEP] are tokens, too.": 1 / _N_WORDS,
            "That counts one of [CLS] and [SEP]. Both are tokens.": 1 / (_N_WORDS + 1),
            "That divides by the number of dimensions. Divide by the number of tokens.": 1 / 32,
            "That is the number of tokens. The weight is 1 divided by it.": _N_WORDS + 2,
        },
        A_WEIGHT,
    ),
    "2-uniform": Choice(
        f"“{TIRED}” with all scores of every head set to 0: which word does the model put first?",
        VERBS,
        lambda: _top(TIRED, "scores"),
        partial(
            _about_verb,
            TIRED,
            "scores",
            "Without attention the mask does not know its subject.",
            "It comes first only while the model can look at “horses”.",
        ),
    ),
    "2-variance": Numbers(
        "Two vectors of 64 independent numbers, each of mean 0 and variance 1. What is the "
        "standard deviation of their dot product?",
        lambda: 8.0,
        0.2,
        "A sum of d such products has the variance d, so its standard deviation is √d: BERT "
        "divides by 8.",
        "Variances of independent numbers add, standard deviations do not: 64 products have the "
        "variance 64.",
        lambda: {
            "That is the variance. The standard deviation is its square root.": 64.0,
            "That is 64 times 64. The variance is 64; take its square root.": 4096.0,
            "One product has standard deviation 1; here are 64 of them in a sum.": 1.0,
        },
    ),
}


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
        "A row of the stream has as many numbers.",
        "Put the four rows of 32 numbers one after the other and count.",
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
        "Count the tokens before the second text: [CLS], the words of the first text, its [SEP].",
        lambda: {
            "That is the [SEP] that ends the first text; it has segment 0.": (_second_start() - 1),
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
        "Within one text, word order enters the model only through the position embeddings.",
        "Query and key are compared. What do they still know about the place of a token?",
        lambda: {
            "That is with the right positions. Do words without positions tell the order?": (
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
        "All tokens get segment 0. One head looked mostly at its own text. Does that share fall, "
        "stay or rise?",
        ("falls", "stays", "rises"),
        _segment_change,
        _about_segments,
    ),
    "3-chance": Numbers(
        "Two queries each choose 4 of 32 dimensions at random. What share of the 4 do they have "
        "in common, on average?",
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
        "For each query take the four largest products of query and key. In which head do two "
        "queries have most of these dimensions in common?",
        lambda: _named(_shared()),
        _about_shared,
        "Its queries have many of their largest products in the same dimensions, as Vig saw. That "
        "does not mean that four dimensions are enough to tell keys apart.",
    ),
}


def _late() -> list[int]:
    return list(resting_layers(BOYS))


def _weights() -> Tensor:
    """(layer): the mean weight on [SEP]."""
    return torch.stack([layer.probs[0, :, :, -1].mean() for layer in traced(BOYS)])


def _lengths(layers: Iterable[int] = ()) -> tuple[float, float]:
    """The mean length of the values at [SEP], and of the others without [CLS], where heads rest."""
    trace = traced(BOYS)
    norms = torch.stack([trace[layer].value[0].norm(dim=-1) for layer in layers or _late()])
    return float(norms[..., -1].mean()), float(norms[..., 1:-1].mean())


def _shortness(layers: Iterable[int]) -> float:
    at_sep, at_words = _lengths(layers)
    return at_sep / at_words


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
        "hardly changes the loss. That fits the guess of Clark et al. 2019 that resting is a "
        "no-op. But these are also the last two layers."
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
            "That only adds the logarithms. Multiply each by its weight.": 3.4657,
            "That is exp of the entropy: how many equal weights are as broad.": 2.8284,
            "That is only the term of the first weight. Add those of the two others.": 0.3466,
            "The sum of α·ln α is negative; the entropy is that without the sign.": -1.0397,
            "That is ln 3, of three equal weights.": 1.0986,
        },
        (0.0, 1.0987, "An entropy of three weights lies between 0 and ln 3 = 1.099 nats."),
    ),
    "4-resting": Numbers(
        f"“{BOYS}”: what share of their weight do the layers that rest give [SEP], on average?",
        lambda: _weights()[_late()].mean(),
        0.08,
        "They look nearly all the time at a token without meaning. One of these heads, 2-3, was "
        "trained to do so.",
        "Only layers that give [SEP] more than half are counted, and the other tokens get a "
        "little, too.",
        lambda: {
            "That is the mean over all layers; not all of them rest.": _weights().mean(),
            "That is the share in the layers that do not rest.": _weights()[_early()].mean(),
            "That is the weight on [CLS]. [SEP] is the last token.": torch.stack(
                [traced(BOYS)[n].probs[0, :, :, 0] for n in _late()]
            ).mean(),
        },
        A_WEIGHT,
    ),
    "4-value": Numbers(
        "In the layers that rest, how long is the value vector of [SEP], divided by the length "
        "of the values of the other tokens?",
        lambda: _shortness(_late()),
        0.1,
        "The value of [SEP] is short, so a head reads little there. But a head that gives nearly "
        "all its weight to [SEP] also reads little from the other tokens.",
        "Divide the mean length at [SEP] by the mean length at the words.",
        lambda: {
            "That is the other way round: the others divided by [SEP].": (
                _lengths()[1] / _lengths()[0]
            ),
            "That is the length itself. Divide it by the length at the others.": _lengths()[0],
            "That is the length at the others. Divide the length at [SEP] by it.": _lengths()[1],
            "That is the difference. Divide the lengths.": _lengths()[1] - _lengths()[0],
            "That is in the layers that do not rest.": _shortness(_early()),
            "That is over all layers; not all of them rest.": _shortness(range(4)),
        },
    ),
    "4-off": Numbers(
        "The attention of the resting layers is set to zero. How far does the prediction at "
        "the mask move, as a Kullback-Leibler divergence in nats?",
        lambda: _off(_late()),
        0.1,
        "Nearly nothing on this text. Layer 1, which does not rest, hardly moves it either: this "
        "test alone does not say that a layer does nothing because it rests.",
        "A large weight does not prove use. How long were the values that these heads read?",
        lambda: {
            "That is what happens without the other layers.": _off(_early()),
            "That is without all layers; not all of them rest.": _off(range(4)),
            "That is without layer 0 only, which does not rest.": _off([0]),
        },
        (0.0, 100.0, "A divergence is 0 if nothing moves, and it is never negative."),
    ),
    "4-gradient": Choice(
        "Differentiate the loss with respect to the weights on [SEP]. In the layers that rest, "
        "is the gradient smaller or larger than in the others?",
        ("smaller", "the same", "larger"),
        _gradient_change,
        _about_gradients,
    ),
}

EXERCISES = {**_ONE_WORD, **_AVERAGES, **_ONE_WEIGHT, **_HEADS, **_USE}
