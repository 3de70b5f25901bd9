"""FILE.py:function, loaded into this process and called as the check and the clock need it.

The first step of `minibert check` and `minibert bench`. The function is

    f(query, key, value, lengths, causal) -> {"z": ..., "lse": ..., "entropy": ...}

query, key and value are (batch, head, position, d_head); lengths is (batch), int64, or None where
every key is real; causal is a bool; the scale is 1/sqrt(d_head). z must be there, lse and the
statistics of `OUTPUTS` may be.
"""

import importlib.util
import inspect
import os
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from minibert.bench.guards import Guards, time_limit
from minibert.bench.printed import Printed
from minibert.errors import MinibertError, how_to_install
from minibert.kernels.registry import Implementation

__all__ = ["OUTPUTS", "UserFunction", "load_function", "use_interpreter"]

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
    name: str
    function: Callable[..., Any]
    options: tuple[str, ...]
    triton: bool
    guards: Guards
    seconds: float
    printed: Printed

    @property
    def label(self) -> str:
        """FILE.py:function, without the folders."""
        return f"{self.path.name}:{self.name}"

    def __call__(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        lengths: Tensor | None = None,
        causal: bool = False,
    ) -> Any:
        """What the function gives, unchecked."""
        given = {"lengths": lengths, "causal": causal}
        try:
            return self.function(query, key, value, **{name: given[name] for name in self.options})
        except (Exception, KeyboardInterrupt):
            raise
        except SystemExit as error:
            raise MinibertError(f"calls sys.exit(){self._line(error)}") from error
        # What else is no Exception would pass by everything that looks after errors.
        except BaseException as error:
            raise MinibertError(f"raises {self.place(error)}, which is no Exception") from error

    def checked(self, query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Any:
        """The dictionary the function gives, within its time. Raises MinibertError for another."""
        with time_limit(self.seconds, f"{self.label} has not returned"):
            result = self(query, key, value, **options)
            if query.is_cuda:
                torch.cuda.synchronize()
        check_outputs(result)
        return result

    def implementation(self, outputs: tuple[str, ...]) -> Implementation:
        """The function as `parity.check` takes it, held to give these outputs."""

        def call(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Any:
            return self.checked(query, key, value, **options)

        call.__wrapped__ = self.function  # type: ignore[attr-defined]
        return Implementation(
            name=self.label,
            fn=call,
            wants=frozenset(outputs) - {"z", "lse"},
            options=frozenset(self.options),
        )

    def place(self, error: BaseException) -> str:
        """The error in one line, with the line of the file where it arose."""
        text = " ".join(str(error).split())[:300]
        return f"{type(error).__name__}{': ' if text else ''}{text}{self._line(error)}"

    def _line(self, error: BaseException) -> str:
        lines = [
            frame.lineno
            for frame in traceback.extract_tb(error.__traceback__)
            if frame.filename == str(self.path)
        ]
        return f" (line {lines[-1]})" if lines else ""


def load_function(target: str, *, seconds: float) -> UserFunction:
    """The function that "FILE.py:function" names; each call may take `seconds`.

    The file is run, with its folder on sys.path. Raises MinibertError when there is
    no such file or function, when the file fails, or when it replaces what the clock is made of.
    """
    path, name = _parts(target)
    guards = Guards.now()
    known = set(sys.modules)
    printed = Printed(path.name)
    module = _executed(path, seconds, printed)
    function = _function(module, path, name)
    guards.check(path.name)
    new = [vars(sys.modules[one]) for one in set(sys.modules) - known if one in sys.modules]
    triton = any(map(_uses_triton, (vars(module), *new)))
    options = _options(function, path, name)
    return UserFunction(path, name, function, options, triton, guards, seconds, printed)


def use_interpreter(device: str) -> None:
    """Let Triton interpret kernels on a CPU; must come before Triton is imported."""
    if device == "cpu" and importlib.util.find_spec("triton") is not None:
        os.environ.setdefault("TRITON_INTERPRET", "1")


def check_outputs(result: Any) -> None:
    """Raises MinibertError unless it is a dictionary of plain tensors under known names."""
    if not isinstance(result, Mapping):
        raise MinibertError(
            f'gave a {type(result).__name__}; expected a dictionary: return {{"z": z}}'
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


def _parts(target: str) -> tuple[Path, str]:
    file, colon, name = target.rpartition(":")
    if not colon or not file or not name.isidentifier():
        raise MinibertError(f'"{target}" names no function; expected FILE.py:function.')
    path = Path(file)
    if not path.is_file():
        raise MinibertError(f"There is no file {file}.")
    return path.resolve(), name


def _executed(path: Path, seconds: float, printed: Printed) -> Any:
    name = f"minibert_user_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise MinibertError(f"{path.name} is no Python file; expected FILE.py:function.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))
    try:
        with printed.captured(), time_limit(seconds, f"{path.name} has not been read"):
            spec.loader.exec_module(module)
    except SyntaxError as error:
        raise MinibertError(f"{path.name}, line {error.lineno}: {error.msg}.") from error
    except (Exception, SystemExit) as error:
        text = " ".join(str(error).split())[:300]
        frames = traceback.extract_tb(error.__traceback__)
        lines = [frame.lineno for frame in frames if frame.filename == str(path)]
        where = f", line {lines[-1]}" if lines else ""
        advice = f" Install it: {how_to_install('triton')}." if "'triton'" in text else ""
        raise MinibertError(
            f"{path.name}{where}: {type(error).__name__}: {text}.{advice}"
        ) from error
    return module


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
