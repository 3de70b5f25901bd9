"""Run the tests that a change touches, for at most a minute: `make quick`.

A test file is touched where it differs from the merge base with main, or imports what does, over
other modules too. The nearest are run first, two files at a time; slow ones, and those of browsers,
are left to `make test`.
"""

import ast
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
ROOTS = ("minibert", "kernels", "viz", "benchmarks", "scripts", "tests", "examples")
SECONDS, LANES = 55, 2
LEFT_OUT = "not slow and not network and not browser"


def changed() -> set[Path]:
    """The files that differ from the merge base, uncommitted and new ones included."""

    def lines(*command: str) -> list[str]:
        done = subprocess.run(["git", *command], cwd=ROOT, capture_output=True, text=True)
        return done.stdout.splitlines()

    base = lines("merge-base", "HEAD", "origin/main") or lines("merge-base", "HEAD", "main")
    found = lines("diff", "--name-only", *(base or ["HEAD"]))
    return {ROOT / name for name in found + lines("ls-files", "--others", "--exclude-standard")}


def modules() -> dict[str, Path]:
    """Every module by the names it is imported by; tests import helpers beside them bare."""
    found = {}
    for top in ROOTS:
        for path in (ROOT / top).rglob("*.py"):
            parts = path.relative_to(ROOT).with_suffix("").parts
            name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            found[f"minibert.{name}" if top in ("kernels", "viz") else name] = path
            if top == "tests":
                found.setdefault(".".join(parts[1:]), path)
    return {name: path for name, path in found.items() if "node_modules" not in path.parts}


def imports(path: Path) -> Iterator[str]:
    """The dotted names that a file imports, wherever it does."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (one.name for one in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module
            yield from (f"{node.module}.{one.name}" for one in node.names)


def touched() -> list[Path]:
    """The test files that a change reaches, the nearest first, small ones before large ones."""
    known = modules()
    users: dict[Path, set[Path]] = {}
    for path in set(known.values()):
        for name in imports(path):
            if name in known:
                users.setdefault(known[name], set()).add(path)
    distance, steps = dict.fromkeys(changed(), 0), 0
    while reached := {path for path, far in distance.items() if far == steps}:
        steps += 1
        for user in set().union(*(users.get(path, set()) for path in reached)):
            distance.setdefault(user, steps)
    tests = [path for path in distance if path.name.startswith("test_") and path.exists()]
    return sorted(tests, key=lambda path: (distance[path], path.stat().st_size))


def lane(files: list[str]) -> int:
    """The status of one run of these files, one after another, as far as there is time."""

    # As if somebody pressed Ctrl-C, which nothing under test takes for a failure.
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    signal.alarm(SECONDS)
    end, status = time.monotonic() + SECONDS, 0
    for place, file in enumerate(files):
        found = pytest.main(["-q", "--no-header", "-m", LEFT_OUT, file])
        # Nothing of it may be quick, and it may be cut off.
        status |= found in (pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.INTERNAL_ERROR)
        if time.monotonic() >= end:
            print("not run, or not to the end:", *files[place:])
            break
    return status


def main() -> int:
    """The exit status: 0 when nothing that was run failed."""
    if len(sys.argv) > 1:
        return lane(sys.argv[1:])
    files = [str(path.relative_to(ROOT)) for path in touched()]
    print(f"{len(files)} test files are touched", flush=True)
    lanes = [files[place::LANES] for place in range(LANES) if files[place::LANES]]
    started = [subprocess.Popen([sys.executable, __file__, *one], cwd=ROOT) for one in lanes]
    return max([one.wait() for one in started], default=0)


if __name__ == "__main__":
    sys.exit(main())
