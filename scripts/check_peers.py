"""Is what docs/peers.md says of another tool older than the tool's newest version?

    python scripts/check_peers.py

Asks pip for the newest version of each package of the table. The exit status is 1 where one is
newer than the one that was read. A package that the index does not have is an error too, and where
the index cannot be reached at all this says so and ends with 0.
"""

import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from packaging.version import Version

PAGE = Path(__file__).resolve().parents[1] / "docs" / "peers.md"
# Some peers need a newer Python than ours.
PYTHON = "3.13"


@dataclass(frozen=True)
class Peer:
    """A row of the table; `package` is empty for a tool that is not on the package index."""

    name: str
    version: str
    read_on: str
    package: str
    said: str


def peers(page: str) -> list[Peer]:
    """The rows of the page's table."""
    lines = [line[2:-2].split(" | ") for line in page.splitlines() if line.startswith("| ")]
    return [Peer(*cells[:3], cells[3].strip("–"), cells[4]) for cells in lines[1:]]


def newest(package: str) -> str:
    """The newest version on the package index; empty where the index does not answer."""
    asked = [sys.executable, "-m", "pip", "index", "versions", package, "--python-version", PYTHON]
    done = subprocess.run(asked, capture_output=True, text=True, check=False)
    found = re.match(rf"{re.escape(package)} \((\S+)\)", done.stdout)
    return found[1] if found else ""


def stale(rows: list[Peer], newest: Callable[[str], str]) -> list[str]:
    """A sentence for each row that is older than its package, or whose package is not found."""
    wrong = []
    for row in rows:
        there = newest(row.package)
        if not there:
            wrong.append(f"{row.name}: the index has no {row.package}.")
        elif Version(there) > Version(row.version):
            wrong.append(
                f"{row.name}: {there} is out, and docs/peers.md has read {row.version} on "
                f"{row.read_on}. Read what is new, and change the row and the pages."
            )
    return wrong


def main() -> int:
    """The exit status: 1 where a row is older than its package."""
    rows = [row for row in peers(PAGE.read_text(encoding="utf-8")) if row.package]
    found = {row.package: newest(row.package) for row in rows}
    if not any(found.values()):
        print("pip or the package index does not answer; nothing was checked.")
        return 0
    wrong = stale(rows, found.__getitem__)
    print("\n".join(wrong) or f"All {len(rows)} are the newest.")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
