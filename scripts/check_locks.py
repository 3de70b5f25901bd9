"""Do the pins in requirements/ give an installation on every supported Python and platform?

uv resolves from the index's metadata; nothing is installed. A combination fails when it has no
solution, when a package has no wheel there, or when one is not pinned (pip would then search).
A CPU build of torch wants the same packages less CUDA's, so it is covered; the wheels for macOS
and Windows are CPU builds. Where the index cannot be reached this says so and ends with 0.
"""

import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PYTHONS = ("3.11.0", "3.12.0", "3.13.0", "3.14.0")
PLATFORMS = (
    "x86_64-manylinux_2_28",
    "aarch64-manylinux_2_28",
    "aarch64-apple-darwin",
    "x86_64-pc-windows-msvc",
)
LISTS = {"runtime": (), "development": ("--extra", "dev", "--extra", "docs")}
UNREACHABLE = re.compile(r"error sending request|dns error|failed to fetch|connect", re.IGNORECASE)
# What torch's wheels for macOS ask for.
SETTINGS = {**os.environ, "MACOSX_DEPLOYMENT_TARGET": "14.0", "UV_HTTP_RETRIES": "1"}


def resolve(name: str, platform: str, python: str) -> tuple[str, str]:
    """The combination, and what is wrong with it: nothing when it can be installed as pinned."""
    pins = ROOT / "requirements" / f"{name}.txt"
    command = [sys.executable, "-m", "uv", "pip", "compile", "pyproject.toml", *LISTS[name]]
    command += ["--no-config", "--quiet", "--no-header", "--no-annotate", "--only-binary", ":all:"]
    command += ["--python-version", python, "--python-platform", platform, "-c", str(pins)]
    # What an earlier combination fetched is usually enough for the next; where it is not, the
    # index is asked.
    for offline in (["--offline"], []):
        done = subprocess.run(
            [*command, *offline],
            cwd=ROOT,
            env=SETTINGS,
            capture_output=True,
            text=True,
            check=False,
        )
        if not done.returncode:
            break
    label = f"{name:12} {platform:24} {python}"
    if done.returncode:
        return label, " ".join(done.stderr.split()) or f"uv ended with {done.returncode}"
    pinned = {line.split()[0] for line in pins.read_text(encoding="utf-8").splitlines()}
    loose = [line for line in done.stdout.split() if line not in pinned]
    return label, f"not pinned: {', '.join(loose)}" if loose else ""


def main() -> int:
    """The exit status: 1 when a combination cannot be installed as pinned."""
    first, *others = product(LISTS, PLATFORMS, PYTHONS)
    found = [resolve(*first)]
    if UNREACHABLE.search(found[0][1]):
        print(f"NOT CHECKED: the package index cannot be reached ({found[0][1][:300]})")
        return 0
    with ThreadPoolExecutor(2) as pool:
        found += pool.map(lambda each: resolve(*each), others)
    wrong = [label for label, reason in found if reason]
    for label, reason in found:
        print(label, reason[:2000] or "ok")
    print(f"{len(found) - len(wrong)} of {len(found)} combinations can be installed as pinned")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
