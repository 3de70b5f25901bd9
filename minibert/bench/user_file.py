"""FILE.py:function, loaded and called. It runs in the worker, never beside the judge.

The function is of one of the conventions of `signatures`; what it gives is handed on as a
dictionary with z, and with lse and the statistics of `OUTPUTS` where it gave a dictionary.
"""

import importlib
import importlib.util
import inspect
import re
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TypeVar

import torch
from torch import Tensor

from minibert.bench.signatures import (
    SIGNATURES,
    SYNONYMS,
    Names,
    Signature,
    guessed,
    parameter_names,
)
from minibert.errors import MinibertError, how_to_install
from minibert.kernels.check.gradients import gradients_of
from minibert.kernels.check.problem import Problem
from minibert.kernels.interpreter import prepare_once_a_launch

_Given = TypeVar("_Given")
#: The end of the message where a function asks for a GPU.
NEEDS_GPU = "; it needs a GPU: without one, `minibert check FILE.py:function --compile` reads it"

#: What the dictionary may hold; offset_mass is at the offsets −1, 0 and 1.
OUTPUTS = (
    "z",
    "lse",
    "row_max",
    "max_prob",
    "entropy",
    "argmax",
    "received",
    "offset_mass",
    "scores",
    "probs",
)


@dataclass(frozen=True)
class UserFunction:
    """A function of a user's file, how it is called, and what can be told to it."""

    # None for a function of an installed module.
    path: Path | None
    function: Callable[..., object]
    signature: Signature
    names: Names
    triton: bool

    @property
    def options(self) -> tuple[str, ...]:
        """The options of a call that it can be told."""
        return self.signature.taken(self.names)

    def run(self, problem: Problem) -> None:
        """Call it, and leave what it gives unread. Raises MinibertError as `bound` does."""
        self._result(self.signature.bind(self.function, problem, self.names))

    def bound(self, problem: Problem) -> Callable[[], dict[str, Tensor]]:
        """A call with these inputs, and the gradients where the problem has one of z.

        What the convention makes of the inputs is made here, once. The call raises MinibertError,
        in one line, whatever the function does instead of giving tensors.
        """
        run = self.signature.bind(self.function, problem, self.names)

        def call() -> dict[str, Tensor]:
            found = self._outputs(self._result(run), problem)
            if problem.z_gradient is None:
                return found
            z = found["z"]
            return {"z": z.detach()} | self._result(lambda: gradients_of(z, problem))

        return call

    def _result(self, run: Callable[[], _Given]) -> _Given:
        try:
            return run()
        except SystemExit as error:
            raise MinibertError(f"calls sys.exit(){self._line(error)}") from error
        except MinibertError:
            raise
        except Exception as error:
            raise MinibertError(f"raised {self._told(error)}{_without_gpu(error)}") from error
        # What else is no Exception would pass by everything that looks after errors.
        except BaseException as error:
            raise MinibertError(f"raises {self._told(error)}, which is no Exception") from error

    def _outputs(self, result: object, problem: Problem) -> dict[str, Tensor]:
        if type(result) is not dict or self.signature.known_by:
            result = {"z": self.signature.z(result, problem)}
        return _checked(result, problem.query)

    def _told(self, error: BaseException) -> str:
        """The error in one line, with the line of the file where it arose."""
        text = " ".join(str(error).split())[:300]
        return f"{type(error).__name__}{': ' if text else ''}{text}{self._line(error)}"

    def _line(self, error: BaseException) -> str:
        lines = [] if self.path is None else _lines(error, self.path)
        return f" (line {lines[-1]} of {self.path.name})" if lines and self.path else ""


def _without_gpu(error: Exception) -> str:
    """What can be done where a function asks for a GPU and there is none; "" for other errors."""
    if torch.cuda.is_available() or not re.search(r"cuda|\bgpu\b", str(error), re.IGNORECASE):
        return ""
    return NEEDS_GPU


def target_parts(target: str) -> tuple[Path | str, str]:
    """The file and the function of "FILE.py:function", or the module of "package.module:function".

    Raises MinibertError for another text, and where there is no such file.
    """
    source, colon, name = target.rpartition(":")
    if not colon or not source or not name.isidentifier():
        raise MinibertError(f'"{target}" names no function; expected FILE.py:function.')
    path = Path(source)
    dotted = all(part.isidentifier() for part in source.split("."))
    if dotted and path.suffix != ".py" and not path.exists():
        return source, name
    if not path.is_file():
        raise MinibertError(f"There is no file {source}.")
    return path.resolve(), name


