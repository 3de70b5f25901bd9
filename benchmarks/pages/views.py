"""Each view on screen: what is there when it is drawn, and where a person would point.

Of minibert's pages only what they promise is used: `data-drawn` on the root of a drawn view, the
menu of layers, the state in the address. Of BertViz' pages, what its functions add last.
"""

from dataclasses import dataclass

from benchmarks.pages.plan import MINIBERT, THUMBNAILS, Case


@dataclass(frozen=True)
class Spot:
    """A place in an element: `index`-th of a selector, in parts of its size or in pixels."""

    selector: str
    index: int = 0
    across: float = 0.5
    down: float | None = None
    """CSS pixels from the upper edge; None: the middle."""


@dataclass(frozen=True)
class Screen:
    """One view of one program."""

    drawn: tuple[str, ...]
    """Selectors that all match when the picture is there."""
    address: str = ""
    hover: Spot | None = None
    hovered: tuple[str, ...] = ()
    menu: str = ""
    """The menu of layers; empty where there is none."""
    changed: tuple[str, ...] = ()
    """What matches when another layer is shown."""
    tile: Spot | None = None
    """A head that a click opens."""
    opened: tuple[str, ...] = ()


TOKEN = 5
MENU = 'select[aria-label="Layer"]'


def minibert_screen(case: Case) -> Screen:
    """A view of minibert's page."""
    view, address = case.view, f"view={case.view}"
    drawn, last = "[data-drawn]", case.shape.layers - 1
    if view == "head":
        lower = ".lower[data-drawn]"
        token = Spot(".query .token", TOKEN)
        changed = (lower, f'[data-layer="{last}"]')
        return Screen((lower,), address, token, (".upper[data-drawn]",), MENU, changed)
    if view == "model":
        tile = Spot(".model-board", across=0.4, down=60)
        hovered = (".model-frame:not(.chosen):not([hidden])",)
        opened = () if case.holds == THUMBNAILS else (".lower[data-drawn]",)
        return Screen(
            (drawn,), address, tile, hovered, tile=tile if opened else None, opened=opened
        )
    spots = {
        "map": Spot(".map-surface"),
        "text": Spot(".text-line [data-index]", TOKEN),
        "neuron": Spot("[data-drawn]", across=0.8, down=250),
        "arithmetic": Spot("[data-drawn]", down=250),
    }
    return Screen((drawn,), address, spots[view], (), MENU, (drawn,))


def bertviz_screen(case: Case) -> Screen:
    """A view of BertViz' page."""
    shape = case.shape
    if case.view == "head":
        boxes = ("#vis #attention + g > rect:last-child",)
        token = Spot("#left > g:last-child > g", min(TOKEN, shape.tokens - 1))
        return Screen(boxes, "", token, (), "#layer", boxes)
    last = f"#attn_background_{shape.layers - 1}_{shape.heads - 1} ~ rect"
    tile = Spot("#attn_background_0_2", down=40)
    return Screen((last,), tile=tile, opened=(".detail .attn-line-group",))


def screen(case: Case) -> Screen:
    """The view of a case."""
    return (minibert_screen if case.program == MINIBERT else bertviz_screen)(case)
