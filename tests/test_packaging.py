"""What people install is the wheel: it is whole, needs what it declares, and stands alone.

The wheel is built from the sdist, so both are complete. Its environment holds the wheel and
links to exactly the distributions it declares, taken from the environment the tests run in:
nothing is fetched, and what is not declared is not there.
"""

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

REPOSITORY = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
NOT_SHIPPED = (
    ".git", ".venv*", "build", "dist", "*.egg-info", "__pycache__", ".*_cache", "node_modules",
)  # fmt: skip

LOAD_TRACE_RENDER = """
import html.parser, importlib.util, pathlib, sys
{before}
import minibert
from minibert.cli.main import main

home = pathlib.Path(minibert.__file__).resolve()
assert home.is_relative_to({home!r}), home
trace = minibert.load().trace("the rabbit quickly hopped", "the turtle slowly crawled")
rows = trace[0, 0].probs.sum(-1)
assert (rows - 1).abs().max() < 1e-5, rows
sys.argv = ["minibert", "view", "the rabbit quickly hopped", "-o", "page.html"]
try:
    main()
except SystemExit as stop:
    assert not stop.code, stop.code
page = pathlib.Path("page.html").read_text(encoding="utf-8")
assert len(page) > 10_000, page

class Outside(html.parser.HTMLParser):
    def handle_starttag(self, tag, attributes):
        for name, address in attributes:
            assert name not in ("src", "href") or address.startswith(("data:", "#")), (tag, address)

Outside().feed(page)
"""


