"""README and the pages in docs/ run and print what they say, from what README says to install.

Every block runs in an environment that has minibert and its runtime dependencies alone; a block
below `<!-- extras: ... -->` runs in one that has those extras too.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.data import data_path
from tests.packages import PROJECT, REPOSITORY

DOCS = REPOSITORY / "docs"
# Run by tests/attached/test_pages.py: its code needs transformers.
ELSEWHERE = DOCS / "attach.md"
PAGES = [
    REPOSITORY / "README.md",
    *sorted(set(DOCS.glob("*.md")) - {ELSEWHERE}),
    *sorted(DOCS.glob("lessons/**/*.md")),
    *sorted(DOCS.glob("course/*.md")),
]
BLOCK = re.compile(
    r"(?:<!-- (?:extras: (?P<extras>[\w ]+)|(?P<elsewhere>With transformers: .*)) -->\n\n)?"
    r"```(?P<language>python|sh)\n(?P<code>.*?)```(?:\n\n```text\n(?P<printed>.*?)```)?",
    re.DOTALL,
)
# What makes the environment, which the environments of this test stand for.
INSTALLS = ("make demo", "make test", "pip install ", "uvx ")
SORTER = "python scripts/fetch_sorter.py minigpt-nano-sort"

# A command of a shell, in a process that has torch already.
COMMAND = """
import sys
from minibert.cli.main import main
sys.argv = {}
try:
    main()
except SystemExit as ended:
    assert not ended.code, f"status {{ended.code}}"
"""
# Answers a line of JSON, where to run and what, with what was printed or the error. torch, which
# takes longest, is imported once; each page has a process and names of its own.
RUN_PAGES = """
import contextlib, io, json, os, sys, tempfile, torch
def run(where, codes):
    os.chdir(where)
    names, printed = {}, []
    for code in codes:
        caught = io.StringIO()
        with contextlib.redirect_stdout(caught):
            exec(compile(code, "block", "exec"), names)
        printed.append(caught.getvalue())
    return printed
for line in sys.stdin:
    with tempfile.TemporaryFile() as answer, tempfile.TemporaryFile() as said:
        child = os.fork()
        if child == 0:
            os.dup2(said.fileno(), 2)
            answer.write(json.dumps({"printed": run(*json.loads(line))}).encode())
            answer.flush()
            os._exit(0)
        status = os.waitpid(child, 0)[1]
        answer.seek(0), said.seek(0)
        error = {"error": f"status {status}: {said.read().decode()}"}
        print(answer.read().decode() or json.dumps(error), flush=True)
