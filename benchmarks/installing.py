"""From a Python to the first page: megabytes and seconds of each step of an installation.

    python3 benchmarks/installing.py WHEEL --output FILE [--torch WHEEL] [--way NAME]

For each way of docs/install.md: download, install from what was downloaded, first result. Every
step is a new process, and pip's own configuration is off. The script imports only the standard
library, so it runs where there is only Python. `--torch` is a wheel of torch's CPU build, for a
machine that does not reach download.pytorch.org; without it that way is left out.
"""

import argparse
import datetime
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

TEN_LINES = """import minibert
head = minibert.load().trace("The horse ran away.", "The boy followed slowly.")[2, 1]
assert (head.probs @ head.value - head.z).abs().max() < 1e-5"""
LIGHT = ["typer", "numpy", "safetensors"]


def megabytes(folder: Path) -> float:
    """The size of the files of a folder in 10^6 bytes."""
    sizes = (path.lstat().st_size for path in folder.rglob("*") if not path.is_dir())
    return round(sum(sizes) / 1e6, 1)


def main() -> None:
    """Measure every way and write a row for each step."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("wheel", type=Path)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--torch", type=Path)
    parser.add_argument("--way", action="append")
    given = parser.parse_args()
    # A certificate is a property of the machine, not of the installation.
    kept = {name: os.environ[name] for name in ("HOME", "PATH", "PIP_CERT") if name in os.environ}
    quiet = {"PIP_CONFIG_FILE": os.devnull, "PIP_NO_CACHE_DIR": "1", "HF_HUB_OFFLINE": "1"}
    facts = {
        "cores": os.cpu_count(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "load_at_start": round(os.getloadavg()[0], 2),
        "time": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "wheel": given.wheel.name,
    }
    wheel = str(given.wheel.resolve())
    ways = {"default": [[wheel]], "without torch": [LIGHT, ["--no-deps", wheel]]}
    if given.torch:
        ways["CPU build of torch"] = [[str(given.torch.resolve()), wheel]]

    def run(way: str, step: str, *command: object) -> None:
        before = os.times()
        begun = time.monotonic()
        subprocess.run([*map(str, command)], check=True, cwd=folder, env=kept | quiet)
        after = os.times()
        used = after.children_user + after.children_system
        used -= before.children_user + before.children_system
        row = {"way": way, "step": step, "seconds": round(time.monotonic() - begun, 1)}
        row |= {"cpu_seconds": round(used, 1)}
        row |= {"downloaded_mb": megabytes(got), "installed_mb": megabytes(folder / "env")} | facts
        print(row["way"], row["step"], row["seconds"], row["installed_mb"], flush=True)
        with given.output.open("a", encoding="utf-8") as rows:
            rows.write(json.dumps(row) + "\n")

    for way in given.way or ways:
        parts = ways[way]
        folder = Path(tempfile.mkdtemp())
        got = folder / "downloaded"
        got.mkdir()
        python = folder / "env" / "bin" / "python"
        run(way, "environment", sys.executable, "-m", "venv", folder / "env")
        pip = (python, "-m", "pip", "--quiet", "--disable-pip-version-check")
        for part in parts:
            run(way, "download", *pip, "download", "--dest", got, *part)
        for part in parts:
            run(way, "install", *pip, "install", "--no-index", "--find-links", got, *part)
        run(way, "minibert live", python, "-m", "minibert", "live", "-o", "live.html")
        if way != "without torch":
            run(way, "ten lines of Python", python, "-c", TEN_LINES)
            run(way, "ten lines again", python, "-c", TEN_LINES)
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