def run(
    command: list[str | Path], *, where: Path, path: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """The finished command, which saw none of this process' Python settings and no network."""
    settings = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    settings |= {"HF_HUB_OFFLINE": "1", "HF_HOME": str(where / "empty-cache")}
    settings |= {"PYTHONPATH": str(path)} if path else {}
    done = subprocess.run(
        command, cwd=where, env=settings, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, f"{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    return done


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sdist and the wheel built from it."""
    base = tmp_path_factory.mktemp("built")
    shutil.copytree(
        REPOSITORY, base / "tree", symlinks=True, ignore=shutil.ignore_patterns(*NOT_SHIPPED)
    )
    run([sys.executable, "-m", "build", "--no-isolation", "-o", base, "tree"], where=base)
    return base


@pytest.fixture(scope="module")
def wheel(built: Path) -> Path:
    """The wheel."""
    (found,) = built.glob("*.whl")
    return found


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


def environment(base: Path, wheel: Path, *, beside: tuple[str, ...] = ()) -> Path:
    """The Python of a new environment that holds the wheel, what it declares, and `beside`."""
    run([sys.executable, "-m", "venv", "--without-pip", base / "venv"], where=base)
    python = base / "venv" / "bin" / "python"
    where = "import sysconfig; print(sysconfig.get_path('purelib'))"
    packages = Path(run([python, "-c", where], where=base).stdout.strip())
    link(declared([*PROJECT["dependencies"], *beside]) - {"pip", "minibert"}, packages)
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "--no-index"]
    run([*pip, wheel], where=base)
    return python


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory, wheel: Path) -> Path:
    """A Python with minibert and only what it declares."""
    return environment(tmp_path_factory.mktemp("alone"), wheel)


@pytest.fixture(scope="module")
def neighbours(tmp_path_factory: pytest.TempPathFactory, wheel: Path) -> Path:
    """A Python with minibert and transformers."""
    return environment(tmp_path_factory.mktemp("neighbours"), wheel, beside=("transformers",))


def shipped() -> dict[str, bytes]:
    """What the wheel must hold, by its path there, read from the repository."""
    trees = {
        "minibert": [*(REPOSITORY / "minibert").glob("*.py"), REPOSITORY / "minibert/py.typed"],
        "minibert/analysis": (REPOSITORY / "minibert" / "analysis").glob("*.py"),
        "minibert/bench": (REPOSITORY / "minibert" / "bench").glob("*.py"),
        "minibert/training": (REPOSITORY / "minibert" / "training").glob("*.py"),
        "minibert/kernels": (REPOSITORY / "kernels").glob("*.py"),
        "minibert/kernels/fused": (REPOSITORY / "kernels" / "fused").glob("*.py"),
        "minibert/viz": (REPOSITORY / "viz").glob("*.py"),
        "minibert/viz/plots": (REPOSITORY / "viz" / "plots").glob("*.py"),
    }
    found = {f"{folder}/{p.name}": p for folder, files in trees.items() for p in files}
    for folder, top in {
        "minibert/embedded": "minibert/embedded",
        "minibert/viz/static": "viz/static",
    }.items():
        for path in (REPOSITORY / top).rglob("*"):
            if path.is_file():
                found[f"{folder}/{path.relative_to(REPOSITORY / top).as_posix()}"] = path
    return {name: path.read_bytes() for name, path in found.items()}


def test_the_wheel_holds_every_file_of_the_package_once_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = [n for n in archive.namelist() if ".dist-info/" not in n]
        contents = {name: archive.read(name) for name in names}
    expected = shipped()
    assert sorted(names) == sorted(expected)
    assert [n for n in names if contents[n] != expected[n]] == []


def test_the_wheel_carries_the_models_and_the_page(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    models = {n.rpartition("/")[0] for n in names if re.match(r"minibert/embedded/[^/]+/", n)}
    assert models
    for model in models:
        present = {n.rpartition("/")[2] for n in names if n.startswith(f"{model}/")}
        assert {"config.json", "model.safetensors", "tokenizer.json"} <= present
    assert any(re.match(r"minibert/viz/static/[^/]+/[^/]+\.js$", n) for n in names)


def test_the_metadata_says_what_the_project_says(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        texts = {n.rpartition("/")[2]: n for n in archive.namelist() if ".dist-info/" in n}
        metadata = archive.read(texts["METADATA"]).decode()
        entry_points = archive.read(texts["entry_points.txt"]).decode()
    assert "License-Expression: Apache-2.0" in metadata
    assert "minibert = minibert.cli.main:main" in entry_points
    assert "LICENSE" in texts


def test_the_sdist_builds_without_the_links_and_holds_no_environment(built: Path) -> None:
    (sdist,) = built.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        members = archive.getmembers()
    names = [m.name.split("/", 1)[1] for m in members if "/" in m.name]
    assert not [m.name for m in members if m.issym() or m.islnk()]
    assert not [n for n in names if n.startswith((".venv", "build/", "minibert/kernels/"))]
    assert {"pyproject.toml", "LICENSE", "README.md"} <= set(names)


def test_every_dependency_is_pinned_and_no_address_is_named() -> None:
    lines = (REPOSITORY / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]
    assert all(re.fullmatch(r"[\w.-]+==[\w.!+]+", pin) for pin in pins)
    pinned = {canonicalize_name(pin.split("==")[0]) for pin in pins}
    wanted = [*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["dev"]]
    missing = {canonicalize_name(Requirement(line).name) for line in wanted} - pinned
    assert not missing, f"constraints.txt has no pin for {sorted(missing)}"


@pytest.mark.slow
def test_it_loads_and_renders_from_another_folder_with_what_it_declares(
    alone: Path, tmp_path: Path
) -> None:
    absent = "assert importlib.util.find_spec('transformers') is None"
    code = LOAD_TRACE_RENDER.format(before=absent, home=str(alone.parents[1]))
    run([alone, "-c", code], where=tmp_path)


@pytest.mark.slow
def test_it_loads_and_renders_beside_transformers(neighbours: Path, tmp_path: Path) -> None:
    before = "from transformers import BertModel, GPT2LMHeadModel"
    code = LOAD_TRACE_RENDER.format(before=before, home=str(neighbours.parents[1]))
    run([neighbours, "-c", code], where=tmp_path)


@pytest.mark.slow
def test_transformers_imports_with_the_repository_root_on_the_path(
    neighbours: Path, tmp_path: Path
) -> None:
    # The folder kernels/ must not pass for Hugging Face's package of that name.
    before = "from transformers import BertModel, GPT2LMHeadModel"
    code = LOAD_TRACE_RENDER.format(before=before, home=str(REPOSITORY))
    run([neighbours, "-c", code], where=tmp_path, path=REPOSITORY)


def test_the_command_is_installed_and_answers(alone: Path, tmp_path: Path) -> None:
    done = run([alone.with_name("minibert"), "--help"], where=tmp_path)
    assert "view" in done.stdout