"""


@dataclass(frozen=True)
class Block:
    """One block of a page."""

    extras: tuple[str, ...]
    language: str
    code: str
    printed: str
    elsewhere: bool
    """Run by tests/attached/test_pages.py, as it needs transformers."""


def blocks_of(page: Path) -> list[Block]:
    """The blocks of a page that are code, in their order."""
    found = []
    for match in BLOCK.finditer(page.read_text(encoding="utf-8")):
        extras = tuple((match["extras"] or "").split())
        told = (match["language"], match["code"], match["printed"] or "", bool(match["elsewhere"]))
        found.append(Block(extras, *told))
    return found


def lines_of(block: Block) -> list[str]:
    """The commands of a block of a shell, but those that stand for what these tests installed."""
    lines = block.code.splitlines() if block.language == "sh" else []
    return [line for line in lines if line and not line.startswith(INSTALLS)]


def fewest_extras(line: str, extras: tuple[str, ...]) -> tuple[str, ...]:
    """The fewest of these extras that a page says the command needs: there it is run, and once."""
    named = [b.extras for page in PAGES for b in blocks_of(page) if line in lines_of(b)]
    return min((one for one in named if set(one) <= set(extras)), key=len)


# Triton's interpreter takes minutes for all sizes; test_ladder.py and test_cli_check.py check the
# same files. What a training or a comparison of any size gives is in tests/training and
# test_verification.py; a page that names layers shows what such a model learns.
SHORTER = {
    "check": ("--quick", "--tokens", "17", "--dtype", "float32"),
    "bench": ("--quick", "--dtype", "float32", "--tokens", "32", "--rounds", "1"),
    "train": ("--layers", "2", "--heads", "2", "--width", "32"),
    "verify": ("--longest", "17"),
}


@pytest.fixture(scope="module")
def python_with(python_beside):
    """Gives the Python of an environment with minibert, what it declares, and these extras."""

    def make(extras: tuple[str, ...]) -> Path:
        lines = [line for extra in extras for line in PROJECT["optional-dependencies"][extra]]
        return python_beside(tuple(Requirement(line).name for line in lines))

    return make


@pytest.fixture(scope="module")
def answers(python_with):
    """Gives what code prints in a folder, block for block, with the environment of these extras."""
    settings = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    with ExitStack() as running:

        @cache
        def started(extras: tuple[str, ...]) -> subprocess.Popen[str]:
            process = subprocess.Popen(
                [python_with(extras), "-c", RUN_PAGES],
                env=settings | {"HF_HUB_OFFLINE": "1"},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            # The end of its input ends it.
            running.callback(process.communicate)
            return process

        def answer(extras: tuple[str, ...], where: Path, codes: list[str]) -> list[str]:
            process = started(extras)
            assert process.stdin is not None
            assert process.stdout is not None
            print(json.dumps([str(where), codes]), file=process.stdin, flush=True)
            done = json.loads(process.stdout.readline())
            assert "error" not in done, done["error"][-4000:]
            return list(done["printed"])

        yield answer


@pytest.fixture(scope="module")
def done_before():
    """The commands that ran, each with its extras: two pages may show the same."""
    return set()


@pytest.fixture
def clone(tmp_path):
    """A folder with what a reader has who follows the pages in a clone."""
    for folder in ("kernels", "lessons/flash"):
        shutil.copytree(DOCS / folder, tmp_path / "docs" / folder)
    shutil.copy(REPOSITORY / "LICENSE", tmp_path)
    return tmp_path


def kind_of(line: str) -> str:
    """What lines are alike in: test_ladder.py judges each rung, and test_cli.py asks for JSON."""
    return re.sub(r"rung\d_\w+|( --quick)? --json$", "", line)


def command_of(line: str, where: Path) -> list[str]:
    """The code of one command of a page; none where the test itself does what it does."""
    if line == SORTER:
        # The page fetches it; the test takes the copy in the test data.
        sorter = data_path("models", "minigpt-nano-sort")
        (where / "minigpt-nano-sort").symlink_to(sorter, target_is_directory=True)
        return []
    command, *arguments = shlex.split(line, comments=True)
    assert command == "minibert", f"{line}: no test knows how to run this"
    shorter = () if "--layers" in arguments else SHORTER.get(arguments[0], ())
    return [COMMAND.format([command, *arguments, *shorter])]


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(REPOSITORY)))
def test_a_page_runs_with_what_it_says_to_install(page, clone, answers, done_before):
    blocks = blocks_of(page)
    for block in blocks:
        for line in lines_of(block):
            extras = fewest_extras(line, block.extras)
            assert all((clone / name).exists() for name in re.findall(r"docs/\S+?\.py", line)), line
            if (asked := (kind_of(line), extras)) not in done_before:
                answers(extras, clone, command_of(line, clone))
                done_before.add(asked)
    code = [b for b in blocks if b.language == "python" and not b.elsewhere]
    assert not any(block.extras for block in code)
    if code:
        printed = answers((), clone, [block.code for block in code])
        for block, found in zip(code, printed, strict=True):
            assert found == block.printed, f"{page.name}:\n{block.code}"


def test_the_pages_have_blocks_and_every_extra_that_they_list_exists():
    assert all(map(blocks_of, DOCS.glob("lessons/**/*.md")))
    readme = blocks_of(REPOSITORY / "README.md")
    assert {"python", "sh"} == {block.language for block in readme}
    table = re.findall(r"^\| `(\w+)` \|", section("install.md", "## Extras"), re.MULTILINE)
    assert set(table) == set(PROJECT["optional-dependencies"]) - {"bench", "dev", "docs"}


def section(page: str, title: str) -> str:
    """A section of a page in docs/."""
    text = (DOCS / page).read_text(encoding="utf-8")
    return text.split(f"{title}\n")[1].split("\n## ")[0]


def test_every_file_of_the_tree_exists():
    named = []
    folder = inside = ""
    for line in section("architecture.md", "## The tree").split("```")[1].splitlines()[1:]:
        # Folders at the top, folders in them, and lines that go on.
        name = line.split()[0]
        if line[0] != " ":
            folder = inside = name
        elif line[2] != " ":
            inside = folder + name if name.endswith("/") else folder
        named.append(inside)
        named += [inside + file for file in re.findall(r"\b[a-z_]+\.py\b", line)]
    assert [name for name in named if not (REPOSITORY / name).exists()] == []


def test_the_screenshots_are_those_that_are_shown_and_small():
    shown = re.findall(r"pictures/[\w-]+\.png", (DOCS / "pictures.md").read_text(encoding="utf-8"))
    made = list((DOCS / "pictures").iterdir())
    assert sorted(shown) == sorted(f"pictures/{path.name}" for path in made)
    assert sum(path.stat().st_size for path in made) < 2.5e6
