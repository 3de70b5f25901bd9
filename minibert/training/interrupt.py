"""Makes Ctrl-C and SIGTERM wait for the end of a step, and cuts off what need not be waited for."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

__all__ = ["Interrupts", "interrupts_held"]


class Interrupts:
    """Whether there was an interrupt: called, it says so."""

    def __init__(self) -> None:
        self._noted, self._act = threading.Event(), False

    def __call__(self) -> bool:
        """True from the first interrupt on."""
        return self._noted.is_set()

    def note(self) -> None:
        """There is one."""
        self._noted.set()
        if self._act:
            raise KeyboardInterrupt

    @contextmanager
    def acting(self) -> Iterator[None]:
        """Raise KeyboardInterrupt in this block at once, also for an interrupt that was before."""
        self._act = True
        try:
            if self():
                raise KeyboardInterrupt
            yield
        finally:
            self._act = False


@contextmanager
def interrupts_held() -> Iterator[Interrupts]:
    """Delay interrupts inside a `with` block, but where what it gives says `acting`.

    A second interrupt acts at once. In other threads than the main one this does nothing, because
    signals reach only the main thread.
    """
    interrupts = Interrupts()
    if threading.current_thread() is not threading.main_thread():
        yield interrupts
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def note(number: int, frame: FrameType | None) -> None:
        signal.signal(number, before[signal.Signals(number)])
        interrupts.note()

    try:
        for number in before:
            signal.signal(number, note)
        yield interrupts
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
