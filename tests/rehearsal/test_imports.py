"""What `make gpu` imports: it runs under Python 3.10, and the digest of a row has all of it."""

import ast
import json
import subprocess
import sys
from functools import cache

from benchmarks.gpu import rows
from benchmarks.session import REPOSITORY

# All that a run may import, the parts that wait inside functions included.
PROGRAM = """
import json, sys, pathlib
root = pathlib.Path.cwd()
import benchmarks.gpu.__main__, benchmarks.gpu.measure
import minibert.kernels.registry
try:
    import triton, minibert.kernels.fused.attention, minibert.kernels.fused.backward
except ImportError:
    pass
files = {getattr(one, "__file__", None) for one in list(sys.modules.values())}
paths = [pathlib.Path(one).resolve() for one in files if one]
ours = [str(one.relative_to(root)) for one in paths if one.is_relative_to(root)]
print(json.dumps([one for one in ours if ".venv" not in one and (root / one).exists()]))
"""


@cache
def imported() -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, cwd=REPOSITORY, check=True
    )
    found: list[str] = json.loads(done.stdout.splitlines()[-1])
    return sorted(found)


def test_every_imported_file_is_part_of_the_digest_of_a_row() -> None:
    """The fault: `kernels/fused` was not, so that rows of the old kernels counted as the new's."""
    hashed = {path for pattern in rows.SOURCES for path in REPOSITORY.glob(pattern)}
    # `minibert/__init__.py` imports names and computes nothing.
    packages = ("minibert/__init__.py", "benchmarks/__init__.py")
    missing = [one for one in imported() if REPOSITORY / one not in hashed and one not in packages]
    assert len(imported()) > 40
    assert missing == []


#: New in Python 3.11 or later, by the module or the builtin it is found in.
NEW = {
    "datetime": {"UTC"},
    "typing": {
        *("Self", "Never", "LiteralString", "assert_never", "assert_type", "reveal_type"),
        *("Required", "NotRequired", "Unpack", "TypeVarTuple", "dataclass_transform", "override"),
        *("TypeAliasType", "get_overloads", "clear_overloads"),
    },
    "enum": {"StrEnum", "ReprEnum", "verify", "global_enum", "member", "nonmember"},
    "contextlib": {"chdir"},
    "hashlib": {"file_digest"},
    "math": {"cbrt", "exp2", "sumprod"},
    "itertools": {"batched"},
    "operator": {"call"},
    "asyncio": {"TaskGroup", "timeout", "Runner"},
    "inspect": {"getmembers_static"},
    "sys": {"exception"},
}
MODULES, BUILTINS = {"tomllib", "wsgiref.types"}, {"ExceptionGroup", "BaseExceptionGroup"}
METHODS = {"add_note", "is_junction", "with_segments"}


def newer_than(source: str) -> list[str]:
    """What of it Python 3.10 does not know. Raises SyntaxError for syntax."""
    tree = ast.parse(source, feature_version=(3, 10))
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            found += [one.name for one in node.names if one.name in NEW.get(node.module or "", ())]
            found += [node.module] if node.module in MODULES else []
        elif isinstance(node, ast.Import):
            found += [one.name for one in node.names if one.name in MODULES]
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            found += [node.attr] if node.attr in NEW.get(node.value.id, set()) | METHODS else []
        elif isinstance(node, ast.Name) and node.id in BUILTINS:
            found.append(node.id)
        elif isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Tuple):
            bare = not (ast.get_source_segment(source, node.slice) or "").startswith("(")
            starred = any(isinstance(one, ast.Starred) for one in node.slice.elts)
            found += ["[*...]"] if bare and starred else []
    return found


def test_everything_that_is_imported_runs_under_python_3_10() -> None:
    """The fault: datetime.UTC is of Python 3.11, and many a GPU image has 3.10."""
    found = {one: newer_than((REPOSITORY / one).read_text("utf-8")) for one in imported()}
    assert {path: names for path, names in found.items() if names} == {}
