"""The house keeps its order: imports point one way, functions fit a screen, imports stay light.

Everything here reads source text, so that it also holds for code no test runs.
"""

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import NamedTuple

import pytest

REPOSITORY = Path(__file__).resolve().parents[1]

# Lowest first. A module may import from rows above its own, never from rows below; inside a row
# any direction is allowed as long as no circle arises. A name also places everything beneath it.
# "minibert" is the package itself, which imports everything lazily.
ROWS = """
    doors errors languages vector_math quantities terminal untrusted writing
    result
    kernels
    layers
    text
    checkpoint
    trace
    attached transformers_attention transformers_callback vllm_attention vllm_plugin features
    model answers
    loading
    analysis training transformer_lens
    survey
    bench course viz
    minibert
    verification
    cli __main__
"""
ORDER = [
    [name if name == "minibert" else f"minibert.{name}" for name in line.split()]
    for line in ROWS.strip().splitlines()
]

# minibert.kernels is attention and nothing else: it knows names and errors, not models.
KERNELS_MAY_IMPORT = ("minibert.errors", "minibert.quantities", "minibert.kernels")
_NAMES = "reference|eager|chunked|torch_kernels|fused.attention"
IMPLEMENTATIONS = re.compile(rf"minibert\.kernels\.({_NAMES})$")

# Third-party packages that one part of minibert may import, beside the runtime dependencies.
OPTIONAL = {
    "IPython": "minibert.viz",
    "jaxtyping": "minibert.quantities",
    "matplotlib": ("minibert.doors", "minibert.viz"),
    "pyarrow": ("minibert.attached.measured_files", "minibert.survey"),
    "transformers": tuple(
        f"minibert.{name}"
        for name in ("transformers_attention", "transformers_callback", "verification")
    ),
    "triton": "minibert.kernels",
    "vllm": ("minibert.vllm_attention", "minibert.vllm_plugin"),
    # The package is called pyyaml, and is a runtime dependency.
    "yaml": "minibert.untrusted",
    **dict.fromkeys(("starlette", "uvicorn"), "minibert.viz.serve"),
}
COMMAND_LINE_ONLY = {"typer", "click", "rich"}
MAX_FUNCTION_LINES = 60


class Import(NamedTuple):
    """One import of `target` by `source`, and whether it waits inside a function."""

    source: str
    target: str
    line: int
    deferred: bool


def modules() -> dict[str, Path]:
    """Every module of minibert by the name it is imported by."""
    folders = {"minibert": "minibert", "kernels": "minibert.kernels", "viz": "minibert.viz"}
    found = {}
    for folder, package in folders.items():
        # A glob does not follow the links, so each file is met once.
        for path in sorted((REPOSITORY / folder).rglob("*.py")):
            relative = path.relative_to(REPOSITORY / folder)
            if relative.parts[0] in ("kernels", "viz", "node_modules"):
                continue
            parts = relative.with_suffix("").parts
            parts = parts[:-1] if parts[-1] == "__init__" else parts
            found[".".join((package, *parts))] = path
    return found


def sources() -> list[Path]:
    """Every source file that people read: Python everywhere, and the modules of the page."""
    folders = ("minibert", "kernels", "viz", "benchmarks", "scripts", "tests")
    found = {p.resolve() for f in folders for p in (REPOSITORY / f).rglob("*.[pj][ys]")}
    return sorted(p for p in found if "node_modules" not in p.parts)


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def resolve(name: str, names: set[str]) -> str:
    """The module that an imported dotted name belongs to: itself or the nearest one above."""
    while name not in names and "." in name:
        name = name.rpartition(".")[0]
    return name


