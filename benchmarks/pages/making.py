"""A page is made in a process of its own: bytes of the file, seconds, and the most memory.

The attention is there before the clock starts; it runs until the file is written. A page of four
tokens was made before, so that imports are not counted. Peak memory is the most that the process
held while it ran, less what it held at its start.
"""

import ctypes
import gc
import json
import re
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.pages.given import GivenTrace, attention, token_strings
from benchmarks.pages.plan import BERTVIZ, MINIBERT, THUMBNAILS, WEIGHTS, Case, Shape
from benchmarks.session import REPOSITORY
from minibert.bench.gate import GateError, require
from minibert.bench.result_rows import Row

# A page that would take more memory than this ends with an error, not the machine.
MEMORY_LIMIT = 16 * 2**30
PACKAGES = {MINIBERT: "minibert", BERTVIZ: "bertviz"}


def made(case: Case, path: Path, seconds: float) -> Row:
    """The file's fields of a row. Raises GateError where there is no file, with the reason."""
    require(PACKAGES[case.program])
    shape = case.shape
    sizes = [str(number) for number in (shape.layers, shape.heads, shape.tokens)]
    command = [sys.executable, "-m", "benchmarks.pages.making", case.program, case.view, case.holds]
    try:
        done = subprocess.run(
            [*command, *sizes, str(path)],
            cwd=REPOSITORY,
            capture_output=True,
            text=True,
            timeout=seconds,
        )
    except subprocess.TimeoutExpired as error:
        raise GateError(f"Python was not done after {seconds:.0f} s") from error
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [f"ended with {done.returncode}"])[-1]
        raise GateError(f"Python: {last[:200]}")
    found: Row = json.loads(done.stdout.splitlines()[-1])
    return found


def main(arguments: list[str]) -> None:
    program, view, holds, *sizes, path = arguments
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_LIMIT, MEMORY_LIMIT))
    shape = Shape(*map(int, sizes))
    make = MAKERS[program]
    make(view, holds, Shape(2, 2, 4))(Path(path))
    write = make(view, holds, shape)
    before = reset_peak()
    start = time.perf_counter()
    write(Path(path))
    seconds = time.perf_counter() - start
    peak = max(0, status("VmHWM") - before)
    size = Path(path).stat().st_size
    print(json.dumps({"bytes": size, "python_s": round(seconds, 4), "python_peak_bytes": peak}))


Write = Callable[[Path], Any]


def minibert_page(view: str, holds: str, shape: Shape) -> Write:
    """What writes minibert's page of attention that is there."""
    import minibert.viz

    if holds == WEIGHTS:
        given, tokens = attention(shape), token_strings(shape.tokens)
        return lambda path: minibert.viz.attention_page(given, tokens).save(path)
    trace, overview = GivenTrace(shape), holds == THUMBNAILS
    return lambda path: minibert.viz.view(trace, overview_only=overview).save(path)


def bertviz_page(view: str, holds: str, shape: Shape) -> Write:
    """What writes BertViz' page: the HTML that it returns, as a document."""
    import bertviz

    given, tokens = attention(shape), token_strings(shape.tokens)
    show = {"head": bertviz.head_view, "model": bertviz.model_view}[view]

    def write(path: Path) -> None:
        html = show(given, tokens, html_action="return").data
        with path.open("w", encoding="utf-8") as file:
            file.write('<!doctype html>\n<meta charset="utf-8">\n')
            file.write(html)

    return write


MAKERS = {MINIBERT: minibert_page, BERTVIZ: bertviz_page}


def reset_peak() -> int:
    """Bytes held now; the most that was held counts from here."""
    gc.collect()
    # What was freed goes back to the system: used again, it would not count.
    ctypes.CDLL(None).malloc_trim(0)
    # Linux, for one's own process: from now on VmHWM is the most since now.
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    return status("VmRSS")


def status(name: str) -> int:
    text = Path("/proc/self/status").read_text(encoding="ascii")
    found = re.search(rf"^{name}:\s+(\d+) kB", text, re.MULTILINE)
    assert found
    return int(found[1]) * 1024


if __name__ == "__main__":
    main(sys.argv[1:])
