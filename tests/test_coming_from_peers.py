"""The table "How do I" of docs/transformer_lens.md: its cells run, and say the same."""

import ast
import importlib.util
import re
import textwrap
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

import minibert
from minibert.quantities import Float
from tests.trace.editing import close
from tests.transformer_lens_models import hooked

PAGE = Path(__file__).resolve().parents[1] / "docs" / "transformer_lens.md"
FOLDER = Path(minibert.__file__).parent / "embedded" / "tiny-gpt2"


@cache
def page() -> str:
    return PAGE.read_text(encoding="utf-8").split("## The names")[0]


@cache
def rows() -> dict[str, list[str | None]]:
    """The code of each row by library, in the order of the columns; None where there is none."""
    found: dict[str, list[str | None]] = {}
    for line in page().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("| ") and len(cells) == 4 and cells[0]:
            code = [re.fullmatch("`(.*)`", cell) for cell in cells[1:]]
            found[cells[0]] = [None if match is None else match[1] for match in code]
    return found


def value_of(code: str, names: dict[str, Any]) -> Any:
    """Run it; the value of what stands last, if that is an expression."""
    *before, last = ast.parse(code).body
    exec(compile(ast.Module(before, []), "cell", "exec"), names)
    if isinstance(last, ast.Expr):
        return eval(compile(ast.Expression(last.value), "cell", "eval"), names)
    return exec(compile(ast.Module([last], []), "cell", "exec"), names)


@cache
def ours() -> dict[str, Any]:
    """The names that the page's own code gives to its cells."""
    names: dict[str, Any] = {}
    for block in re.findall(r"```python\n(.*?)```", page(), re.DOTALL):
        exec(compile(block, PAGE.name, "exec"), names)
    return names


@cache
def in_minibert(row: str) -> Float[Tensor, "..."]:
    code = rows()[row][2]
    assert code is not None
    return value_of(code, ours()).detach()


@cache
def in_transformers() -> Any:
    model = transformers.GPT2LMHeadModel.from_pretrained(FOLDER, dtype=torch.float32)
    model.config._attn_implementation = "eager"
    return model.eval()


ROWS = list(rows())
WITH_NNSIGHT = [row for row, (_, code, _) in rows().items() if code]


def test_the_table_is_there():
    assert len(ROWS) >= 8
    assert len(WITH_NNSIGHT) >= 6


def test_every_cell_of_ours_runs_and_no_two_rows_say_the_same():
    for row in ROWS:
        found = in_minibert(row)
        assert found.isfinite().all()
        for other in ROWS[: ROWS.index(row)]:
            assert found.shape != in_minibert(other).shape or not close(found, in_minibert(other))


@pytest.mark.parametrize("row", ROWS)
def test_transformer_lens_says_the_same(row):
    model = hooked(in_transformers())
    from transformer_lens import patching

    metric = ours()["metric"]
    kept: list[Tensor] = []
    names = {name: ours()[name] for name in ("ids", "others", "torch")}
    names |= {"model": model, "patching": patching}
    names["metric"] = lambda logits: metric(logits, lengths=[logits.shape[1]])[0]
    # A backward hook of theirs that returns something replaces the gradient.
    names["save"] = lambda value, hook: kept.append(value)
    names["cache"] = model.run_with_cache(names["others"])[1]
    code = rows()[row][0]
    assert code is not None
    value = value_of(code, names)
    [value] = kept or [value]
    assert close(in_minibert(row), value.detach())


def as_traced(code: str) -> str:
    """A module with the cell in a trace: nnsight reads the source of the block from a file."""
    *before, last = code.split("; ")
    nested = re.fullmatch("(with .*:) (.*)", last)
    end = f"{nested[1]}\n    found = {nested[2]}" if nested else f"found = {last}"
    body = textwrap.indent("\n".join([*before, end]), 8 * " ")
    head = "def run(model, ids, stream):\n    with model.trace(ids):"
    return f"{head}\n{body}\n    return found\n"


@pytest.mark.parametrize("row", WITH_NNSIGHT)
def test_nnsight_says_the_same(row, tmp_path):
    nnsight = pytest.importorskip("nnsight")
    ids, others = ours()["ids"], ours()["others"]
    with torch.no_grad():
        stream = in_transformers()(others, output_hidden_states=True).hidden_states[2]
    code = rows()[row][1]
    assert code is not None
    path = tmp_path / "cell.py"
    path.write_text(as_traced(code), encoding="utf-8")
    spec = importlib.util.spec_from_file_location("cell", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found = module.run(nnsight.NNsight(in_transformers()), ids, stream)
    assert close(in_minibert(row), found.detach())
