"""Texts and edits to compare the engine of a live page with Python on."""

import random
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from minibert.trace.edit import hide, mean, replace, zero

__all__ = ["drawn_edits", "python_edits", "real_texts"]

_MATRICES = ("scores", "probs")
# Axes of size n_heads and of size d_mlp, and those of d_model.
_PER_HEAD = ("query", "key", "value", "scores", "probs", "z", "head_out")
_OTHERS = (
    *("resid_pre", "attn_out", "resid_mid", "mlp_pre", "mlp_post", "mlp_out", "resid_post"),
    *("embed", "logits"),
)
_SAMPLE = """The horse pulled the cart up the hill because it was strong. A small fox ran over the
field; nobody saw it. "Where are you going?" asked Mary, who had lost her key. Leaves fall in
autumn, and the days grow short. He gave the book to his sister, but she did not read it (not that
year). In 1914 the two men left London for Paris, with 3 bags and £20. The old house on the corner
had been empty for years. They say that it rains there every day, even in July! Café Müller sold
naïve paintings for 1,250.75 marks each – or so @-@ people said – until '39 ... then it closed."""
# More than the longest text has.
_WORDS = 4 * _SAMPLE.split()


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


def drawn_edits(
    draw: random.Random, length: int, other_length: int, config: Any
) -> list[dict[str, Any]]:
    """One to three edits, each of another quantity, in the terms of a page."""
    names = draw.sample((*_PER_HEAD, *_OTHERS), draw.randint(1, 3))
    return [_drawn(draw, name, length, other_length, config) for name in names]


def _drawn(
    draw: random.Random, name: str, length: int, other_length: int, config: Any
) -> dict[str, Any]:
    matrix, per_layer = name in _MATRICES, name not in ("embed", "logits")
    edit: dict[str, Any] = {"quantity": name}
    edit["layer"] = draw.choice((None, *range(config.n_layers))) if per_layer else None
    n_heads = config.n_kv_heads if name in ("key", "value") else config.n_heads
    edit["head"] = draw.choice((None, *range(n_heads))) if name in _PER_HEAD else None
    edit["position"] = draw.choice((None, draw.randrange(length)))
    changes = ["zero", "set"] if matrix else ["zero", "mean", "set"]
    if length == other_length:
        changes.append("text")
    if name == "scores" and length > 1:
        changes.append("hide")
    change = edit["change"] = draw.choice(changes)
    width = {"mlp_pre": config.d_mlp, "mlp_post": config.d_mlp, "logits": config.vocab_size}
    width |= dict.fromkeys(("query", "key", "value", "z"), config.d_head)
    if not matrix and draw.random() < 0.3:
        edit["neuron"] = draw.randrange(width.get(name, config.d_model))
    if change == "set":
        edit["value"] = draw.choice((0.0, 1.5, -2.0, 0.25))
    if change == "hide" or (matrix and draw.random() < 0.5):
        edit["key"] = draw.randrange(1 if change == "hide" else 0, length)
    if name == "probs" and change == "set":
        # Of a token that sees another one besides.
        edit["position"] = draw.randrange(1, length) if length > 1 else 0
        windows = [config.window(layer) for layer in range(config.n_layers)]
        before, after = min(filter(None, windows), default=(length, length))
        first = max(0, edit["position"] - before)
        last = min(length, edit["position"] + 1 + (0 if config.causal else after))
        edit["key"] = draw.randrange(first, last)
        edit["value"] = draw.choice((0.0, 0.4, 0.9)) if length > 1 else 1.0
    return edit


def python_edits(
    edits: Sequence[dict[str, Any]], n_layers: int, clean: Any, other: Any
) -> dict[Any, Any]:
    """The same edits for `model.trace(..., edit=)`."""
    mapping: dict[Any, Any] = {}
    for edit in edits:
        name, head = edit["quantity"], edit["head"]
        if name in ("embed", "logits"):
            mapping[name] = _python_edit(edit, None, clean, other)
            continue
        layers = range(n_layers) if edit["layer"] is None else (edit["layer"],)
        for layer in layers:
            point = (name, layer) if head is None else (name, layer, head)
            mapping[point] = _python_edit(edit, layer, clean, other)
    return mapping


def _python_edit(edit: dict[str, Any], layer: int | None, clean: Any, other: Any) -> Any:
    change, position = edit["change"], edit["position"]
    if change == "hide":
        return hide(edit["key"], positions=position)
    last = edit.get("key", edit.get("neuron"))
    if change == "set" and edit["quantity"] == "probs":
        return lambda probs: _scaled(probs, position, last, edit["value"])
    if last is not None:
        whole = {"zero": 0.0, "set": edit.get("value"), "mean": clean, "text": other}[change]
        if not isinstance(whole, float):
            whole = _value(edit, layer, whole)
            if change == "mean":
                whole = whole.mean(-2, keepdim=True)
        return lambda value: _at(value, position, last, whole)
    if change == "mean":
        return mean(over=clean).at(positions=position)
    if change == "text":
        return replace(other, positions=position)
    return (zero if change == "zero" else replace(edit["value"])).at(positions=position)


def _value(edit: dict[str, Any], layer: int | None, trace: Any) -> Tensor:
    value = getattr(trace if layer is None else trace[layer], edit["quantity"])
    return value if edit["head"] is None else value[:, edit["head"]]


def _at(value: Tensor, position: int | None, last: int, new: Tensor | float) -> Tensor:
    rows = slice(None) if position is None else position
    if isinstance(new, Tensor):
        # A mean has one row, which stands for all.
        new = new.expand_as(value)[..., rows, last]
    value[..., rows, last] = torch.as_tensor(new)
    return value


def _scaled(probs: Tensor, query: int, key: int, weight: float) -> Tensor:
    row = probs[..., query, :].clone()
    row[..., key] = 0
    total = row.sum(-1, keepdim=True)
    row = torch.where(total > 0, row * (1 - weight) / total, row)
    row[..., key] = weight
    probs[..., query, :] = row
    return probs
