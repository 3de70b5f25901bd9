"""The public names are those of a committed list, so that none goes or comes unnoticed.

`python -m tests.test_public_names` writes the list. docs/stability.md says how a name may leave.
"""

import dataclasses
import inspect
import re
from importlib import import_module
from pathlib import Path

import torch

from minibert.cli.main import app

REPOSITORY = Path(__file__).resolve().parents[1]
LIST = REPOSITORY / "tests" / "public_names.txt"


def members(kind: type) -> list[str]:
    """The public attributes that a class has beyond those of Python's and torch's own classes."""
    inherited = {name for base in (object, Exception, torch.nn.Module) for name in dir(base)}
    fields = (
        {one.name for one in dataclasses.fields(kind)} if dataclasses.is_dataclass(kind) else ()
    )
    return [name for name in {*dir(kind), *fields} if name[0] != "_" and name not in inherited]


def called(value: object) -> str:
    """The names of a function's parameters in brackets; "" for what is not a function."""
    return (
        f"({', '.join(inspect.signature(value).parameters)})"
        if callable(value) and inspect.isroutine(value)
        else ""
    )


def public_names() -> list[str]:
    """Every name of the reference's modules, members of the package's classes, and commands.

    Functions have the names of their parameters.
    """
    listed = (REPOSITORY / "mkdocs.yml").read_text(encoding="utf-8").split("  reference:\n")[1]
    found = [f"$ minibert {command.callback.__name__}" for command in app.registered_commands]
    for module in re.findall(r"^    - (\S+)", listed, re.MULTILINE):
        for name in import_module(module).__all__:
            value = getattr(import_module(module), name)
            found.append(f"{module}.{name}{called(value)}")
            if module == "minibert" and inspect.isclass(value):
                for member in members(value):
                    of = called(getattr(value, member, None))
                    found.append(f"{module}.{name}.{member}{of}")
    return sorted(found)


def test_no_public_name_goes_or_comes_unnoticed():
    listed, found = set(LIST.read_text(encoding="utf-8").split("\n")[:-1]), set(public_names())
    assert listed - found == set(), "gone: docs/stability.md says how a name may leave"
    assert found - listed == set(), "new, so it will be kept: python -m tests.test_public_names"


if __name__ == "__main__":
    LIST.write_text("\n".join(public_names()) + "\n", encoding="utf-8")
