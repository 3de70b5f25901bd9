"""What became of a case: refused in good form, equal to the oracle, or a failure."""

import resource
import traceback
from collections.abc import Callable
from pathlib import Path

import minibert


class DiffersError(Exception):
    """minibert accepted what the oracle reads otherwise."""


def judge(folder: Path, use: Callable[[Path], None]) -> tuple[str, str, str]:
    """What happened (refused, equal, failure), the kind of failure, and a word about it."""
    try:
        try:
            use(folder)
        finally:
            # To say what happened takes memory as well.
            resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY,) * 2)
    except minibert.MinibertError as error:
        return form(error)
    except DiffersError as error:
        return "failure", "differs", str(error)[:500]
    except BaseException as error:
        frames = traceback.extract_tb(error.__traceback__)
        ours = [f for f in frames if "/minibert/" in f.filename or "/siege/" in f.filename]
        place = f"{Path(ours[-1].filename).name}:{ours[-1].lineno}" if ours else "nowhere"
        return "failure", f"{type(error).__name__} at {place}", ascii(str(error))[:500]
    return "equal", "", ""


def form(error: minibert.MinibertError) -> tuple[str, str, str]:
    """Whether the message may be shown: short, and harmless to a terminal, causes included."""
    message = str(error)
    shown = "".join(traceback.format_exception(error))
    if len(message.encode()) >= 2048:
        return "failure", f"{type(error).__name__} too long", ascii(message[:200])
    if not all(c.isprintable() or c == "\n" for c in message + shown):
        return "failure", f"{type(error).__name__} not printable", ascii(message[:300])
    if len(shown) > 20_000:
        return "failure", f"{type(error).__name__} with a long cause", ascii(shown[-300:])
    return "refused", type(error).__name__, message[:200]


def tolerate(error: minibert.MinibertError) -> None:
    """Nothing for an error in good form, DiffersError for another."""
    if (found := form(error))[0] == "failure":
        raise DiffersError(f"{found[1]}: {found[2]}") from error