def load_function(source: Path | str, name: str, signature: str | None = None) -> UserFunction:
    """The function of this name; the convention is guessed where none is named.

    A file is run, with its folder on sys.path; a module, by its dotted name, is imported. Raises
    MinibertError when there is no such function or when the file fails.
    """
    known = set(sys.modules)
    path = source if isinstance(source, Path) else None
    module = _imported(str(source)) if path is None else _executed(path)
    told = str(source) if path is None else path.name
    function = _function(module, told, name)
    new = [vars(sys.modules[one]) for one in set(sys.modules) - known if one in sys.modules]
    triton = path is not None and any(map(_uses_triton, (vars(module), *new)))
    if triton:
        prepare_once_a_launch()
    chosen = _signature(function, told, name, signature)
    names = parameter_names(function)
    if names is not None and not chosen.known_by:
        _check_contract(function, told, name, chosen, names)
    return UserFunction(path, function, chosen, names, triton)


def _signature(
    function: Callable[..., object], told: str, name: str, signature: str | None
) -> Signature:
    try:
        named = signature or guessed(function)
    except MinibertError as error:
        raise MinibertError(f"{name} in {told}: {error}.") from error
    if named is None:
        raise MinibertError(
            f"{name} in {told}: expected {name}(query, key, value, lengths, causal), a Python "
            "function; the arguments of this one cannot be read. A Triton kernel needs a Python "
            "function that launches it; for others say how they are called: --signature NAME. "
            "See docs/kernels.md#other-peoples-functions"
        )
    return SIGNATURES[named]


def _check_contract(
    function: Callable[..., object], told: str, name: str, chosen: Signature, names: frozenset[str]
) -> None:
    signature = inspect.signature(function)
    usual = [one for one in signature.parameters if one in chosen.options or one in SYNONYMS]
    try:
        signature.bind(None, None, None, **dict.fromkeys(usual))
    except TypeError as error:
        raise MinibertError(
            f"{name} in {told}: expected {name}(query, key, value, lengths, causal); it is "
            f"{name}{signature}. See docs/kernels.md#the-function"
        ) from error


def _imported(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except BaseException as error:
        text = " ".join(str(error).split())[:300]
        raise MinibertError(f"{name}: {type(error).__name__}: {text}.") from error


def _checked(result: object, query: Tensor) -> dict[str, Tensor]:
    """The result. Raises MinibertError unless it is a dict of plain tensors under known names."""
    if type(result) is not dict:
        raise MinibertError(
            f'gave a {type(result).__name__}; expected a plain dictionary: return {{"z": z}}'
        )
    names = ", ".join(map(str, result)) or "an empty dictionary"
    if "z" not in result:
        raise MinibertError(f'gave {names}; expected at least z: return {{"z": z}}')
    if unknown := [str(name) for name in result if name not in OUTPUTS]:
        raise MinibertError(f"gave {', '.join(unknown)}; known are {', '.join(OUTPUTS)}")
    for name, one in result.items():
        # A subclass can put off its work until it is read, which is after the clock.
        if type(one) not in (Tensor, torch.nn.Parameter):
            raise MinibertError(f"gave {name} as a {type(one).__name__}; expected a plain tensor")
        if own := [attribute for attribute in vars(one) if hasattr(Tensor, attribute)]:
            raise MinibertError(f"gave {name} with its own {own[0]}; expected a plain tensor")
        if one.layout != torch.strided or one.device != query.device:
            raise MinibertError(
                f"gave {name} as a tensor of layout {one.layout} on {one.device}; expected a dense "
                f"one on {query.device}"
            )
    return result


def _executed(path: Path) -> ModuleType:
    name = f"minibert_user_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise MinibertError(f"{path.name} is no Python file; expected FILE.py:function.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))
    try:
        spec.loader.exec_module(module)
    except SyntaxError as error:
        raise MinibertError(f"{path.name}, line {error.lineno}: {error.msg}.") from error
    except BaseException as error:
        text = " ".join(str(error).split())[:300]
        lines = _lines(error, path)
        where = f", line {lines[-1]}" if lines else ""
        advice = f" Install it: {how_to_install('triton')}." if "'triton'" in text else ""
        raise MinibertError(
            f"{path.name}{where}: {type(error).__name__}: {text}.{advice}"
        ) from error
    return module


def _lines(error: BaseException, path: Path) -> list[int | None]:
    """The lines of this file that the error went through, the innermost last."""
    frames = traceback.extract_tb(error.__traceback__)
    return [frame.lineno for frame in frames if frame.filename == str(path)]


def _function(module: ModuleType, told: str, name: str) -> Callable[..., object]:
    function = getattr(module, name, None)
    if function is None:
        there = [
            one
            for one, value in vars(module).items()
            if inspect.isfunction(value) and value.__module__ == module.__name__
        ]
        found = f"it has {', '.join(there)}" if there else "it has none"
        raise MinibertError(f"{told} has no function {name}; {found}.")
    if not callable(function):
        raise MinibertError(f"{name} in {told} is a {type(function).__name__} and no function.")
    return function


def _uses_triton(names: dict[str, object]) -> bool:
    modules = (str(type(one).__module__) for one in list(names.values()))
    return any(one.startswith("triton.runtime") for one in modules)
