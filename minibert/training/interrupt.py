"""Makes Ctrl-C and SIGTERM wait for the end of a step."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

__all__ = ["interrupts_held"]


@contextmanager
def interrupts_held() -> Iterator[Callable[[], bool]]:
    """Delay interrupts inside a `with` block; the function it gives says whether there was one.

    A second interrupt acts at once. In other threads than the main one this does nothing, because
    signals reach only the main thread.
    """
    noted = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield noted.is_set
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def note(number: int, frame: FrameType | None) -> None:
        noted.set()
        signal.signal(number, before[signal.Signals(number)])

    try:
        for number in before:
            signal.signal(number, note)
        yield noted.is_set
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
