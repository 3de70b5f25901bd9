"""FILE.py:function, loaded and called. It runs in the worker, never beside the judge.

The function is

    f(query, key, value, lengths, causal) -> {"z": ..., "lse": ..., "entropy": ...}

query, key and value are (batch, head, position, d_head); lengths is (batch), int64, or None where
every key is real; causal is a bool; the scale is 1/sqrt(d_head). z must be there, lse and the
statistics of `OUTPUTS` may be.
"""

import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from minibert.errors import MinibertError, how_to_install

__all__ = ["OUTPUTS", "UserFunction", "load_function", "target_parts"]

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
_OPTIONS = ("lengths", "causal")


@dataclass(frozen=True)
class UserFunction:
    """A function of a user's file, and what of the contract it takes."""

    path: Path
    function: Callable[..., Any]
    options: tuple[str, ...]
    triton: bool

    def __call__(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        lengths: Tensor | None = None,
        causal: bool = False,
    ) -> dict[str, Tensor]:
        """What the function gives. Raises MinibertError, in one line, whatever it does instead."""
        given = {"lengths": lengths, "causal": causal}
        try:
            result = self.function(
                query, key, value, **{name: given[name] for name in self.options}
            )
        except SystemExit as error:
            raise MinibertError(f"calls sys.exit(){self._line(error)}") from error
        except Exception as error:
            raise MinibertError(f"raised {self._told(error)}") from error
        # What else is no Exception would pass by everything that looks after errors.
        except BaseException as error:
            raise MinibertError(f"raises {self._told(error)}, which is no Exception") from error
        return _checked(result, query)

    def _told(self, error: BaseException) -> str:
        """The error in one line, with the line of the file where it arose."""
        text = " ".join(str(error).split())[:300]
        return f"{type(error).__name__}{': ' if text else ''}{text}{self._line(error)}"

    def _line(self, error: BaseException) -> str:
        lines = _lines(error, self.path)
        return f" (line {lines[-1]} of {self.path.name})" if lines else ""


def target_parts(target: str) -> tuple[Path, str]:
    """The file and the name of "FILE.py:function".

    Raises MinibertError for another text, and where there is no such file.
    """
    file, colon, name = target.rpartition(":")
    if not colon or not file or not name.isidentifier():
        raise MinibertError(f'"{target}" names no function; expected FILE.py:function.')
    path = Path(file)
    if not path.is_file():
        raise MinibertError(f"There is no file {file}.")
    return path.resolve(), name


def load_function(path: Path, name: str) -> UserFunction:
    """The function of this name. The file is run, with its folder on sys.path.

    Raises MinibertError when there is no such function or when the file fails.
    """
    known = set(sys.modules)
    module = _executed(path)
    function = _function(module, path, name)
    new = [vars(sys.modules[one]) for one in set(sys.modules) - known if one in sys.modules]
    triton = any(map(_uses_triton, (vars(module), *new)))
    return UserFunction(path, function, _options(function, path, name), triton)


def _checked(result: Any, query: Tensor) -> dict[str, Tensor]:
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


def _executed(path: Path) -> Any:
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


def _function(module: Any, path: Path, name: str) -> Callable[..., Any]:
    function = getattr(module, name, None)
    if function is None:
        there = [
            one
            for one, value in vars(module).items()
            if inspect.isfunction(value) and value.__module__ == module.__name__
        ]
        found = f"it has {', '.join(there)}" if there else "it has none"
        raise MinibertError(f"{path.name} has no function {name}; {found}.")
    if not callable(function):
        raise MinibertError(
            f"{name} in {path.name} is a {type(function).__name__} and no function."
        )
    return function


def _options(function: Callable[..., Any], path: Path, name: str) -> tuple[str, ...]:
    """Which of lengths and causal it takes."""
    contract = f"{name} in {path.name}: expected {name}(query, key, value, lengths, causal)"
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError) as error:
        raise MinibertError(
            f"{contract}, a Python function; the arguments of this one cannot be read. A Triton "
            "kernel needs a Python function that launches it."
        ) from error
    kinds = {one.kind for one in signature.parameters.values()}
    if inspect.Parameter.VAR_KEYWORD in kinds:
        return _OPTIONS
    options = tuple(option for option in _OPTIONS if option in signature.parameters)
    try:
        signature.bind(None, None, None, **dict.fromkeys(options))
    except TypeError as error:
        raise MinibertError(f"{contract}; it is {name}{signature}.") from error
    return options


def _uses_triton(names: dict[str, Any]) -> bool:
    return any(type(one).__module__.startswith("triton.runtime") for one in list(names.values()))
