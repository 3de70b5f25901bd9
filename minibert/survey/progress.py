"""The bar of a survey: how much of the corpus is read, and how long the rest may take."""

from collections.abc import Iterable
from types import TracebackType
from typing import Any

from tqdm import tqdm

from minibert.survey.documents import Documents
from minibert.survey.parts import Part
from minibert.survey.windows import Window

__all__ = ["Bar"]


class Bar:
    """A bar by bytes of the corpus; by documents where a number of these is the limit.

    The estimate is from the windows that this run measured: what an earlier run did costs no time.
    """

    def __init__(self, documents: Iterable[Any], limit: int | None, *, shown: bool) -> None:
        files = documents if isinstance(documents, Documents) and limit is None else None
        self._files, self._shown = files, shown
        self._total = limit if files is None else files.n_bytes
        self._skipped = 0
        self._places: dict[int, int] = {}
        self._bar: Any = None

    def __enter__(self) -> "Bar":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.close()

    def skip(self) -> None:
        """A window was measured by an earlier run."""
        self._skipped = 0 if self._files is None else self._files.bytes_read

    def begin(self, window: Window) -> None:
        """A window was read and is to be measured, perhaps while others are read."""
        self._places[window.number] = 0 if self._files is None else self._files.bytes_read
        if self._bar is None:
            self._bar = tqdm(
                total=self._total,
                initial=self._skipped,
                unit=" documents" if self._files is None else "B",
                unit_scale=True,
                disable=not self._shown,
                mininterval=0,
            )

    def show(self, part: Part) -> None:
        """A window was measured: `part` is everything so far."""
        place = self._places.pop(part.windows - 1)
        place = part.documents if self._files is None else place
        self._bar.set_postfix(documents=part.documents, tokens=part.tokens, refresh=False)
        self._bar.update(place - self._bar.n)
