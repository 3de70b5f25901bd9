"""Building minibert, and environments that hold it and exactly what it declares.

The declared distributions are links into the environment the tests run in: nothing is fetched,
and what is not declared is not there.
"""

import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

REPOSITORY = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
_NOT_SHIPPED = (
    ".git", ".venv*", "build", "dist", "*.egg-info", "__pycache__", ".*_cache", "node_modules",
)  # fmt: skip


def run(
    command: list[str | Path], *, where: Path, path: Path | None = None, seconds: int = 300
) -> subprocess.CompletedProcess[str]:
    """The finished command, which saw none of this process' Python settings and no network."""
    settings = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    settings |= {"HF_HUB_OFFLINE": "1", "HF_HOME": str(where / "empty-cache")}
    settings |= {"PYTHONPATH": str(path)} if path else {}
    done = subprocess.run(
        command, cwd=where, env=settings, capture_output=True, text=True, timeout=seconds,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    return done


def copy_tree(target: Path, *left_out: str) -> None:
    """A copy of the source tree, with its links, without what is built or not for shipping."""
    ignored = shutil.ignore_patterns(*_NOT_SHIPPED, *left_out)
    shutil.copytree(REPOSITORY, target, symlinks=True, ignore=ignored)


def declared(roots: Iterable[str]) -> set[str]:
    """The installed distributions that `roots` need, themselves included."""
    needed: set[str] = set()
    waiting = [(Requirement(root).name, "") for root in roots]
    waiting += [(Requirement(r).name, extra) for r in roots for extra in Requirement(r).extras]
    seen = set()
    while waiting:
        name, extra = waiting.pop()
        if (name, extra) in seen:
            continue
        seen.add((name, extra))
        try:
            requirements = distribution(name).requires or []
        except PackageNotFoundError:
            continue
        needed.add(canonicalize_name(name))
        for requirement in map(Requirement, requirements):
            if requirement.marker is None or requirement.marker.evaluate({"extra": extra}):
                waiting += [(requirement.name, e) for e in ("", *requirement.extras)]
    return needed


def link(names: Iterable[str], folder: Path) -> None:
    """Put the top-level files of these distributions into `folder`, as links."""
    for name in names:
        installed = distribution(name)
        for top in {Path(file).parts[0] for file in installed.files or []}:
            target = Path(str(installed.locate_file(top)))
            if top not in ("..", "__pycache__") and not (folder / top).exists():
                (folder / top).symlink_to(target, target_is_directory=target.is_dir())


def environment(
    base: Path,
    package: Path,
    *,
    needs: Iterable[str] = PROJECT["dependencies"],
    beside: tuple[str, ...] = (),
    options: Iterable[str] = (),
) -> Path:
    """The Python of a new environment that holds the package, what it declares, and `beside`."""
    run([sys.executable, "-m", "venv", "--without-pip", base / "venv"], where=base)
    python = base / "venv" / "bin" / "python"
    where = "import sysconfig; print(sysconfig.get_path('purelib'))"
    packages = Path(run([python, "-c", where], where=base).stdout.strip())
    link(declared([*needs, *beside]) - {"pip", PROJECT["name"]}, packages)
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "--no-index"]
    run([*pip, *options, package], where=base)
    return python
