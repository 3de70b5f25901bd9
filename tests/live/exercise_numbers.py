"""What the story's exercises reveal, computed in Python from the models themselves.

Each function follows the words of its exercise (viz/static/live/story), not its code.
"""

from collections.abc import Iterable, Sequence
from itertools import combinations
from typing import Any

import torch
from torch import Tensor

import minibert
from minibert.trace.edit import hide, zero

__all__ = ["agreement", "attention_is_not_use", "copying", "neurons", "one_weight", "word_order"]

NOUNS = {
    "boy": "boys", "girl": "girls", "horse": "horses", "man": "men", "bird": "birds",
    "friend": "friends", "child": "children", "tree": "trees", "house": "houses",
    "woman": "women",
}  # fmt: skip
ENDINGS = (
    "very tired.", "very happy.", "in the garden.", "very old.", "not there.", "near the river.",
)  # fmt: skip
WORDS = (
    "red", "horse", "blue", "door", "green", "tree", "book", "water", "stone", "house", "child",
    "king", "fire", "road", "boat", "bird", "star", "ship", "hand", "wall",
)  # fmt: skip


def place(trace: Any, word: str) -> int:
    """The position of a token."""
    return list(trace.tokens.raw[0]).index(word)


def said(trace: Any, position: int) -> Tensor:
    """(vocab): the probabilities at a position."""
    return trace.logits[0, position].softmax(-1)


def id_of(model: minibert.Model, word: str) -> int:
    """The id of a word that is one token of a WordPiece vocabulary."""
    ids = model.tokenize(word).ids[0]
    assert len(ids) == 3
    return int(ids[1])


def one_weight(model: minibert.Model) -> dict[str, float]:
    """Exercise 3: dot product, score, weight, weight without the scale, weight of equal scores."""
    trace = model.trace("the horse quickly ran away")
    query, key = place(trace, "horse"), place(trace, "quickly")
    head = trace[0, 2]
    dot = float(head.query[0, query] @ head.key[0, key])
    tired = model.trace("the horses [MASK] very tired.")
    same = model.trace(
        "the horses [MASK] very tired.",
        edit={("scores", layer): zero for layer in range(model.config.n_layers)},
    )
    position, was = place(tired, "[MASK]"), id_of(model, "was")
    return {
        "dot": dot,
        "score": dot / model.config.d_head**0.5,
        "weight": float(head.probs[0, query, key]),
        "unscaled": float((head.query[0, query] @ head.key[0].T).softmax(-1)[key]),
        "equal": 1 / len(trace.tokens.raw[0]),
        "was before": float(said(tired, position)[was]),
        "was": float(said(same, position)[was]),
        "top": int(said(same, position).argmax() == was),
    }


def mean_weight(trace: Any, head: int, step: int) -> float:
    """The mean weight of head 0-`head` on the token `step` further, of queries that have one."""
    return float(trace[0, head].probs[0].diagonal(step).mean())


def word_order(model: minibert.Model, texts: Sequence[str]) -> dict[str, float]:
    """Exercise 2: 0-1 on the previous token and 0-2 on the next; the positions changed."""
    found: dict[str, float] = {}
    for name, text in zip(("words", "drawn"), texts, strict=True):
        trace = model.trace(text)
        found |= {f"previous {name}": mean_weight(trace, 1, -1)}
        found |= {f"next {name}": mean_weight(trace, 2, 1)}
    n = len(model.tokenize(texts[0]).ids[0])
    positions = dict(model.named_parameters())["body.position.weight"]
    kept = positions.detach().clone()
    try:
        with torch.no_grad():
            positions[:n] = kept[0]
            trace = model.trace(texts[0])
            found |= {"previous equal": mean_weight(trace, 1, -1)}
            found |= {"next equal": mean_weight(trace, 2, 1)}
            positions[:n] = kept[:n].flip(0)
            found["next reversed"] = mean_weight(model.trace(texts[0]), 1, 1)
    finally:
        with torch.no_grad():
            positions.copy_(kept)
    return found


