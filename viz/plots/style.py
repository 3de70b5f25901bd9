"""What every figure for print shares: matplotlib when it is there, one style, kinds of files."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from minibert.errors import MinibertError, how_to_install

__all__ = [
    "FAINT",
    "INK",
    "METADATA",
    "RESULT_STYLE",
    "STYLE",
    "kind_of",
    "needed_matplotlib",
    "style",
]

INK, FAINT = "#222222", "#767676"
STYLE = {
    "font.size": 8.0,
    "axes.edgecolor": FAINT,
    "axes.labelcolor": INK,
    "axes.linewidth": 0.6,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "lines.solid_capstyle": "round",
    "pdf.fonttype": 42,
    "svg.hashsalt": "minibert",
    "text.color": INK,
    "xtick.color": FAINT,
    "xtick.labelcolor": INK,
    "ytick.color": FAINT,
    "ytick.labelcolor": INK,
}
# A result's figure: text stays text, so that it can be searched and set in another face.
RESULT_STYLE = {**STYLE, "svg.fonttype": "none", "savefig.dpi": 200.0, "figure.dpi": 100.0}
# Without the date, so that the same numbers give the same bytes.
METADATA: dict[str, dict[str, Any]] = {
    "svg": {"Date": None},
    "pdf": {"CreationDate": None},
    "png": {},
}


def kind_of(output: str | Path) -> str:
    """The kind of file that a name asks for: svg, pdf or png. Raises MinibertError for others."""
    kind = Path(output).suffix.lower().removeprefix(".")
    if kind not in METADATA:
        raise MinibertError(f"cannot save {output}: expected a name ending in .svg, .pdf or .png")
    return kind


def needed_matplotlib() -> Any:
    """matplotlib. Raises MinibertError, which names the extra to install, where it is absent."""
    try:
        import matplotlib.figure
    except ImportError as error:
        raise MinibertError(
            f"plots need matplotlib, which cannot be imported ({error}); "
            f"install it: {how_to_install('plots')}. See docs/install.md#extras"
        ) from error
    return matplotlib


@contextmanager
def style(matplotlib: Any, settings: dict[str, Any]) -> Iterator[None]:
    """matplotlib's own settings with `settings` on top, and the user's back afterwards."""
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(settings)
        yield
