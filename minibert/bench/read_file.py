"""A user's file without a GPU: what it is, how it is called, and whether its kernels compile.

`read` runs nothing. `main` is a process of its own, because Triton reads at import whether it
interprets or compiles: it imports the file, calls the function on tensors without numbers, compiles
what is launched, and prints one line of JSON.
"""

import ast
import importlib.util
import inspect
import json
import os
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from minibert.bench.result_rows import Row
from minibert.bench.signatures import SIGNATURES, Signature, guessed_by
from minibert.errors import MinibertError, how_to_install
from minibert.kernels.check.problem import Problem
from minibert.terminal import Terminal


@dataclass(frozen=True)
class FileRead:
    """The parameters of the function, and the modules that the file imports."""

    parameters: tuple[str, ...]
    imports: tuple[str, ...]
    missing: tuple[str, ...]


def read(path: Path, name: str) -> FileRead:
    """What the text of a file says. Raises MinibertError for what is no Python or no function."""
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"), filename=path.name)
    except (SyntaxError, ValueError) as error:
        line = f", line {error.lineno}" if isinstance(error, SyntaxError) else ""
        raise MinibertError(f"{path.name}{line}: {error}.") from error
    functions = {one.name: one for one in tree.body if isinstance(one, ast.FunctionDef)}
    if name not in functions:
        there = ", ".join(functions) or "none"
        raise MinibertError(f"{path.name} has no function {name} in its text; it has {there}.")
    given = functions[name].args
    parameters = [one.arg for one in (*given.posonlyargs, *given.args, *given.kwonlyargs)]
    modules = sorted(_imported(tree, path))
    missing = [one for one in modules if not _found(one, path)]
    return FileRead(tuple(parameters), tuple(modules), tuple(missing))


def _imported(tree: ast.Module, path: Path) -> set[str]:
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {one.name.split(".")[0] for one in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module.split(".")[0])
    return found - sys.stdlib_module_names


def _found(module: str, path: Path) -> bool:
    beside = path.parent / module
    known = beside.with_suffix(".py").exists() or beside.is_dir()
    # Of a top-level name, which is looked for without importing anything.
    return known or importlib.util.find_spec(module) is not None


def compiled_kernels(
    path: Path, name: str, signature: str | None, *, d_head: int, seconds: float
) -> Row:
    """What `main` prints: {"kernels": [...], "stopped": text or ""}."""
    environment = {one: value for one, value in os.environ.items() if one != "TRITON_INTERPRET"}
    command = [sys.executable, "-m", __name__, str(path), name, signature or "", str(d_head)]
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=seconds, check=False
        )
        found: Row = json.loads(done.stdout.splitlines()[-1])
    except subprocess.TimeoutExpired:
        return {"kernels": [], "stopped": f"not done after {seconds:g} seconds (--timeout)"}
    except (IndexError, ValueError):
        last = (done.stderr.strip().splitlines() or ["nothing was printed"])[-1]
        return {"kernels": [], "stopped": f"the process ended: {last[:200]}"}
    return found


def read_lines(
    path: Path, name: str, signature: str | None, *, d_head: int, seconds: float, terminal: Terminal
) -> tuple[list[str], bool]:
    """One screen about a file that is not run, and whether all that was compiled compiles.

    Raises MinibertError for what is no Python or no function.
    """
    text = read(path, name)
    convention = SIGNATURES[signature or guessed_by(text.parameters)]
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    parameters = tuple(inspect.Parameter(one, kind) for one in text.parameters)
    told = ", ".join(convention.taken(parameters)) or "nothing"
    missing = f"; not installed here: {', '.join(text.missing)}" if text.missing else ""
    lines = [
        f"{path.name}:{name}  read and compiled, not judged",
        f"  called as {convention.name}: {convention.says}",
        f"  it can be told: {told}",
        f"  imports {', '.join(text.imports) or 'nothing'}{missing}",
    ]
    found = compiled_kernels(path, name, signature, d_head=d_head, seconds=seconds)
    rows = [_kernel_row(one) for one in found["kernels"]]
    if rows:
        header = ("Triton kernel", "registers", "spilled", "shared", "warps", "")
        lines += ["", *terminal.table(header, rows, "<>>>><")]
        lines.append(f"  for Hopper (sm_90a), float16, d_head {d_head}, as its own launches ask")
    else:
        lines += ["", "  no launch of a Triton kernel was seen"]
    if found["stopped"]:
        lines.append(f"  where it stopped: {found['stopped']}")
    lines += [
        "",
        "Not known without a GPU: whether the numbers are right, and how fast they come.",
        f"  numbers of Triton kernels, in its interpreter: minibert check {path.name}:{name}",
        f"  all of it, on a machine with a GPU: minibert bench {path.name}:{name}",
        "  CUDA C++ is not read: nvcc compiles it where it is installed.",
    ]
    return lines, bool(rows) and not any(one["error"] for one in found["kernels"])


def _kernel_row(one: Row) -> tuple[str, ...]:
    if one["error"]:
        return (one["name"], "", "", "", "", f"does not compile: {one['error']}")
    spilled, shared = f"{one['spilled_bytes']} B", f"{one['shared_bytes'] / 1024:.4g} KiB"
    too_much = "more than the 227 KiB there are" if one["shared_bytes"] > 227 * 1024 else ""
    return (one["name"], str(one["registers"]), spilled, shared, str(one["warps"]), too_much)


def main(arguments: list[str]) -> None:
    """Compile the kernels of FILE FUNCTION SIGNATURE D_HEAD and print what was found."""
    path, name, signature, d_head = arguments
    found: Row = {"kernels": [], "stopped": ""}
    try:
        found = _launched(Path(path), name, signature or None, int(d_head))
    except ImportError as error:
        install = how_to_install("triton") if "triton" in str(error) else ""
        found["stopped"] = f"{error}{f' ({install})' if install else ''}"
    except MinibertError as error:
        found["stopped"] = str(error)
    print(json.dumps(found))


def _launched(path: Path, name: str, signature: str | None, d_head: int) -> Row:
    from minibert.bench.user_file import NEEDS_GPU, load_function
    from minibert.kernels.check.without_gpu import (
        caught_launches,
        compiled,
        on_a_gpu,
        without_numbers,
    )

    user = load_function(path, name, signature)
    stopped = ""
    problems = list(_problems(user.signature, user.options, d_head))
    with caught_launches() as launches, without_numbers():
        for problem in problems:
            try:
                user.run(on_a_gpu(problem))
            except MinibertError as error:
                stopped = stopped or str(error).removesuffix(NEEDS_GPU)
    rows = [{"name": one.name, **asdict(compiled(one))} for one in launches]
    return {"kernels": rows, "stopped": stopped}


def _problems(signature: Signature, options: Iterable[str], d_head: int) -> Iterable[Problem]:
    import torch

    from minibert.bench.kernel_gate import asked_kinds
    from minibert.kernels.check.cases import Case

    for kind, work in list(asked_kinds(signature, set(options)).items())[:_MOST_CALLS]:
        queries = work.queries or 128
        yield Case(kind, queries, 128, 1.0, work).draw(
            dtype=torch.float16, device=torch.device("cpu"), d_head=d_head, wants=(), seed=0
        )


#: Calls whose launches are looked at: plain, strided, lengths, causal and so on.
_MOST_CALLS = 8

if __name__ == "__main__":
    main(sys.argv[1:])
