"""The picture of a rung: which tiles of scores it computes, in which order, and what that reads.

It is drawn from the counts of a run in causal order. A square is 64 queries by 64 keys. It is the
darker the later it is computed; hatched where all of it is masked, so that it is computed in vain.
The bars say how often each 64 rows of query and key are read.
"""

import numpy as np

from benchmarks.ladder.counting import Counts, Walk

CELL_ROWS = 64
_SIDE, _LEFT, _TOP, _BAR = 15, 66, 64, 24
_STYLE = """
.t{font:12px sans-serif;fill:#24292f}.q{fill:#57606a}.b{fill:#9a6700}.e{fill:none;stroke:#afb8c1}
.c{fill:#0969da}.h{fill:none;stroke:#24292f;stroke-width:.8}
@media(prefers-color-scheme:dark){.t{fill:#e6edf3}.q{fill:#9ea7b3}.b{fill:#d29922}
.e{stroke:#484f58}.c{fill:#58a6ff}.h{stroke:#e6edf3}}
"""


def svg(counts: Counts, title: str) -> str:
    """The picture of a run in causal order as SVG; readable 340 pixels wide, light and dark."""
    height = _TOP + counts.n // CELL_ROWS * _SIDE + 14
    several = len(counts.walks) > 1
    body = "".join(
        f'<g transform="translate(0 {i * height})">{_drawn(walk, several * f"Walk {i + 1}: ")}</g>'
        for i, walk in enumerate(counts.walks)
    )
    steps = np.stack([steps_of(walk) for walk in counts.walks])
    total = height * len(counts.walks)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 340 {total + 26}" width="340" '
        f'role="img"><title>{title}</title><style>{_STYLE}</style>{body}'
        f'<g transform="translate(0 {total})">{_legend(unseen=bool((steps < 0).any()))}</g></svg>\n'
    )


def steps_of(walk: Walk) -> np.ndarray:
    """The step at which each cell, (query, key), is computed for the first time; -1 for never."""
    cells = walk.n // CELL_ROWS
    steps = np.full((cells, cells), -1)
    for step, (rows, keys) in enumerate(walk.tiles):
        part = steps[_cells(rows), _cells(keys)]
        part[part < 0] = step
    return steps


def _cells(rows: range) -> slice:
    return slice(rows.start // CELL_ROWS, (rows.stop - 1) // CELL_ROWS + 1)


def _drawn(walk: Walk, name: str) -> str:
    steps = steps_of(walk)
    rows, keys = walk.tiles[0]
    n_tiles = len(walk.tiles)
    title = f"{name}{n_tiles} tile{'s' if n_tiles > 1 else ''} of {len(rows)} x {len(keys)}"
    parts = [
        f'<text class="t" x="{_LEFT}" y="14">{title}</text>',
        _bars(walk.times_read["key"][::CELL_ROWS], "key", along=True),
        _bars(walk.times_read["query"][::CELL_ROWS], "query", along=False),
    ]
    for (query, key), step in np.ndenumerate(steps):
        place = f'x="{_LEFT + key * _SIDE}" y="{_TOP + query * _SIDE}"'
        size = f'width="{_SIDE - 2}" height="{_SIDE - 2}"'
        if step < 0:
            parts.append(f'<rect class="e" {place} {size}/>')
            continue
        opacity = 0.2 + 0.8 * step / max(1, n_tiles - 1)
        parts.append(f'<rect class="c" fill-opacity="{opacity:.2f}" {place} {size}/>')
        if key > query:
            x, y = _LEFT + key * _SIDE, _TOP + query * _SIDE
            parts.append(f'<path class="h" d="M{x} {y + 13}l13 -13"/>')
    return "".join(parts)


def _bars(times: np.ndarray, name: str, *, along: bool) -> str:
    """One bar for each cell of the axis, the longest for what is read most."""
    most, fewest = int(times.max()), int(times.min())
    label = f"{most}" if most == fewest else f"{fewest} to {most}"
    said = f"{name}: read {label} time{'s' if most > 1 else ''}"
    parts = []
    for i, one in enumerate(times):
        size = max(1.5, _BAR * int(one) / most)
        x, y = _LEFT + i * _SIDE, _TOP - 4 - size
        shape = f'x="{x}" y="{y:.1f}" width="{_SIDE - 2}" height="{size:.1f}"'
        if not along:
            x, y = _LEFT - 4 - size, _TOP + i * _SIDE
            shape = f'x="{x:.1f}" y="{y}" width="{size:.1f}" height="{_SIDE - 2}"'
        parts.append(f'<rect class="b" {shape}/>')
    if along:
        text = f'<text class="t q" x="{_LEFT}" y="31">{said}</text>'
    else:
        middle = _TOP + len(times) * _SIDE // 2
        text = (
            f'<text class="t q" text-anchor="middle" transform="translate(26 {middle}) '
            f'rotate(-90)">{said}</text>'
        )
    return "".join(parts) + text


def _legend(*, unseen: bool) -> str:
    """What the shades mean; of cells above the diagonal: never computed, or in vain."""
    shades = "".join(
        f'<rect class="c" fill-opacity="{0.2 + 0.2 * i:.2f}" x="{_LEFT + i * _SIDE}" y="0" '
        'width="13" height="13"/>'
        for i in range(5)
    )
    x = _LEFT + 120
    place = f'x="{x}" y="0" width="13" height="13"'
    if unseen:
        mark, said = f'<rect class="e" {place}/>', "never computed"
    else:
        mark = f'<rect class="c" fill-opacity=".4" {place}/><path class="h" d="M{x} 13l13 -13"/>'
        said = "computed in vain"
    return (
        f'<text class="t" x="{_LEFT - 6}" y="11" text-anchor="end">first</text>{shades}'
        f'<text class="t" x="{_LEFT + 80}" y="11">last</text>{mark}'
        f'<text class="t" x="{x + 20}" y="11">{said}</text>'
    )
