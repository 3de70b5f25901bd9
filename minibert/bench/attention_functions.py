"""The functions of a folder that look like attention, by their parameters; nothing of it is run."""

import ast
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from stat import S_ISREG

from minibert.bench.signatures import KNOWN, fitting_to, named_vectors
from minibert.errors import MinibertError

_Function = ast.FunctionDef | ast.AsyncFunctionDef
_LEFT_OUT = {".git", ".venv", "venv", "build", "dist", "node_modules", "site-packages"}
# Larger ones are data, or made by a program.
_LARGEST = 1 << 20


@dataclass(frozen=True)
class FoundFunction:
    """A function, or a class of torch.autograd.Function, as `minibert check` takes it."""

    target: str
    signature: str
    """The convention that its parameters tell; where several fit, all of them."""
    parameters: tuple[str, ...]


def functions_in(folder: Path) -> list[FoundFunction]:
    """The functions that can be called with query, key and value, by file and line.

    Left out are functions whose names begin with "_", and those that require a parameter of which
    the conventions say nothing, as the gates of linear attention or the gradient of z.
    Raises MinibertError for a folder without one.
    """
    names = (one for one in folder.rglob("*.py") if not _LEFT_OUT & {*one.parts})
    files = sorted(one for one in names if _is_source(one))
    found = [one for path in files for one in _functions_of(path)]
    if not found:
        raise MinibertError(
            f"{folder} has no function that can be called with query, key and value, in "
            f"{len(files)} Python files."
        )
    return found


def _is_source(path: Path) -> bool:
    """Whether it is a plain file of usual size, with a name that a terminal shows as it is."""
    try:
        status = path.stat()
    except OSError:
        return False
    plain = S_ISREG(status.st_mode) and str(path).isprintable()
    return plain and status.st_size <= _LARGEST and path.name.isprintable()


def _functions_of(path: Path) -> Iterator[FoundFunction]:
    try:
        with warnings.catch_warnings():
            # Of somebody else's strings.
            warnings.simplefilter("ignore")
            tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        # MemoryError: Python's parser for expressions that are nested too deeply.
        return
    for one in tree.body:
        if not isinstance(one, ast.ClassDef | _Function):
            continue
        function = _forward_of(one) if isinstance(one, ast.ClassDef) else one
        if function is None or _is_kernel(function):
            continue
        names, required = _parameters(function)
        vectors = named_vectors(names)
        callable_ = {*required} - {*vectors} - KNOWN.keys() <= {"ctx"}
        if vectors and callable_ and not one.name.startswith("_"):
            yield FoundFunction(f"{path}:{one.name}", " or ".join(fitting_to(names)), tuple(names))


def _parameters(function: _Function) -> tuple[list[str], list[str]]:
    """The names of all parameters, and of those without a default."""
    asked = function.args
    first = [each.arg for each in (*asked.posonlyargs, *asked.args)]
    by_name = [each.arg for each in asked.kwonlyargs]
    without = first[: len(first) - len(asked.defaults)]
    pairs = zip(by_name, asked.kw_defaults, strict=True)
    return [*first, *by_name], [*without, *(name for name, value in pairs if value is None)]


def _forward_of(one: ast.ClassDef) -> _Function | None:
    """`forward` of an autograd function: its first parameter is the context."""
    methods = {each.name: each for each in one.body if isinstance(each, ast.FunctionDef)}
    forward = methods.get("forward")
    first = forward.args.args[:1] if forward else []
    return forward if [each.arg for each in first] == ["ctx"] else None


def _is_kernel(function: _Function) -> bool:
    """Whether it takes pointers, as what triton.jit decorates."""
    return any("jit" in ast.unparse(one) for one in function.decorator_list)