def agreement(model: minibert.Model, endings: Sequence[str] = ENDINGS) -> dict[str, Any]:
    """Exercise 1: pairs that are right, plurals that flip without subject or a head."""
    was, were = id_of(model, "was"), id_of(model, "were")

    def plural(texts: Sequence[str], edit: Any = None) -> list[bool]:
        trace = model.trace(list(texts), edit=edit or {})
        masks = [list(tokens).index("[MASK]") for tokens in trace.tokens.raw]
        logits = trace.logits[range(len(masks)), masks]
        return (logits[:, were] > logits[:, was]).tolist()

    layers, heads = range(model.config.n_layers), range(model.config.n_heads)
    pairs = [
        (f"The {one} [MASK] {end}", f"The {many} [MASK] {end}")
        for one, many in NOUNS.items()
        for end in endings
    ]
    ones, many = (plural(texts) for texts in zip(*pairs, strict=True))
    right = [pair[1] for pair, a, b in zip(pairs, ones, many, strict=True) if b and not a]
    hidden = {("scores", layer): hide(2) for layer in layers}
    flipped = {
        f"{layer}-{head}": plural(right, {("z", layer, head): zero}).count(False)
        for layer in layers
        for head in heads
    }
    trace = model.trace("the men who saw the horse [MASK] very tired.")
    probs = said(trace, place(trace, "[MASK]"))
    begun = model.trace("The boys [MASK] very tired.")
    return {
        "were before": float(said(begun, place(begun, "[MASK]"))[were]),
        "pairs": len(pairs),
        "right": len(right),
        "hidden": plural(right, hidden).count(False),
        "heads": flipped,
        "was": float(probs[was]),
        "were": float(probs[were]),
    }


def divergence(clean: Tensor, changed: Tensor) -> float:
    """Kullback-Leibler divergence of two rows of logits, in nats."""
    one, other = clean.log_softmax(-1), changed.log_softmax(-1)
    return float((one.exp() * (one - other)).sum())


def attention_is_not_use(model: minibert.Model, text: str) -> dict[str, float]:
    """Exercise 4: weight and |value| at the last [SEP] in layers 2 and 3, and layers off."""
    trace = model.trace(text)
    position, n = place(trace, "[MASK]"), len(trace.tokens.raw[0])
    weights = torch.stack([trace[layer].probs[0, :, :, n - 1] for layer in (2, 3)])
    norms = torch.stack([trace[layer].value[0].norm(dim=-1) for layer in (2, 3)])

    def off(layers: Iterable[int], name: str = "z", change: Any = zero) -> float:
        edited = model.trace(text, edit={(name, layer): change for layer in layers})
        return divergence(trace.logits[0, position], edited.logits[0, position])

    return {
        "weight": float(weights.mean()),
        "value sep": float(norms[..., n - 1].mean()),
        "value others": float(norms[..., 1 : n - 1].mean()),
        "sep off": off((2, 3), "value", zero.at(positions=n - 1)),
        "late off": off((2, 3)),
        "layer 1 off": off((1,)),
        "early off": off((0, 1)),
    }


def draws(number: int, length: int) -> list[list[str]]:
    """Lists of different words, by the generator of Park and Miller from seed 1."""
    state, found = 1, []
    for _ in range(number):
        words: list[str] = []
        while len(words) < length:
            state = state * 48271 % 2147483647
            word = WORDS[state % len(WORDS)]
            if word not in words:
                words.append(word)
        found.append(words)
    return found


def copying(model: minibert.Model, number: int = 100) -> dict[str, float]:
    """Exercise 5: how many lists are continued, with all heads, and without three of layer 1."""
    counts = {}
    for name, length, heads in (("all", 7, ()), ("without", 7, (0, 2, 3)), ("short", 3, ())):
        edit = {("z", 1, head): zero for head in heads}
        again = 2 if name == "short" else 3
        lists = draws(number, length)
        trace = model.trace([" ".join([*words, *words[:again]]) for words in lists], edit=edit)
        right = 0
        for i, words in enumerate(lists):
            best = int(trace.logits[i, trace.tokens.lengths[i] - 1].argmax())
            right += model.tokenizer.string(best).strip() == words[again]
        counts[name] = right / number
    return counts


def neurons(model: minibert.Model, text: str) -> dict[str, float]:
    """Exercise 6: of the four largest products q·k of two queries, the part they share."""
    trace = model.trace(text)
    found: dict[str, float] = {}
    for layer, head in ((2, 0), (0, 1), (0, 2)):
        at = trace[layer, head]
        keys = at.probs[0].argmax(-1)
        products = at.query[0] * at.key[0, keys]
        largest = [set(row.topk(4).indices.tolist()) for row in products]
        shared = [len(one & other) / 4 for one, other in combinations(largest, 2)]
        found[f"{layer}-{head} shared"] = sum(shared) / len(shared)
        size = products.clamp(min=0).sort(descending=True).values
        part = size.cumsum(-1) / size.sum(-1, keepdim=True)
        found[f"{layer}-{head} dimensions"] = float(((part < 0.8).sum(-1) + 1.0).mean())
    return found
