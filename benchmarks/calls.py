"""How much of minibert's own code runs for one question: Python calls, and the files they are in.

    python -m benchmarks.calls [--model tiny-bert]

Each question is asked once before it is counted, so that imports and first measurements are not.
The last two columns are what the same script counted before the layers became one table.
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import minibert
from benchmarks.session import REPOSITORY
from minibert.bench.tables import line
from minibert.trace.edit import zero

TEXT = "leaves fall in autumn"
SOURCES = tuple(str(REPOSITORY / folder) for folder in ("minibert", "kernels", "viz"))
QUESTIONS: dict[str, Callable[[Any, Any], Any]] = {
    "model(text)": lambda model, trace: model(TEXT),
    "model.trace(text)": lambda model, trace: model.trace(TEXT),
    "trace[2, 1].probs": lambda model, trace: trace[2, 1].probs,
    'trace.rerun({("z", 0, 3): zero})': lambda model, trace: trace.rerun({("z", 0, 3): zero}),
}
# Of tiny-bert at commit 384dc5a: calls and files.
BEFORE = ((672, 11), (699, 15), (31, 7), (674, 16))
WIDTHS = (36, 7, 7, 14, 14)


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit status, 0."""
    parser = argparse.ArgumentParser(description="Own Python calls and files of a question.")
    parser.add_argument("--model", default="tiny-bert")
    model = minibert.load(parser.parse_args(arguments).model)
    print(line(("", "calls", "files", "calls before", "files before"), WIDTHS))
    for (name, ask), before in zip(QUESTIONS.items(), BEFORE, strict=True):
        ask(model, model.trace(TEXT))
        # A trace of its own, in which nothing was read.
        files = counted(partial(ask, model, model.trace(TEXT)))
        numbers = (sum(files.values()), len(files), *before)
        print(line((name, *map(str, numbers)), WIDTHS))
    return 0


def counted(run: Callable[[], Any]) -> dict[str, int]:
    """How many calls of minibert's functions `run` makes, by file."""
    files: dict[str, int] = {}

    def note(frame: FrameType, event: str, argument: Any) -> None:
        file = frame.f_code.co_filename
        if event == "call" and str(Path(file).resolve()).startswith(SOURCES):
            files[file] = files.get(file, 0) + 1

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        run()
    finally:
        sys.setprofile(before)
    return files


if __name__ == "__main__":
    sys.exit(main())
