"""Rows as `make gpu` writes them, for the tests of what reads them."""

from typing import Any


def row(task: str, contender: str, ms: float | None, **fields: Any) -> dict[str, Any]:
    timed = {} if ms is None else {"median_ms": ms, "warm_ms": ms, "noise": 0.01}
    part = task.split()[0]
    start = {
        "key": f"{task} | {contender}",
        "part": part,
        "task": task,
        "implementation": contender,
    }
    return {**start, "ok": ms is not None, "positions": 4096, "run": "monday", **timed, **fields}
