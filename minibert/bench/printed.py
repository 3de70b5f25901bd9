"""What a user's file prints: a few lines at once, the rest counted; and how far a command is.

Standard output is for results, so that both the lines
and the bar go to standard error; the bar is for people and is not drawn elsewhere.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tqdm import tqdm

from minibert.terminal import cut, encodable, note, printable

#: Told before each step: how many are done, of how many, and which comes.
Watch = Callable[[int, int, str], None]
_SHOWN, _WIDTH = 3, 160


class Printed:
    """The lines that the code of `name` prints."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.lines = 0
        self._open = ""

    def feed(self, text: str) -> None:
        """Take what was printed next."""
        *whole, rest = text.split("\n")
        for line in whole:
            self._line(self._open + line)
            self._open = ""
        # A line without an end does not grow for ever.
        self._open = (self._open + rest)[:_WIDTH]

    def say_the_rest(self) -> None:
        """Say how many lines were not shown, if any."""
        if self._open:
            self._line(self._open)
            self._open = ""
        if self.lines > _SHOWN:
            n = self.lines - _SHOWN
            note("note", f"{self.name} printed {n} more {'line' if n == 1 else 'lines'}.")
        # The first lines are not shown again.
        self.lines = min(self.lines, _SHOWN)

    def _line(self, line: str) -> None:
        self.lines += 1
        if self.lines <= _SHOWN:
            shown = f"{self.name} prints: {cut(printable(line), _WIDTH)}"
            # Through tqdm, which takes its bar away before and draws it again below.
            tqdm.write(encodable(shown, sys.stderr.encoding), file=sys.stderr)


@contextmanager
def progress(unit: str) -> Iterator[Watch]:
    """A bar on standard error that follows what it is told; none where nobody looks."""
    with tqdm(total=0, disable=None, unit=unit, leave=False, dynamic_ncols=True) as bar:

        def watch(done: int, total: int, what: str) -> None:
            bar.total, bar.n = total, done
            bar.set_postfix_str(what)

        yield watch
