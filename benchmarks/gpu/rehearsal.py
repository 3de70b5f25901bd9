"""What `make gpu` would launch, specialised, compiled and looked at without a GPU.

    python -m benchmarks.gpu.rehearsal [--only REGEX] [--minutes 9] [--no-compile] [--part 1/4]

Each contender of ours is built and called on the fake device of `fake_device.py`: a wrong argument,
a constant that is missing, a tile that no SM holds, a spill is found here; and what no CUDA graph
could record, by `capture_guard.py`. A line of JSON each; the last line counts.
"""

import argparse
import functools
import json
import os
import re
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from benchmarks.gpu import cases, matrix
from benchmarks.gpu.capture_guard import check_recordable
from benchmarks.gpu.contenders import build, inputs
from benchmarks.gpu.fake_autograd import recorded_functions, run_backward
from benchmarks.gpu.fake_device import FakeDevice, device
from benchmarks.gpu.plan import Shape, Task, first_minutes, plan
from minibert.bench.gate import reason
from minibert.bench.result_rows import Row
from minibert.errors import AttentionError

__all__ = ["calls", "main", "rehearse"]

#: Whose kernels are not ours: they are there on a GPU, or their row says why not.
_OTHERS = ("cudnn", "flash", "flex", "eager", "by hand", "matrix product", "copy")
GPU = torch.device("cuda", 0)


def main(arguments: list[str] | None = None) -> int:
    """The exit status: 1 when something that `make gpu` launches would fail."""
    chosen = _parser().parse_args(arguments)
    wanted = [task for task in plan() if re.search(chosen.only, task.name)]
    if chosen.minutes is not None:
        wanted = first_minutes(wanted, chosen.minutes)
    place, parts = (int(number) for number in chosen.part.split("/"))
    began, rows = time.monotonic(), []
    # Whatever was tuned before, every candidate is tried; and what is tuned here is worth nothing.
    with tempfile.TemporaryDirectory() as nowhere:
        os.environ["MINIBERT_CACHE"] = nowhere
        for row in rehearse(wanted[place - 1 :: parts], compiles=chosen.compile):
            rows.append(row)
            print(json.dumps(row), flush=True)
    driver, failed = device().driver, sum(not row["ok"] for row in rows)
    whole = {
        "calls": len(rows),
        "failed": failed,
        "refused": sum("refused" in row for row in rows),
        "kernels": len(driver.loaded),
        "compiled": len(driver.seconds),
        "compile_seconds": round(sum(driver.seconds), 1),
        "seconds": round(time.monotonic() - began, 1),
    }
    print(json.dumps(whole))
    return 1 if failed or not rows else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Rehearse `make gpu` on a machine without a GPU.")
    parser.add_argument("--only", default="", metavar="REGEX", help="tasks with such a name")
    parser.add_argument("--minutes", type=float, help="only what begins in so many minutes")
    parser.add_argument("--no-compile", dest="compile", action="store_false")
    parser.add_argument(
        "--part", default="1/1", metavar="I/N", help="each N-th task, from the I-th"
    )
    return parser


def rehearse(tasks: Iterable[Task], *, compiles: bool = True) -> Iterator[Row]:
    """A row for each call of ours: ok, or the reason why it would fail on a GPU."""
    with device().entered(compiles=compiles) as fake:
        for task in tasks:
            for name in task.contenders:
                for what, call in calls(task, name):
                    yield {"key": f"{task.name} | {name}", "call": what, **_tried(call, fake)}


def _tried(call: Callable[[], Any], fake: FakeDevice) -> Row:
    """What comes of a call: the kernels it loaded, or why it fails."""
    before = len(fake.driver.loaded)
    try:
        # A candidate that does not run is left out with a warning.
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            call()
    except AttentionError as error:
        return {"ok": True, "refused": reason(error)}
    # Whatever it raises would be raised on the GPU.
    except Exception as error:
        return {"ok": False, "reason": reason(error)}
    loaded = fake.driver.loaded[before:]
    spilled = [one.name for one in loaded if one.spilled_bytes]
    return {"ok": True, "kernels": [vars(one) for one in loaded], "spilled": spilled}


def calls(task: Task, name: str) -> Iterator[tuple[str, Callable[[], Any]]]:
    """The calls of a contender, by what they show; none where its kernels are not ours."""
    if task.cell is not None:
        yield "forward", functools.partial(_forward, name, *task.cell)
        yield "backward", functools.partial(_backward, name, *task.cell)
    elif task.shape is not None and not name.startswith(_OTHERS):
        yield "run", functools.partial(_built, task.shape, name)


def _built(shape: Shape, name: str) -> None:
    built = build(name, inputs(shape, GPU))
    check_recordable(built.run)


def _forward(option: str, d_head: int, dtype: str) -> None:
    drawn = cases.draw(option, d_head, dtype, GPU)
    check_recordable(lambda: matrix.attended(drawn, "triton", option))


def _backward(option: str, d_head: int, dtype: str) -> None:
    drawn = cases.draw(option, d_head, dtype, GPU).with_gradient()
    with recorded_functions() as kept:
        matrix.attended(drawn, "triton", option)
    for one in kept:
        check_recordable(functools.partial(run_backward, one))


if __name__ == "__main__":
    sys.exit(main())
