"""TransformerLens' own notebooks, on our model and on its own, cell by cell.

They are read from a checkout of its repository, which TRANSFORMER_LENS_REPOSITORY names, in an
environment that has TransformerLens, plotly and circuitsvis (CONTRIBUTING.md says how to make one).
A cell passes where it runs and prints the same numbers as in TransformerLens.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.data import data_path
from tests.hooked.demo_runner import make_models

NOTEBOOKS = ("Main_Demo", "Exploratory_Analysis_Demo")
# Cells that need what minibert does not have: lists of checkpoints of models of other families.
NEEDS_OTHERS = ("loading_from_pretrained",)
# Cells that list names, of which TransformerBridge has more than its HookedTransformer had.
LIST_NAMES = ("tl_named_parameters(", "not_in_late_block_filter")
REPOSITORY = os.environ.get("TRANSFORMER_LENS_REPOSITORY")
_NUMBER = re.compile(r"-?\d+\.\d+(?:e-?\d+)?")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The random models that the notebooks load."""
    tokenizer = data_path("models", "gpt2-tokenizer")
    made = tmp_path_factory.mktemp("demos")
    make_models(made, tokenizer)
    return made


def cells(notebook: Path, folder: Path, *options: str) -> list[dict[str, Any]]:
    """What became of each cell, in a process of its own."""
    command = [sys.executable, "-m", "tests.hooked.demo_runner", str(notebook), str(folder)]
    # As its own continuous integration runs them: without the cells of a thousand passes.
    environment = os.environ | {"GITHUB_ACTIONS": "true", "HF_HUB_OFFLINE": "1"}
    root = Path(__file__).resolve().parents[2]
    environment["PYTHONPATH"] = str(root)
    done = subprocess.run(
        [*command, *options], capture_output=True, text=True, env=environment, cwd=root
    )
    assert not done.returncode, done.stderr[-2000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


def _told(line: str) -> str:
    """A line without what says which program it is: names of classes, places in memory."""
    return re.sub("0x[0-9a-f]+|<class .*>|Loaded pretrained model .*", "", line).strip()


def same(ours: str, theirs: str, words: bool) -> bool:
    """The same lines with the same numbers, which are printed with few digits.

    Without `words` the numbers alone. In any order, and each once: TransformerLens calls the norm
    in front of attention three times.
    """
    ours, theirs = (
        "\n".join(sorted(set(filter(None, map(_told, text.splitlines())))))
        for text in (ours, theirs)
    )
    if words and _NUMBER.sub("#", ours) != _NUMBER.sub("#", theirs):
        return False
    numbers = zip(_NUMBER.findall(ours), _NUMBER.findall(theirs), strict=True)
    return all(abs(float(a) - float(b)) <= 2e-3 * max(1, abs(float(b))) for a, b in numbers)


@pytest.mark.slow
@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_runs_with_its_imports_changed(name: str, folder: Path) -> None:
    if REPOSITORY is None:
        pytest.skip("TRANSFORMER_LENS_REPOSITORY is not set")
    for package in ("transformer_lens", "plotly", "circuitsvis"):
        pytest.importorskip(package)
    notebook = Path(REPOSITORY).resolve() / "demos" / f"{name}.ipynb"
    sources = json.loads(notebook.read_text())["cells"]
    ours, theirs = cells(notebook, folder), cells(notebook, folder, "--theirs")
    changed = [line for cell in ours for line in cell["changed"]]
    bridged = any("TransformerBridge" in line for line in changed)
    print(f"{name}: {len(ours)} cells, {len(changed)} lines changed:", *changed, sep="\n  ")
    wrong = []
    for mine, other in zip(ours, theirs, strict=True):
        source = "".join(sources[mine["cell"]]["source"])
        if any(word in source for word in NEEDS_OTHERS):
            print(f"  cell {mine['cell']} needs other models: {mine['error']}")
        elif mine["error"] and mine["error"] == other["error"]:
            print(f"  cell {mine['cell']} fails in both: {mine['error']}")
        elif mine["error"]:
            wrong.append((mine["cell"], mine["error"]))
        elif other["error"]:
            print(f"  cell {mine['cell']} fails in TransformerLens: {other['error']}")
        elif bridged and any(words in source for words in LIST_NAMES):
            print(f"  cell {mine['cell']} lists names, and a bridge has more")
        # What test_prompt prints is in words of our own.
        elif not same(mine["printed"], other["printed"], "test_prompt(" not in source):
            wrong.append((mine["cell"], mine["printed"][:500], other["printed"][:500]))
    assert not wrong
