"""Models, texts and edits to compare the engines of a page with Python on."""

import random
from typing import Any

from small_traces import SERVED_KINDS, other_model

import minibert
from minibert.layers.rotary import Rotary
from minibert.viz.engine_edits import CHANGES, editable, seen_keys

__all__ = ["drawn_edits", "random_model", "real_texts"]

_SAMPLE = """The horse pulled the cart up the hill because it was strong. A small fox ran over the
field; nobody saw it. "Where are you going?" asked Mary, who had lost her key. Leaves fall in
autumn, and the days grow short. He gave the book to his sister, but she did not read it (not that
year). In 1914 the two men left London for Paris, with 3 bags and £20. The old house on the corner
had been empty for years. They say that it rains there every day, even in July! Café Müller sold
naïve paintings for 1,250.75 marks each – or so @-@ people said – until '39 ... then it closed."""
# More than the longest text has.
_WORDS = 4 * _SAMPLE.split()


# A model of a family that a file holds, with frequencies that depend on the length of the text, and
# one whose queries go through a norm of the numbers of all heads, of another size.
_FURTHER: dict[str, dict[str, Any]] = {
    "dynamic": {
        "rotary": Rotary(6, scaling="dynamic", factor=4.0, n_original=4),
        "windows": (),
        "n_positions": 600,
    },
    "wide": {"family": "olmo2", "d_head": 24, "windows": ()},
}


def random_model(kind: str, **changes: Any) -> minibert.Model:
    """A random model of another kind, with the tokenizer of an embedded one."""
    if kind in ("qwen3", "olmo2"):
        kind, changes = "llama", {"family": kind, "windows": ()} | changes
    for others in (SERVED_KINDS, _FURTHER):
        if kind in others:
            kind, changes = "llama", others[kind] | changes
    masked = kind == "modernbert" or changes.get("causal") is False
    tokenizer = minibert.load("tiny-bert" if masked else "tiny-gpt2").tokenizer
    assert tokenizer is not None
    task = {"task": "masked-lm" if masked else "causal-lm", "vocab_size": tokenizer.vocab_size}
    model = other_model(kind, **(task | changes))
    model.tokenizer = tokenizer
    return model


def real_texts(count: int, seed: int) -> list[tuple[str, ...]]:
    """Texts and pairs of texts of 1 to 300 words."""
    draw = random.Random(seed)
    texts: list[tuple[str, ...]] = []
    while len(texts) < count:
        length = draw.choice((1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 14, 16, 20, 25, 40, 300))
        start = draw.randrange(len(_WORDS) - length + 1)
        chosen = _WORDS[start : start + length]
        if draw.random() < 0.5:
            chosen[draw.randrange(length)] = "[MASK]"
        cut = draw.randrange(1, length) if length > 1 and draw.random() < 0.3 else length
        parts = (" ".join(chosen[:cut]), " ".join(chosen[cut:]))
        texts.append(tuple(part for part in parts if part))
    return texts


def drawn_edits(draw: random.Random, lengths: tuple[int, int], config: Any) -> list[dict[str, Any]]:
    """One to three edits in the terms of a page, each of another quantity.

    `lengths` are the tokens of the text and of the other one.
    """
    names = draw.sample(sorted(editable(config)), draw.randint(1, 3))
    return [_drawn(draw, name, lengths, config) for name in names]


def _drawn(draw: random.Random, name: str, lengths: tuple[int, int], config: Any) -> dict[str, Any]:
    length, other = lengths
    own = editable(config)[name]
    sizes = {place: length if n is None else n for place, n in own["places"].items()}
    edit: dict[str, Any] = {"quantity": name}
    for place, size in sizes.items():
        # Often all of them; of the two rarer ones, a key or a neuron, seldom one.
        if size and draw.random() < (0.3 if place in ("key", "neuron") else 0.6):
            edit[place] = draw.randrange(size)
    changes = [change for change in CHANGES if change not in own["refused"]]
    changes = [one for one in changes if one != "text" or length == other]
    edit["change"] = draw.choice([one for one in changes if one != "hide" or length > 1])
    if edit["change"] == "set":
        edit["value"] = draw.choice((0.0, 1.5, -2.0, 0.25))
    if edit["change"] == "hide":
        # Each token of a causal model sees itself, and one in a window the token before it.
        edit["position"] = draw.randrange(1, length)
        edit["key"] = edit["position"] - 1
    if name == "probs" and edit["change"] == "set":
        # Of a token that sees another one besides, in every layer.
        edit["position"] = draw.randrange(1, length) if length > 1 else 0
        seen = [seen_keys(config, n, edit["position"], length) for n in range(config.n_layers)]
        edit["key"] = draw.randrange(max(first for first, _ in seen), min(end for _, end in seen))
        edit["value"] = draw.choice((0.0, 0.4, 0.9)) if length > 1 else 1.0
        if length > 1 and draw.random() < 0.5:
            # Of all tokens that see the key, and another one.
            del edit["position"]
    return edit