def named_targets(node: ast.AST, package: str) -> list[str]:
    """The dotted names a node imports, `import_module("...")` with a constant name included."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        base = node.module or ""
        if node.level:
            above = package.split(".")[: len(package.split(".")) - node.level + 1]
            base = ".".join([*above, *([base] if base else [])])
        return [f"{base}.{alias.name}" for alias in node.names]
    if isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
        function = node.func.attr if isinstance(node.func, ast.Attribute) else node.func
        function = function.id if isinstance(function, ast.Name) else function
        if function in ("import_module", "__import__"):
            return [str(node.args[0].value)]
    return []


def walk(node: ast.AST, deferred: bool = False) -> Iterator[tuple[ast.AST, bool]]:
    """Every node below, and whether a function stands around it."""
    for child in ast.iter_child_nodes(node):
        inside = deferred or isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        if isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING":
            inside = True
        yield child, inside
        yield from walk(child, inside)


@cache
def imports() -> tuple[Import, ...]:
    """Every import in minibert, wherever it stands; third-party ones by their top name."""
    names = set(modules()) | {"minibert", "minibert.kernels", "minibert.viz"}
    found = []
    for source, path in modules().items():
        package = source if path.name == "__init__.py" else source.rpartition(".")[0]
        for node, deferred in walk(parsed(path)):
            for target in named_targets(node, package):
                ours = target.split(".")[0] == "minibert"
                target = resolve(target, names) if ours else target.split(".")[0]
                found.append(Import(source, target, getattr(node, "lineno", 0), deferred))
    return tuple(found)


def ours() -> list[Import]:
    return [i for i in imports() if i.target.startswith("minibert") and i.source != i.target]


def foreign() -> list[Import]:
    known = sys.stdlib_module_names | {"minibert"}
    return [i for i in imports() if i.target.split(".")[0] not in known]


def beneath(module: str, package: str) -> bool:
    return module == package or module.startswith(f"{package}.")


def row(module: str) -> int:
    """The row of ROWS a module belongs to, -1 for none; `minibert` is a row, not a parent."""
    for number, members in enumerate(ORDER):
        for member in members:
            if module == member or (member != "minibert" and beneath(module, member)):
                return number
    return -1


def may_import(link: Import) -> bool:
    """True where a part imports an optional package that is its own."""
    homes = OPTIONAL[link.target]
    return any(
        beneath(link.source, home) for home in ((homes,) if isinstance(homes, str) else homes)
    )


def shown(links: list[Import], reason: str) -> str:
    return "\n".join(f"{i.source}:{i.line} imports {i.target}: {reason}" for i in links)


def test_every_module_has_a_place_in_the_order():
    homeless = [name for name in modules() if row(name) < 0]
    assert not homeless, (
        f"no place for {', '.join(homeless)}: add each to the row of ROWS in {__file__} whose "
        "rows above it are all it needs to import, and say so in the tree of docs/architecture.md"
    )


def test_imports_point_from_later_rows_to_earlier_ones():
    upward = [i for i in ours() if i.source != "minibert" and row(i.target) > row(i.source) >= 0]
    assert not upward, shown(upward, "it stands later in the order")


def test_no_circle_of_imports_exists_not_even_a_deferred_one():
    graph: dict[str, set[str]] = {}
    for link in ours():
        if link.source != "minibert":
            graph.setdefault(link.source, set()).add(link.target)
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" imports ".join(reversed(error.args[1])))


def test_kernels_know_only_names_and_errors():
    wrong = [
        i
        for i in ours()
        if beneath(i.source, "minibert.kernels")
        and not any(beneath(i.target, allowed) for allowed in KERNELS_MAY_IMPORT)
    ]
    assert not wrong, shown(wrong, f"kernels may import {', '.join(KERNELS_MAY_IMPORT)} alone")


def test_no_implementation_of_attention_imports_another():
    wrong = [
        i for i in ours() if IMPLEMENTATIONS.match(i.source) and IMPLEMENTATIONS.match(i.target)
    ]
    assert not wrong, shown(wrong, "each implementation stands alone")


def test_third_party_imports_are_declared_and_stand_where_they_may():
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    runtime = {re.split(r"[^\w-]", line)[0] for line in project["dependencies"]}
    wrong = [
        i
        for i in foreign()
        if i.target not in runtime - COMMAND_LINE_ONLY
        and not (i.target in COMMAND_LINE_ONLY and i.source.startswith("minibert.cli."))
        and not (i.target in OPTIONAL and may_import(i))
    ]
    assert not wrong, shown(wrong, "not a runtime dependency, or not of this part")


def test_annotations_are_evaluated_so_that_shapes_can_be_checked():
    wrong = [i for i in imports() if i.target == "__future__"]
    assert not wrong, shown(wrong, "jaxtyping needs annotations that are not strings")


def test_the_links_are_relative_and_no_folder_kernels_has_an_init_file():
    for name in ("kernels", "viz"):
        assert (REPOSITORY / "minibert" / name).readlink() == Path("..") / name
    # With one, `import transformers` with the folder above on sys.path would take it for Hugging
    # Face's package of the same name.
    assert not [
        one for one in (".", "tests") if (REPOSITORY / one / "kernels/__init__.py").exists()
    ]


def function_lines(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines from `def` to the end, the docstring left out."""
    lines = (node.end_lineno or node.lineno) - node.lineno + 1
    if ast.get_docstring(node) is None:
        return lines
    return lines - ((node.body[0].end_lineno or 0) - node.body[0].lineno + 1)


def test_functions_fit_a_screen():
    long = [
        f"{path.relative_to(REPOSITORY)}:{node.lineno} {node.name} {function_lines(node)}"
        for path in sources()
        if path.suffix == ".py"
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and function_lines(node) > MAX_FUNCTION_LINES
    ]
    assert not long, f"over {MAX_FUNCTION_LINES} lines: {long}"


def loaded_after(code: str) -> set[str]:
    """The top-level modules a fresh interpreter holds after running `code`."""
    report = "; print('\\n'.join(sys.modules))"
    command = [sys.executable, "-c", f"import sys\n{code}\nsys.stdout = sys.__stdout__{report}"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=REPOSITORY, check=False)
    assert done.returncode == 0, done.stderr
    return {line.split(".")[0] for line in done.stdout.splitlines()}


def test_importing_minibert_loads_nothing_heavy():
    heavy = {"torch", "numpy", "typer", "transformers", "tokenizers", "huggingface_hub"}
    assert not loaded_after("import minibert") & heavy
    # The compiler of torch, which comes with sympy, is not what a model runs on.
    graded = (
        "t = minibert.load('tiny-gpt2').trace(' river', grad=True); t.backward(t[1, 2].probs.sum())"
    )
    assert not loaded_after(f"import minibert; {graded}; t.grad[1, 2].z") & {"sympy", "triton"}
