"""Pictures of the course that are tables of numbers, drawn as grids: the darker, the larger.

    python -m scripts.course pictures

The numbers are those of the embedded models. Colours follow the reader's light or dark.
"""

from collections.abc import Callable, Sequence
from html import escape

import torch
from torch import Tensor

import minibert
from minibert.course.causes import flipped
from minibert.course.lab import every_head
from minibert.course.texts import BOYS, HORSE, SEPARATED
from minibert.survey.sample_texts import SAMPLE_PAIRS

_WIDE, _HIGH, _SIDE, _TOP = 50, 28, 76, 44
_STYLE = (
    ".t{font:12px sans-serif;fill:#24292f}.q{font-weight:bold}.m{text-anchor:middle}"
    ".r{text-anchor:end}.c{fill:#0969da}.e{fill:none;stroke:#afb8c1}"
    "@media(prefers-color-scheme:dark){.t{fill:#e6edf3}.c{fill:#58a6ff}.e{stroke:#484f58}}"
)


def grid(title: str, rows: Sequence[str], columns: Sequence[str], values: Tensor) -> str:
    """An SVG of (row, column): each cell as dark as its value is near the largest."""
    width, height = _SIDE + _WIDE * len(columns) + 8, _TOP + _HIGH * len(rows) + 8
    parts = [f'<text class="t q" x="4" y="14">{escape(title)}</text>']
    for n, name in enumerate(columns):
        x = _SIDE + _WIDE * (n + 0.5) - 1
        parts.append(f'<text class="t m" x="{x:g}" y="{_TOP - 6}">{escape(name)}</text>')
    for n, name in enumerate(rows):
        y = _TOP + _HIGH * n
        parts.append(f'<text class="t r" x="{_SIDE - 8}" y="{y + 18}">{escape(name)}</text>')
        for m, value in enumerate((values[n] / values.max()).tolist()):
            place = f'x="{_SIDE + _WIDE * m}" y="{y}" width="{_WIDE - 2}" height="{_HIGH - 2}"'
            parts.append(f'<rect class="c" {place} opacity="{value:.2f}"/>')
            parts.append(f'<rect class="e" {place}/>')
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}"'
    return (
        f'{head} role="img"><title>{escape(title)}</title><style>{_STYLE}</style>\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )


def _attention(text: str, layer: int, head: int) -> str:
    trace = minibert.load("tiny-bert").trace(text)
    words = trace.tokens.strings[0]
    title = f"Head {layer}-{head}: a row looks at the columns"
    return grid(title, words, words, trace[layer, head].probs[0])


def _flips() -> str:
    counts = [flipped("head", *place) for place in every_head(minibert.load("tiny-bert"))]
    names = [str(n) for n in range(4)]
    title = f"Plurals that become was without a head, up to {max(counts)}"
    layers = [f"layer {name}" for name in names]
    return grid(title, layers, names, torch.tensor(counts).reshape(4, 4).float())


def _apart() -> str:
    """Jensen-Shannon divergence of each two heads, as docs/course/6_real_bert.md computes it."""

    def entropy(rows: Tensor) -> Tensor:
        return torch.special.entr(rows).sum(-1)

    model = minibert.load("tiny-bert")
    total = torch.zeros(16, 16)
    for pair in SAMPLE_PAIRS:
        probs = model.trace(*pair).stack("probs").flatten(0, 2)
        middle = entropy((probs[:, None] + probs) / 2)
        total += (middle - (entropy(probs)[:, None] + entropy(probs)) / 2).mean(-1)
    names = [f"{layer}-{head}" for layer, head in every_head(model)]
    return grid("How different two heads look", names, names, total)


PICTURES: dict[str, Callable[[], str]] = {
    "boys": lambda: _attention(BOYS, 0, 1),
    "horse": lambda: _attention(HORSE, 0, 2),
    "flips": _flips,
    "apart": _apart,
    "rests": lambda: _attention(SEPARATED, 2, 0),
}
