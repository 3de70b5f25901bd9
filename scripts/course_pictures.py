"""The pictures of the course, drawn from numbers of tiny-bert as SVG, for light and dark pages.

Each is 340 wide. A coloured square is a number: blue above 0, orange below, darker when larger. Of
vectors of 128 numbers every fourth is drawn.
"""

from collections.abc import Callable, Sequence
from html import escape

from torch import Tensor

import minibert
from minibert.analysis import embedding_parts
from minibert.course.texts import BOYS, HORSE

_STYLE = """
.t{font:13px sans-serif;fill:#24292f}.q{fill:#57606a}.m{text-anchor:middle}.r{text-anchor:end}
.p{fill:#0969da}.n{fill:#bc4c00}.f{fill:none;stroke:#24292f}.g{stroke:#afb8c1}
.l0{fill:#0969da}.l1{fill:#bc4c00}.l2{fill:#1a7f37}.l3{fill:#8250df}.b{font-weight:bold}
@media(prefers-color-scheme:dark){.t{fill:#e6edf3}.q{fill:#9ea7b3}.p{fill:#58a6ff}.n{fill:#f0883e}
.f{stroke:#e6edf3}.g{stroke:#484f58}.l0{fill:#58a6ff}.l1{fill:#f0883e}.l2{fill:#56d364}
.l3{fill:#bc8cff}}
"""
_LEVELS = 5
_SIDE = 7


def _svg(title: str, height: float, body: Sequence[str]) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 340 {height:g}" width="340" '
        f'role="img"><title>{escape(title)}</title><style>{_STYLE}</style>\n'
        + "\n".join(body)
        + "\n</svg>\n"
    )


def _text(x: float, y: float, said: str, kind: str = "") -> str:
    return f'<text class="{f"t {kind}".strip()}" x="{x:g}" y="{y:g}">{escape(said)}</text>'


def _cells(values: Tensor, x: float, y: float, wide: float = _SIDE, high: float = _SIDE) -> str:
    """A matrix as squares: one path for each sign and shade."""
    values = values if values.dim() == 2 else values[None]
    shades = (values / values.abs().max() * _LEVELS).round().int().tolist()
    paths: dict[int, list[str]] = {}
    for row, line in enumerate(shades):
        for column, shade in enumerate(line):
            place = (
                f"M{x + column * wide:g} {y + row * high:g}h{wide - 1:g}v{high - 1:g}h{1 - wide:g}z"
            )
            paths.setdefault(shade, []).append(place)
    return "".join(
        f'<path class="{"p" if shade > 0 else "n"}" fill-opacity="{abs(shade) / _LEVELS:g}" '
        f'd="{"".join(places)}"/>'
        for shade, places in sorted(paths.items())
        if shade
    )


def _frame(x: float, y: float, wide: float, high: float) -> str:
    return f'<rect class="f" x="{x:g}" y="{y:g}" width="{wide:g}" height="{high:g}"/>'


def _some(vector: Tensor) -> Tensor:
    """Every fourth number."""
    return vector[..., ::4]


def projection() -> str:
    """W_Q · x = q."""
    model = minibert.load("tiny-bert")
    trace = model.trace(HORSE)
    horse = trace.tokens.strings[0].index("horse")
    x, q = trace[0].resid_pre[0, horse], trace[0, 2].query[0, horse]
    matrix = model.weights["W_Q"][0, 2].T  # d_head d_model
    row, side = int(q.abs().argmax()), 32 * _SIDE
    left, top = 12, 78
    bias = float(model.weights["b_Q"][0, 2][row])
    dot = float(matrix[row] @ x)
    return _svg(
        "W_Q times x gives the query",
        top + side + 66,
        [
            _text(left, 18, "x: the stream at “horse”, 128 numbers"),
            _cells(_some(x), left, 28),
            _text(left, top - 12, "W_Q: 32 rows of 128 weights"),
            _cells(_some(matrix), left, top),
            _text(left + side + 14, top + side / 2 + 4, "· x ="),
            _cells(q[:, None], left + side + 58, top),
            _text(left + side + 44, top - 12, "query"),
            _frame(left - 1, top + row * _SIDE - 1, side + 1, _SIDE + 1),
            _frame(left + side + 57, top + row * _SIDE - 1, _SIDE + 1, _SIDE + 1),
            _text(
                left,
                top + side + 22,
                f"Framed: row {row} · x = {dot:.2f}, and with b_Q {bias:+.2f}",
            ),
            _text(left, top + side + 40, f"query[{row}] = {float(q[row]):.2f}"),
            _text(left, top + side + 58, "Of 128 numbers every fourth is drawn.", "q"),
        ],
    )


def embeddings() -> str:
    """word + position + segment, and the norm."""
    model = minibert.load("tiny-bert")
    tokens = model.tokenize("the horse ran", "the boat turned")
    parts = embedding_parts(model, tokens)
    assert parts.position is not None
    assert parts.segment is not None
    columns = {
        "word": parts.word[0],
        "position": parts.position[0],
        "segment": parts.segment[0],
        "normal": parts.embed[0],
    }
    signs = dict(zip(columns, ("", "+", "+", "→"), strict=True))
    body = []
    for number, (name, values) in enumerate(columns.items()):
        x, rows = 64 + 70 * number, len(values)
        body.append(_text(x + 28, 34, name, "m"))
        body.append(_cells(values[:, :14], x, 44, 4, 20))
        body += [_text(x - 7, 57 + 20 * row, signs[name], "m q") for row in range(rows)]
    rows = tokens.strings[0]
    body += [_text(4, 57 + 20 * row, token) for row, token in enumerate(rows)]
    end = 44 + 20 * len(rows)
    said = (
        "14 of 128 numbers of each. Both “the” have the same",
        "word, another position and another segment.",
    )
    body += [_text(4, end + 18 + 17 * n, line, "q") for n, line in enumerate(said)]
    return _svg("Embeddings of tokens", end + 44, [_text(4, 14, "What enters layer 0", "b"), *body])


