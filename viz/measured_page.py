"""The page of what `measuring` saw: shades of every head, and every layer along the text.

It has no script: each number is in the title of its cell.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from types import MappingProxyType

from torch import Tensor

from minibert.attached.measuring import Measured, Sink
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
# Of a list, as many rows are shown.
_LISTED = 12
Rows = list[dict[str, int | float]]


@dataclass(frozen=True, repr=False)
class MeasuredPage(Written):
    """Statistics of one run as one HTML file."""

    title: str
    parts: Sequence[str] = ()
    again: int = 0
    """Seconds after which a browser reads the file again; 0: never."""

    def pieces(self) -> Iterator[str]:
        """The text of the file, a part at a time."""
        title = escape(self.title)
        yield '<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" '
        yield 'content="width=device-width, initial-scale=1">'
        yield f'<meta http-equiv="refresh" content="{self.again}">' if self.again else ""
        yield f"<title>{title}</title><style>{theme()}{_STYLE}</style><main><h1>{title}</h1>"
        yield from self.parts
        yield "</main></html>"


def measured_page(
    seen: Measured,
    stack: str | None = None,
    passages: Mapping[str, tuple[int, int]] = MappingProxyType({}),
    again: int = 0,
) -> MeasuredPage:
    """The page of a stack of the newest run.

    `passages` are tokens from start to stop, by name, whose weight is drawn. Raises TraceError for
    one that was not measured.
    """
    along, rows = seen.along(stack), seen.table(stack)
    n_sentences = 1 + max(int(row["batch"]) for row in rows)
    n_tokens = seen.layers(stack)[0].n_queries
    parts = [f"<p>{n_tokens} tokens, {1 + int(rows[-1]['layer'])} layers</p>"]
    for name, numbers in along.items():
        parts += _all_lines(f"{name} along the text, mean over heads", numbers)
    for name, (start, stop) in passages.items():
        about = f"weight on {name} (tokens {start} to {stop - 1})"
        shares, weights = seen.passage(start, stop, stack)
        parts += _all_shades(f"{about}, mean over {shares.told}", "", shares.rows, n_sentences)
        if weights is not None:
            parts += _all_lines(f"{about} along the text, mean over heads", weights.mean(2))
    if "received" in seen.want:
        parts += _listed("sinks: a key gets 0.3 of a head's weight or more", seen.sinks(0.3, stack))
        # Dormant, in the words of Guo et al. 2024, "Active-dormant attention heads".
        parts += _listed("heads that died: one key gets 0.9 or more", seen.sinks(0.9, stack))
    for name in [one for one in rows[0] if one not in ("layer", "batch", "head")]:
        if not (passages and name.startswith("key_mass")):
            about = _TITLES.get(name, f"{name}, mean over queries")
            parts += _all_shades(about, name, rows, n_sentences)
    return MeasuredPage(f"Attention of {seen.model_name}", parts, again)


def _all_lines(title: str, numbers: Tensor) -> Iterator[str]:
    """Lines of each sentence; numbers are (layer, batch, position)."""
    for batch in range(numbers.shape[1]):
        yield from _lines(title + _sentence(batch, numbers.shape[1]), numbers[:, batch])


def _all_shades(title: str, name: str, rows: Rows, n_sentences: int) -> Iterator[str]:
    for batch in range(n_sentences):
        of_batch = [row for row in rows if row["batch"] == batch]
        yield from _shades(title + _sentence(batch, n_sentences), name, of_batch)


def _listed(title: str, rows: Sequence[Sink]) -> Iterator[str]:
    """The first rows as a table, and how many there are."""
    yield f"<h2>{escape(title)}: {len(rows) or 'none'}</h2>"
    if not rows:
        return
    yield '<div class="wide"><table><tr>' + "".join(f"<th>{name}" for name in rows[0]._fields)
    for row in rows[:_LISTED]:
        cells = (f"{one:.2f}" if isinstance(one, float) else one for one in row)
        yield "<tr>" + "".join(f"<td>{cell}" for cell in cells)
    yield "</table></div>"
    if len(rows) > _LISTED:
        yield f"<p>and {len(rows) - _LISTED} more</p>"


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


def _shades(title: str, name: str, rows: Rows) -> Iterator[str]:
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
