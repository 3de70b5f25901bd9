"""A page shown at once where a cell of a notebook runs, as BertViz' functions show theirs.

So a call in the middle of a cell or in a loop is seen. The page is returned too, and as the last
value of the same cell it is not shown a second time.
"""

import sys
from dataclasses import dataclass
from typing import Any

from minibert.viz.page import Page

__all__ = ["shown_at_once"]


@dataclass(frozen=True, repr=False)
class _ShownPage(Page):
    """A page that a cell has shown already."""

    cell: int = -1
    """The number of that cell."""

    def _ipython_display_(self) -> None:
        """Nothing in the cell that has shown it; in another one IPython goes on as usual."""
        shell = _shell()
        if shell is None or shell.execution_count != self.cell:
            raise NotImplementedError


def shown_at_once(page: Page) -> Page:
    """The page, shown where IPython runs a cell; elsewhere only returned."""
    shell = _shell()
    if shell is None:
        return page
    from IPython.display import display

    display(page)
    return _ShownPage(page.examples, page.view, page.title, page.start, shell.execution_count)


def _shell() -> Any:
    """IPython's shell where there is one; what has not imported IPython is none."""
    ipython = sys.modules.get("IPython")
    return None if ipython is None else ipython.get_ipython()
