"""The page of what `measuring` saw: shades of every head, and every layer along the text.

It has no script: each number is in the title of its cell.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from html import escape

from torch import Tensor

from minibert.attached.measuring import Measured
from minibert.viz.document import Written, theme

# CSS pixels of a line drawing, and points of a line at most: a long text is shown by means.
_WIDTH, _HEIGHT, _POINTS = 900, 160, 450
_STYLE = """
body { margin: 0; padding: 16px; background: var(--paper); color: var(--ink);
  font: 15px/1.5 var(--sans); }
main { max-width: 1000px; margin: auto; } h1 { font-size: 19px; } h2 { font-size: 15px; }
.wide { overflow-x: auto; } svg { display: block; min-width: 600px; width: 100%; }
polyline { fill: none; stroke-width: 1.3; } svg text { font: 12px var(--sans); fill: var(--soft); }
table { border-collapse: collapse; font-size: 12px; } th { color: var(--soft); padding: 0 6px; }
td { min-width: 34px; height: 22px; text-align: center; }
"""


_TITLES = {"sink": "the key that received most", "sink share": "its share, mean over queries"}


def measured_page(seen: Measured, stack: str | None) -> "MeasuredPage":
    """The page of a stack of the newest run."""
    return MeasuredPage(seen.model_name, seen.table(stack), seen.along(stack))


@dataclass(frozen=True, repr=False)
class MeasuredPage(Written):
    """Statistics of one run as one HTML file."""

    model_name: str
    rows: list[dict[str, int | float]]
    along: dict[str, Tensor]

    def pieces(self) -> Iterator[str]:
        """The text of the file, a part at a time."""
        title = escape(f"Attention of {self.model_name}")
        yield '<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" '
        yield 'content="width=device-width, initial-scale=1">'
        yield f"<title>{title}</title><style>{theme()}{_STYLE}</style><main><h1>{title}</h1>"
        for name, numbers in self.along.items():
            about = f"{name} along the text, mean over heads"
            for batch in range(numbers.shape[1]):
                yield from _lines(about + _sentence(batch, numbers.shape[1]), numbers[:, batch])
        n_sentences = 1 + max(int(row["batch"]) for row in self.rows)
        for name in [one for one in self.rows[0] if one not in ("layer", "batch", "head")]:
            about = _TITLES.get(name, f"{name}, mean over queries")
            for batch in range(n_sentences):
                rows = [row for row in self.rows if row["batch"] == batch]
                yield from _shades(about + _sentence(batch, n_sentences), name, rows)
        yield "</main></html>"


def _sentence(batch: int, count: int) -> str:
    return "" if count == 1 else f", sentence {batch}"


def _lines(title: str, numbers: Tensor) -> Iterator[str]:
    """One line a layer along the positions, from dark (first) to light (last)."""
    n_layers, n = numbers.shape
    size = -(-n // _POINTS)
    means = [[float(part.mean()) for part in row.split(size)] for row in numbers]
    most = max(max(row) for row in means) or 1.0
    title = f"{title}: 0 to {most:.3g}"
    yield f'<h2>{escape(title)}</h2><div class="wide"><svg viewBox="0 0 {_WIDTH} {_HEIGHT + 26}" '
    yield f'role="img" aria-label="{escape(title)}">'
    for layer, row in enumerate(means):
        step = _WIDTH / max(1, len(row) - 1)
        points = " ".join(
            f"{step * i:.1f},{_HEIGHT * (1 - value / most) + 4:.1f}" for i, value in enumerate(row)
        )
        yield f'<polyline points="{points}" stroke="{_colour(layer / max(1, n_layers - 1))}">'
        yield f"<title>layer {layer}</title></polyline>"
    yield f'<text x="0" y="{_HEIGHT + 18}">token 0</text>'
    yield f'<text x="{_WIDTH}" y="{_HEIGHT + 18}" text-anchor="end">token {n - 1}; '
    yield f"lines are layers, 0 (blue) to {n_layers - 1} (orange)</text></svg></div>"


def _shades(title: str, name: str, rows: list[dict[str, int | float]]) -> Iterator[str]:
    """A cell a head, a row a layer."""
    numbers = [abs(float(row[name])) for row in rows]
    most, heads = max(numbers) or 1.0, 1 + max(int(row["head"]) for row in rows)
    yield f'<h2>{escape(title)}</h2><div class="wide"><table><tr><th>layer'
    yield "".join(f"<th>head {head}" for head in range(heads))
    for row, number in zip(rows, numbers, strict=True):
        if row["head"] == 0:
            yield f"<tr><th>{row['layer']}"
        number = 0 if name == "sink" else number
        shade = f"color-mix(in srgb, #2f7fd0 {60 * number / most:.0f}%, transparent)"
        told = row[name] if isinstance(row[name], int) else f"{row[name]:.2f}"
        yield f'<td style="background:{shade}" title="layer {row["layer"]} head {row["head"]}: '
        yield f'{row[name]:.6g}">{told}'
    yield "</table></div>"


def _colour(share: float) -> str:
    """From blue to orange, which every kind of colour vision tells apart."""
    return f"color-mix(in srgb, #D55E00 {100 * share:.0f}%, #0072B2)"