def heads() -> str:
    """Four z side by side, times W_O."""
    model = minibert.load("tiny-bert")
    trace = model.trace(HORSE)
    horse = trace.tokens.strings[0].index("horse")
    z, out = trace[0].z[0, :, horse], trace[0].attn_out[0, horse]
    matrix = model.weights["W_O"][0].flatten(0, 1).T  # d_model, head and d_head
    left, top, side = 12, 84, 32 * _SIDE
    body = [_text(left, 16, "z of four heads at “horse”, side by side: 4 · 32 = 128")]
    for head in range(4):
        x = left + head * 8 * _SIDE
        body.append(_cells(_some(z[head]), x, 42))
        body.append(_text(x + 4 * _SIDE, 36, f"head {head}", "m q"))
        body.append(_frame(x - 1, 40, 8 * _SIDE, _SIDE + 3))
    body += [
        _text(left, top - 12, "W_O: 128 rows of 128 weights"),
        _cells(_some(matrix[::4]), left, top),
        *[
            f'<path class="g" d="M{left + head * 8 * _SIDE - 1} {top}v{side}"/>'
            for head in (1, 2, 3)
        ],
        _text(left + side + 10, top + side / 2 + 4, "· z ="),
        _cells(out[::4, None], left + side + 56, top),
        _text(left + side + 36, top - 12, "attn_out"),
        _text(left, top + side + 20, "Each head has its own columns of W_O, and all add up."),
        _text(left, top + side + 37, "Of 128 numbers every fourth is drawn.", "q"),
    ]
    return _svg("Heads side by side, and W_O", top + side + 46, body)


def norm() -> str:
    """The stream, what attention adds, the sum, and the sum after LayerNorm."""
    model = minibert.load("tiny-bert")
    trace = model.trace(HORSE)
    horse = trace.tokens.strings[0].index("horse")
    before, added = trace[1].resid_pre[0, horse], trace[1].attn_out[0, horse]
    summed = before + added
    normal = (summed - summed.mean()) / summed.std(correction=0)
    rows = {
        "the stream at “horse”": before,
        "+ attention adds": added,
        "= the sum": summed,
        "the sum after LayerNorm": normal,
        "· learned numbers + learned numbers": trace[1].resid_mid[0, horse],
    }
    most = max(float(_some(values).abs().max()) for values in rows.values())
    body = []
    for number, (name, values) in enumerate(rows.items()):
        middle = 62 + 92 * number
        size = values.std(correction=0)
        body.append(_text(8, middle - 40, name, "b"))
        body.append(
            _text(
                332, middle - 40, f"{round(float(values.mean()), 2) + 0.0:+.2f} ± {size:.2f}", "r q"
            )
        )
        body.append(f'<path class="g" d="M8 {middle}h324"/>')
        for place, value in enumerate(_some(values).tolist()):
            high = abs(value) / most * 34
            y = middle - high if value > 0 else middle
            kind = "p" if value > 0 else "n"
            body.append(
                f'<rect class="{kind}" x="{10 + place * 10}" y="{y:.1f}" width="8" '
                f'height="{high:.1f}"/>'
            )
    end = 62 + 92 * len(rows)
    said = (
        "At the right: mean ± standard deviation of 128 numbers.",
        "Every fourth is drawn.",
    )
    body += [_text(8, end - 36 + 17 * n, line, "q") for n, line in enumerate(said)]
    return _svg("Residual stream and LayerNorm", end - 10, body)


def no_op() -> str:
    """The weight on [SEP] and the gradient by it, for each layer."""
    model = minibert.load("tiny-bert")
    trace = model.trace(BOYS, grad=True)
    mask = trace.tokens.strings[0].index("[MASK]")
    were = int(model.tokenize("were").ids[0, 1])
    trace.backward(-trace.logits[0, mask].log_softmax(-1)[were])
    weights = [float(layer.probs[0, :, :, -1].detach().mean()) for layer in trace]
    sizes = [float(at.probs[0, :, :, -1].abs().mean()) for at in trace.grad]
    body = []
    for side, (name, values) in enumerate((("weight on [SEP]", weights), ("gradient", sizes))):
        x = 58 + 146 * side
        body.append(_text(x, 18, name, "b"))
        for layer, value in enumerate(values):
            y = 32 + 36 * layer
            wide = value / max(values) * 80
            body.append(
                f'<rect class="{"pn"[side]}" x="{x}" y="{y}" width="{wide:.1f}" height="22"/>'
            )
            body.append(_text(x + wide + 5, y + 16, f"{value:.2f}" if not side else f"{value:.4f}"))
    body += [_text(4, 48 + 36 * layer, f"layer {layer}") for layer in range(len(weights))]
    return _svg("Weight on [SEP] and its gradient", 36 * len(weights) + 36, body)


PICTURES: dict[str, Callable[[], str]] = {
    "projection": projection,
    "embeddings": embeddings,
    "heads": heads,
    "norm": norm,
    "no_op": no_op,
}
