"""The page of a `PredictionGraph`: one drawing, without a script.

A column is a token, a row what a layer's heads or MLP wrote; the words stand below, the logit above
them. A line is a link, as wide as it is large, in the colour of its largest part: what a head read
(V), or why it looked there (Q, K). Pointing at a node, or Tab, shows its links alone.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from html import escape

from minibert.analysis.graph import Link, Node, PredictionGraph
from minibert.viz.document import Written, theme
from minibert.viz.example import readable

# Sizes in CSS pixels: a node, a row, and the widest line.
_WIDTH, _HEIGHT, _ROW, _WIDEST = 66, 22, 62, 9
_NAMES = {"v": "V", "q": "Q", "k": "K"}

_STYLE = """
:root { --plus: #cfe3f7; --minus: #f9d6cf; --v: #6b7a8c; --q: #b35c00; --k: #7b3fb5; }
@media (prefers-color-scheme: dark) {
  :root { --plus: #1f3f5e; --minus: #5e2a22; --v: #8795a8; --q: #f0a04b; --k: #c193f0; } }
body { margin: 0; padding: 16px; background: var(--paper); color: var(--ink);
  font: 15px/1.5 var(--sans); }
main { max-width: 1400px; margin: auto; }
h1 { font-size: 19px; margin: 0 0 4px; }
p { margin: 4px 0 10px; max-width: 75ch; }
.drawing, .links { overflow-x: auto; }
/* Begins at its right end, where the logit is. */
.drawing { direction: rtl; } .drawing svg { direction: ltr; }
svg text { font: 11.5px var(--sans); fill: var(--ink); text-anchor: middle; }
svg .row { text-anchor: start; fill: var(--soft); }
rect { stroke: var(--soft); } .plus { fill: var(--plus); } .minus { fill: var(--minus); }
path { fill: none; stroke-opacity: .62; } path:hover { stroke-opacity: 1; }
.v { stroke: var(--v); } .q { stroke: var(--q); } .k { stroke: var(--k); }
.negative { stroke-dasharray: 5 4; }
g.node:focus { outline: none; } g.node:focus rect, g.node:hover rect { stroke-width: 2.5; }
.key { display: inline-block; margin-right: 14px; }
.key svg { vertical-align: middle; margin-right: 5px; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { text-align: right; padding: 2px 10px 2px 0; } th { color: var(--soft); }
th:nth-child(-n+2), td:nth-child(-n+2) { text-align: left; }
"""


def graph_page(graph: PredictionGraph) -> "GraphPage":
    """The page of a graph."""
    return GraphPage(graph)


@dataclass(frozen=True, repr=False)
class GraphPage(Written):
    """A graph of one prediction as one HTML file; it shows itself in a notebook."""

    graph: PredictionGraph

    def pieces(self) -> Iterator[str]:
        """The text of the file, a part at a time."""
        drawing = _Drawing(self.graph)
        title = escape(f"{self.graph.title} in {self.graph.model}")
        yield (
            '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">\n'
            '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; '
            "style-src 'unsafe-inline'\">\n"
            '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
            f"<title>{title}</title>\n<style>{theme()}{_STYLE}{drawing.rules()}</style></head>\n"
            f"<body><main><h1>{title[0].upper()}{title[1:]}</h1>\n"
            f"<p>{escape(self.graph.note())} Blue gives to it, red takes away. Point at a node to "
            "see its links alone.</p>\n"
        )
        yield f"<p>{''.join(_key(*each) for each in _KEYS)}</p>\n"
        yield from drawing.pieces()
        yield from self._table()
        yield "</main></body></html>\n"

    def _table(self) -> Iterator[str]:
        yield "<h2>The links, largest first</h2>\n<div class='links'><table><tr>"
        yield "".join(f"<th scope='col'>{name}</th>" for name in ("from", "to", "all", *"VQK"))
        yield "</tr>\n"
        for link in sorted(self.graph.links, key=lambda link: -abs(link.weight)):
            ends = (escape(self.graph.label(self.graph.nodes[end])) for end in link[:2])
            numbers = (link.weight, link.v, link.q, link.k)
            cells = [*ends, *(f"{number:+.2f}" for number in numbers)]
            yield "<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>\n"
        yield "</table></div>\n"

    def __repr__(self) -> str:
        """One line: the text of a page is long."""
        return f"<GraphPage of {self.size / 1000:.0f} kB; save('graph.html') writes it to a file>"

    def _repr_html_(self) -> str:
        """The page in a frame, where it reaches nothing outside."""
        return (
            f'<iframe srcdoc="{escape(self.html)}" sandbox="" title="{escape(self.graph.title)}"'
            ' style="width: 100%; height: 640px; border: 0"></iframe>'
        )


_KEYS = (
    ("v", "V: what was read, or what an MLP took in"),
    ("q", "Q: why the head looks, at the query"),
    ("k", "K: why it looks there, at the key"),
    ("v negative", "dashed: takes away"),
)


def _key(kind: str, words: str) -> str:
    line = f'<path class="{kind}" d="M0 5H30" stroke-width="4"/>'
    return f'<span class="key"><svg width="30" height="10">{line}</svg>{words}</span> '


class _Drawing:
    """Where the nodes stand: a column a token, a row what a layer wrote."""

    def __init__(self, graph: PredictionGraph) -> None:
        self.graph = graph
        self.rows = sorted({_row(node) for node in graph.nodes})
        columns = [-1 if node.position is None else node.position for node in graph.nodes]
        cells: dict[tuple[int, tuple[int, int]], list[int]] = {}
        for number, (column, node) in enumerate(zip(columns, graph.nodes, strict=True)):
            cells.setdefault((column, _row(node)), []).append(number)
        widths: dict[int, int] = {}
        for (column, _), here in cells.items():
            widths[column] = max(widths.get(column, 0), len(here))
        left, self.x, self.y = 70.0, dict[int, float](), dict[int, float]()
        for column in sorted(widths):
            for (other, row), here in cells.items():
                if other == column:
                    shift = (widths[column] - len(here)) * (_WIDTH + 6) / 2
                    for place, number in enumerate(here):
                        self.x[number] = left + shift + place * (_WIDTH + 6) + _WIDTH / 2
                        self.y[number] = (len(self.rows) - 1 - self.rows.index(row)) * _ROW + 24.0
            left += widths[column] * (_WIDTH + 6) + 18
        self.width, self.height = left, len(self.rows) * _ROW
        self.largest = max((abs(link.weight) for link in graph.links), default=1.0)

    def rules(self) -> str:
        """The style that shows the links of one node alone."""
        return "\n".join(
            f"svg:has(#n{n}:is(:hover, :focus)) path:not(.n{n}) {{ stroke-opacity: .05 }}"
            for n in range(len(self.graph.nodes))
        )

    def pieces(self) -> Iterator[str]:
        """The drawing: rows, lines, nodes."""
        yield f'<div class="drawing"><svg width="{self.width:.0f}" height="{self.height}" '
        yield f'role="group" aria-label="{escape(self.graph.title)}">\n'
        for row, name in zip(self.rows, map(_row_name, self.rows), strict=True):
            y = (len(self.rows) - 1 - self.rows.index(row)) * _ROW + 28
            yield f'<text class="row" x="0" y="{y}">{name}</text>\n'
        for link in sorted(self.graph.links, key=lambda link: abs(link.weight)):
            yield self._line(link)
        for number, node in enumerate(self.graph.nodes):
            yield self._node(number, node)
        yield "</svg></div>\n"

    def _line(self, link: Link) -> str:
        part = max(_NAMES, key=lambda name: abs(getattr(link, name)))
        x1, x2 = self.x[link.source], self.x[link.target]
        y1, y2 = self.y[link.source] - _HEIGHT / 2, self.y[link.target] + _HEIGHT / 2
        bend = max(18.0, (y1 - y2) / 2)
        width = max(0.7, _WIDEST * abs(link.weight) / self.largest)
        ends = " to ".join(self.graph.label(self.graph.nodes[end]) for end in link[:2])
        parts = ", ".join(f"{name} {getattr(link, one):+.2f}" for one, name in _NAMES.items())
        kind = f"{part}{' negative' if link.weight < 0 else ''} n{link.source} n{link.target}"
        curve = f"{x1:.0f} {y1 - bend:.0f} {x2:.0f} {y2 + bend:.0f} {x2:.0f} {y2:.0f}"
        title = escape(f"{ends}: {link.weight:+.2f} ({parts})")
        return (
            f'<path class="{kind}" d="M{x1:.0f} {y1:.0f}C{curve}" stroke-width="{width:.1f}">'
            f"<title>{title}</title></path>\n"
        )

    def _node(self, number: int, node: Node) -> str:
        x, y, kind = self.x[number], self.y[number], "plus" if node.value >= 0 else "minus"
        title = escape(f"{self.graph.label(node)}: {node.value:+.2f}")
        return (
            f'<g class="node" id="n{number}" tabindex="0" role="img" aria-label="{title}">'
            f'<rect class="{kind}" x="{x - _WIDTH / 2:.0f}" y="{y - _HEIGHT / 2:.0f}" '
            f'width="{_WIDTH}" height="{_HEIGHT}" rx="4"/>'
            f'<text x="{x:.0f}" y="{y + 4:.0f}">{escape(self._short(node))}</text>'
            f"<title>{title}</title></g>\n"
        )

    def _short(self, node: Node) -> str:
        """What stands in a node: the row says the rest."""
        component = node.component
        if component.kind == "head":
            return f"{component.layer}-{component.head}"
        if component == "word embedding":
            text = readable(self.graph.tokens[node.position or 0]).strip()
            return text if len(text) < 10 else f"{text[:8]}…"
        shorter = str(component).replace("neuron", "n")
        for words in (" embedding", "attention ", "final ", "transform "):
            shorter = shorter.replace(words, "")
        return shorter[:12]


def _row(node: Node) -> tuple[int, int]:
    """Words and constants first, then the heads and the MLP of each layer, the logit last."""
    component = node.component
    if component == "logit":
        return 10**6, 0
    if component.kind not in ("head", "mlp", "neuron"):
        return -1, 0
    return component.layer or 0, ("head", "neuron", "mlp").index(component.kind)


def _row_name(row: tuple[int, int]) -> str:
    layer, kind = row
    if layer < 0:
        return "written"
    return "logit" if layer == 10**6 else f"{('heads', 'neurons', 'mlp')[kind]} {layer}"
