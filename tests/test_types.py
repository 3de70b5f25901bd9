"""Type checkers know minibert as it is installed, without jaxtyping: what is wrong, and only that.

mypy always; pyright where node is and npm has installed viz/package.json.
"""

import re
import shutil
import subprocess
import sys
from inspect import signature
from pathlib import Path
from typing import get_args

import pytest

from minibert.doors import ViewOptions
from minibert.layers.layer import layer_quantities
from minibert.trace.layer_view import LayerNames
from minibert.viz import view
from tests.packages import run

ABSENT = "import importlib.util as u; assert u.find_spec('jaxtyping') is None"
USES = Path(__file__).parent / "type_uses"
PYRIGHT = Path(__file__).parents[1] / "viz" / "node_modules" / "pyright" / "index.js"
CHECKERS = {
    "mypy": (sys.executable, "-m", "mypy", "--strict", "--python-executable"),
    "pyright": ("node", PYRIGHT, "--pythonpath"),
}
# mypy: "uses.py:3: error: ..."; pyright: "  /folder/uses.py:3:1 - error: ..."
ERROR = re.compile(r"^\s*(?:\S*/)?(\w+\.py):(\d+)(?::\d+)?:? (?:- )?error:", re.MULTILINE)


@pytest.mark.slow
@pytest.mark.parametrize("checker", CHECKERS)
def test_a_type_checker_finds_what_is_wrong_and_nothing_else(python_beside, tmp_path, checker):
    python = python_beside(())
    run([python, "-c", ABSENT], where=tmp_path)
    if checker == "pyright" and not PYRIGHT.is_file():
        pytest.skip(f"no {PYRIGHT}; `npm ci` in viz/ installs it")
    names = sorted(path.name for path in USES.glob("*.py"))
    for name in names:
        shutil.copy(USES / name, tmp_path)
    command = [*CHECKERS[checker], python, *names]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    found = {(name, int(line)) for name, line in ERROR.findall(done.stdout)}
    wrong = {
        (name, number)
        for name in names
        for number, line in enumerate((USES / name).read_text(encoding="utf-8").splitlines(), 1)
        if line.endswith("# wrong")
    }
    assert found == wrong, done.stdout + done.stderr


def test_the_names_that_type_checkers_complete_are_those_of_the_table():
    assert get_args(LayerNames) == tuple(layer_quantities())
    assert set(ViewOptions.__annotations__) == set(signature(view).parameters) - {"traces"}
